"""The number of readings that count as one, because successive readings of a sensor are not
independent."""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.algorithms.cluster_tree.client import restored_sketch, sketch_state
from shoal.algorithms.cluster_tree.identities import Cluster, Identities
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.kernels.sketching import (
    Located,
    Sketch,
    empty_sketch,
    frame_of,
    nearest_to,
    squared_between,
)

SAMPLE_POINTS = 200
"""points of a block whose neighbours are counted"""
KEPT = 250
KEPT_OF_BLOCK = 25
"""earlier points kept for comparison, and how many of them each block adds"""
SLOW_READINGS = 2000.0
"""readings of all clusters before now that are compared with those before them"""
LONG_READINGS = 5000.0
"""readings of a cluster in which a measured excess fades to 1/e"""
FIRST_READINGS = 500.0
"""readings that the first estimate, no excess, is worth"""
OTHER_TIME = 0.25
"""share of an update between two readings from which they came at another time"""
COMPARED_MIN = 5.0
"""fewest readings of the cluster in the block from which a share is computed"""
EARLIER_MIN = 100.0
"""fewest earlier readings from which a share is computed; each point stands for about twenty"""


class Dependence:
    """A sample of earlier readings, with which each block is compared."""

    def __init__(self, width: int) -> None:
        self._earlier = empty_sketch(width)
        """points and the readings absorbed that each stands for"""

    def compare(
        self,
        block: Sketch,
        time: Floats,
        cells: Cells,
        centres: Located,
        cores: Floats,
        identities: Identities,
    ) -> Ints:
        """Measure the excess of each cluster in a block of n > 0 points -> (n,) the nearest cell of
        each point.

        `time` (n,): when in its update each point came, 0 to 1. `centres` (k, d) and `cores` (k,):
        those of the cells.
        """
        mass = block.mass
        near = nearest_of_latest(block.points, cells, centres)
        sample = np.linspace(0, len(mass) - 1, min(len(mass), SAMPLE_POINTS)).astype(np.int64)
        if len(self._earlier.mass) and np.isfinite(cores).all():
            earlier_cluster = cells.cluster[_nearest(self._earlier.points, centres)]
            within = cores[near[sample]] ** 2
            counts = _Counts(
                block, cells.cluster[near], sample, within, self._earlier, earlier_cluster
            )
            _learn_each(identities, counts, *counts.excess(time))
            _learn_each(identities, counts, *counts.slow_excess(), slow=True)
        few = np.linspace(0, len(mass) - 1, min(len(mass), KEPT_OF_BLOCK)).astype(np.int64)
        stand_for_all = Sketch(block.points[few], mass[few] * float(mass.sum() / mass[few].sum()))
        self._earlier = self._earlier.with_more(stand_for_all).kept(slice(-KEPT, None))
        return near

    def state(self) -> State:
        return sketch_state("earlier", self._earlier)

    @classmethod
    def restored(cls, saved: StateReader, width: int) -> Self:
        """The sample of a saved state. Raises `InvalidState`."""
        fresh = cls(width)
        fresh._earlier = restored_sketch(saved, "earlier", width)
        return fresh


