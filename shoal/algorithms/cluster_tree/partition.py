"""Groups of cells: the spanning tree is cut where both sides of a join are denser than the join.

Cells are joined along the tree, and each join of two groups that are heavy enough to be clusters is
tested. The test of gaps finds what is too light for that: a few readings that are close together
and far from all others.

Rows that belong to no cluster are those in places much emptier than the cluster of their nearest
cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.cluster_tree.cells import GATHERED, Cells
from shoal.algorithms.streaming import MAGNITUDE_MAX
from shoal.kernels.arrays import Bools, Floats, Ints, Singles
from shoal.kernels.density_tree import (
    HeavyMerge,
    Neighbours,
    exact_masses,
    groups_of,
    join_significance,
    mass_around,
    masses_at_shares,
    spanning_tree,
)
from shoal.kernels.distance import nearest, squared_by_differences
from shoal.kernels.sketching import Located, squared_among

FEW_READINGS: Final = 10.0
"""independent readings from which a group is tested by its gap: the spread of fewer is hardly known
"""
OWN_SHARE: Final = 0.75
"""share of a small group's readings by which its spread is measured, so that some strays do not
count"""
ALONE: Final = 5.0
"""gap, in core distances, beside which `FEW_READINGS` readings are significant by 4.5 standard
deviations"""
EMPTIER: Final = 2.0
"""ratio of the two core distances of a cell from which it may be alone"""
PLACE_POINTS: Final = 4.0
"""cells on both sides of a gap from which they are two places"""
DENSER_SHARE: Final = 0.9
"""share of a side's readings that are in less dense places than those that stand for its densest
tenth"""
CHOSEN: Final = NormalDist().inv_cdf(DENSER_SHARE)
"""standard deviations by which chance alone makes the count around a reading chosen like that
larger"""
INDEPENDENT: Final = 1.3
"""readings that count as one, below which the densest places of a side are not those where it only
stayed for long, and an empty place between two sides not one that it only passed"""
LESSER: Final = 1.0 / math.sqrt(math.pi)
"""standard deviations by which the lesser of two counts is too small by chance alone"""
LEAST_CHANCE: Final = 1e-300
"""smaller chances are not told apart"""


def cores_of_few(squared: Singles, cores: Singles, near: Singles) -> Singles:
    """Squared distances (k, k), squared core distances (k,) -> the same, smaller for cells that are
    alone.

    `near` (k,): squared core distances for as few readings as a group must have.

    A group of fewer readings than lie within a core distance would not be a group: each of its
    cells reaches across the gap. So within the core distance of a cell that is alone lie few
    readings. A cell is alone if one of those few has its own few within a fifth of the cell's core
    distance.
    """
    # Few cells can be alone: most core distances are not five times the smallest.
    maybe = np.flatnonzero((cores > EMPTIER**2 * near) & (cores > ALONE**2 * near.min()))
    densest = np.where(squared[maybe] <= near[maybe, None], near, np.float32(np.inf)).min(axis=1)
    alone = maybe[cores[maybe] > ALONE**2 * densest]
    found = cores.copy()
    found[alone] = near[alone]
    return found


def spread(
    group: Ints, mass: Floats, squared: Singles, cores: Singles, within: float, few: float
) -> tuple[float, float]:
    """-> a number of readings of a group of n > 1 cells, and the distance from its median one
    within which they lie.

    `mass` and `cores` (k,) are those of all cells, `within` the readings within a core distance.
    The readings of merged cells count only as far as there are cells: of n equal ones, n readings.
    """
    own = mass[group]
    total = float(own.sum())
    n = len(group)
    readings = min(within, max(few, OWN_SHARE * total))
    radius = cores[group]
    if total < 2.0 * within:
        apart = squared[np.ix_(group, group)]
        # Stable: the order of equal distances decides which cell fills the count up.
        order = apart.argsort(axis=1, kind="stable")
        last = np.clip((own[order].cumsum(axis=1) < readings).sum(axis=1), 1, n - 1)
        radius = apart[np.arange(n), order[np.arange(n), last]]
    # Stable: which of equal radii is the median must not depend on how NumPy sorts.
    order = radius.argsort(kind="stable")
    median = int(order[np.searchsorted(own[order].cumsum(), total / 2)])
    # The readings of a merged cell may be as far apart as it is from the next one.
    next_cell = float(np.delete(squared[group[median], group], median).min())
    return min(readings, total**2 / float(own @ own)), math.sqrt(
        max(float(radius[median]), next_cell)
    )


def gap_significance(readings: float, distance: float, gap: float) -> float:
    """Number of standard deviations by which an empty gap is too long to be chance.

    `readings` independent readings lie within a distance of a place, and none in a row of such
    places as long as the gap. Were all equally dense, each reading would be in the first one with a
    chance of 1 / (1 + places). The significance is that of a normal variable with the same chance.
    0 for a gap in which there is no room for a place.
    """
    if distance <= 0.0 or gap < 2.0 * distance:
        return 0.0
    chance = (1.0 + gap / (2.0 * distance)) ** -readings
    return -NormalDist().inv_cdf(min(0.5, max(LEAST_CHANCE, chance)))


OWN_SHARE_MIN = 1 / 3
"""share of a known cluster's mass that a group must have to stand for it"""
RECENT_MIN = 5.0
"""recent readings of the lighter side from which one cluster can become two, so that a place which
the cluster has left is not one; and recent readings from which a known cluster is tested"""
SAME_RATE_MIN = 0.5
"""recent readings per mass of one side, as a multiple of the other side's, from which both receive
readings at once"""
LIGHTEST = 1.5
"""smallest mass of a side that is tested by density, as a multiple of the mass within a core
distance"""

