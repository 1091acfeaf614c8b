"""Joining leaves between which no valley is left into groups, but not through a bridge of few
readings between two groups that a cut keeps apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.density_tree.leaf import Leaf
from shoal.algorithms.density_tree.tree import Cut, leaves_of
from shoal.algorithms.density_tree.valleys import saddle_of
from shoal.kernels.arrays import Floats, Ints

# Measured on office readings without noise: a sliver of daylight with 3 % of the mass touched the
# dark room and the lit one, and in 20 of 20 runs the lit one lost its cluster.
BRIDGE_SHARE: Final = 0.25
"""share of the lighter of two groups below which the leaves through which they touch are a bridge
"""
BRIDGE_CLEAR: Final = 1.0
"""standard deviations by which a valley must be there between the groups on both sides of a bridge
"""
MOST: Final = 0.5
"""share of a group that must lie on one side of a cut for its valley to be one of the group"""


class Touching(NamedTuple):
    """Two leaves that touch, and between which no valley is left."""

    height: float
    """density where they meet, as a share of the lower peak beside it"""
    first: int
    """position of the one below the cut"""
    second: int
    """position of the one above it"""


class Groups:
    """Disjoint sets of leaves."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def join(self, a: int, b: int) -> None:
        self._parent[self.root(a)] = self.root(b)

    def numbers(self) -> Ints:
        """(l,) the set of each leaf, numbered from 0 in the order of their first leaves."""
        number: dict[int, int] = {}
        numbers = []
        for leaf in range(len(self._parent)):
            numbers.append(number.setdefault(self.root(leaf), len(number)))
        return np.array(numbers, dtype=np.int64)

    def members(self, root: int) -> set[int]:
        """The leaves of the set with this root."""
        return {leaf for leaf in range(len(self._parent)) if self.root(leaf) == root}

    def root(self, leaf: int) -> int:
        """The leaf that stands for the set of another one until that set is joined again."""
        while self._parent[leaf] != leaf:
            # Halves the path on the way: it is never gone twice at its full length.
            self._parent[leaf] = self._parent[self._parent[leaf]]
            leaf = self._parent[leaf]
        return leaf


class Bridges:
    """Decides which touching leaves join their groups.

    Joining is transitive: a few readings between two clusters, as those of dusk between a dark and
    a lit room, touch both, and would make one of two that a clear valley parts. They go with one of
    them.
    """

    def __init__(
        self, leaves: Sequence[Leaf], cuts: Sequence[Cut], mass: Floats, filled: float
    ) -> None:
        self._leaves = leaves
        self._cuts = cuts
        self._mass = mass
        self._filled = filled
        place = {leaf.leaf_id: number for number, leaf in enumerate(leaves)}
        self._sides = [
            tuple({place[leaf.leaf_id] for leaf in leaves_of(part)} for part in cut.parts)
            for cut in cuts
        ]

    def join(self, groups: Groups, touching: Sequence[Touching]) -> None:
        """Join the groups of leaves that touch: the highest saddles first, so that what lies
        between two goes with the one that it is more of."""
        # Stable: of equally high ones the first, on every machine.
        pending = sorted(touching, key=lambda pair: -pair.height)
        has_joined = True
        # A bridge may be one no more once its side has grown, so that all are looked at again.
        while has_joined:
            has_joined = False
            for pair in list(pending):
                first = groups.root(pair.first)
                second = groups.root(pair.second)
                if first != second:
                    if self._is_bridge(groups, first, second, touching):
                        continue
                    groups.join(first, second)
                    has_joined = True
                pending.remove(pair)

    def _is_bridge(
        self, groups: Groups, first: int, second: int, touching: Sequence[Touching]
    ) -> bool:
        """Whether two groups touch through few of their readings only, while a cut keeps a valley
        between most of both."""
        one = groups.members(first)
        other = groups.members(second)
        ends: set[int] = set()
        for pair in touching:
            if {groups.root(pair.first), groups.root(pair.second)} == {first, second}:
                ends |= {pair.first, pair.second}
        carried = min(self._held(ends & one), self._held(ends & other))
        if carried >= BRIDGE_SHARE * min(self._held(one), self._held(other)):
            return False
        return any(
            self._is_clear(cut, one & below, other & above, one, other)
            or self._is_clear(cut, other & below, one & above, other, one)
            for cut, (below, above) in zip(self._cuts, self._sides, strict=True)
        )

    def _is_clear(
        self, cut: Cut, below: set[int], above: set[int], first: set[int], second: set[int]
    ) -> bool:
        """Whether a cut has most of the `first` group below and most of the `second` above, with a
        valley between."""
        if self._held(below) < MOST * self._held(first):
            return False
        if self._held(above) < MOST * self._held(second):
            return False
        # In the order of the leaves, as sums of floats depend on it and a set has none.
        left = [self._leaves[number] for number in sorted(below)]
        right = [self._leaves[number] for number in sorted(above)]
        return saddle_of(cut, left, right).is_clear(self._filled, BRIDGE_CLEAR)

    def _held(self, members: set[int]) -> float:
        """The mass of some leaves."""
        # In the order of the leaves, as a sum of floats depends on it and a set has none.
        return float(self._mass[sorted(members)].sum())
