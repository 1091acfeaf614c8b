"""Behaviour of CA+ and CAEFC where the published program is undefined or unsafe, and the effect of
their options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.art_network import REFILL, Step
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.correntropy import ignore_underflow
from tests.saved_states import NODES, changed, entry

HALVES = [CAPlus, CAEFC]
Half = type[CAPlus] | type[CAEFC]


def step(network: CAPlus | CAEFC, row: ArrayLike) -> Step:
    """Learn one input; its effect."""
    with ignore_underflow():
        return network._step(np.asarray(row))


def blobs(n: int, d: int = 2, seed: int = 0) -> Floats:
    generator = np.random.default_rng(seed)
    centres = generator.random((5, d))
    return centres[generator.integers(0, 5, size=n)] + generator.normal(scale=0.05, size=(n, d))


# The first rows.


@pytest.mark.parametrize("half", HALVES)
def test_the_first_rows_are_buffered(half: Half) -> None:
    network = half()
    rows = blobs(10)
    network.learn(rows[:9])
    assert (network.n_buffered, network.n_learnt, network.size) == (9, 0, 0)
    network.learn(rows[9:])
    assert (network.n_buffered, network.n_learnt, network.size) == (0, 10, 10)


@pytest.mark.parametrize("half", HALVES)
def test_a_stream_that_ends_early_is_learnt_if_it_has_two_rows(half: Half) -> None:
    network = half()
    network.flush()
    assert network.size == 0
    network.learn(blobs(1))
    with pytest.raises(InvalidData):
        network.flush()
    assert network.n_buffered == 1
    network.learn(blobs(2)[1:])
    network.flush()
    assert (network.size, network.n_buffered) == (2, 0)
    network.flush()
    assert network.size == 2


def test_the_number_of_buffered_rows_is_an_option() -> None:
    network = CAPlus(initial_rows=3)
    rows = blobs(3)
    network.learn(rows[:2])
    assert network.size == 0
    network.learn(rows[2:])
    assert network.size == 3


def test_an_empty_network_has_all_attributes() -> None:
    for network in (CAEFC(), CAEFC(3)):
        assert network.weights.shape == (0, network.dimensions or 0)
        assert [
            len(network.counts),
            len(network.sigmas),
            len(network.node_ids),
            len(network.recent_ids()),
        ] == [0] * 4
        assert (network.vigilance, network.lambda_, network.n_active, network.last_sigma) == (
            1.0,
            None,
            None,
            None,
        )
        assert [len(part) for part in network.edges()] == [0, 0]
        assert len(network.clusters()) == 0


def test_attributes_are_read_only() -> None:
    network = CAEFC()
    network.learn(blobs(50))
    for array in (network.weights, network.counts, network.sigmas, network.node_ids):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# Ties, and few nodes.


@pytest.mark.parametrize("half", HALVES)
def test_of_equal_winners_the_first_one_wins(half: Half) -> None:
    network = half()
    # Ten nodes in five pairs of copies: every winner is tied with its copy.
    network.learn(np.repeat(np.arange(5.0) * 10, 2)[:, None])
    assert network.n_active == 10
    assert step(network, [30.0]) == (3, 6, 7, 0.0, 0.0)
    assert network.counts.tolist() == [1] * 6 + [2] + [1] * 3
    assert network.weights[6:8].tolist() == [[30.0], [30.0]]


@pytest.mark.parametrize("half", HALVES)
def test_a_row_exactly_at_the_vigilance_passes_the_test(half: Half) -> None:
    network = half()
    # Equal rows have no nearest other: the vigilance is 1, which a far row has from every node.
    network.learn(np.zeros((10, 2)))
    assert step(network, [1e9, 1e9]) == (3, 0, 1, 1.0, 1.0)
    assert network.vigilance == 1.0


def test_a_server_that_loses_all_nodes_continues() -> None:
    server = CAEFC()
    # Far apart, so that every row becomes a node without edges.
    spread = np.arange(10.0)[:, None] * 1e6
    server.learn(spread)
    while server.lambda_ is None:
        server.learn(server.weights[:1])
    assert server.lambda_ == 22
    server.learn(np.arange(20.0, 31.0)[:, None] * 1e6)
    assert server.n_learnt == 22
    assert server.size == 0
    assert server.predict(spread).tolist() == [-1] * 10
    assert server.snapshot()["centre"].shape == (0, 1)
    twin = CAEFC()
    twin.restore(server.state())
    for network in (server, twin):
        assert step(network, spread[3]).case == REFILL
        assert network.node_ids.tolist() == [0]
        assert network.predict(spread).tolist() == [0] * 10
        network.learn(spread)
        assert network.node_ids.tolist() == list(range(11))
        assert len(set(network.sigmas.tolist())) == 1


def test_a_server_with_one_node_keeps_it() -> None:
    server = CAEFC()
    server.learn(blobs(100))
    assert server.lambda_ is not None
    state = server.state()
    none = {way: entry(state, way)[:0] for way in (*NODES, "edge", "edge_age")}
    for left, kept in ((1, 1), (2, 0)):
        # The number of inputs before the next removal of isolated nodes.
        counter = {"counter": 10 * server.lambda_ - left}
        server.restore(changed(state, none | counter))
        server.learn(blobs(left))
        assert server.n_learnt % server.lambda_ == 0
        assert server.size == kept


# The bound on nodes.


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("nodes_max", [2, 10, 30])
def test_in_a_full_network_the_nearest_node_learns_a_row_that_would_be_a_new_node(
    half: Half, nodes_max: int
) -> None:
    network = half(nodes_max=nodes_max)
    largest = 0
    for row in np.random.default_rng(0).standard_cauchy(size=(1500, 3)):
        before = network.saturated
        counts = network.counts.sum()
        size = network.size
        effect = step(network, row) if network.n_learnt else None
        if effect is None:
            network.learn(row[None])
        largest = max(largest, network.size)
        if effect is not None and network.saturated > before:
            assert effect.case == 2
            assert effect.distance_first > network.vigilance
            assert size == nodes_max
            if network.size == size:
                assert network.counts.sum() == counts + 1
    assert largest == nodes_max
    assert network.saturated > 10
    assert network.n_learnt == 1500


@pytest.mark.parametrize("half", HALVES)
def test_a_network_full_before_lambda_was_found_sets_it_then(half: Half) -> None:
    rows = np.random.default_rng(0).normal(size=(15, 40))
    free = half()
    bounded = half(nodes_max=15)
    for network in (free, bounded):
        network.learn(rows[:14])
        assert network.n_active is None
        network.learn(rows[14:])
    assert free.n_active is None
    assert (bounded.n_active, bounded.lambda_) == (15, 30)
    assert bounded.vigilance < 1


@pytest.mark.parametrize("half", HALVES)
def test_a_bound_that_is_never_reached_changes_nothing(half: Half) -> None:
    free = half()
    bounded = half(nodes_max=500)
    for network in (free, bounded):
        network.learn(blobs(600))
    assert bounded.saturated == 0
    np.testing.assert_array_equal(bounded.weights, free.weights)
    np.testing.assert_array_equal(bounded.recent_ids(), free.recent_ids())


# Options.


@pytest.mark.parametrize("half", HALVES)
def test_the_similarity_of_the_original_cae_makes_more_nodes_on_a_gaussian(half: Half) -> None:
    """The paper's section 4.1 and figure 1: 16 000 points of a 2-D Gaussian, scaled to [0, 1]."""
    points = np.random.default_rng(0).normal(size=(16_000, 2))
    points = (points - points.min(axis=0)) / np.ptp(points, axis=0)
    ours = half()
    original = half(similarity="cae")
    ours.learn(points)
    original.learn(points)
    assert original.size > 1.5 * ours.size
    assert (original.n_active or 0) > (ours.n_active or 0)


