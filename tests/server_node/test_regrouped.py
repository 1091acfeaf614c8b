"""Which clusters have readings that the history has counted to others."""

from __future__ import annotations

import numpy as np

from shoal.protocol.history import NO_CLUSTER
from shoal.server_node.history.regrouped import regrouped


def found(
    before: list[int], now: list[int], mass: list[float], recent: dict[int, float] | None = None
) -> set[int]:
    return regrouped(np.array(before), np.array(now), np.array(mass), recent)


def test_a_model_without_nodes_has_no_cluster_that_was_counted_to_others() -> None:
    assert regrouped(np.empty(0, int), np.empty(0, int), np.empty(0), None) == set()


def test_all_clusters_of_a_model_that_knew_none_were_counted_to_no_cluster() -> None:
    nothing = [NO_CLUSTER] * 3
    assert found(nothing, [0, 1, 1], [10.0, 5.0, 2.0]) == {0, 1}
    assert found(nothing, nothing, [10.0, 5.0, 2.0]) == set()


def test_a_cluster_that_keeps_its_places_is_as_before() -> None:
    recent = {0: 0.7, 1: 0.3}
    assert found([0, 0, 1], [0, 0, 1], [700.0, 90.0, 300.0], recent) == set()
    # A leaf at the edge with a hundredth of the readings may change sides.
    assert found([0, 1, 1], [0, 0, 1], [700.0, 10.0, 290.0], recent) == set()


def test_both_parts_of_a_cluster_that_was_cut_were_counted_together() -> None:
    recent = {0: 0.4, 2: 0.3, 1: 0.3}
    assert found([0, 0, 1], [0, 2, 1], [4000.0, 3000.0, 3000.0], recent) == {0, 2}


def test_two_clusters_that_have_merged_were_counted_apart() -> None:
    assert found([0, 1, 2], [0, 0, 2], [4000.0, 3000.0, 3000.0], {0: 0.7, 2: 0.3}) == {0}


def test_a_state_that_began_now_was_never_counted_to_another() -> None:
    # 200 readings of 20 000, all of them of the newest 4 000.
    recent = {0: 0.65, 1: 0.3, 2: 0.05}
    assert found([0, 0, 1], [0, 2, 1], [13_800.0, 200.0, 6000.0], recent) == set()
    # As many of a state that had 5 % all the time, and which the cells did not tell apart.
    assert found([0, 0, 1], [0, 2, 1], [13_000.0, 1000.0, 6000.0], recent) == {2}