Pair = tuple[int, int]
RemainApart = Callable[[Pair, float], bool]
"""(two known clusters, significance of their join) -> whether they remain two"""


class Weights(NamedTuple):
    """Weights of k cells in a join."""

    mass: Floats
    """(k,) readings that count, without those of places that the cluster has left"""
    recent: Floats
    """(k,) recent readings"""
    dependence: Floats
    """(k,) how many readings count as one"""
    slow_dependence: Floats
    """(k,) the same over thousands of readings"""
    known: Floats
    """(k,) all readings that count"""
    cluster: Ints
    """(k,) known cluster, -1 for none"""


class _Side(NamedTuple):
    """One of the two groups of a join that is tested."""

    members: Ints
    mass: float
    recent_rate: float
    """recent readings per mass"""
    dependence: float
    slow_dependence: float
    main: int | None
    """known cluster that most of its mass was part of"""
    main_mass: float
    main_share: float
    """share of that cluster's mass that is in this group"""
    n_equal: float
    """number of equal cells that would vary as much: a few heavy ones hold many readings, and no
    place with a spread"""

    def receives_as(self, other: _Side) -> bool:
        """Whether both receive readings at present, for their mass about equally many."""
        # As a product: where neither receives anything, a quotient would be 0 / 0.
        low, high = sorted((self.recent_rate, other.recent_rate))
        return low >= SAME_RATE_MIN * high


