"""Groups of cells: the spanning tree is cut where both sides of a join are denser than the join.

As in HDBSCAN, groups grow along the minimum spanning tree of mutual reachability, the shortest edges first. HDBSCAN
then condenses the tree by a smallest cluster size and picks the clusters that persist. Here each join of two groups is
tested when its edge comes: it is refused, and the two sides are clusters of their own, when the readings of each side
lie significantly denser than where the sides meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.kernels.density_tree import core_distances, join_significance, spanning_tree, typical_mass
from shoal.kernels.distance import Floats
from shoal.kernels.sketching import Positions, Singles, frame_of, squared_between

MASS_WITHIN_MIN = 20.0
"""smallest number of readings within a core distance: a smaller count is not nearly normal"""
RESOLUTION = 0.5
"""readings within a core distance, as a multiple of the square root of all readings"""
OWN_SHARE_MIN = 1 / 3
"""share of a known cluster's mass that a group must have to stand for it"""
RECENT_MIN = 5.0
"""recent readings that the lighter side must have where one cluster becomes two, so that a place which the cluster has
left is not one"""
LEFT_SIGNIFICANCE = 3.0
"""standard deviations by which a place must receive fewer readings than before, to have been left"""
LIGHTEST = 1.5
"""smallest mass of a side that is tested, as a multiple of the mass within a core distance"""

Pair = tuple[int, int]
RemainApart = Callable[[Pair, float], bool]
"""(two known clusters, significance of their join) -> whether they remain two"""


class Partition(NamedTuple):
    """The groups of k cells."""

    group: Positions
    """(k,) equal within a group"""
    significance: dict[int, float]
    """of each group that was kept apart from another, the lowest significance of its refused joins"""
    cores: Floats
    """(k,) core distances, in units of the rows; infinite where there are too few readings"""


@dataclass
class _Group:
    """Cells joined so far."""

    members: list[int]
    mass: float
    recent: float
    spread_mass: float
    """mass times dependence, summed over cells"""
    core: float
    """squared core distance of its densest cell"""
    known: dict[int, float] = field(default_factory=dict)
    """mass of each known cluster in it"""
    significance: float = math.inf

    def absorb(self, other: _Group) -> None:
        self.members += other.members
        self.mass += other.mass
        self.recent += other.recent
        self.spread_mass += other.spread_mass
        self.core = min(self.core, other.core)
        self.significance = min(self.significance, other.significance)
        for cluster, mass in other.known.items():
            self.known[cluster] = self.known.get(cluster, 0.0) + mass

    @property
    def dependence(self) -> float:
        return self.spread_mass / self.mass

    @property
    def main(self) -> int | None:
        """The known cluster that most of its mass was part of; None if there is none."""
        return max(self.known, key=self.known.__getitem__) if self.known else None


def partition(
    cells: Cells, active: NDArray[np.bool_], dependence: Floats, split_significance: float, remain_apart: RemainApart
) -> Partition:
    """cells, (k,) whether a cell's cluster is active, (k,) how many of its readings count as one -> groups of cells.

    A join within one known cluster is refused from `split_significance` on, a join of two known clusters when
    `remain_apart` is true.
    """
    k, total = len(cells), float(cells.mass.sum())
    mean = float(cells.mass @ dependence) / total if k else 1.0
    within = max(MASS_WITHIN_MIN, RESOLUTION * math.sqrt(total * math.sqrt(mean)))
    if k < 3 or total < 2.0 * within:
        return Partition(np.zeros(k, dtype=np.int64), {}, np.full(k, np.inf))
    frame = frame_of(cells.centres)
    framed = frame.of(cells.centres)
    squared = squared_between(framed, framed)
    np.fill_diagonal(squared, 0.0)
    cores = core_distances(squared, cells.mass, within)
    present = still_present(cells, active, squared, cores, dependence)
    mass = cells.mass * present
    if (present < 1.0).any():
        cores = core_distances(squared, mass, within)
    edges, lengths = spanning_tree(squared, cores)
    joining = _Joining(cells, mass, dependence, squared, cores, within, split_significance, remain_apart)
    order = np.argsort(lengths, kind="stable")
    for (a, b), length in zip(edges[order].tolist(), lengths[order].tolist(), strict=True):
        joining.join(a, b, length)
    group, significance = joining.result()
    return Partition(group, significance, np.sqrt(cores.astype(np.float64)) * frame.scale)


