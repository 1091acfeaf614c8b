"""Density by counting: of points and the tree in which HDBSCAN joins them, and the valleys of noisy
histograms.

The tree is that of Campello, Moulavi and Sander (2013). `Groups` adds its edges one after another,
up to each edge that joins two heavy groups. All distances are squared: what is compared here has
the same order, and no root has to be taken of n² numbers. The NumPy forms and the compiled ones
give the same bits from the same table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Bools, Floats, Ints, Ints32, Singles
from shoal.kernels.compiled import CompiledKernels
from shoal.kernels.constants import (
    PEAK_SIGNIFICANCE,
    SHALLOW,
    VALLEY_SIGNIFICANCE_MIN,
    VALLEY_WIDTHS,
)

BLOCK_ROWS = 64
"""rows of a table of distances that are worked on at a time: what is computed from them stays in a
core's cache"""
# Finite, as it is multiplied by truth values: infinity times 0 would be NaN.
FAR = np.float32(1e30)
"""a squared distance beyond all others"""
SAMPLE_POINTS = 128
"""points of a group whose neighbours are counted, to find the median"""
SHARE_OF_LEARNING: Final = 0.2
"""time to find a point's core distance, or its edge of the tree, relative to that in which CA+
learns a row"""
# One bit fewer than a single holds: rounding each mass may carry the sum beyond its power of two.
MASS_BITS: Final = 23
"""masses are counted in units of 2^-23 of what the sum of all is rounded up to, so that 32 bits
hold every sum"""


def core_distances(squared: Singles, masses: Floats, mass_within: float) -> Singles:
    """squared distances (k, k), masses (k,) -> (k,) squared core distance: within it lies a mass of
    `mass_within`.

    The mass of a point counts half at its own distance and grows linearly between two neighbours,
    so that how the readings were cut into points matters little. Where there is less mass in all,
    the distance to the farthest point.
    """
    (cores,) = Neighbours(squared).core_distances(masses, [mass_within])
    return np.asarray(cores)