class Joining:
    """The groups of k cells while edges are added from the shortest to the longest."""

    def __init__(
        self,
        weights: Weights,
        points: Floats,
        squared: Singles,
        cores: Singles,
        within: float,
        few: float,
        split_significance: float,
        remain_apart: RemainApart,
    ) -> None:
        """The cells' centres (k, d), squared distances (k, k), squared core distances (k,), the
        mass within one.

        `few`: the smallest mass of a side that is tested by its gap.
        """
        self._weights = weights
        self._squared = squared
        self._within = within
        self._few = min(few, within)
        self._split_significance = split_significance
        self._remain_apart = remain_apart
        self._points = points
        self._cores = cores
        self._exact = exact_masses(weights.mass)
        self._clusters, self._place = np.unique(weights.cluster, return_inverse=True)
        self._whole = np.bincount(self._place, weights=weights.known)
        self.gaps = 0
        """joins across a gap, so far, both of whose sides are places of several readings"""

    def join(self, edges: Ints, lengths: Singles) -> tuple[Ints, dict[int, float]]:
        """Add edges (e, 2) of ascending squared lengths (e,): join the groups of each, or refuse
        the join.

        -> (k,) the group of each cell, and the lowest significance of each group's refused joins.
        """
        # Shorter than a core distance, an edge does not tell how far apart its two sides are.
        has_gap = lengths > self._cores[edges].max(axis=1)
        groups = groups_of(
            edges,
            self._weights.mass,
            self._cores,
            np.where(has_gap, self._few, LIGHTEST * self._within),
        )
        refused: list[tuple[int, float]] = []
        merge = groups.add(0)
        while merge is not None:
            at = merge.edge
            significance = self._refused(merge, edges[at], float(lengths[at]), bool(has_gap[at]))
            if significance is None:
                merge = groups.add(merge.edge, even_if_heavy=True)
            else:
                refused += [(root, significance) for root in merge.roots]
                merge = groups.add(merge.edge + 1)
        group = groups.roots()
        lowest: dict[int, float] = {}
        for root, significance in refused:
            now = int(group[root])
            lowest[now] = min(lowest.get(now, math.inf), significance)
        return group, lowest

    def _refused(self, merge: HeavyMerge, edge: Ints, length: float, has_gap: bool) -> float | None:
        """The significance of a join that is refused; None: it is not."""
        one, other = (self._side(members) for members in merge.members)
        self.gaps += has_gap and min(one.n_equal, other.n_equal) >= PLACE_POINTS
        light, heavy = (one, other) if one.mass < other.mass else (other, one)
        pair = _known_pair(one, other)
        # What varies slowly is in the counts of sides that receive readings at different times, and
        # not in the comparison of sides that receive them at once: there it is the same for both
        # and for the place between.
        is_slow = not one.receives_as(other)
        # No count of the lighter side can exceed its mass.
        is_countable = (
            self._significance(light, light.mass, self._within, is_slow) >= self._split_significance
        )
        found = 0.0
        if light.mass >= LIGHTEST * self._within and (pair is not None or is_countable):
            found = self._by_density(light, heavy, edge, length, is_slow)
        if has_gap and not is_countable:
            found = max(found, self._by_gap(light, heavy, math.sqrt(length), is_slow, above=found))
        if pair is not None:
            refused = self._remain_apart(pair, found)
        else:
            # The side with less mass is the one that may be a chance gathering.
            lesser = min((one, other), key=lambda side: side.main_mass)
            is_received = one.receives_as(other) or lesser.recent_rate * lesser.mass > RECENT_MIN
            refused = found >= self._split_significance and is_received
        return found if refused else None

    def _side(self, members: Ints) -> _Side:
        weights = self._weights
        mass = weights.mass[members]
        total = float(mass.sum())
        known = np.bincount(
            self._place[members], weights=weights.known[members], minlength=len(self._clusters)
        )
        # Cells of no known cluster are no cluster together: the most of them must not be the main
        # one.
        known[self._clusters < 0] = 0.0
        main = int(known.argmax())
        return _Side(
            members,
            total,
            float(weights.recent[members].sum()) / total,
            float(mass @ weights.dependence[members]) / total,
            float(mass @ weights.slow_dependence[members]) / total,
            int(self._clusters[main]) if known[main] > 0.0 else None,
            float(known[main]),
            float(known[main] / self._whole[main]),
            total**2 / float(mass @ mass),
        )

    def _by_density(
        self, light: _Side, heavy: _Side, edge: Ints, length: float, is_slow: bool
    ) -> float:
        """Significance with which the less dense side is denser than the place where they meet."""
        # A sensor that is soon elsewhere leaves few readings between two places, and no valley.
        is_independent = max(light.slow_dependence, heavy.slow_dependence) < INDEPENDENT
        meeting = self._meeting(edge, length) if is_independent else self._within
        found = self._significance(light, self._typical(light, length), meeting, is_slow)
        # The lesser of both counts, and it can only become smaller: the heavier side takes longer
        # to look at.
        if found <= 0.0:
            return found
        return min(found, self._significance(heavy, self._typical(heavy, length), meeting, is_slow))

    def _meeting(self, edge: Ints, length: float) -> float:
        """The readings within the squared `length` of where two sides meet: of an end of the edge,
        or of its middle.

        The ends are readings of the sides, so that a narrow valley is emptier in the middle. In
        many features the middle of two points is nearer to all others than either of them is, and
        has more.
        """
        one, other = self._points[edge]
        apart = squared_by_differences(((one + other) / 2.0)[None], self._points)[0]
        # At the middle chance decides as well, so what is found there is raised by the luck of the
        # lesser of two counts.
        middle = float(self._exact[apart <= length].sum())
        return min(self._within, middle + LESSER * math.sqrt(self._within))

    def _by_gap(self, light: _Side, heavy: _Side, gap: float, is_slow: bool, above: float) -> float:
        """Significance with which the less dense side is denser than the empty gap. The heavier
        side, whose spread takes longer to find, is only looked at where the lighter one is by more
        than `above`."""
        found = self._beside_gap(light, gap, is_slow)
        return min(found, self._beside_gap(heavy, gap, is_slow)) if found > above else found

    def _beside_gap(self, side: _Side, gap: float, is_slow: bool) -> float:
        if len(side.members) < 2:
            return 0.0
        mass = self._weights.mass
        within = self._within
        few = self._few
        readings, distance = spread(side.members, mass, self._squared, self._cores, within, few)
        return gap_significance(readings / self._counts_as_one(side, is_slow), distance, gap)

    def _typical(self, side: _Side, length: float) -> float:
        """The readings within the squared `length` of a side's median reading, or as surely of its
        densest ones."""
        # In four features the median reading of a normal cluster is in a place as dense as that
        # between two of them.
        shares = (0.5, DENSER_SHARE) if side.slow_dependence < INDEPENDENT else (0.5,)
        median, *denser = masses_at_shares(self._squared, side.members, self._exact, length, shares)
        return max(
            [
                median,
                *(count - CHOSEN * math.sqrt(count * side.slow_dependence) for count in denser),
            ]
        )

    def _significance(self, side: _Side, count: float, meeting: float, is_slow: bool) -> float:
        return join_significance(count, meeting, self._within, self._counts_as_one(side, is_slow))

    @staticmethod
    def _counts_as_one(side: _Side, is_slow: bool) -> float:
        return side.slow_dependence if is_slow else side.dependence