@pytest.mark.parametrize(
    ("half", "options"),
    [
        (CAEFC, {"edge_factor": 1.0}),
        (CAEFC, {"neighbour_factor": 0.0}),
        (CAPlus, {"second_winner_factor": 0.0}),
        (CAPlus, {"diversity_cut": 1e-3}),
        (CAPlus, {"diversity_nodes_min": 20}),
        (CAPlus, {"initial_rows": 20}),
        (CAPlus, {"similarity": "cae"}),
    ],
)
def test_every_option_changes_what_is_learnt(half: Half, options: dict[str, Any]) -> None:
    usual = half()
    changed = half(**options)
    for network in (usual, changed):
        network.learn(blobs(1000))
    assert usual.weights.tolist() != changed.weights.tolist()
    with pytest.raises(InvalidState, match="options"):
        changed.restore(usual.state())


@pytest.mark.parametrize(
    "options",
    [
        {"edge_factor": -0.1},
        {"edge_factor": "0.1"},
        {"edge_factor": float("nan")},
        {"diversity_cut": 0},
        {"diversity_cut": True},
        {"initial_rows": 1},
        {"initial_rows": 2.5},
        {"diversity_nodes_min": 1},
        {"second_winner_factor": 1.5},
        {"neighbour_factor": float("inf")},
        {"nodes_max": 1},
        {"nodes_max": 10.0},
        {"similarity": "cosine"},
        {"contribute": "nothing"},
        {"colour": "blue"},
    ],
)
def test_an_option_out_of_its_range_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        CAPlus(**options)


