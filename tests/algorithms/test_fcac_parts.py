"""The parts of a network: its nodes, its edges, and saved states that are inconsistent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.edges import Edges
from shoal.algorithms.fcac.nodes import FIRST_CAPACITY, Nodes
from shoal.errors import InvalidState
from tests.saved_states import changed, entry


def test_the_arrays_of_nodes_grow_and_shrink() -> None:
    nodes = Nodes(2)
    for i in range(1000):
        nodes.append(np.array([i, -i], dtype=float), 0.5 + i, i + 1)
    assert nodes.weights[:, 0].tolist() == list(range(1000))
    assert nodes.recent(2).tolist() == [[999, -999], [998, -998]]
    assert nodes.recent(5000).shape == (1000, 2)
    wanted = np.isin(nodes.ids, [3, 500, 998])
    nodes.keep(wanted)
    for _ in range(10):
        nodes.keep(np.ones(3, dtype=np.bool_))
    assert len(nodes._weights) == FIRST_CAPACITY
    assert nodes.weights[:, 0].tolist() == [3, 500, 998]
    assert nodes.mean_sigma == pytest.approx((3 + 500 + 998) / 3 + 0.5)
    nodes.append(np.zeros(2), 1.0, 2000)
    assert nodes.ids.tolist() == [3, 500, 998, 999]


def triangle() -> Edges:
    edges = Edges()
    for _ in range(5):
        edges.add_node()
    for a, b in ((0, 1), (1, 2), (4, 0)):
        edges.link(a, b)
    return edges


def test_edges_age_with_the_winner_and_are_reset() -> None:
    edges = triangle()
    edges.increment_ages(0)
    edges.increment_ages(0)
    edges.link(1, 0)
    pairs, ages = edges.arrays()
    assert pairs.tolist() == [[0, 1], [0, 4], [1, 2]]
    assert ages.tolist() == [1, 3, 1]
    assert len(edges) == 3


def test_edges_follow_their_nodes_when_others_are_removed() -> None:
    edges = triangle()
    edges.keep(edges.has_edge())
    assert edges.arrays()[0].tolist() == [[0, 1], [0, 3], [1, 2]]
    assert edges.components().tolist() == [0, 0, 0, 0]


def test_an_old_edge_is_deleted_and_its_age_is_counted() -> None:
    edges = triangle()
    for _ in range(9):
        edges.increment_ages(0)
    edges.link(0, 1)
    # Ages 1 and 10: q1 = 1, q3 = 10, so the threshold is 10.9 and nothing is too old...
    edges.remove_old_edges(0, 0.1)
    assert (len(edges), edges.n_deleted, edges.mean_deleted_age) == (3, 0, 0.0)
    # ... until young deleted edges lower it: (1 * 2 + 10.9 * 2) / 4.
    edges.n_deleted = 2
    edges.deleted_age_sum = 2
    edges.remove_old_edges(0, 0.1)
    assert edges.arrays()[0].tolist() == [[0, 1], [1, 2]]
    assert (edges.n_deleted, edges.deleted_age_sum) == (3, 12)


def test_a_node_with_one_edge_or_none_loses_nothing() -> None:
    edges = triangle()
    edges.n_deleted = 100
    edges.deleted_age_sum = 100
    for node in (2, 3):
        edges.increment_ages(node)
        edges.remove_old_edges(node, 0.1)
    assert len(edges) == 3


OF_BOTH: dict[str, Any] = {
    "ids that do not ascend": {"nodes.node_id": lambda a: a[::-1].copy()},
    "a count of nothing": {"nodes.count": lambda a: a * 0},
    "a bandwidth of nothing": {"nodes.sigma": lambda a: a * 0},
    "one input that touched two nodes": {"nodes.stamp": np.ones_like},
    "a node touched in the future": {"counter": lambda n: n // 2},
    "more nodes than sigmas": {"nodes.sigma": lambda a: a[1:]},
    "another width than its rows": {"width": lambda d: d + 1},
    "no width": {"width": lambda _: None},
    "no bandwidth though rows were learnt": {"last_sigma": lambda _: None},
    "rows that wait though learning has begun": {"buffer": lambda a: np.ones((1, a.shape[1]))},
    "too many rows that wait": {
        "buffer": lambda a: np.ones((10, a.shape[1])),
        "last_sigma": lambda _: None,
    },
    "a vigilance of nothing": {"vigilance": lambda _: 0.0},
    "one active node": {"n_active": lambda _: 1},
    "a newer version": {"version": lambda n: n + 1},
    "a truth value for a vigilance": {"vigilance": lambda _: True},
    "a truth value for a number": {"saturated": lambda _: True},
}
OF_A_SERVER: dict[str, Any] = {
    "an edge to nowhere": {"edge": lambda a: a + 10_000},
    "an edge to itself": {"edge": lambda a: a * 0},
    "an edge twice": {"edge": lambda a: np.concatenate([a[:1], a[:-1]])},
    "an edge without age": {"edge_age": lambda a: a[1:]},
    "an edge of age nothing": {"edge_age": lambda a: a * 0},
    "deleted edges younger than one": {
        "deleted_age_sum": lambda n: 0,
        "n_deleted_edges": lambda _: 5,
    },
}
OF_A_CLIENT: dict[str, Any] = {
    "more published than learnt": {"published_count": lambda _: np.array([10**6])},
    "more nodes published than there are": {"published_count": lambda _: np.ones(10**4, int)},
}
LIES = [
    pytest.param(half, lie, id=f"{half.network}: {name}")
    for half, lies in ((CAPlus, OF_BOTH | OF_A_CLIENT), (CAEFC, OF_BOTH | OF_A_SERVER))
    for name, lie in lies.items()
]


@pytest.mark.parametrize(("half", "lie"), LIES)
def test_an_inconsistent_state_is_refused(
    half: type[CAPlus] | type[CAEFC], lie: dict[str, Any]
) -> None:
    network = half()
    generator = np.random.default_rng(0)
    network.learn(
        generator.random((4, 2))[generator.integers(0, 4, size=500)]
        + generator.normal(0, 0.05, (500, 2))
    )
    state = network.state()
    lying = changed(state, {way: forge(entry(state, way)) for way, forge in lie.items()})
    twin = half()
    with pytest.raises(InvalidState):
        twin.restore(lying)
    assert twin.n_learnt == 0
    twin.restore(state)
    assert twin.n_learnt == 500


def test_a_value_that_is_not_a_state_is_refused() -> None:
    wrong: list[Any] = [None, [], 3, {}]
    for nothing in wrong:
        with pytest.raises(InvalidState):
            CAPlus().restore(nothing)