def still_present(
    cells: Cells, active: NDArray[np.bool_], squared: Singles, cores: Singles, dependence: Floats
) -> Floats:
    """squared distances (k, k); squared core distances, activity, dependence (k,) -> (k,) share of mass that counts.

    1 where a cluster still receives readings, or where it is quiet as a whole. Where a cluster that is active elsewhere
    receives significantly fewer readings than before, within twice the core distance, it has left: its old readings
    must neither join two parts that have moved away from each other, nor keep two apart that have met. A quiet cluster
    has not moved: what appears beside it is a new one.
    """
    _, place = np.unique(cells.cluster, return_inverse=True)
    rate = np.bincount(place, weights=cells.recent) / np.bincount(place, weights=cells.mass)
    near = (squared <= 4.0 * cores[:, None]).astype(np.float32)
    expected = near @ (cells.mass * rate[place]).astype(np.float32)
    held = near @ cells.recent.astype(np.float32)
    left = active & (expected - held > LEFT_SIGNIFICANCE * np.sqrt(expected * dependence))
    return np.where(left, held / np.maximum(expected, 1e-30), 1.0).astype(np.float64)


class _Joining:
    """The groups while edges are added from the shortest to the longest."""

    def __init__(
        self,
        cells: Cells,
        mass: Floats,
        dependence: Floats,
        squared: Singles,
        cores: Singles,
        within: float,
        split_significance: float,
        remain_apart: RemainApart,
    ) -> None:
        self._mass, self._squared, self._within = mass, squared, within
        self._split_significance, self._remain_apart = split_significance, remain_apart
        self._root = list(range(len(cells)))
        spread = (mass * dependence).tolist()
        facts = zip(mass.tolist(), cells.recent.tolist(), spread, cores.tolist(), strict=True)
        self._groups = {at: _Group([at], *fact) for at, fact in enumerate(facts)}
        self._whole: dict[int, float] = {}
        for at, (cluster, held) in enumerate(zip(cells.cluster.tolist(), cells.mass.tolist(), strict=True)):
            if cluster >= 0:
                self._groups[at].known[cluster] = held
                self._whole[cluster] = self._whole.get(cluster, 0.0) + held

    def join(self, a: int, b: int, length: float) -> None:
        """Add the edge of cells a and b, of squared length `length`: join their groups, or refuse the join."""
        a, b = self._find(a), self._find(b)
        if self._groups[a].core > self._groups[b].core:
            a, b = b, a
        one, other = self._groups[a], self._groups[b]
        if min(one.mass, other.mass) >= LIGHTEST * self._within and self._refused(one, other, length):
            return
        self._root[b] = a
        one.absorb(self._groups.pop(b))

    def result(self) -> tuple[Positions, dict[int, float]]:
        """(k,) the group of each cell, and the lowest significance of each group's refused joins."""
        group = np.array([self._find(at) for at in range(len(self._root))], dtype=np.int64)
        apart = {at: one.significance for at, one in self._groups.items() if one.significance < math.inf}
        return group, apart

    def _refused(self, one: _Group, other: _Group, length: float) -> bool:
        light, heavy = (one, other) if one.mass < other.mass else (other, one)
        pair = self._known_pair(one, other)
        if pair is None and self._significance_max(light) < self._split_significance:
            return False
        found = self._significance(light, length)
        if found > 0.0:
            found = min(found, self._significance(heavy, length))
        if pair is not None:
            refused = self._remain_apart(pair, found)
        else:
            lesser = min((one, other), key=lambda group: max(group.known.values(), default=0.0))
            refused = found >= self._split_significance and lesser.recent > RECENT_MIN
        if refused:
            one.significance, other.significance = min(one.significance, found), min(other.significance, found)
        return refused

    def _significance(self, group: _Group, length: float) -> float:
        typical = typical_mass(self._squared, np.array(group.members), self._mass, length)
        return join_significance(typical, self._within, group.dependence)

    def _significance_max(self, group: _Group) -> float:
        """The highest significance that a group of its mass can reach."""
        return join_significance(group.mass, self._within, group.dependence)

    def _known_pair(self, one: _Group, other: _Group) -> Pair | None:
        """The two known clusters that these groups stand for; None unless there are two."""
        a, b = one.main, other.main
        if a is None or b is None or a == b:
            return None
        if min(one.known[a] / self._whole[a], other.known[b] / self._whole[b]) <= OWN_SHARE_MIN:
            return None
        return min(a, b), max(a, b)

    def _find(self, at: int) -> int:
        root = self._root
        while root[at] != at:
            root[at] = root[root[at]]
            at = root[at]
        return at