class _Counts:
    """Which readings of a block of n points, and of m earlier ones, lie near s sampled points in
    the same cluster."""

    def __init__(
        self,
        block: Sketch,
        cluster: Ints,
        sample: Ints,
        within: Floats,
        earlier: Sketch,
        earlier_cluster: Ints,
    ) -> None:
        """`cluster` (n,), `earlier_cluster` (m,) those of the points, `sample` (s,) positions,
        `within` (s,) squared distances."""
        own = cluster[sample]
        self.mass = block.mass
        self.cluster = cluster
        self.sample = sample
        self.earlier_mass = earlier.mass
        self.same = own[:, None] == cluster
        self.same_before = own[:, None] == earlier_cluster
        self.close = (_apart(block.points[sample], block.points) <= within[:, None]) & self.same
        self.before = (
            _apart(block.points[sample], earlier.points) <= within[:, None]
        ) & self.same_before
        # A sampled reading is itself among those counted around it, but not among those it is
        # compared with.
        self.close_in_block = self.close @ self.mass - 1.0
        self.others_in_block = self.same @ self.mass - 1.0

    def excess(self, time: Floats) -> tuple[Bools, Floats]:
        """-> (s,) which of the sampled points can be compared, (s,) the excess of readings around
        each."""
        held = self.before @ self.earlier_mass
        whole = self.same_before @ self.earlier_mass
        late = np.abs(time[self.sample, None] - time) > OTHER_TIME
        held_late = (self.close & late) @ self.mass
        whole_late = (self.same & late) @ self.mass
        share = held / np.maximum(whole, 1.0)
        share_late = held_late / np.maximum(whole_late, 1.0)
        # Where a cluster has moved its earlier readings are few, and no sign that those of now
        # depend on each other.
        by_late = (held <= 0.0) | ((share_late > share) & (whole_late >= COMPARED_MIN))
        share = np.where(by_late, share_late, share)
        counted = np.where(by_late, whole_late >= COMPARED_MIN, whole >= EARLIER_MIN)
        return counted, self.close_in_block - self.others_in_block * share

    def slow_excess(self) -> tuple[Bools, Floats]:
        """The same for the last `SLOW_READINGS` readings and those before."""
        # Added up from the newest back: those within the last `SLOW_READINGS` are late.
        is_late = (
            np.cumsum(self.earlier_mass[::-1])[::-1] + float(self.mass.sum()) / 2 <= SLOW_READINGS
        )
        weights = self.earlier_mass[:, None] * np.stack([is_late, ~is_late], axis=1)
        held = self.before @ weights
        whole = self.same_before @ weights
        share = held[:, 1] / np.maximum(whole[:, 1], 1.0)
        excess = self.close_in_block + held[:, 0] - (self.others_in_block + whole[:, 0]) * share
        return whole[:, 1] >= EARLIER_MIN, excess


def _learn_each(
    identities: Identities, counts: _Counts, counted: Bools, excess: Floats, slow: bool = False
) -> None:
    """Each cluster learns the mean excess of those of its sampled points (s,) that were `counted`."""
    of_sample = counts.cluster[counts.sample]
    for identity in np.unique(counts.cluster).tolist():
        here = counted & (of_sample == identity)
        if here.any():
            measured = float(np.average(excess[here], weights=counts.mass[counts.sample[here]]))
            mass = float(counts.mass[counts.cluster == identity].sum())
            _learn(identities.clusters[identity], measured, mass, slow)


def _learn(cluster: Cluster, measured: float, mass: float, slow: bool) -> None:
    compared = mass + (cluster.slow_compared if slow else cluster.compared)
    rate = max(1.0 - math.exp(-mass / LONG_READINGS), mass / (compared + FIRST_READINGS))
    if slow:
        cluster.slow_compared = compared
        cluster.slow_excess = (1.0 - rate) * cluster.slow_excess + rate * measured
    else:
        cluster.compared = compared
        cluster.excess = (1.0 - rate) * cluster.excess + rate * measured


def nearest_of_latest(points: Floats, cells: Cells, centres: Located) -> Ints:
    """points (n, d), the latest that became cells, in their order -> (n,) the nearest cell of each.

    Only of those that have been merged with others, or removed, it has to be looked for.
    """
    ids = np.arange(cells.n_created - len(points), cells.n_created)
    place = np.minimum(np.searchsorted(cells.ids, ids), len(cells) - 1)
    moved = np.flatnonzero((cells.ids[place] != ids) | (cells.centres[place] != points).any(axis=1))
    if len(moved):
        place[moved] = _nearest(points[moved], centres)
    return place


def _nearest(points: Floats, centres: Located) -> Ints:
    """points (n, d) -> (n,) the nearest centre; of centres that nearly coincide any of them."""
    return nearest_to(centres.frame.of(points), centres.points)


def _apart(one: Floats, other: Floats) -> Floats:
    """points (n, d), (m, d) -> (n, m) squared distances."""
    frame = frame_of(np.concatenate([one, other]))
    return squared_between(frame.of(one), frame.of(other)).astype(np.float64) * frame.scale**2