def _known_pair(one: _Side, other: _Side) -> Pair | None:
    """The two known clusters that these groups stand for; None unless there are two."""
    a = one.main
    b = other.main
    if a is None or b is None or a == b or min(one.main_share, other.main_share) <= OWN_SHARE_MIN:
        return None
    return min(a, b), max(a, b)


MASS_WITHIN_MIN = 20.0
"""smallest number of readings within a core distance: a smaller count is not nearly normal"""
RESOLUTION = 0.5
"""readings within a core distance, as a multiple of the square root of all readings"""
LEFT_SIGNIFICANCE = 2.0
"""standard deviations by which a place must receive fewer readings than before, to have been left
"""


class Partition(NamedTuple):
    """The groups of k cells."""

    group: Ints
    """(k,) equal within a group"""
    significance: dict[int, float]
    """lowest significance of the refused joins, by each group that was kept apart from another"""
    cores: Floats
    """(k,) core distances, in units of the rows; infinite where there are too few readings"""
    places: int = 1
    """places between which there is a gap, whether or not they are significantly apart"""
    present: Floats | None = None
    """(k,) share of the mass of each cell that counts; None: all of all"""


def partition(
    cells: Cells,
    centres: Located,
    active: Bools,
    settled: Bools,
    dependence: Floats,
    slow_dependence: Floats,
    split_significance: float,
    remain_apart: RemainApart,
) -> Partition:
    """cells, their centres, (k,) whether a cell's cluster is active, (k,) its dependence -> groups
    of cells.

    Dependence: how many readings count as one; `slow_dependence` (k,): over thousands of readings.
    `settled` (k,): whether its cluster is shown as itself, and nothing else as it; a settled
    cluster that receives no readings remains as it is. A join within one known cluster is refused
    from `split_significance` on, a join of two known clusters when `remain_apart` is true.
    """
    # With no more readings than two neighbourhoods there is no place outside of one to compare it
    # with.
    k = len(cells)
    total = float(cells.mass.sum())
    mean = float(cells.mass @ dependence) / total if k else 1.0
    within = max(MASS_WITHIN_MIN, RESOLUTION * math.sqrt(total * math.sqrt(mean)))
    few = FEW_READINGS * mean
    if k < 3 or total < 2.0 * within:
        return Partition(np.zeros(k, dtype=np.int64), {}, np.full(k, np.inf))
    squared = squared_among(centres.points)
    neighbours = Neighbours(squared)
    cores = _cores(squared, neighbours, cells.mass, within, few)
    present = still_present(cells, active, squared, cores, dependence)
    mass = cells.mass * present
    if (present < 1.0).any():
        cores = _cores(squared, neighbours, mass, within, few)
    # These keep their groups and are no part of the tree: a path through them would join what lies
    # at their two ends.
    unchanged = settled & ~receives_readings(cells)
    edges, lengths = _tree_of(np.flatnonzero(~unchanged), squared, cores)
    weights = Weights(mass, cells.recent, dependence, slow_dependence, cells.mass, cells.cluster)
    joining = Joining(
        weights, centres.points, squared, cores, within, few, split_significance, remain_apart
    )
    # Shortest joins first, as in HDBSCAN; equal lengths in the order of the tree, so that a rebuild
    # joins alike.
    order = np.argsort(lengths, kind="stable")
    group, significance = joining.join(edges[order], lengths[order])
    _, first, known = np.unique(cells.cluster[unchanged], return_index=True, return_inverse=True)
    group[unchanged] = np.flatnonzero(unchanged)[first][known]
    distances = np.sqrt(cores.astype(np.float64)) * centres.frame.scale
    return Partition(group, significance, distances, 1 + joining.gaps, present)


