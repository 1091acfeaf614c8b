"""The two halves of cluster_tree: what is learnt, published and refused, the empty and degenerate
cases first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.algorithms.cluster_tree import (
    CLUSTER_TREE,
    ClusterTreeClient,
    ClusterTreeOptions,
    ClusterTreeServer,
)
from shoal.algorithms.cluster_tree.arrays import SNAPSHOT, UPDATE
from shoal.algorithms.cluster_tree.region import ClusterTreeAggregator
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels.arrays import Floats
from shoal.protocol.codec import pack, unpack

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.5]])


def blobs(n: int, k: int, seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    """k <= 5 blobs, 14 standard deviations apart or more."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(k, size=n)
    return CORNERS[truth] + 0.05 * generator.normal(size=(n, 2)), truth


def contributions(rows: Floats, n_clients: int = 3, step: int = 300) -> list[Contribution]:
    """What clients publish that get the rows in turn, `step` rows of the whole stream at a time."""
    clients = [ClusterTreeClient(rows.shape[1]) for _ in range(n_clients)]
    published = []
    for first in range(0, len(rows), step):
        for at, client in enumerate(clients):
            client.learn(rows[first : first + step][at::n_clients])
            published.append(Contribution(f"client{at}", first, client.contribute()))
    return published


def server_of(rows: Floats, **options: Any) -> ClusterTreeServer:
    server = ClusterTreeServer(rows.shape[1], **options)
    server.absorb(contributions(rows), b"")
    return server


# The empty case, and degenerate ones.


def test_nothing_is_learnt_from_nothing() -> None:
    server = ClusterTreeServer()
    server.absorb([], b"")
    server.absorb([Contribution("empty", 1, ClusterTreeClient().contribute())], b"")
    assert server.predict(np.ones((2, 3))).tolist() == [-1, -1]
    assert server.identities == []
    assert server.active == []
    assert server.dimensions is None
    assert all(len(array) == 0 for array in server.snapshot().values())


@pytest.mark.parametrize("through_region", [False, True])
def test_one_distribution_is_one_cluster_however_many_readings_were_to_be_in_an_update(
    through_region: bool,
) -> None:
    rows = np.random.default_rng(3).normal(size=(20_000, 2))
    step = CLUSTER_TREE.update_readings({}, 10_000)
    updates = contributions(rows, n_clients=1, step=step)
    if through_region:
        aggregator = ClusterTreeAggregator({}, 2)
        passed_on = []
        for update in updates:
            aggregator.add(update.arrays, step)
            if aggregator.is_due:
                passed_on.append(replace(update, arrays=aggregator.contribute()))
        updates = passed_on
    server = ClusterTreeServer(2)
    server.absorb(updates, b"")
    assert len(server.snapshot()["identity"]) == 1


def test_a_single_reading_is_kept_until_there_is_another() -> None:
    client = ClusterTreeClient(2)
    client.learn(np.ones((1, 2)))
    assert len(client.contribute()["count"]) == 0
    client.learn(np.zeros((1, 2)))
    assert client.contribute()["count"].tolist() == [1, 1]


@pytest.mark.parametrize("d", [1, 2, 64])
@pytest.mark.parametrize("n", [2, 7, 1500])
def test_readings_that_are_all_equal_are_one_cluster(n: int, d: int) -> None:
    rows = np.full((n, d), 0.1)
    server = ClusterTreeServer(d)
    server.absorb(contributions(rows, n_clients=1), b"")
    assert server.identities == [0]
    np.testing.assert_allclose(server.snapshot()["centre"], rows[:1], rtol=1e-12)
    assert np.isfinite(
        np.concatenate([server.snapshot()["spread"].ravel(), server.snapshot()["mass"]])
    ).all()


def test_a_sensor_that_is_stuck_at_three_values_has_three_clusters() -> None:
    rows = np.repeat([[0.0], [1.0], [5.0]], 500, axis=0)[np.random.default_rng(0).permutation(1500)]
    server = server_of(rows)
    assert len(server.identities) == 3
    assert len(set(server.predict(np.array([[0.0], [1.0], [5.0]])).tolist())) == 3


def test_whole_numbers_are_no_clusters_where_each_update_is_of_a_few_readings() -> None:
    generator = np.random.default_rng(0)
    rows = np.round(
        np.array([18.0, 40.0, 65.0])[generator.integers(3, size=3000), None]
        + generator.normal(0, 2.5, (3000, 1))
    )
    server = ClusterTreeServer(1)
    server.absorb(contributions(rows, n_clients=5, step=100), b"")
    assert len(server.identities) == 3