class Neighbours:
    """The nearest points of each of k points. They are looked for once and counted as often as core
    distances are wanted, of whatever masses."""

    def __init__(self, squared: Singles) -> None:
        """Squared distances (k, k), which must not change."""
        self._squared = np.ascontiguousarray(squared)
        self._near: list[Ints] = []
        """(n, q) the positions of the nearest of each point of a block, in their order"""
        self._keys: tuple[Ints32, Ints] | None = None
        """the same in the form of the compiled kernel: (k, q), and how many there are of each
        point, (k,)"""

    def core_distances(self, masses: Floats, masses_within: Sequence[float]) -> Singles:
        """masses (k,), w of them -> (w, k) squared core distances: the same as those of one mass
        after another."""
        k = len(masses)
        wanted = np.array(masses_within, dtype=np.float64)
        # Masses may all be 0.
        expected = float(wanted.max()) * k / max(float(masses.sum()), 1e-300)
        # Compiled too, though it runs only once for about 500 readings: without it a model's step
        # for 500 readings takes a fifth longer at 2 features, and more at 8.
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * k)
        if compiled is not None and k > 1:
            return self._compiled(compiled, masses, wanted, min(k, 4 + int(expected)))
        if not self._near:
            # Too few are looked for once more, three times as many; too many are sorted in vain.
            q = min(k, 8 + int(2.5 * expected))
            self._near = [_nearest(self._squared[rows], q) for rows in blocks(k)]
        parts = zip(blocks(k), self._near, strict=True)
        return np.concatenate(
            [_cores(self._squared[rows], masses, masses_within, near) for rows, near in parts],
            axis=1,
        )

    def _compiled(
        self, compiled: CompiledKernels, masses: Floats, wanted: Floats, first: int
    ) -> Singles:
        k = len(masses)
        squared = self._squared
        if self._keys is None:
            # The kernel finds up to half as many again as it looks for.
            self._keys = (
                np.empty((k, first + first // 2), dtype=np.int32),
                np.zeros(k, dtype=np.int64),
            )
        cores = np.empty((k, len(wanted)), dtype=np.float32)
        compiled.core_distances(
            squared, squared.view(np.int32), masses, wanted, first, *self._keys, cores
        )
        return np.ascontiguousarray(cores.T)


def blocks(n: int) -> Iterator[slice]:
    """`BLOCK_ROWS` of n rows after another."""
    return (slice(first, min(first + BLOCK_ROWS, n)) for first in range(0, n, BLOCK_ROWS))


def _cores(squared: Singles, masses: Floats, wanted: Sequence[float], near: Ints) -> Singles:
    """(n, k), (k,), w masses, the nearest of each (n, q) -> (w, n) squared core distances. More are
    looked for where these do not hold the masses."""
    k = len(masses)
    cores = np.empty((len(wanted), len(squared)), dtype=np.float32)
    left = np.arange(len(squared))
    while len(left):
        rows = squared[left]
        q = near.shape[1]
        far = np.take_along_axis(rows, near, axis=1)
        mass = masses[near]
        enough = np.ones(len(left), dtype=np.bool_)
        for number, needed in enumerate(wanted):
            cores[number, left], is_reached = _reached(far, mass, needed)
            enough &= is_reached
        left = left[~enough & (q < k)]
        if len(left):
            near = _nearest(squared[left], min(k, 3 * q))
    return cores


def _nearest(squared: Singles, q: int) -> Ints:
    """squared distances (n, k), 0 < q <= k -> (n, q) the q nearest in their order.

    Distances that differ by less than 2**-13 of themselves (k up to 1024, less exact above) are
    taken in the order of their positions. The position replaces the last bits of the distance:
    sorting numbers is three times as fast as sorting positions by them, and no two are equal, so
    that the order is the same on every machine.
    """
    k = squared.shape[1]
    position = np.uint32((1 << (k - 1).bit_length()) - 1)
    # numbers that are not negative are in the order of their bits
    keys = squared.view(np.uint32) & ~position
    keys |= np.arange(k, dtype=np.uint32)
    if q < k:
        keys.partition(q - 1, axis=1)
    return np.asarray(np.sort(keys[:, :q], axis=1) & position, dtype=np.int64)


def _reached(near: Singles, masses: Floats, wanted: float) -> tuple[Floats, Bools]:
    """ascending squared distances (n, q) and masses (n, q) -> (n,) where `wanted` is reached, (n,)
    whether it is."""
    held = np.cumsum(masses, axis=1) - masses / 2
    if near.shape[1] > 1:
        at = np.clip((held < wanted).sum(axis=1), 1, near.shape[1] - 1)
    else:
        # A single neighbour: position -1 below is the same one, so nothing is interpolated.
        at = np.zeros(len(near), int)
    row = np.arange(len(near))
    low = held[row, at - 1]
    high = held[row, at]
    # Between two points of equal mass nothing is to be interpolated; the floor divides by no zero.
    share = np.clip((wanted - low) / np.maximum(high - low, 1e-300), 0.0, 1.0)
    # The mass grows linearly over the distance, and these are squares.
    inner = np.sqrt(near[row, at - 1])
    outer = np.sqrt(near[row, at])
    return (inner + share * (outer - inner)) ** 2, held[:, -1] >= wanted


def spanning_tree(squared: Singles, cores: Singles) -> tuple[Ints, Singles]:
    """squared distances (k, k), squared core distances (k,), k > 0 -> edges (k - 1, 2) and their
    lengths (k - 1,).

    A minimum spanning tree of mutual reachability, max(core, core, distance). No edge of a point is
    shorter than its core distance. So each point that has a denser one within it joins the nearest
    of these by a shortest edge, which a minimum spanning tree contains. The few trees that this
    makes, one for each local maximum of density, are joined by Prim's algorithm.
    """
    k = len(cores)
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * k)
    if compiled is not None:
        found = np.empty((k - 1, 2), dtype=np.int64)
        lengths = np.empty(k - 1, dtype=np.float32)
        # Stable: of points with equal core distances the first is the denser one, in both forms and
        # on every machine.
        order = np.argsort(cores, kind="stable")
        squared = np.ascontiguousarray(squared)
        compiled.spanning_tree(squared, squared.view(np.int32), cores, order, found, lengths)
        return found, lengths
    at, above, is_top = _nearest_denser(squared, cores)
    edges = np.stack([above, at], axis=1)[~is_top]
    root = np.where(is_top, at, above)
    while (root != root[root]).any():
        root = root[root]
    joins, lengths = _join_trees(squared, cores, root)
    return np.concatenate([edges, joins]), np.concatenate([cores[~is_top], lengths])


def _nearest_denser(squared: Singles, cores: Singles) -> tuple[Ints, Ints, Bools]:
    """-> (k,) positions, (k,) the nearest point that is denser, (k,) whether there is none within
    the core distance."""
    at = np.arange(len(cores))
    rank = np.empty(len(cores), dtype=np.int32)
    # Stable, as in the compiled form: of equal core distances the first point is the denser one.
    rank[np.argsort(cores, kind="stable")] = at
    above = np.concatenate(
        [
            (squared[rows] + FAR * (rank >= rank[rows, None])).argmin(axis=1)
            for rows in blocks(len(cores))
        ]
    )
    # The densest point has no denser one, and `argmin` gives it any.
    return at, above, (squared[at, above] > cores) | (rank == 0)


def _join_trees(squared: Singles, cores: Singles, root: Ints) -> tuple[Ints, Singles]:
    """(k,) the root of each point's tree -> edges (c - 1, 2) between the c trees, and their
    lengths, by Prim."""
    # Stable: the members of each tree stay in ascending order, so that ties fall the same way
    # everywhere.
    order = np.argsort(root, kind="stable")
    tops, starts = np.unique(root[order], return_index=True)
    members = dict(zip(tops.tolist(), np.split(order, starts[1:]), strict=True))
    best = np.full(len(root), np.inf, dtype=np.float32)
    parent = np.zeros(len(root), dtype=np.int64)
    is_in = np.zeros(len(root), dtype=np.bool_)
    edges = np.empty((len(tops) - 1, 2), dtype=np.int64)
    lengths = np.empty(len(tops) - 1, dtype=np.float32)
    # From the densest point: a start that is the same in every form of the kernel.
    here = int(root[cores.argmin()])
    for step in range(len(tops) - 1):
        own = members[here]
        reach = np.maximum(squared[own], cores[own, None])
        nearest = reach.argmin(axis=0)
        reached = np.maximum(reach[nearest, np.arange(len(root))], cores)
        is_in[own] = True
        better = (reached < best) & ~is_in
        best = np.where(better, reached, best)
        # What is in the tree is never the nearest again.
        best[own] = np.inf
        parent = np.where(better, own[nearest], parent)
        there = int(best.argmin())
        edges[step] = (parent[there], there)
        lengths[step] = best[there]
        here = int(root[there])
    return edges, lengths


def mass_around(squared: Singles, within: Singles, masses: Sequence[Floats]) -> Singles:
    """squared distances (n, k), limits (n,), w kinds of masses (k,) -> (w, n) the masses within the
    limit of each."""
    return _mass_within(squared, None, within, np.stack([exact_masses(mass) for mass in masses]))


def exact_masses(masses: Floats) -> Singles:
    """masses (k,), not negative -> the same, rounded to units so coarse that 32 bits hold the sum
    of all.

    So no sum of them is rounded, and none depends on the order in which it is taken: that of a
    matrix product is up to the processor.
    """
    exponent = int(np.frexp(masses.sum())[1]) - MASS_BITS
    return np.ldexp(np.rint(np.ldexp(masses, -exponent)), exponent).astype(np.float32)


def _mass_within(squared: Singles, rows: Ints | None, within: Singles, masses: Singles) -> Singles:
    """squared distances (n, k), m of its rows or all; limits (m,), exact masses (w, k) -> (w, m)
    masses within them."""
    held = np.empty((len(masses), len(within)), dtype=np.float32)
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        places = np.arange(len(squared)) if rows is None else np.ascontiguousarray(rows)
        compiled.mass_around(np.ascontiguousarray(squared), places, within, masses, held)
        return held
    for part in blocks(len(within)):
        here = squared[part] if rows is None else squared[rows[part]]
        is_near = (here <= within[part, None]).astype(np.float32)
        for kind, mass in enumerate(masses):
            held[kind, part] = is_near @ mass
    return held


def masses_at_shares(
    squared: Singles, own: Ints, masses: Singles, within: float, shares: Sequence[float] = (0.5,)
) -> list[float]:
    """The mass of the group `own` (m,) within the squared distance `within` of its median reading,
    or of others.

    Each of `shares` is the part of the group's readings around which there is less than around that
    reading. It is computed from at most `SAMPLE_POINTS` points of the group, evenly chosen;
    `masses` (k,) are `exact_masses`.
    """
    step = -(-len(own) // SAMPLE_POINTS)
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        found = np.empty(len(shares))
        compiled.masses_at_shares(squared, own, masses, within, step, np.array(shares), found)
        masses_found: list[float] = found.tolist()
        return masses_found
    sample = own[::step]
    # Whole rows, and a mass of 0 for points of other groups: faster than picking the columns of the
    # group.
    counted = np.zeros((1, len(masses)), dtype=np.float32)
    counted[0, own] = masses[own]
    held = _mass_within(squared, sample, np.full(len(sample), within, dtype=np.float32), counted)[0]
    # Stable: the order of equal masses decides which reading is the median one, and must not depend
    # on the processor.
    order = held.argsort(kind="stable")
    upto = masses[sample[order]].cumsum(dtype=np.float64)
    places = np.searchsorted(upto, upto[-1] * np.array(shares))
    return [float(mass) for mass in held[order[places]]]


def median_radius(
    squared: Singles,
    group: Ints,
    mass: Floats,
    cores: Singles,
    readings: float,
    half: float,
    is_light: bool,
) -> tuple[float, float]:
    """squared distances (k, k), a group (n,), n > 1, its masses (n,), core distances (k,) -> the
    squared radius of its median point, and the squared distance from there to the nearest other.

    `half` of the group's readings are in points of no larger radius than the median one. The radius
    of a point is its core distance, or, of a group that `is_light`, the distance within which
    `readings` readings of the group lie.
    """
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        return compiled.median_radius(squared, group, mass, cores, readings, half, is_light)
    radius = cores[group]
    if is_light:
        radius = _radii(squared[np.ix_(group, group)], mass, readings)
    # Stable: which of equal radii is the median must not depend on how NumPy sorts.
    order = radius.argsort(kind="stable")
    median = int(order[np.searchsorted(mass[order].cumsum(), half)])
    next_point = float(np.delete(squared[group[median], group], median).min())
    return float(radius[median]), next_point


def _radii(apart: Singles, mass: Floats, readings: float) -> Singles:
    """Squared distances (n, n) within a group, masses (n,) -> (n,) the squared distance from each
    point within which `readings` readings of the group lie."""
    n = len(mass)
    # Stable: the order of equal distances decides which point fills the count up.
    order = apart.argsort(axis=1, kind="stable")
    last = np.clip((mass[order].cumsum(axis=1) < readings).sum(axis=1), 1, n - 1)
    row = np.arange(n)
    return np.asarray(apart[row, order[row, last]])


def join_significance(
    typical: float, meeting: float, mass_within: float, dependence: float
) -> float:
    """Number of standard deviations by which a side of a join is denser than the place where the
    two sides meet.

    At the join's length the mass within is `typical` at the side's median reading, `meeting` where
    the sides meet, and `mass_within` at the emptier end of the join, by definition of the core
    distance. A count of n readings, where `dependence` readings count as one, has a standard
    deviation of sqrt(n * dependence).
    """
    return (typical - meeting) / math.sqrt(mass_within * dependence)


EDGE_SHARE_OF_LEARNING: Final = 0.05
"""time to add an edge, relative to that in which CA+ learns a row"""


class HeavyMerge(NamedTuple):
    """An edge whose two groups are both heavy. The first is that of the denser point."""

    edge: int
    roots: tuple[int, int]
    """the densest point of each group"""
    members: tuple[Ints, Ints]
    """the points of each group; those of the larger of two that were joined come first"""


class Groups(Protocol):
    """Groups of k points, at first one for each. The root of a group is its densest point: least in
    core distance."""

    def add(self, first: int, *, even_if_heavy: bool = False) -> HeavyMerge | None:
        """Add the edges from number `first` on, up to one of two heavy groups; None: all have been
        added.

        With `even_if_heavy`, the first of them is added whatever its groups weigh.
        """
        ...

    def roots(self) -> Ints:
        """(k,) the root of the group of each point."""
        ...


def groups_of(edges: Ints, masses: Floats, cores: Singles, heavy: Floats) -> Groups:
    """edges (e, 2) in their order, masses and core distances (k,), (e,) mass from which an edge's
    groups are heavy."""
    compiled = forms.PROCESS.compiled_for(EDGE_SHARE_OF_LEARNING * len(edges))
    if compiled is None:
        return _ListedGroups(edges, masses, cores, heavy)
    return _CompiledGroups(compiled, edges, masses, cores, heavy)


class _ListedGroups:
    """The groups in plain lists: thousands of single numbers are read and written one by one."""

    def __init__(self, edges: Ints, masses: Floats, cores: Singles, heavy: Floats) -> None:
        self._edges: list[list[int]] = edges.tolist()
        self._mass: list[float] = masses.tolist()
        self._core: list[float] = cores.tolist()
        self._heavy: list[float] = heavy.tolist()
        self._root = list(range(len(masses)))
        self._members = [[at] for at in self._root]

    def add(self, first: int, *, even_if_heavy: bool = False) -> HeavyMerge | None:
        root = self._root
        core = self._core
        mass = self._mass
        members = self._members
        forced_edge = first if even_if_heavy else -1
        for number in range(first, len(self._edges)):
            a, b = self._edges[number]
            # Path halving (Tarjan and van Leeuwen 1984). Targets are assigned from the left, so
            # `root[a]` is that of the point before.
            while root[a] != a:
                root[a] = a = root[root[a]]
            while root[b] != b:
                root[b] = b = root[root[b]]
            if core[a] > core[b]:
                a, b = b, a
            if number != forced_edge and min(mass[a], mass[b]) >= self._heavy[number]:
                return HeavyMerge(number, (a, b), (np.array(members[a]), np.array(members[b])))
            root[b] = a
            mass[a] += mass[b]
            # The shorter list is appended, so that a point is moved log2 k times at most; of equal
            # ones the second comes first, as in the compiled form.
            if len(members[a]) <= len(members[b]):
                members[a], members[b] = members[b], members[a]
            members[a] += members[b]
            members[b] = []
        return None

    def roots(self) -> Ints:
        return _followed(np.array(self._root, dtype=np.int64))


class _CompiledGroups:
    """The groups in arrays, for the compiled kernel."""

    def __init__(
        self, compiled: CompiledKernels, edges: Ints, masses: Floats, cores: Singles, heavy: Floats
    ) -> None:
        at = np.arange(len(masses))
        self._compiled = compiled
        self._edges = np.ascontiguousarray(edges)
        self._core = cores
        self._heavy = heavy.astype(np.float64)
        # `astype` copies: the kernel adds masses up in place.
        self._mass = masses.astype(np.float64)
        self._root = at.copy()
        self._lists = np.stack([np.ones_like(at), at, at])
        """(3, k) how many members each root has, the last member of each root, and the member after
        each member"""
        self._members = np.empty((2, len(masses)), dtype=np.int64)

    def add(self, first: int, *, even_if_heavy: bool = False) -> HeavyMerge | None:
        forced_edge = first if even_if_heavy else -1
        state = self._mass, self._core, self._root, self._lists
        number, a, b = self._compiled.join_groups(
            self._edges, first, forced_edge, self._heavy, state, self._members
        )
        if number == len(self._edges):
            return None
        sizes = self._lists[0]
        return HeavyMerge(
            number,
            (a, b),
            (self._members[0, : sizes[a]].copy(), self._members[1, : sizes[b]].copy()),
        )

    def roots(self) -> Ints:
        return _followed(self._root)


def _followed(above: Ints) -> Ints:
    """(k,) the point above each, or itself -> (k,) the root of each."""
    while (above != above[above]).any():
        above = above[above]
    return above


LOOK_SHARE_OF_LEARNING: Final = 0.5
"""time to look at a histogram, relative to that in which CA+ learns a row"""


class Valleys(NamedTuple):
    """The deepest valley of each of A histograms."""

    significance: Floats
    """(A,) standard deviations between the valley and the lower of the peaks beside it; -1 where
    there is none"""
    position: Floats
    """(A,) its middle, in bins from the left end of the histogram"""
    hint: Floats
    """(A,) the significance of the best valley that may still be shallow: what an axis that is
    sampled more may show"""


def find_valleys(counts: Floats, variances: Floats, depth: float) -> Valleys:
    """counts (A, n) with the variances (A, n) of their noise -> the deepest valley of each.

    A valley is at most `depth` times as high as the lower of the highest places to its left and
    right. The difference has the variance of both places: twice their noise, and that of counting
    readings itself.
    """
    a, n = counts.shape
    compiled = forms.PROCESS.compiled_for(LOOK_SHARE_OF_LEARNING * a)
    if compiled is not None:
        found = np.empty((a, 3))
        compiled.find_valleys(
            np.ascontiguousarray(counts), np.ascontiguousarray(variances), depth, found
        )
        return Valleys(*np.ascontiguousarray(found.T))
    best = np.full(a, -1.0)
    position = np.zeros(a)
    hint = np.full(a, -1.0)
    summed = _running(counts)
    noise = _running(variances)
    for width in VALLEY_WIDTHS:
        if 4 * width > n:
            break
        height = summed[:, width:] - summed[:, :-width]
        variance = noise[:, width:] - noise[:, :-width]
        top, top_variance = _lower_peak(height, variance, width)
        # A count varies like its root, besides the noise; the floor is for empty places without
        # noise.
        error = np.sqrt(variance + top_variance + np.maximum(height, 0.0) + top + 1e-9)
        is_peak = top > PEAK_SIGNIFICANCE * np.sqrt(top_variance)
        score = np.where(is_peak, (top - height) / error, -1.0)
        hint = np.maximum(hint, np.where(height <= SHALLOW * top, score, -1.0).max(axis=1))
        score[height > depth * top] = -1.0
        deepest = score.argmax(axis=1)
        value = score[np.arange(a), deepest]
        for axis in np.flatnonzero(value > np.maximum(best, VALLEY_SIGNIFICANCE_MIN)).tolist():
            best[axis] = value[axis]
            position[axis] = (
                _middle(height[axis], variance[axis], top[axis], int(deepest[axis])) + width / 2
            )
    return Valleys(best, position, hint)


def _running(values: Floats) -> Floats:
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)


def _lower_peak(height: Floats, variance: Floats, width: int) -> tuple[Floats, Floats]:
    """Heights (A, k) of moving sums of `width` bins and their variances (A, k) -> those of the
    lower of the peaks left and right of each, 0 without both."""
    left, left_variance = _peak_before(height, variance, width)
    right, right_variance = (
        found[:, ::-1] for found in _peak_before(height[:, ::-1], variance[:, ::-1], width)
    )
    return np.minimum(left, right), np.where(left < right, left_variance, right_variance)


def _peak_before(height: Floats, variance: Floats, width: int) -> tuple[Floats, Floats]:
    """The highest place at least `width` places before each, at least 0, and its variance."""
    highest = np.maximum.accumulate(height, axis=1)
    # The last place of equally high ones: the nearest to the valley.
    at = np.maximum.accumulate(np.where(height == highest, np.arange(height.shape[1]), 0), axis=1)
    peak = np.zeros_like(height)
    peak_variance = np.zeros_like(height)
    peak[:, width:] = np.maximum(highest[:, :-width], 0.0)
    peak_variance[:, width:] = np.take_along_axis(variance, at, axis=1)[:, :-width]
    return peak, peak_variance


def _middle(height: Floats, variance: Floats, top: Floats, at: int) -> float:
    """The middle of the places around `at` that are as low as it, as far as noise can tell."""
    limit = height[at] + math.sqrt(variance[at] + max(height[at], 0.0)) + 0.05 * top[at]
    low = height <= limit
    # `argmin` of truth values is the first place that is not low, on either side of `at`.
    first = 0
    if not low[: at + 1].all():
        first = at - int(np.argmin(low[at::-1])) + 1
    last = len(low) - 1
    if not low[at:].all():
        last = at + int(np.argmin(low[at:])) - 1
    return (first + last) / 2.0