def _cores(
    squared: Singles, neighbours: Neighbours, mass: Floats, within: float, few: float
) -> Singles:
    if few >= within:
        return np.asarray(neighbours.core_distances(mass, [within])[0])
    return cores_of_few(squared, *neighbours.core_distances(mass, [within, few]))


def receives_readings(cells: Cells) -> Bools:
    """(k,) whether a cell's cluster has had more than a few recent readings.

    Of a cluster without, nothing has been learnt. With the readings of all others the
    neighbourhoods grow, and it would become too light to be told from the nearest one: it would end
    without a reading that says so.
    """
    _, place = np.unique(cells.cluster, return_inverse=True)
    return (np.bincount(place, weights=cells.recent) > RECENT_MIN)[place]


def _tree_of(tested: Ints, squared: Singles, cores: Singles) -> tuple[Ints, Singles]:
    """Edges (t - 1, 2) and squared lengths (t - 1,) of the spanning tree of t of the k cells."""
    if len(tested) == len(cores):
        return spanning_tree(squared, cores)
    if len(tested) < 2:
        return np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.float32)
    edges, lengths = spanning_tree(
        np.ascontiguousarray(squared[np.ix_(tested, tested)]), cores[tested]
    )
    return tested[edges], lengths


def still_present(
    cells: Cells, active: Bools, squared: Singles, cores: Singles, dependence: Floats
) -> Floats:
    """squared distances (k, k); squared core distances, activity, dependence (k,) -> (k,) share of
    mass that counts.

    1 where a cluster still receives readings, or where it is quiet as a whole. Where a cluster that
    is active elsewhere receives significantly fewer readings than before, within twice the core
    distance, it has left: its old readings must neither join two parts that have moved away from
    each other, nor keep two apart that have met. A quiet cluster has not moved: what appears beside
    it is a new one. So readings where none were before do not count as those of a cluster that is
    active elsewhere.
    """
    if not active.any():
        return np.ones(len(cells))
    mass = cells.mass
    recent = cells.recent
    all_around, held = mass_around(squared, 4.0 * cores, [mass, recent])
    known = held < cells.new_rate * all_around
    _, place = np.unique(cells.cluster, return_inverse=True)
    # The floor: a cluster without known cells has no rate, and 0 / 0 is none either.
    rate = np.bincount(place, weights=recent * known) / np.maximum(
        np.bincount(place, weights=mass * known), 1e-30
    )
    (expected,) = mass_around(squared, 4.0 * cores, [mass * rate[place]])
    left = active & (expected - held > LEFT_SIGNIFICANCE * np.sqrt(expected * dependence))
    # Only what is left is divided, and there more is expected than held: the floor avoids a warning
    # for the others.
    return np.where(left, held / np.maximum(expected, 1e-30), 1.0).astype(np.float64)


