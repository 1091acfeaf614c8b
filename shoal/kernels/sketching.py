"""Weighted points reduced by merging near ones, all distances between points at once, and ties
spread before that.

The NumPy form and the compiled one give the same bits from the same table of distances.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Bools, Floats, Ints, Singles, Words
from shoal.kernels.constants import GOLDEN_RATIO
from shoal.kernels.lloyd import row_hashes, sums_by_label

VALUES_MIN: Final = 4
"""a column of fewer values is a category, and its values are apart on purpose"""
VALUES_SHARE_MAX: Final = 0.7
"""different values of a coarse column, as a share of its rows"""
TIED_SHARE_MIN: Final = 0.5
"""a column is coarse where at least this share of its rows have a value that others have, and its
different values are at most `VALUES_SHARE_MAX` of its rows"""
MARKS_PER_ROW: Final = 3
"""places for the marks of different values: few of them meet"""


def spread_ties(rows: Floats, before: Floats | None = None) -> Floats:
    """rows (n, d) -> (n, d), not to be written to: each coarse column spread evenly over its step,
    within its range.

    Which columns are coarse, and their steps, are found by the rows and those `before` (m, d): a
    few rows alone hardly have equal values. The step is the median difference of neighbouring
    values. What is added to a value is drawn from the bits of its row, of how many equal rows stand
    before it, and of all n rows. Without all of them, equal values of every block would be spread
    to the same places, where they add up to clusters.
    """
    known = rows
    if before is not None and len(before):
        known = np.concatenate([before, rows])
    n = len(known)
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        marks = np.empty(1 << (MARKS_PER_ROW * n).bit_length(), dtype=np.uint8)
        bits = np.ascontiguousarray(known).view(np.uint64)
        if compiled.all_exceed(bits, VALUES_SHARE_MAX * n, marks):
            return rows
    # The values of a column side by side: they are sorted and compared twice as fast.
    ordered = np.sort(np.ascontiguousarray(known.T), axis=1)
    fresh = np.ones(ordered.shape, dtype=np.bool_)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=fresh[:, 1:])
    alone = fresh.copy()
    alone[:, :-1] &= fresh[:, 1:]
    values = np.count_nonzero(fresh, axis=1)
    tied = n - np.count_nonzero(alone, axis=1)
    coarse = (
        (values >= VALUES_MIN) & (values <= VALUES_SHARE_MAX * n) & (tied >= TIED_SHARE_MIN * n)
    )
    if not coarse.any():
        return rows
    out = rows.copy()
    hashes = row_hashes(rows, 0)
    hashes = hashes + hashes.sum(keepdims=True) * np.uint64(GOLDEN_RATIO)
    for column in np.flatnonzero(coarse).tolist():
        different = ordered[column, fresh[column]]
        out[:, column] = _spread(rows[:, column], different, _uniform(hashes, column))
    return out


def _spread(values: Floats, different: Floats, uniform: Floats) -> Floats:
    """values (n,), the different ones in order, uniform (n,) in [0, 1) -> (n,) within the range of
    `values`."""
    low = float(different[0])
    high = float(different[-1])
    step = float(np.median(np.diff(different)))
    # Each value becomes an interval of one step, and the whole is drawn together by a step to stay
    # in the range.
    shrink = (high - low) / (high - low + step)
    return np.clip(low + (values - low + uniform * step) * shrink, low, high)


def _uniform(hashes: Words, column: int) -> Floats:
    """64 bits for each row -> (n,) in [0, 1), others for every column (Steele, Lea and Flood's
    finaliser, 2014)."""
    mixed = hashes + np.uint64((column + 1) * GOLDEN_RATIO % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return (
        np.asarray((mixed ^ (mixed >> np.uint64(27))) >> np.uint64(11)).astype(np.float64)
        * 2.0**-53
    )


NEIGHBOURS = 3
NEIGHBOURS_WIDE = 5
WIDE_FEATURES = 32
"""nearest points that each may be merged with before distances are taken again; more from this many
features on, where distances cost more than the search for the nearest"""
BLOCK_ROWS: Final = 128
"""points whose distances from all others are computed at a time"""
TIE: Final = 1e-12
"""squared distance, in the frame, that decides between points that coincide"""
TIED: Final = np.float32(2.0**-15)
"""squared distance from which on `TIE` is less than rounding to 32 bits takes away"""
TIED_SHARE_MAX: Final = 0.125
"""share of distances below it up to which each is looked for: of more, all are added to"""
SHARE_OF_LEARNING: Final = 0.1
"""time to merge a point, relative to that in which CA+ learns a row"""
_INFINITE: Final = int(np.float32(np.inf).view(np.int32)) << 32


class Frame(NamedTuple):
    """An affine frame in which points lie in [-1, 1], so that no square can overflow."""

    middle: Floats
    """(d,)"""
    scale: float

    def of(self, points: Floats) -> Floats:
        """points (n, d) -> the same in the frame; those it was not made for can lie outside."""
        return np.asarray((points - self.middle) / self.scale)


class Located(NamedTuple):
    """n points in the frame around their range."""

    frame: Frame
    points: Floats
    """(n, d) in the frame"""


def located(points: Floats) -> Located:
    """points (n, d) -> the same in their frame."""
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None and len(points):
        middle = np.empty(points.shape[1])
        placed = np.empty(points.shape)
        scale = compiled.locate(np.ascontiguousarray(points), middle, placed)
        return Located(Frame(middle, scale), placed)
    frame = frame_of(points)
    return Located(frame, frame.of(points))


def frame_of(points: Floats) -> Frame:
    """points (n, d) -> the frame around their range."""
    if not len(points):
        return Frame(np.zeros(points.shape[1]), 1.0)
    low = points.min(axis=0)
    high = points.max(axis=0)
    # Plus 0, so that of 0 and -0 it is 0, whichever of the two was found to be the lowest.
    return Frame(low / 2 + high / 2 + 0.0, float((high / 2 - low / 2).max()) or 1.0)


class Sketch(NamedTuple):
    """n weighted points, each the mean of the readings it stands for."""

    points: Floats
    """(n, d)"""
    mass: Floats
    """(n,) readings that each stands for, above 0"""

    def kept(self, which: Ints | Bools | slice) -> Sketch:
        """A copy of some of the points."""
        return Sketch(self.points[which].copy(), self.mass[which].copy())

    def with_more(self, other: Sketch) -> Sketch:
        """Append the points of another sketch to these."""
        return Sketch(
            np.concatenate([self.points, other.points]), np.concatenate([self.mass, other.mass])
        )


def empty_sketch(width: int) -> Sketch:
    """A sketch of no readings, of `width` features."""
    return Sketch(np.empty((0, width)), np.empty(0))


def squared_between(points: Floats, others: Floats) -> Singles:
    """points (n, d), (m, d) in one frame -> (n, m) squared distances.

    By a matrix product: absolute error about 1e-15 d, so that distances below 1e-7 of the range are
    not resolved.
    """
    left = _left(points, _lengths(points))
    right = _right(others, _lengths(others))
    out = np.empty((len(points), len(others)), dtype=np.float32)
    # By blocks, because a table of doubles of this size would neither fit a core's cache nor be
    # given memory cheaply.
    for first in range(0, len(points), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        out[rows] = left[rows] @ right.T
    _raise_to_zero(out)
    return out


def nearest_to(points: Floats, others: Floats) -> Ints:
    """points (n, d), (m, d) in one frame -> (n,) the nearest of the others; of those that nearly
    coincide any."""
    left = _left(points, _lengths(points))
    right = _right(others, _lengths(others))
    found = np.empty(len(points), dtype=np.int64)
    compiled = forms.PROCESS.compiled_for()
    for first in range(0, len(points), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        products = left[rows] @ right.T
        if compiled is not None:
            compiled.nearest_in(products, found[rows])
            continue
        squared = products.astype(np.float32)
        _raise_to_zero(squared)
        found[rows] = squared.argmin(axis=1)
    return found


def squared_among(points: Floats) -> Singles:
    """points (n, d) in a frame -> (n, n) squared distances, as `squared_between`; each is computed
    once for both.

    That of a point from itself is 0.
    """
    lengths = _lengths(points)
    left = _left(points, lengths)
    right = _right(points, lengths)
    out = np.empty((len(points), len(points)), dtype=np.float32)
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        # One piece of memory for the products of all blocks, which stays in the cache.
        room = np.empty(BLOCK_ROWS * len(points))
        for first in range(0, len(points), BLOCK_ROWS):
            block = left[first : first + BLOCK_ROWS]
            others = right[first:]
            products = room[: len(block) * len(others)].reshape(len(block), len(others))
            np.matmul(block, others.T, out=products)
            compiled.lay_out(products, first, out)
        return out
    for first in range(0, len(points), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        rest = slice(first + BLOCK_ROWS, None)
        out[rows, first:] = left[rows] @ right[first:].T
        out[rest, rows] = out[rows, rest].T
    np.fill_diagonal(out, 0.0)
    _raise_to_zero(out)
    return out


def _raise_to_zero(squared: Singles) -> None:
    """Make 0 of squared distances that rounding has made negative, -0 included: of points that
    nearly coincide."""
    bits = squared.view(np.int32)
    if bits.min(initial=0) < 0:
        np.copyto(bits, 0, where=bits < 0)


def _lengths(points: Floats) -> Floats:
    """points (n, d) -> (n,) squared."""
    return np.asarray(np.einsum("ij,ij->i", points, points))


def _left(points: Floats, lengths: Floats) -> Floats:
    """points (n, d), their squared lengths (n,) -> (n, d + 2); a row times one of `_right` is a
    squared distance."""
    n, d = points.shape
    left = np.empty((n, d + 2))
    np.multiply(points, -2.0, out=left[:, :d])
    left[:, d] = 1.0
    left[:, d + 1] = lengths
    return left


def _right(points: Floats, lengths: Floats) -> Floats:
    n, d = points.shape
    right = np.empty((n, d + 2))
    right[:, :d] = points
    right[:, d] = lengths
    right[:, d + 1] = 1.0
    return right


def merged(sketch: Sketch, into: Ints) -> Sketch:
    """(n,) position of the point that each becomes part of -> the sketch of those that are left, in
    the same order."""
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        points = np.empty_like(sketch.points, order="C")
        masses = np.empty_like(sketch.mass)
        left = compiled.merge_points(
            np.ascontiguousarray(sketch.points), sketch.mass, into, points, masses
        )
        return Sketch(points[:left].copy(), masses[:left].copy())
    stays = into == np.arange(len(into))
    place = np.cumsum(stays)[into] - 1
    n_left = int(np.count_nonzero(stays))
    mass: Floats = np.bincount(place, weights=sketch.mass, minlength=n_left).astype(
        np.float64, copy=False
    )
    return Sketch(
        sums_by_label(sketch.points * (sketch.mass / mass[place])[:, None], place, n_left), mass
    )


def merge_targets(sketch: Sketch, n_left: int, mass_max: float, groups: Ints | None = None) -> Ints:
    """-> (n,) position of the point that each becomes part of: the first of those merged.

    Pairs of near points are merged until `n_left` are left, those first that add least to the
    squared distances of readings from their points (Ward 1963): only points of the same group, and
    only up to a mass of `mass_max`. More may be left than wanted; calling again with the merged
    points goes on.
    """
    n = len(sketch.mass)
    mass = sketch.mass
    assert (mass > 0.0).all(), "points that stand for no readings have no mean to merge into"
    into = np.arange(n)
    # Those too heavy for even the lightest partner would only make the table of distances larger.
    light = np.flatnonzero(mass + mass.min(initial=0.0) <= mass_max)
    if len(light) < 2:
        return into
    own = mass[light]
    points = sketch.points[light]
    apart = squared_among(located(points).points)
    neighbours = NEIGHBOURS if points.shape[1] < WIDE_FEATURES else NEIGHBOURS_WIDE
    near_to = min(neighbours, len(light) - 1)
    own_groups = None if groups is None else groups[light]
    into[light] = light[_merged_with(apart, own, own_groups, near_to, n - n_left, mass_max)]
    return into


def _merged_with(
    apart: Singles, mass: Floats, groups: Ints | None, q: int, wanted: int, mass_max: float
) -> Ints:
    """distances² (n, n) that may be written to -> (n,) lowest position of those that each is merged
    with.

    Each may be merged with its `q` nearest; `wanted`: how many are to be merged into others.
    """
    n = len(mass)
    # Compiled too, though a server merges only once for some hundred readings: without both kernels
    # the step of a model takes a quarter longer, measured as that of core distances.
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * n)
    if compiled is not None:
        near, keys = np.empty((2, n, q), dtype=np.int64)
        # No groups are an empty array, as a kernel's argument has one type.
        if groups is None:
            groups = np.empty(0, dtype=np.int64)
        compiled.near_pairs(apart, groups, mass, _tie(n), near, keys)
        root = np.arange(n)
        compiled.unite(_in_order(keys), near, wanted, mass_max, mass.copy(), root)
        return root
    near, gap = _neighbours(apart, groups, q)
    gap *= mass[:, None] * mass[near] / (mass[:, None] + mass[near])
    pairs = _in_order((gap.view(np.int32).astype(np.int64) << 32) | np.arange(n * q).reshape(n, q))
    return np.array(
        _united(
            (pairs // q).tolist(), near.ravel()[pairs].tolist(), mass.tolist(), wanted, mass_max
        )
    )


def _in_order(keys: Ints) -> Ints:
    """keys (n, q): the bits of a 32-bit float, not negative, and a number -> (p,) the numbers of
    the finite floats, by float and number: whole numbers are sorted faster than their positions are
    by another table."""
    ordered = np.sort(keys, axis=None)
    return ordered[: np.searchsorted(ordered, _INFINITE)] & 0xFFFFFFFF


def _united(
    first: list[int], second: list[int], mass: list[float], wanted: int, mass_max: float
) -> list[int]:
    """Pairs in the order to be merged, masses -> the lowest position of those that each is merged
    with."""
    root = list(range(len(mass)))
    for a, b in zip(first, second, strict=True):
        if wanted <= 0:
            break
        while root[a] != a:
            a = root[a]  # noqa: PLW2901 - up to the root
        while root[b] != b:
            b = root[b]  # noqa: PLW2901 - up to the root
        # The lower position becomes the root, so that merged points keep the order in which they
        # came.
        if a != b and mass[a] + mass[b] <= mass_max:
            low, high = (a, b) if a < b else (b, a)
            root[high] = low
            mass[low] += mass[high]
            wanted -= 1
    # A root stands before all its points, so one pass in order finds the root of each.
    for at, above in enumerate(root):
        root[at] = root[above]
    return root


def _neighbours(apart: Singles, groups: Ints | None, q: int) -> tuple[Ints, Singles]:
    """distances² (n, n) that may be written to -> (n, q) nearest others, (n, q) theirs; infinite:
    not to be merged."""
    n = len(apart)
    np.fill_diagonal(apart, np.inf)
    _add_ties(apart)
    if groups is not None and (groups != groups[0]).any():
        apart[groups[:, None] != groups] = np.inf
    row = np.arange(n)
    near = np.empty((n, q), dtype=np.int64)
    gap = np.empty((n, q), dtype=np.float32)
    for place in range(q):
        near[:, place] = apart.argmin(axis=1)
        gap[:, place] = apart[row, near[:, place]]
        apart[row, near[:, place]] = np.inf
    return near, gap


def _add_ties(apart: Singles) -> None:
    """Add tiny distances² to those of n points (n, n). Of points that coincide each prefers the
    position that differs least in its bits, which is mutual: they fall into pairs at once, where
    the lowest position would be the nearest of them all."""
    n = len(apart)
    tie = _tie(len(apart))
    at = np.arange(n, dtype=np.int32)
    for first in range(0, n, BLOCK_ROWS):
        block = apart[first : first + BLOCK_ROWS]
        tied = block < TIED
        count = int(np.count_nonzero(tied))
        # The sum of a 32-bit and a 64-bit float is taken in 64 bits.
        if count > TIED_SHARE_MAX * block.size:
            block += np.bitwise_xor.outer(at[first : first + BLOCK_ROWS], at) * tie
        elif count:
            where = np.flatnonzero(tied)
            row, column = np.divmod(where, n)
            block.reshape(-1)[where] += ((first + row) ^ column) * tie


def _tie(n: int) -> float:
    """The tiny distance² for the lowest bit in which the positions of two of n points differ."""
    return float(np.float32(TIE / (1 << max(0, n - 1).bit_length())))
