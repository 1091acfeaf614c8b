"""The number of readings that count as one, because successive readings of a sensor are not
independent.

It is measured by coincidence: of independent readings of a cluster, as large a share lies near a
given one in one block as in all earlier ones. What lies there beyond that share is the excess, and
1 + excess readings count as one. So no model of the sensor is needed, only two counts.
"""

from __future__ import annotations

import math
from typing import Final, Self

import numpy as np

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.algorithms.cluster_tree.identities import Cluster, Identities
from shoal.algorithms.cluster_tree.sketches import SketchState
from shoal.kernels.arrays import Bools, Floats, Ints, different
from shoal.kernels.sketching import (
    Located,
    Sketch,
    empty_sketch,
    frame_of,
    nearest_to,
    squared_between,
)

SAMPLE_POINTS: Final = 200
"""points of a block whose neighbours are counted"""
KEPT: Final = 250
KEPT_OF_BLOCK: Final = 25
"""earlier points kept for comparison, and how many of them each block adds"""
SLOW_READINGS: Final = 2000.0
"""readings of all clusters before now that are compared with those before them"""
LONG_READINGS: Final = 5000.0
"""readings of a cluster in which a measured excess fades to 1/e"""
FIRST_READINGS: Final = 500.0
"""readings that the first estimate, no excess, is worth"""
OTHER_TIME: Final = 0.25
"""share of an update between two readings from which they came at another time"""
COMPARED_MIN: Final = 5.0
"""fewest readings of the cluster in the block from which a share is computed"""
EARLIER_MIN: Final = 100.0
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
        near = nearest_of_latest(block.points, cells, centres)
        # Before the first tree no core distance is known, and nothing can be near.
        if len(self._earlier.mass) and np.isfinite(cores).all():
            earlier_cluster = cells.cluster[_nearest(self._earlier.points, centres)]
            sample = _evenly(len(block.mass), SAMPLE_POINTS)
            within = cores[near[sample]] ** 2
            counts = _Counts(
                block, cells.cluster[near], sample, within, self._earlier, earlier_cluster
            )
            _learn_each(identities, counts, time)
        self._keep_some(block)
        return near

    def _keep_some(self, block: Sketch) -> None:
        mass = block.mass
        some = _evenly(len(mass), KEPT_OF_BLOCK)
        stand_for_all = Sketch(
            block.points[some], mass[some] * float(mass.sum() / mass[some].sum())
        )
        self._earlier = self._earlier.with_more(stand_for_all).kept(slice(-KEPT, None))

    def state(self) -> SketchState:
        """The sample; nothing else is kept."""
        return SketchState.of(self._earlier)

    @classmethod
    def restored(cls, saved: SketchState, width: int) -> Self:
        """The sample of a saved state."""
        fresh = cls(width)
        fresh._earlier = saved.restored()
        return fresh


def _evenly(n: int, most: int) -> Ints:
    """Positions of at most `most` of n > 0 points, evenly chosen, the first and the last one among
    them."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.int64)


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
        is_near = _apart(block.points[sample], block.points) <= within[:, None]
        self.close = is_near & self.same
        was_near = _apart(block.points[sample], earlier.points) <= within[:, None]
        self.close_before = was_near & self.same_before
        # A sampled reading is itself among those counted around it, but not among those it is
        # compared with.
        self.close_in_block = self.close @ self.mass - 1.0
        self.others_in_block = self.same @ self.mass - 1.0

    def excess(self, time: Floats) -> tuple[Bools, Floats]:
        """-> (s,) which of the sampled points can be compared, (s,) the excess of readings around
        each."""
        close_before = self.close_before @ self.earlier_mass
        all_before = self.same_before @ self.earlier_mass
        is_late = np.abs(time[self.sample, None] - time) > OTHER_TIME
        close_late = (self.close & is_late) @ self.mass
        all_late = (self.same & is_late) @ self.mass
        share = close_before / np.maximum(all_before, 1.0)
        share_late = close_late / np.maximum(all_late, 1.0)
        # Where a cluster has moved its earlier readings are few, and no sign that those of now
        # depend on each other.
        by_late = (close_before <= 0.0) | ((share_late > share) & (all_late >= COMPARED_MIN))
        share = np.where(by_late, share_late, share)
        counted = np.where(by_late, all_late >= COMPARED_MIN, all_before >= EARLIER_MIN)
        return counted, self.close_in_block - self.others_in_block * share

    def slow_excess(self) -> tuple[Bools, Floats]:
        """The same for the last `SLOW_READINGS` readings and those before."""
        # Added up from the newest back: those within the last `SLOW_READINGS` are late.
        age = np.cumsum(self.earlier_mass[::-1])[::-1] + float(self.mass.sum()) / 2
        is_late = age <= SLOW_READINGS
        weights = self.earlier_mass[:, None] * np.stack([is_late, ~is_late], axis=1)
        close_late, close_before = (self.close_before @ weights).T
        all_late, all_before = (self.same_before @ weights).T
        share = close_before / np.maximum(all_before, 1.0)
        excess = self.close_in_block + close_late - (self.others_in_block + all_late) * share
        return all_before >= EARLIER_MIN, excess


def _learn_each(identities: Identities, counts: _Counts, time: Floats) -> None:
    """Let each cluster learn the mean excess of its sampled points that can be compared, over the
    block and over thousands of readings."""
    of_sample = counts.cluster[counts.sample]
    weights = counts.mass[counts.sample]
    counted, excess = counts.excess(time)
    slow_counted, slow_excess = counts.slow_excess()
    for identity in different(counts.cluster)[0].tolist():
        cluster = identities.clusters[identity]
        own = of_sample == identity
        mass = float(counts.mass[counts.cluster == identity].sum())
        here = counted & own
        if here.any():
            _learn(cluster, _average(excess[here], weights[here]), mass, slow=False)
        here = slow_counted & own
        if here.any():
            _learn(cluster, _average(slow_excess[here], weights[here]), mass, slow=True)


def _average(values: Floats, weights: Floats) -> float:
    """(n,), (n,) -> the weighted mean; `numpy.average` takes most of its time to check both."""
    return float((values * weights).sum() / weights.sum())


def _learn(cluster: Cluster, measured: float, mass: float, slow: bool) -> None:
    """A running mean over `LONG_READINGS`, and over all readings while there are fewer."""
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


def _apart(points: Floats, others: Floats) -> Floats:
    """points (n, d), (m, d) -> (n, m) squared distances."""
    frame = frame_of(np.concatenate([points, others]))
    squared = squared_between(frame.of(points), frame.of(others))
    return squared.astype(np.float64) * frame.scale**2
