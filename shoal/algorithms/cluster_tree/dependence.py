"""Measures how many readings count as one, because successive readings of a sensor are not independent.

A block is what was absorbed since the last rebuild. Around a sample of its points, the readings of the same block and
cluster within a core distance are counted. This count is compared with that expected of independent readings: the share
of the cluster's earlier readings that lies there, or the share of the readings that came at another time of their
update, where that is larger or no earlier reading lies there. The difference is the excess.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.algorithms.cluster_tree.client import restored_sketch, sketch_state
from shoal.algorithms.cluster_tree.identities import Identities
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.kernels.distance import Floats, nearest
from shoal.kernels.sketching import Positions, Sketch, empty_sketch, frame_of, squared_between

SAMPLE_POINTS = 200
"""points of a block whose neighbours are counted"""
KEPT = 400
"""earlier points kept for comparison; each block adds a quarter of `SAMPLE_POINTS`"""
LONG_READINGS = 5000.0
"""readings of a cluster in which a measured excess fades to 1/e"""
FIRST_READINGS = 500.0
"""readings that the first estimate, no excess, is worth"""
OTHER_TIME = 0.25
"""share of an update between two readings from which they came at another time"""
COMPARED_MIN = 5.0
"""smallest number of the cluster's earlier readings of which a share is computed"""


class Dependence:
    """A sample of earlier readings, with which each block is compared."""

    def __init__(self, width: int) -> None:
        self._earlier = empty_sketch(width)

    def compare(self, block: Sketch, time: Floats, cells: Cells, cores: Floats, identities: Identities) -> Positions:
        """Measure the excess of each cluster in a block of n > 0 points -> (n,) the nearest cell of each point.

        `time` (n,): when in its update each point came, 0 to 1. `cores` (k,): core distances of the cells.
        """
        mass = block.mass
        near = nearest(block.points, cells.centres)[0]
        cluster = cells.cluster[near]
        sample = np.linspace(0, len(mass) - 1, min(len(mass), SAMPLE_POINTS)).astype(np.int64)
        if len(self._earlier.mass) and np.isfinite(cores).all():
            counted, excess = self._excess(block, time, cluster, cores[near[sample]] ** 2, sample, cells)
            for identity in np.unique(cluster).tolist():
                here = counted & (cluster[sample] == identity)
                if here.any():
                    measured = float(np.average(excess[here], weights=mass[sample[here]]))
                    self._learn(identities, identity, measured, float(mass[cluster == identity].sum()))
        few = sample[:: max(1, len(sample) * 4 // SAMPLE_POINTS)]
        self._earlier = self._earlier.with_more(block.kept(few)).kept(slice(-KEPT, None))
        return near

    def _excess(
        self, block: Sketch, time: Floats, cluster: Positions, within: Floats, sample: Positions, cells: Cells
    ) -> tuple[NDArray[np.bool_], Floats]:
        """-> (s,) which of the sampled points can be compared, (s,) the excess of readings around each."""
        mass, earlier = block.mass, self._earlier
        own = cluster[sample]
        earlier_cluster = cells.cluster[nearest(earlier.points, cells.centres)[0]]
        same, same_before = own[:, None] == cluster, own[:, None] == earlier_cluster
        close = (_apart(block.points[sample], block.points) <= within[:, None]) & same
        before = (_apart(block.points[sample], earlier.points) <= within[:, None]) & same_before
        held, whole = before @ earlier.mass, same_before @ earlier.mass
        late = np.abs(time[sample, None] - time) > OTHER_TIME
        held_late, whole_late = (close & late) @ mass, (same & late) @ mass
        share, share_late = held / np.maximum(whole, 1.0), held_late / np.maximum(whole_late, 1.0)
        # Where a cluster has moved its earlier readings are few, and no sign that those of now depend on each other.
        by_late = (held <= 0.0) | ((share_late > share) & (whole_late >= COMPARED_MIN))
        share, whole = np.where(by_late, share_late, share), np.where(by_late, whole_late, whole)
        # A sampled reading is itself among those counted around it, but not among those it is compared with.
        excess = close @ mass - 1.0 - (same @ mass - 1.0) * share
        return whole >= COMPARED_MIN, excess

    @staticmethod
    def _learn(identities: Identities, identity: int, measured: float, mass: float) -> None:
        cluster = identities.clusters[identity]
        cluster.compared += mass
        rate = max(1.0 - math.exp(-mass / LONG_READINGS), mass / (cluster.compared + FIRST_READINGS))
        cluster.excess += rate * (measured - cluster.excess)

    def state(self) -> State:
        return sketch_state("earlier", self._earlier)

    @classmethod
    def restored(cls, saved: StateReader, width: int) -> Self:
        """The sample of a saved state. Raises `InvalidState`."""
        fresh = cls(width)
        fresh._earlier = restored_sketch(saved, "earlier", width)
        return fresh


def _apart(one: Floats, other: Floats) -> Floats:
    """points (n, d), (m, d) -> (n, m) squared distances."""
    frame = frame_of(np.concatenate([one, other]))
    return squared_between(frame.of(one), frame.of(other)).astype(np.float64) * frame.scale**2
