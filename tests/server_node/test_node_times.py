"""When the readings of a cluster came that was found later, as the times of its nodes say."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.view import ClusteringView
from shoal.kernels.arrays import Floats
from shoal.server_node.history import node_times
from shoal.server_node.history.attribution import WaitingUpdate, WaitingUpdates
from shoal.server_node.history.node_times import NodeTimes, ReadingsSpan

HOUR_S = 3600.0
READINGS = 60
USUAL = (0.2, 0.2)
OUTAGE = (0.8, 0.8)


def an_update(hour: int, number: int, outage: int = 0) -> WaitingUpdate:
    """The readings of the hour before, `outage` of them far from all others."""
    points = np.array([USUAL, OUTAGE])
    weights = np.array([READINGS - outage, outage], dtype=np.float64)
    kept = weights > 0
    return WaitingUpdate(
        hour * HOUR_S, "attic", READINGS, number, points[kept], weights[kept], HOUR_S
    )


def a_view(*nodes: tuple[float, float], ids: list[int]) -> ClusteringView:
    """Nodes of which those near the outage are the second cluster."""
    points: Floats = np.array(nodes)
    cluster = (points[:, 0] > 0.5).astype(np.int64)
    return ClusteringView.from_nodes(points, np.ones(len(points)), cluster, node_id=ids)


class Followed:
    """Node times that have followed one snapshot an hour."""

    def __init__(self) -> None:
        self.times = NodeTimes()
        self.view: ClusteringView | None = None
        self.hour = 0

    def learn(self, view: ClusteringView, outage: int = 0) -> None:
        self.hour += 1
        waiting = WaitingUpdates()
        waiting.add(an_update(self.hour, self.hour, outage))
        self.times.follow(waiting, self.view, view)
        self.view = view

    def span(self) -> ReadingsSpan | None:
        """That of the second cluster."""
        assert self.view is not None
        return self.times.span(self.view, [1])


def test_an_outage_that_is_found_days_later_has_the_hours_in_which_it_was() -> None:
    usual = a_view(USUAL, ids=[1])
    followed = Followed()
    for _ in range(9):
        followed.learn(usual)
    # Three hours of it come as nodes of their own, two of which are merged into the third later.
    followed.learn(a_view(USUAL, (0.79, 0.8), ids=[1, 5]), outage=20)
    followed.learn(a_view(USUAL, (0.79, 0.8), (0.8, 0.8), ids=[1, 5, 6]), outage=60)
    followed.learn(a_view(USUAL, (0.79, 0.8), (0.8, 0.8), ids=[1, 5, 6]), outage=15)
    merged = a_view(USUAL, OUTAGE, ids=[1, 6])
    for _ in range(96):
        followed.learn(merged)
    assert followed.span() == ReadingsSpan(9 * HOUR_S, 12 * HOUR_S)
    again = NodeTimes()
    again.restore(followed.times.state())
    assert again.span(merged, [1]) == followed.span()


def test_readings_that_still_come_have_no_end() -> None:
    followed = Followed()
    followed.learn(a_view(USUAL, ids=[1]))
    followed.learn(a_view(USUAL, OUTAGE, ids=[1, 2]), outage=20)
    followed.learn(a_view(USUAL, OUTAGE, ids=[1, 2]), outage=20)
    assert followed.span() == ReadingsSpan(HOUR_S, None)


def test_a_stray_reading_of_months_before_is_not_the_begin() -> None:
    followed = Followed()
    both = a_view(USUAL, OUTAGE, ids=[1, 2])
    followed.learn(both, outage=1)
    for _ in range(50):
        followed.learn(both)
    followed.learn(both, outage=40)
    followed.learn(both)
    followed.learn(both)
    assert followed.span() == ReadingsSpan(51 * HOUR_S, 52 * HOUR_S)


def test_of_many_nodes_that_are_gone_at_once_the_newest_leave_their_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A view of two nodes and two features: one node that is gone is compared.
    monkeypatch.setattr(node_times, "GONE_COORDINATES", 4)
    followed = Followed()
    followed.learn(a_view(USUAL, (0.7, 0.7), ids=[1, 2]), outage=0)
    followed.learn(a_view(USUAL, (0.7, 0.7), OUTAGE, ids=[1, 2, 3]), outage=40)
    followed.learn(a_view(USUAL, OUTAGE, ids=[7, 8]), outage=0)
    assert followed.span() == ReadingsSpan(HOUR_S, 2 * HOUR_S)


def test_nothing_is_known_of_a_cluster_near_which_no_readings_were() -> None:
    followed = Followed()
    followed.learn(a_view(USUAL, OUTAGE, ids=[1, 2]))
    assert followed.span() is None


def test_an_update_that_waits_for_a_cluster_counts_once() -> None:
    waiting = WaitingUpdates()
    waiting.add(an_update(1, 1, outage=30))
    times = NodeTimes()
    view = a_view(USUAL, OUTAGE, ids=[1, 2])
    times.follow(waiting, None, view)
    once = times.state()["readings"]
    times.follow(waiting, view, view)
    assert np.array_equal(times.state()["readings"], once)
    assert once.sum() == READINGS
