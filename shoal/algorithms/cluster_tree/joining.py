"""Joins cells along a spanning tree, and tests each join of two groups that are heavy enough to be clusters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from shoal.kernels.density_tree import join_significance, typical_mass
from shoal.kernels.distance import Floats
from shoal.kernels.sketching import Positions, Singles

OWN_SHARE_MIN = 1 / 3
"""share of a known cluster's mass that a group must have to stand for it"""
RECENT_MIN = 5.0
"""recent readings that the lighter side must have where one cluster becomes two, so that a place which the cluster has
left is not one; and recent readings from which a known cluster is tested"""
SAME_RATE_MIN = 0.5
"""recent readings per mass of one side, as a multiple of the other side's, from which both receive readings at once"""
LIGHTEST = 1.5
"""smallest mass of a side that is tested, as a multiple of the mass within a core distance"""

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
        split_significance: float,
        remain_apart: RemainApart,
    ) -> None:
        """Squared distances (k, k), squared core distances (k,), the mass within a core distance."""
        self._weights, self._squared, self._within = weights, squared, within
        self._split_significance, self._remain_apart = split_significance, remain_apart
        self._lightest = LIGHTEST * within
        # Plain lists: thousands of single numbers are read and written one by one.
        k = len(cores)
        self._root = list(range(k))
        self._members = [[at] for at in range(k)]
        self._mass: list[float] = weights.mass.tolist()
        self._core: list[float] = cores.tolist()
        self._apart: dict[int, float] = {}
        """lowest significance of the refused joins of the group with this root"""
        self._clusters, self._place = np.unique(weights.cluster, return_inverse=True)
        self._whole = np.bincount(self._place, weights=weights.known)

    def join(self, a: int, b: int, length: float) -> None:
        """Add the edge of cells a and b, of squared length `length`: join their groups, or refuse the join."""
        a, b = self._find(a), self._find(b)
        if self._core[a] > self._core[b]:
            a, b = b, a
        mass = self._mass
        if mass[a] >= self._lightest and mass[b] >= self._lightest and self._refused(a, b, length):
            return
        # The group of the densest cell is the one that remains; the shorter list is moved.
        self._root[b] = a
        short, long = sorted((self._members[a], self._members[b]), key=len)
        long += short
        self._members[a], self._members[b] = long, []
        mass[a] += mass[b]
        if b in self._apart:
            self._apart[a] = min(self._apart.get(a, math.inf), self._apart.pop(b))

    def result(self) -> tuple[Positions, dict[int, float]]:
        """(k,) the group of each cell, and the lowest significance of each group's refused joins."""
        group = np.array([self._find(at) for at in range(len(self._root))], dtype=np.int64)
        return group, dict(self._apart)

    def _refused(self, a: int, b: int, length: float) -> bool:
        one, other = self._side(a), self._side(b)
        light, heavy = (one, other) if one.mass < other.mass else (other, one)
        pair = _known_pair(one, other)
        # What varies slowly is in the counts of sides that receive readings at different times, and not in the
        # comparison of sides that receive them at once: there it is the same for both and for the place between.
        is_slow = not one.receives_as(other)
        if pair is None and self._significance(light, light.mass, is_slow) < self._split_significance:
            return False  # no count of the lighter side can exceed its mass
        found = self._significance(light, self._typical(light, length), is_slow)
        if found > 0.0:
            found = min(found, self._significance(heavy, self._typical(heavy, length), is_slow))
        if pair is not None:
            refused = self._remain_apart(pair, found)
        else:
            lesser = min((one, other), key=lambda side: side.main_mass)
            refused = found >= self._split_significance and lesser.recent_rate * lesser.mass > RECENT_MIN
        if refused:
            for at in (a, b):
                self._apart[at] = min(self._apart.get(at, math.inf), found)
        return refused

    def _side(self, root: int) -> _Side:
        members, weights = np.array(self._members[root], dtype=np.int64), self._weights
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

    def _typical(self, side: _Side, length: float) -> float:
        return typical_mass(self._squared, side.members, self._weights.mass, length)

    def _significance(self, side: _Side, count: float, is_slow: bool) -> float:
        return join_significance(count, self._within, side.slow_dependence if is_slow else side.dependence)

    def _find(self, at: int) -> int:
        root = self._root
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at


def _known_pair(one: _Side, other: _Side) -> Pair | None:
    """The two known clusters that these groups stand for; None unless there are two."""
    a, b = one.main, other.main
    if a is None or b is None or a == b or min(one.main_share, other.main_share) <= OWN_SHARE_MIN:
        return None
    return min(a, b), max(a, b)
