"""Joins along the spanning tree: two groups of cells become one, unless both are denser than the
place where they meet.

Each join of two groups that are heavy enough to be clusters is tested: by density, and across an
empty stretch by the length of the gap as well (`gaps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.cluster_tree.gaps import gap_significance, spread
from shoal.kernels.arrays import Floats, Ints, Singles, different
from shoal.kernels.density_tree import (
    HeavyMerge,
    exact_masses,
    groups_of,
    join_significance,
    masses_at_shares,
)
from shoal.kernels.distance import squared_by_differences

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
OWN_SHARE_MIN: Final = 1 / 3
"""share of a known cluster's mass that a group must have to stand for it"""
RECENT_MIN: Final = 5.0
"""recent readings of the lighter side from which one cluster can become two, so that a place which
the cluster has left is not one; and recent readings from which a known cluster is tested"""
SAME_RATE_MIN: Final = 0.5
"""recent readings per mass of one side, as a multiple of the other side's, from which both receive
readings at once"""
LIGHTEST: Final = 1.5
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

    def counts_as_one(self, is_slow: bool) -> float:
        """How many of its readings count as one."""
        return self.slow_dependence if is_slow else self.dependence


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
        self._columns = np.stack(
            [
                weights.mass,
                weights.recent,
                weights.dependence,
                weights.slow_dependence,
                weights.known,
            ]
        )
        """(5, k) the weights that a side sums up, which are looked up together"""
        self._sides: dict[int, _Side] = {}
        """the side of a join that each root had last: that of a refused join comes again"""
        self._clusters, self._place = different(weights.cluster)
        self._whole = np.bincount(self._place, weights=weights.known)
        self.gaps = 0
        """joins across a gap, so far, both of whose sides are places of several readings"""

    def join(self, edges: Ints, lengths: Singles) -> tuple[Ints, dict[int, float]]:
        """Add edges (e, 2) of ascending squared lengths (e,): join the groups of each, or refuse
        the join.

        -> (k,) the group of each cell, and the lowest significance of each group's refused joins.
        """
        # Shorter than a core distance, an edge does not tell how far apart its two sides are.
        has_gap = lengths > np.maximum(self._cores[edges[:, 0]], self._cores[edges[:, 1]])
        tested_from = np.where(has_gap, self._few, LIGHTEST * self._within)
        groups = groups_of(edges, self._weights.mass, self._cores, tested_from)
        refused: list[tuple[int, float]] = []
        merge = groups.add(0)
        while merge is not None:
            at = merge.edge
            significance = self._refusal(merge, edges[at], float(lengths[at]), bool(has_gap[at]))
            if significance is None:
                merge = groups.add(at, even_if_heavy=True)
            else:
                refused += [(root, significance) for root in merge.roots]
                merge = groups.add(at + 1)
        group = groups.roots()
        lowest: dict[int, float] = {}
        # By the roots at the end: groups grow on after a join with another one was refused.
        for root, significance in refused:
            final = int(group[root])
            lowest[final] = min(lowest.get(final, math.inf), significance)
        return group, lowest

    def _refusal(self, merge: HeavyMerge, edge: Ints, length: float, has_gap: bool) -> float | None:
        """The significance of a join that is refused; None: it is not."""
        one = self._side(merge.roots[0], merge.members[0])
        other = self._side(merge.roots[1], merge.members[1])
        self.gaps += has_gap and min(one.n_equal, other.n_equal) >= PLACE_POINTS
        pair = _known_pair(one, other)
        significance = self._significance_of_join(one, other, pair, edge, length, has_gap)
        if pair is not None:
            is_refused = self._remain_apart(pair, significance)
        else:
            # The side with less mass is the one that may be a chance gathering.
            lesser = min((one, other), key=lambda side: side.main_mass)
            is_received = one.receives_as(other) or lesser.recent_rate * lesser.mass > RECENT_MIN
            is_refused = significance >= self._split_significance and is_received
        return significance if is_refused else None

    def _significance_of_join(
        self,
        one: _Side,
        other: _Side,
        pair: Pair | None,
        edge: Ints,
        length: float,
        has_gap: bool,
    ) -> float:
        """Standard deviations by which the less dense side is denser than the place between."""
        light, heavy = (one, other) if one.mass < other.mass else (other, one)
        # What varies slowly is in the counts of sides that receive readings at different times, and
        # not in the comparison of sides that receive them at once: there it is the same for both
        # and for the place between.
        is_slow = not one.receives_as(other)
        # No count of the lighter side can exceed its mass.
        at_most = self._significance(light, light.mass, self._within, is_slow)
        is_countable = at_most >= self._split_significance
        significance = 0.0
        if light.mass >= LIGHTEST * self._within and (pair is not None or is_countable):
            significance = self._by_density(light, heavy, edge, length, is_slow)
        if has_gap and not is_countable:
            by_gap = self._by_gap(light, heavy, math.sqrt(length), is_slow, above=significance)
            significance = max(significance, by_gap)
        return significance

    def _side(self, root: int, members: Ints) -> _Side:
        known = self._sides.get(root)
        # A group only grows: of the same number of members it is the same one.
        if known is None or len(known.members) != len(members):
            known = self._side_of(members)
            self._sides[root] = known
        return known

    def _side_of(self, members: Ints) -> _Side:
        mass, recent, dependence, slow_dependence, counted = self._columns.take(members, axis=1)
        total = float(mass.sum())
        known = np.bincount(self._place[members], weights=counted, minlength=len(self._clusters))
        # Cells of no known cluster are no cluster together: the most of them must not be the main
        # one.
        known[self._clusters < 0] = 0.0
        main = int(known.argmax())
        return _Side(
            members,
            total,
            float(recent.sum()) / total,
            float(mass @ dependence) / total,
            float(mass @ slow_dependence) / total,
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
        of_light = self._significance(light, self._typical(light, length), meeting, is_slow)
        # The lesser of both counts, and it can only become smaller: the heavier side takes longer
        # to look at.
        if of_light <= 0.0:
            return of_light
        of_heavy = self._significance(heavy, self._typical(heavy, length), meeting, is_slow)
        return min(of_light, of_heavy)

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
        """Significance with which the less dense side is denser than the empty gap.

        The heavier side, whose spread takes longer to find, is only looked at where the lighter one
        is by more than `above`.
        """
        of_light = self._beside_gap(light, gap, is_slow)
        if of_light <= above:
            return of_light
        return min(of_light, self._beside_gap(heavy, gap, is_slow))

    def _beside_gap(self, side: _Side, gap: float, is_slow: bool) -> float:
        if len(side.members) < 2:
            return 0.0
        mass = self._weights.mass
        readings, distance = spread(
            side.members, mass, self._squared, self._cores, self._within, self._few
        )
        return gap_significance(readings / side.counts_as_one(is_slow), distance, gap)

    def _typical(self, side: _Side, length: float) -> float:
        """The readings within the squared `length` of a side's median reading, or as surely of its
        densest ones."""
        if side.slow_dependence >= INDEPENDENT:
            (median,) = masses_at_shares(self._squared, side.members, self._exact, length, (0.5,))
            return median
        # In four features the median reading of a normal cluster is in a place as dense as that
        # between two of them. The densest tenth is chosen by its counts, which chance has raised.
        median, denser = masses_at_shares(
            self._squared, side.members, self._exact, length, (0.5, DENSER_SHARE)
        )
        return max(median, denser - CHOSEN * math.sqrt(denser * side.slow_dependence))

    def _significance(self, side: _Side, count: float, meeting: float, is_slow: bool) -> float:
        return join_significance(count, meeting, self._within, side.counts_as_one(is_slow))


def _known_pair(one: _Side, other: _Side) -> Pair | None:
    """The two known clusters that these groups stand for; None unless there are two."""
    a = one.main
    b = other.main
    if a is None or b is None or a == b or min(one.main_share, other.main_share) <= OWN_SHARE_MIN:
        return None
    return min(a, b), max(a, b)
