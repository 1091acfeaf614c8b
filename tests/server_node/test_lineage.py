"""Who is who among clusters: identities that survive every renumbering, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_node.lineage import Lineage, Turnover, next_lineage, restore_lineage
from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.protocol.codec import pack, unpack

Clustering = dict[int, int]
"""node -> cluster"""

clusterings = st.dictionaries(st.integers(0, 30), st.integers(NO_CLUSTER, 6), max_size=25)
histories = st.lists(clusterings, min_size=1, max_size=5)


def after(*clusterings: Clustering) -> tuple[Lineage, Turnover]:
    """The lineage at the end of these snapshots, and the turnover of the last one."""
    lineage, turnover = Lineage(), Turnover()
    for clustering in clusterings:
        lineage, turnover = next_lineage(lineage, view_of(clustering))
    return lineage, turnover


def view_of(clustering: Clustering) -> ClusteringView:
    """A clustering of nodes that all lie in the same place."""
    n = len(clustering)
    return ClusteringView.from_nodes(np.zeros((n, 1)), np.ones(n), list(clustering.values()), node_id=list(clustering))


def heap(cluster: int, *nodes: int) -> Clustering:
    return dict.fromkeys(nodes, cluster)


# What becomes of clusters.


def test_no_nodes_make_no_clusters() -> None:
    assert after({}) == (Lineage(), Turnover())
    assert after({}, {}) == (Lineage(), Turnover())


def test_the_first_clusters_are_born_oldest_node_first() -> None:
    lineage, turnover = after(heap(0, 9) | heap(1, 4, 5) | heap(2, 7))
    assert lineage.of_cluster == {1: 0, 2: 1, 0: 2}
    assert lineage.slots == {0: 0, 1: 1, 2: 2}
    assert turnover == Turnover(births=3)


def test_a_cluster_that_continues_is_no_event() -> None:
    lineage, turnover = after(heap(0, 1, 2) | heap(1, 3, 4), heap(0, 4, 3, 8) | heap(1, 2))
    assert lineage.of_cluster == {0: 1, 1: 0}
    assert turnover == Turnover()


def test_a_node_without_a_cluster_has_no_identity() -> None:
    lineage, turnover = after({1: 0, 2: NO_CLUSTER}, {1: 0, 2: 1})
    assert lineage.of_cluster == {0: 0, 1: 1}
    assert turnover == Turnover(births=1)


def test_the_larger_half_of_a_split_keeps_the_identity() -> None:
    lineage, turnover = after(heap(0, *range(10)), heap(0, *range(4)) | heap(1, *range(4, 10)))
    assert lineage.of_cluster == {1: 0, 0: 1}
    assert turnover == Turnover(splits=1)


def test_of_equal_halves_the_one_with_the_oldest_node_keeps_the_identity() -> None:
    lineage, _ = after(heap(0, 1, 2, 3, 4), heap(0, 3, 4) | heap(1, 1, 2))
    assert lineage.of_cluster == {1: 0, 0: 1}


def test_a_merge_keeps_the_identity_of_the_larger_cluster() -> None:
    lineage, turnover = after(heap(0, *range(4)) | heap(1, *range(4, 10)), heap(0, *range(10)))
    assert lineage.of_cluster == {0: 1}
    assert turnover == Turnover(merges=1)


def test_a_merge_of_equals_keeps_the_older_identity() -> None:
    lineage, turnover = after(heap(0, 5, 6) | heap(1, 1, 2), heap(0, 1, 2, 5, 6))
    assert lineage.of_cluster == {0: 0}
    assert lineage.of_node[5] == 0
    assert turnover == Turnover(merges=1)


def test_a_cluster_without_its_nodes_dies_and_its_identity_is_not_reused() -> None:
    lineage, turnover = after(heap(0, 1) | heap(1, 2), heap(0, 2), heap(0, 2) | heap(1, 3))
    assert lineage.of_cluster == {0: 1, 1: 2}
    assert lineage.slots == {1: 1, 2: 0}, "its colour is free again"
    assert turnover == Turnover(births=1)
    assert after(heap(0, 1) | heap(1, 2), heap(0, 2))[1] == Turnover(deaths=1)


def test_a_cluster_split_in_one_step_and_merged_with_two_others_in_the_same() -> None:
    before = heap(0, 1, 2, 3) | heap(1, 4, 5, 6) | heap(2, 7, 8)
    now = heap(0, 1, 2, 4) | heap(1, 5, 6, 7, 8) | heap(2, 3) | heap(3, 9)
    lineage, turnover = after(before, now)
    # 0 goes on in 0 (two nodes); 1 and 2 both want 1 with two nodes each: the older one gets it.
    assert lineage.of_cluster == {0: 0, 1: 1, 2: 3, 3: 4}
    assert turnover == Turnover(births=1, splits=1, merges=1)


def test_a_centre_without_rows_is_no_cluster() -> None:
    lineage, turnover = next_lineage(Lineage(), ClusteringView.from_centres(np.zeros((3, 2)), [5.0, 0.0, 1.0]))
    assert lineage.of_node == {0: 0, 2: 1}
    assert turnover == Turnover(births=2)


# Laws.


@given(histories)
def test_events_add_up_to_the_change_in_the_number_of_clusters(history: list[Clustering]) -> None:
    lineage = Lineage()
    for clustering in history:
        before = len(lineage.slots)
        lineage, turnover = next_lineage(lineage, view_of(clustering))
        clusters = set(clustering.values()) - {NO_CLUSTER}
        assert min(turnover) >= 0
        assert before + turnover.births + turnover.splits - turnover.merges - turnover.deaths == len(clusters)
        assert set(lineage.of_cluster) == clusters
        assert len(set(lineage.of_cluster.values())) == len(clusters), "no two share an identity"
        assert len(set(lineage.slots.values())) == len(clusters), "no two share a colour"
        assert set(lineage.slots) == set(lineage.of_cluster.values()) == set(lineage.of_node.values())


@given(histories, st.permutations(range(7)))
def test_numbers_and_order_change_nothing(history: list[Clustering], numbers: list[int]) -> None:
    renamed = [
        {node: number if number == NO_CLUSTER else numbers[number] for node, number in sorted(clustering.items())}
        for clustering in history
    ]
    (one, first), (other, second) = after(*history), after(*renamed)
    assert (one.of_node, one.slots, one.born, first) == (other.of_node, other.slots, other.born, second)


@given(histories)
def test_the_same_snapshot_again_changes_nothing(history: list[Clustering]) -> None:
    lineage, _ = after(*history)
    assert after(*history, history[-1]) == (lineage, Turnover())


@given(histories)
def test_a_restart_changes_nothing(history: list[Clustering]) -> None:
    lineage, _ = after(*history)
    again = restore_lineage(unpack(pack(lineage.state())))
    assert again == lineage
    assert pack(again.state()) == pack(lineage.state())


@given(histories)
def test_an_identity_is_never_given_twice(history: list[Clustering]) -> None:
    lineage, dead = Lineage(), set[int]()
    for clustering in history:
        living = set(lineage.slots)
        lineage, _ = next_lineage(lineage, view_of(clustering))
        assert not dead & set(lineage.slots)
        dead |= living - set(lineage.slots)
        assert all(identity < lineage.born for identity in dead | set(lineage.slots))


@given(histories)
def test_every_merge_and_split_has_a_counterpart(history: list[Clustering]) -> None:
    """A merged cluster's nodes are where another identity goes on, and what splits off leaves its identity behind."""
    before, _ = after(*history[:-1])
    lineage, _ = after(*history)
    for node, identity in before.of_node.items():
        now = lineage.of_node.get(node)
        if now is not None and now != identity:
            assert identity in lineage.slots or now in before.slots


@pytest.mark.parametrize("name", ["born", "of_node", "of_cluster", "slots"])
def test_a_damaged_lineage_is_rejected(name: str) -> None:
    state = after(heap(0, 1, 2))[0].state()
    state[name] = None
    with pytest.raises((KeyError, TypeError, ValueError)):
        restore_lineage(state)
