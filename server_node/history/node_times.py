"""Times at which readings came near each node of a model.

A cluster may be found long after its readings: three hours of an outage stand out from all others
only once enough has been learnt. Its nodes were there before, so they say when its readings began
and ended, to the span of an update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.algorithms.view import ClusteringView
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.kernels.distance import nearest_centres
from shoal.saved_state import FloatArray, IntArray, Number, SavedState, require, state_type
from shoal.server_node.history.attribution import WaitingUpdates, points_compared

FEW_SHARE: Final = 0.05
"""share of the readings near a node, or of those of a cluster, that does not say when they began or
ended: a stray reading may have been there months before"""

# Of 1 000 nodes in 3 features 174 are compared, and seldom are as many gone at once.
GONE_COORDINATES: Final = 2**19
"""coordinates of nodes that those which are none any more are compared with"""


class ReadingsSpan(NamedTuple):
    """The time in which the readings of a cluster came, seconds since 1970."""

    first: float
    last: float | None
    """None where readings still came with the newest updates"""


class _Times(NamedTuple):
    """Readings near n nodes, and their times."""

    readings: Floats
    first: Floats
    """infinite where there are none"""
    last: Floats

    @classmethod
    def none(cls, n: int) -> _Times:
        return cls(np.zeros(n), np.full(n, np.inf), np.full(n, -np.inf))

    def take(self, places: Ints) -> _Times:
        return _Times(self.readings[places], self.first[places], self.last[places])

    def with_more(self, at: Ints, more: _Times) -> _Times:
        """These and those of others (m,), each of which is `at` one of the n places."""
        n = len(self.readings)
        readings = np.bincount(at, weights=more.readings, minlength=n)
        first = np.full(n, np.inf)
        np.minimum.at(first, at, more.first)
        last = self.last.copy()
        np.maximum.at(last, at, more.last)
        total = self.readings + readings
        few = FEW_SHARE * total
        begin = np.minimum(self.first, first)
        # Where either has next to none of the readings, the other one says when they began.
        begin = np.where(self.readings <= few, first, begin)
        begin = np.where(readings <= few, self.first, begin)
        return _Times(total, begin, last)


@state_type
class NodeTimesState(SavedState):
    """See `NodeTimes`; of the nodes near which there were readings."""

    node: Annotated[Ints, IntArray("n", least=-COUNT_MAX)]
    readings: Annotated[Floats, FloatArray("n")]
    first: Annotated[Floats, FloatArray("n")]
    last: Annotated[Floats, FloatArray("n")]
    upto_update: int
    upto: Annotated[float | None, Number()]
    before: Annotated[float | None, Number()]

    def check(self) -> None:
        require(bool((self.readings > 0.0).all()), "times of no readings")
        require(bool((self.first <= self.last).all()), "readings of a node end before they begin")


class NodeTimes:
    """The times of the readings near each node of the newest snapshot."""

    def __init__(self) -> None:
        self._node: Ints = np.empty(0, dtype=np.int64)
        """(n,) ids of nodes"""
        self._times = _Times.none(0)
        self._upto_update = 0
        """the newest update whose readings are in the times"""
        self._upto: float | None = None
        """time of the newest reading in them"""
        self._before: float | None = None
        """the same at the snapshot before the newest one"""

    def follow(
        self, waiting: WaitingUpdates, before: ClusteringView | None, view: ClusteringView
    ) -> None:
        """Go on to the nodes of a snapshot, which has learnt from the updates that wait since the
        one `before`.

        A node that is none any more leaves its readings to the nearest one: algorithms merge nodes
        that are near each other.
        """
        newest = waiting.timed_points(self._upto_update, points_compared(view.nodes))
        times = self._times
        # Most updates change no node.
        if not np.array_equal(view.node_id, self._node):
            times = self._of_nodes(before, view)
        if newest is not None and len(view.nodes):
            near = nearest_centres(newest.points, view.nodes)
            times = times.with_more(near, _Times(newest.readings, newest.first, newest.last))
        self._node = view.node_id.copy()
        self._times = times
        self._before = self._upto
        if newest is not None:
            self._upto_update = newest.upto_update
            upto = float(newest.last.max())
            self._upto = upto if self._upto is None else max(self._upto, upto)

    def _of_nodes(self, before: ClusteringView | None, view: ClusteringView) -> _Times:
        """The times of the nodes of a snapshot, with those of the nodes `before` that are none any
        more."""
        times = _Times.none(len(view.nodes))
        _, now, then = np.intersect1d(
            view.node_id, self._node, assume_unique=True, return_indices=True
        )
        for values, before_values in zip(times, self._times, strict=True):
            values[now] = before_values[then]
        gone = self._times.readings > 0.0
        gone[then] = False
        if not len(view.nodes) or not gone.any():
            return times
        # After a change of the contract a node may have other features.
        if before is None or before.nodes.shape[1] != view.nodes.shape[1]:
            return times
        _, place, known = np.intersect1d(
            before.node_id, self._node[gone], assume_unique=True, return_indices=True
        )
        if not len(place):
            return times
        left = self._times.take(np.flatnonzero(gone)[known])
        most = GONE_COORDINATES // view.nodes.size
        if len(place) > most:
            # Those whose readings began last: a cluster that is still to be found is made of these.
            newest = np.sort(np.argsort(-left.first, kind="stable")[:most])
            place = place[newest]
            left = left.take(newest)
        return times.with_more(nearest_centres(before.nodes[place], view.nodes), left)

    def span(self, view: ClusteringView, numbers: Sequence[int]) -> ReadingsSpan | None:
        """The time in which the readings of a cluster came, which has these numbers in the view
        that was followed last; None where nothing is known of it."""
        times = self._times.take(np.flatnonzero(np.isin(view.cluster, numbers)))
        few = FEW_SHARE * float(times.readings.sum())
        if few <= 0.0:
            return None
        first = _least_but_for(times.first, times.readings, few)
        last = -_least_but_for(-times.last, times.readings, few)
        if self._before is None or last > self._before:
            return ReadingsSpan(first, None)
        return ReadingsSpan(first, last)

    def state(self) -> dict[str, Any]:
        """The saved state for `restore`."""
        some = self._times.readings > 0.0
        return NodeTimesState(
            node=self._node[some],
            readings=self._times.readings[some],
            first=self._times.first[some],
            last=self._times.last[some],
            upto_update=self._upto_update,
            upto=self._upto,
            before=self._before,
        ).saved()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        saved = NodeTimesState.read(state)
        self._node = saved.node
        self._times = _Times(saved.readings, saved.first, saved.last)
        self._upto_update = saved.upto_update
        self._upto = saved.upto
        self._before = saved.before


def _least_but_for(times: Floats, readings: Floats, few: float) -> float:
    """The least of times (n,) but for those of `few` of the readings (n,)."""
    # Stable: of equal times the first, so that sums are the same on every machine.
    order = np.argsort(times, kind="stable")
    reached = np.cumsum(readings[order])
    return float(times[order[np.searchsorted(reached, few, side="right")]])
