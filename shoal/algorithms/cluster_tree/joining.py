"""Joins cells along a spanning tree, and tests each join of two groups that are heavy enough to be clusters.

A join is tested by density (`_by_density`), and where its lighter side has too few readings for that, by its gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shoal.algorithms.cluster_tree.gaps import gap_significance, spread
from shoal.kernels.density_tree import exact_masses, join_significance, typical_mass
from shoal.kernels.distance import Floats
from shoal.kernels.groups import HeavyMerge, groups_of
from shoal.kernels.sketching import Positions, Singles

OWN_SHARE_MIN = 1 / 3
"""share of a known cluster's mass that a group must have to stand for it"""
RECENT_MIN = 5.0
"""recent readings of the lighter side from which one cluster can become two, so that a place which the cluster has left
is not one; and recent readings from which a known cluster is tested"""
SAME_RATE_MIN = 0.5
"""recent readings per mass of one side, as a multiple of the other side's, from which both receive readings at once"""
LIGHTEST = 1.5
"""smallest mass of a side that is tested by density, as a multiple of the mass within a core distance"""

Pair = tuple[int, int]
RemainApart = Callable[[Pair, float], bool]
"""(two known clusters, significance of their join) -> whether they remain two"""


class Weights(NamedTuple):
    """What k cells weigh in a join."""

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
    cluster: Positions
    """(k,) known cluster, -1 for none"""


class _Side(NamedTuple):
    """One of the two groups of a join that is tested."""

    members: Positions
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

    def receives_as(self, other: _Side) -> bool:
        """Whether both receive readings at present, for their mass about equally many."""
        low, high = sorted((self.recent_rate, other.recent_rate))
        return low >= SAME_RATE_MIN * high


class Joining:
    """The groups of k cells while edges are added from the shortest to the longest."""

    def __init__(
        self,
        weights: Weights,
        squared: Singles,
        cores: Singles,
        within: float,
        few: float,
        split_significance: float,
        remain_apart: RemainApart,
    ) -> None:
        """Squared distances (k, k), squared core distances (k,), the mass within a core distance.

        `few`: the smallest mass of a side that is tested by its gap.
        """
        self._weights, self._squared, self._within, self._few = weights, squared, within, min(few, within)
        self._split_significance, self._remain_apart = split_significance, remain_apart
        self._cores, self._exact = cores, exact_masses(weights.mass)
        self._clusters, self._place = np.unique(weights.cluster, return_inverse=True)
        self._whole = np.bincount(self._place, weights=weights.known)

    def join(self, edges: Positions, lengths: Singles) -> tuple[Positions, dict[int, float]]:
        """Add edges (e, 2) of ascending squared lengths (e,): join the groups of each, or refuse the join.

        -> (k,) the group of each cell, and the lowest significance of each group's refused joins.
        """
        # Shorter than a core distance, an edge does not tell how far apart its two sides are.
        has_gap = lengths > self._cores[edges].max(axis=1)
        groups = groups_of(
            edges, self._weights.mass, self._cores, np.where(has_gap, self._few, LIGHTEST * self._within)
        )
        refused: list[tuple[int, float]] = []
        merge = groups.add(0)
        while merge is not None:
            significance = self._refused(merge, float(lengths[merge.edge]), bool(has_gap[merge.edge]))
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

    def _refused(self, merge: HeavyMerge, length: float, has_gap: bool) -> float | None:
        """The significance of a join that is refused; None: it is not."""
        one, other = (self._side(members) for members in merge.members)
        light, heavy = (one, other) if one.mass < other.mass else (other, one)
        pair = _known_pair(one, other)
        # What varies slowly is in the counts of sides that receive readings at different times, and not in the
        # comparison of sides that receive them at once: there it is the same for both and for the place between.
        is_slow = not one.receives_as(other)
        # No count of the lighter side can exceed its mass.
        is_countable = self._significance(light, light.mass, is_slow) >= self._split_significance
        found = 0.0
        if light.mass >= LIGHTEST * self._within and (pair is not None or is_countable):
            found = self._by_density(light, heavy, length, is_slow)
        if has_gap and not is_countable:
            found = max(found, self._by_gap(light, heavy, math.sqrt(length), is_slow, above=found))
        if pair is not None:
            refused = self._remain_apart(pair, found)
        else:
            lesser = min((one, other), key=lambda side: side.main_mass)
            is_received = one.receives_as(other) or lesser.recent_rate * lesser.mass > RECENT_MIN
            refused = found >= self._split_significance and is_received
        return found if refused else None

    def _side(self, members: Positions) -> _Side:
        weights = self._weights
        mass = weights.mass[members]
        total = float(mass.sum())
        known = np.bincount(self._place[members], weights=weights.known[members], minlength=len(self._clusters))
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
        )

    def _by_density(self, light: _Side, heavy: _Side, length: float, is_slow: bool) -> float:
        """By how much the less dense side is denser than the place where they meet."""
        found = self._significance(light, self._typical(light, length), is_slow)
        if found <= 0.0:
            return found
        return min(found, self._significance(heavy, self._typical(heavy, length), is_slow))

    def _by_gap(self, light: _Side, heavy: _Side, gap: float, is_slow: bool, above: float) -> float:
        """By how much the less dense side is denser than the gap, in which there is nothing. The heavier side, whose
        spread takes longer to find, is only looked at where the lighter one is by more than `above`."""
        found = self._beside_gap(light, gap, is_slow)
        return min(found, self._beside_gap(heavy, gap, is_slow)) if found > above else found

    def _beside_gap(self, side: _Side, gap: float, is_slow: bool) -> float:
        if len(side.members) < 2:
            return 0.0
        mass, within, few = self._weights.mass, self._within, self._few
        readings, distance = spread(side.members, mass, self._squared, self._cores, within, few)
        return gap_significance(readings / self._counts_as_one(side, is_slow), distance, gap)

    def _typical(self, side: _Side, length: float) -> float:
        return typical_mass(self._squared, side.members, self._exact, length)

    def _significance(self, side: _Side, count: float, is_slow: bool) -> float:
        return join_significance(count, self._within, self._counts_as_one(side, is_slow))

    @staticmethod
    def _counts_as_one(side: _Side, is_slow: bool) -> float:
        return side.slow_dependence if is_slow else side.dependence


def _known_pair(one: _Side, other: _Side) -> Pair | None:
    """The two known clusters that these groups stand for; None unless there are two."""
    a, b = one.main, other.main
    if a is None or b is None or a == b or min(one.main_share, other.main_share) <= OWN_SHARE_MIN:
        return None
    return min(a, b), max(a, b)