def test_a_constant_feature_changes_nothing() -> None:
    rows, _ = blobs(3000, 4)
    with_constant = np.column_stack([rows, np.full(len(rows), 0.3)])
    np.testing.assert_array_equal(
        server_of(with_constant).predict(with_constant), server_of(rows).predict(rows)
    )


def test_sixty_four_features_are_no_more_clusters_than_two() -> None:
    generator = np.random.default_rng(0)
    truth = generator.integers(4, size=6000)
    rows = generator.uniform(size=(4, 64))[truth] + 0.05 * generator.normal(size=(6000, 64))
    server = server_of(rows)
    assert len(server.identities) == 4
    assert agreement(truth, server.predict(rows)) == 1.0


@pytest.mark.parametrize("scale", [1e-140, 1e-3, 1e140])
def test_units_do_not_matter(scale: float) -> None:
    rows, truth = blobs(2000, 3)
    server = server_of(rows * scale)
    assert agreement(truth, server.predict(rows * scale)) == 1.0
    assert np.isfinite(server.snapshot()["spread"]).all()


# The server.


def test_how_contributions_are_grouped_into_calls_makes_no_difference() -> None:
    published = contributions(blobs(3000, 4)[0])
    one = ClusterTreeServer()
    other = ClusterTreeServer()
    one.absorb(published, b"one")
    for contribution in published:
        other.absorb([contribution], b"other")
    assert pack(one.state()) == pack(other.state())


def test_a_server_restored_anywhere_goes_on_bit_for_bit() -> None:
    published = contributions(blobs(4000, 5)[0])
    whole = ClusterTreeServer()
    for at, contribution in enumerate(published):
        whole.absorb([contribution], b"")
        if at % 7 == 0:
            twin = ClusterTreeServer()
            twin.restore(unpack(pack(whole.state())))
            twin.absorb(published[at + 1 : at + 8], b"")
            rest = ClusterTreeServer()
            rest.absorb(published[: at + 8], b"")
            assert pack(twin.state()) == pack(rest.state())


def test_the_snapshot_has_the_facts_of_each_cluster() -> None:
    rows, truth = blobs(6000, 3)
    rows = np.concatenate(
        [rows[:2000], rows[2000:][truth[2000:] > 0], rows[2000:][truth[2000:] > 0]]
    )
    server = server_of(rows)
    snapshot = server.snapshot()
    assert list(snapshot) == list(SNAPSHOT)
    assert snapshot["identity"].tolist() == server.identities
    assert len(server.identities) >= 3
    assert snapshot["identity"][snapshot["active"]].tolist() == server.active
    assert len(server.active) < len(server.identities)
    np.testing.assert_allclose(
        np.bincount(snapshot["cluster"], weights=snapshot["mass"]), snapshot["centre_mass"]
    )
    np.testing.assert_array_equal(CLUSTER_TREE.predict(snapshot, rows), server.predict(rows))
    assert CLUSTER_TREE.summary(snapshot) == (len(server.active), len(snapshot["cell"]), 0)
    assert (snapshot["since"] <= server.readings).all()


def test_a_snapshot_names_the_same_rows_noise_as_the_server() -> None:
    rows = np.concatenate([blobs(3000, 3)[0], np.random.default_rng(0).uniform(-2.0, 3.0, (90, 2))])
    server = server_of(np.random.default_rng(1).permutation(rows), noise=True)
    found = server.predict(rows)
    assert 30 < (found == -1).sum() < 120
    np.testing.assert_array_equal(CLUSTER_TREE.predict(server.snapshot(), rows), found)


def test_the_number_of_cells_is_bounded_even_by_far_more_clusters() -> None:
    generator = np.random.default_rng(0)
    for rows in (generator.uniform(size=(8000, 3)), generator.integers(100, size=(8000, 1)) * 1.0):
        assert (
            len(server_of(rows, cells_max=40).snapshot()["mass"])
            <= ClusterTreeOptions().growth_max * 40
        )
        server = server_of(rows, cells_max=40, growth_max=1.0)
        assert len(server.snapshot()["mass"]) <= 40
        # What came since the last rebuild is counted in full.
        assert server.snapshot()["mass"].sum() <= ClusterTreeOptions().mass_max + 700


