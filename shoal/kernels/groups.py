"""Groups of weighted points while edges are added one after another, up to each edge that joins two heavy groups."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np

from shoal.kernels import forms
from shoal.kernels.distance import Floats
from shoal.kernels.forms import CompiledKernels
from shoal.kernels.sketching import Positions, Singles

SHARE_OF_LEARNING: Final = 0.05
"""time to add an edge, relative to that in which CA+ learns a row"""


class HeavyMerge(NamedTuple):
    """An edge whose two groups are both heavy. The first is that of the denser point."""

    edge: int
    roots: tuple[int, int]
    """the densest point of each group"""
    members: tuple[Positions, Positions]
    """the points of each group; those of the larger of two that were joined come first"""


class Groups(Protocol):
    """Groups of k points, at first one for each. The root of a group is its densest point: least in core distance."""

    def add(self, first: int, *, even_if_heavy: bool = False) -> HeavyMerge | None:
        """Add the edges from number `first` on, up to one of two heavy groups; None: all have been added.

        With `even_if_heavy`, the first of them is added whatever its groups weigh.
        """
        ...

    def roots(self) -> Positions:
        """(k,) the root of the group of each point."""
        ...


def groups_of(edges: Positions, masses: Floats, cores: Singles, heavy: Floats) -> Groups:
    """edges (e, 2) in their order, masses and core distances (k,), (e,) mass from which an edge's groups are heavy."""
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(edges))
    if compiled is None:
        return _ListedGroups(edges, masses, cores, heavy)
    return _CompiledGroups(compiled, edges, masses, cores, heavy)


class _ListedGroups:
    """The groups in plain lists: thousands of single numbers are read and written one by one."""

    def __init__(self, edges: Positions, masses: Floats, cores: Singles, heavy: Floats) -> None:
        self._edges: list[list[int]] = edges.tolist()
        self._mass: list[float] = masses.tolist()
        self._core: list[float] = cores.tolist()
        self._heavy: list[float] = heavy.tolist()
        self._root = list(range(len(masses)))
        self._members = [[at] for at in self._root]

    def add(self, first: int, *, even_if_heavy: bool = False) -> HeavyMerge | None:
        root, core, mass, members = self._root, self._core, self._mass, self._members
        forced_edge = first if even_if_heavy else -1
        for number in range(first, len(self._edges)):
            a, b = self._edges[number]
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
            if len(members[a]) <= len(members[b]):
                members[a], members[b] = members[b], members[a]
            members[a] += members[b]
            members[b] = []
        return None

    def roots(self) -> Positions:
        return _followed(np.array(self._root, dtype=np.int64))


class _CompiledGroups:
    """The groups in arrays, for the compiled kernel."""

    def __init__(
        self, compiled: CompiledKernels, edges: Positions, masses: Floats, cores: Singles, heavy: Floats
    ) -> None:
        at = np.arange(len(masses))
        self._compiled, self._edges, self._core = compiled, np.ascontiguousarray(edges), cores
        self._heavy = heavy.astype(np.float64)
        self._mass = masses.astype(np.float64)
        self._root = at.copy()
        self._lists = np.stack([np.ones_like(at), at, at])
        """of each root: how many members it has, and the last of them; of each member: the one after it"""
        self._members = np.empty((2, len(masses)), dtype=np.int64)

    def add(self, first: int, *, even_if_heavy: bool = False) -> HeavyMerge | None:
        forced_edge = first if even_if_heavy else -1
        state = self._mass, self._core, self._root, self._lists
        number, a, b = self._compiled.join_groups(self._edges, first, forced_edge, self._heavy, state, self._members)
        if number == len(self._edges):
            return None
        sizes = self._lists[0]
        return HeavyMerge(number, (a, b), (self._members[0, : sizes[a]].copy(), self._members[1, : sizes[b]].copy()))

    def roots(self) -> Positions:
        return _followed(self._root)


def _followed(above: Positions) -> Positions:
    """(k,) the point above each, or itself -> (k,) the root of each."""
    while (above != above[above]).any():
        above = above[above]
    return above