@pytest.mark.parametrize("dimensions", [0, -1, 1.5, "2"])
def test_a_width_that_is_none_is_refused(dimensions: Any) -> None:
    with pytest.raises(SettingsError, match="dimensions"):
        CAEFC(dimensions)


# What a client contributes.


def test_a_client_contributes_each_change_once() -> None:
    client = CAPlus()
    rows = blobs(900)
    client.learn(rows[:300])
    assert len(client.contribute()["weight"]) == client.size
    assert len(client.contribute()["weight"]) == 0
    client.learn(rows[300:303])
    update = client.contribute()
    touched = set(client.recent_ids()[:3].tolist())
    assert 1 <= len(update["weight"]) <= 3
    assert update["won"].sum() == 3
    assert (update["won"] <= update["count"]).all()
    for weight in update["weight"]:
        (node,) = np.flatnonzero((client.weights == weight).all(axis=1))
        assert client.node_ids[node] in touched


def test_a_client_may_contribute_all_nodes_each_time() -> None:
    client = CAPlus(contribute="all")
    client.learn(blobs(300))
    for new in (300, 0):
        update = client.contribute()
        assert len(update["weight"]) == client.size
        assert (np.diff(update["count"]) <= 0).all()
        assert update["won"].sum() == new


def test_nodes_are_contributed_by_winning_count_and_ties_by_node_id() -> None:
    client = CAPlus()
    client.learn(blobs(400))
    update = client.contribute()
    order = np.lexsort((client.node_ids, -client.counts))
    assert len(set(client.counts.tolist())) < client.size
    np.testing.assert_array_equal(update["weight"], client.weights[order])
    np.testing.assert_array_equal(update["count"], client.counts[order])


# The snapshot.


def test_the_centre_of_a_cluster_is_the_mean_of_its_nodes_by_winning_count() -> None:
    server = CAEFC()
    server.learn(blobs(1000))
    shown = server.snapshot()
    assert 1 < len(shown["centre"]) < server.size
    for cluster, centre in enumerate(shown["centre"]):
        mine = shown["cluster"] == cluster
        np.testing.assert_allclose(
            np.average(shown["weight"][mine], axis=0, weights=shown["count"][mine]), centre
        )
        assert shown["centre_weight"][cluster] == shown["count"][mine].sum()
    assert (shown["cluster"][shown["edge"][:, 0]] == shown["cluster"][shown["edge"][:, 1]]).all()