def test_the_memory_grows_with_the_clusters_up_to_its_limit() -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(30, size=(4000, 1)) + generator.normal(0.0, 0.02, size=(4000, 1))
    # 30 clusters, one and a half times 20
    for growth_max, expected in ((1.0, 1000.0), (1.2, 1200.0), (4.0, 1500.0)):
        server = server_of(rows, mass_max=1000.0, growth_max=growth_max)
        server.rebuild()
        assert len(server.identities) == 30
        np.testing.assert_allclose(server.snapshot()["mass"].sum(), expected, rtol=0.1)


def test_an_impossible_update_is_refused_whole() -> None:
    good = contributions(blobs(600, 2)[0])
    server = ClusterTreeServer()
    server.absorb(good, b"")
    before = pack(server.state())
    n = len(good[0].arrays["count"])
    for name, wrong in (
        ("count", np.zeros(n, dtype=np.int64)),
        ("count", np.ones(n)),
        ("count", np.ones(n - 1, dtype=np.int64)),
        ("point", np.ones((n, 3))),
        ("point", np.full((n, 2), np.inf)),
    ):
        with pytest.raises(InvalidData, match="sender"):
            server.absorb(
                [good[1], Contribution("sender", 1, {**good[0].arrays, name: wrong})], b""
            )
        assert pack(server.state()) == before
    for name in UPDATE:
        arrays = {key: value for key, value in good[0].arrays.items() if key != name}
        with pytest.raises(InvalidData, match=name):
            server.absorb([Contribution("sender", 1, arrays)], b"")


# The client.


def test_a_client_publishes_no_more_points_than_it_may_and_every_reading() -> None:
    client = ClusterTreeClient(2, points_max=32)
    for n in (31, 32, 33, 1000, 5000):
        client.learn(blobs(n, 5)[0])
        arrays = client.contribute()
        assert list(arrays) == list(UPDATE)
        assert len(arrays["point"]) == min(n, 32)
        assert arrays["count"].sum() == n


def test_points_are_in_the_order_in_which_their_readings_came() -> None:
    client = ClusterTreeClient(1)
    client.learn(np.linspace(0.0, 1.0, 5000)[:, None])
    assert (np.diff(client.contribute()["point"][:, 0]) > 0).all()


def test_a_history_is_published_once_to_a_server_that_has_lost_the_updates() -> None:
    rows, truth = blobs(4000, 5)
    order = np.argsort(truth, kind="stable")
    client = ClusterTreeClient()
    client.learn(rows[order])
    client.contribute()
    client.reset_published()
    twin = ClusterTreeClient()
    twin.restore(unpack(pack(client.state())))
    again = twin.contribute()
    assert len(again["point"]) <= ClusterTreeOptions().points_max
    assert 1500 <= again["count"].sum() <= 2000
    for corner in CORNERS:
        assert (((again["point"] - corner) ** 2).sum(axis=1) < 0.02).any()
    assert len(twin.contribute()["point"]) == 0
    fresh = ClusterTreeClient(2)
    fresh.reset_published()
    assert len(fresh.contribute()["point"]) == 0


# Options.


@pytest.mark.parametrize(
    "wrong",
    [
        {"points_max": 4},
        {"cells_max": 2.5},
        {"rebuild_readings": 0},
        {"cluster_mass_max": float("inf")},
        {"mass_max": True},
        {"split_significance": 0.0},
        {"keep_significance": 9.0},
        {"confirm_readings": -1},
        {"unknown": 1},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    for half in (ClusterTreeClient, ClusterTreeServer):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            half(2, **wrong)


def test_a_width_that_is_none_is_refused() -> None:
    for half in (ClusterTreeClient, ClusterTreeServer):
        with pytest.raises(SettingsError, match="dimensions"):
            half(0)


def test_a_cell_of_a_cluster_that_does_not_exist_is_refused() -> None:
    server = server_of(blobs(600, 2)[0])
    state = server.state()
    state["cells"]["cluster"] += 50
    with pytest.raises(InvalidState, match="cluster that does not exist"):
        ClusterTreeServer().restore(state)


def agreement(truth: Sequence[int] | NDArray[np.int64], found: NDArray[np.int64]) -> float:
    """Adjusted Rand index (Hubert and Arabie 1985)."""
    _, a = np.unique(truth, return_inverse=True)
    _, b = np.unique(found, return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1)

    def pairs(counts: Floats) -> float:
        return float((counts * (counts - 1)).sum() / 2)

    both = pairs(table)
    rows = pairs(table.sum(axis=1))
    columns = pairs(table.sum(axis=0))
    expected = rows * columns / pairs(np.array([table.sum()]))
    most = (rows + columns) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)