EVERYWHERE: Final = MAGNITUDE_MAX
"""reach beyond every distance, and yet one that a snapshot may hold"""
TAIL_POWER: Final = 6.0
EMPTIER_MIN = 5.0
EMPTIER_MAX = 12.0
"""a cell is noise if its core distance is this many times the median of its cluster: between the
two, the upper quartile over the median to the power `TAIL_POWER`, as clusters with long tails have
wide core distances of their own"""
REACH_MIN: Final = 3.0
"""smallest reach, as a multiple of the median core distance: in many features rows are far from
every cell"""


def reaches(cells: Cells, cluster: Ints, first_new: int) -> Floats:
    """k cells, (k,) the cluster of each -> (k,) distance from each, in units of the rows, from
    which on rows are noise.

    0 for a cell that is itself noise: one in a place that is much emptier than its cluster, or one
    that has come since the tree was built (ids from `first_new` on), beyond the reach of those
    before, and alone. `EVERYWHERE` where the tree has not been built yet.
    """
    reach = np.full(len(cells), EVERYWHERE)
    for number in np.unique(cluster).tolist():
        own = np.flatnonzero(cluster == number)
        core = cells.core[own]
        mass = cells.mass[own]
        # Stable, so that cells of equal core distance give the same quantiles on every processor.
        order = core.argsort(kind="stable")
        upto = mass[order].cumsum()
        middle, upper = core[
            order[np.searchsorted(upto, upto[-1] * np.array([0.5, 0.75]))]
        ].tolist()
        if middle > 0.0:
            # Beyond the largest ratio the power would only overflow.
            ratio = min(upper / middle, EMPTIER_MAX)
            emptier = min(EMPTIER_MAX, max(EMPTIER_MIN, ratio**TAIL_POWER))
            reach[own] = np.where(
                core > emptier * middle, 0.0, max(REACH_MIN, emptier / 2.0) * middle
            )
    is_new = cells.ids >= first_new
    new = np.flatnonzero(is_new)
    known = np.flatnonzero(~is_new)
    if len(new) and len(known):
        near, squared = nearest(cells.centres[new], cells.centres[known])
        is_alone = (cells.place[new] != GATHERED) & (cluster[new] == cluster[known[near]])
        reach[new[is_alone & (np.sqrt(squared) >= reach[known[near]])]] = 0.0
    return reach


def without_noise(cluster: Ints, squared: Floats, reach: Floats) -> Ints:
    """(n,) cluster and squared distance of each row's nearest cell, and its reach -> (n,) clusters,
    -1 for noise."""
    return np.where(np.sqrt(squared) < reach, cluster, -1)
