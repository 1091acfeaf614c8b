"""The JSON that the page shows: bounded, correct and steady from one status to the next."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.config.contract import Contract
from shoal.protocol.quarantine import QuarantinedClient
from shoal.server_node.outputs.web.map import (
    NODES_MAX,
    VALUES_MAX,
    colour_slots,
    principal_axes,
    scatter,
    steady_axes,
)
from shoal.server_node.outputs.web.page_renderer import (
    CLUSTERS_MAX,
    RECENT_MAX,
    PageRenderer,
)
from shoal.server_node.report.build import CLIENTS_MAX, COUNTS_MAX, clients_of, cluster_counts
from shoal.server_node.report.clusters import whole_percents
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from shoal.server_node.report.status import ClientStatus, HistoryPoint, ServerStatus
from tests.server_node.web_statuses import (
    NOW,
    a_contract,
    a_lineage,
    a_snapshot,
    a_status,
    some_nodes,
)


def rendered(status: ServerStatus, renderer: PageRenderer | None = None) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((renderer or PageRenderer()).render(status).body)
    return body


def mapped(status: ServerStatus, renderer: PageRenderer | None = None) -> dict[str, Any]:
    """The map of the first model."""
    found = (renderer or PageRenderer()).nodes(status, next(iter(status.contract.models)))
    assert found
    body: dict[str, Any] = json.loads(found.body)
    return body


def one(contract: Contract, arrays: dict[str, Any], **parts: Any) -> ServerStatus:
    return a_status(contract, [a_snapshot(contract, arrays)], **parts)


def test_a_snapshot_without_nodes_has_an_empty_map() -> None:
    for width in (1, 2, 3, 40):
        nothing = {name: array[:0] for name, array in some_nodes(width, 2, 4).items()}
        status = one(a_contract(width), nothing)
        assert rendered(status)["models"][0]["clustering"]["clusters"] == {}
        assert mapped(status)["nodes"]["id"] == []
        assert mapped(status)["edges"] == []


def test_one_node_has_a_map() -> None:
    for width in (1, 2, 3, 40):
        drawn = mapped(one(a_contract(width), some_nodes(width, 1, 1)))
        assert drawn["nodes"]["cluster"] == [0]
        assert len(drawn["axes"]) == 2


def test_two_features_are_the_axes_in_their_units() -> None:
    arrays = some_nodes(2, 3, 9)
    clustering = mapped(one(a_contract(2), arrays))
    assert clustering["axes"] == ["temperature (°C)", "humidity (%)"]
    assert clustering["explained_variance"] is None
    assert np.allclose(clustering["nodes"]["x"], -20 + 80 * arrays["weight"][:, 0], rtol=1e-5)
    assert np.allclose(clustering["nodes"]["y"], 100 * arrays["weight"][:, 1], rtol=1e-5)


def test_with_one_feature_the_other_axis_is_the_winning_count() -> None:
    arrays = some_nodes(1, 3, 9)
    clustering = mapped(one(a_contract(1), arrays))
    assert clustering["axes"] == ["temperature (°C)", "times won, powers of ten"]
    assert np.allclose(clustering["nodes"]["y"], np.log10(arrays["count"]), rtol=1e-5)


def test_many_features_are_projected_on_labelled_axes() -> None:
    arrays = some_nodes(5, 2, 20)
    arrays["weight"] = np.full((20, 5), 0.5)
    arrays["weight"][:, 1] = np.linspace(0, 1, 20)
    arrays["weight"][:, 3] = np.linspace(1, 0, 20)
    status = one(a_contract(5), arrays)
    assert mapped(status)["axes"][0] in (
        "more humidity, less voltage →",
        "more voltage, less humidity →",
    )
    assert mapped(status)["explained_variance"] == 1.0
    assert rendered(status)["models"][0]["clustering"]["features_total"] == 5


def test_values_and_centres_are_in_units_rounded_to_a_thousandth_of_the_bounds() -> None:
    arrays = some_nodes(5, 2, 20)
    status = one(a_contract(5), arrays)
    clustering = rendered(status)["models"][0]["clustering"]
    assert [feature["digits"] for feature in clustering["features"]] == [2, 1, 0, 3, 1]
    low = np.array([-20, 0, 0, 2, 900])
    span = np.array([80, 100, 2000, 1, 200])
    slack = 10.0 ** -np.array([2, 1, 0, 3, 1])
    assert np.all(
        np.abs(mapped(status)["nodes"]["values"] - (low + span * arrays["weight"])) <= slack
    )
    centres = [cluster["centre"] for cluster in clustering["clusters"].values()]
    assert np.all(np.abs(centres - (low + span * arrays["centre"])) <= slack)


def test_the_size_of_the_json_is_bounded() -> None:
    arrays = some_nodes(VALUES_MAX + 4, 5, NODES_MAX + 500)
    clients = [ClientStatus(f"client {i:04}", NOW, 1, 1, 0.0) for i in range(CLIENTS_MAX + 50)]
    learnt = one(a_contract(VALUES_MAX + 4), arrays, clients=clients)
    status = rendered(learnt)
    drawn = mapped(learnt)
    model = status["models"][0]
    assert model["nodes_total"] == NODES_MAX + 500
    nodes = drawn["nodes"]
    assert len(nodes["id"]) == NODES_MAX
    assert min(nodes["mass"]) >= np.sort(arrays["count"])[500]
    assert len(nodes["values"][0]) == VALUES_MAX
    assert max(drawn["edges"]) < NODES_MAX
    columns = status["clients"].values()
    assert {len(column) for column in columns} == {CLIENTS_MAX}
    assert status["clients_total"] == CLIENTS_MAX + 50


def test_of_too_many_clusters_the_heaviest_are_listed_and_all_have_a_slot_and_an_identity() -> None:
    arrays = some_nodes(2, CLUSTERS_MAX + 30, 2 * (CLUSTERS_MAX + 30))
    status = one(a_contract(2), arrays)
    clusters = rendered(status)["models"][0]["clustering"]["clusters"]
    drawn = mapped(status)
    assert len(clusters) == CLUSTERS_MAX
    lightest = np.sort(arrays["centre_weight"])[30] / arrays["centre_weight"].sum()
    known = status.models["fcac"].lineage.clusters
    assert min(known[int(identity)].mass_share for identity in clusters) >= lightest - 1e-4
    assert len(set(drawn["slots"])) == len(set(drawn["identities"])) == CLUSTERS_MAX + 30


def test_of_too_many_clients_those_seen_last_are_listed_by_name() -> None:
    clients = [
        ClientStatus(f"client-{i:04}", NOW - i, 1, 1, 0.0)
        for i in reversed(range(CLIENTS_MAX + 50))
    ]
    listed = rendered(one(a_contract(2), some_nodes(2, 2, 4), clients=clients))["clients"]["client"]
    assert listed == [f"client-{i:04}" for i in range(CLIENTS_MAX)]


def test_a_cluster_has_the_time_it_appeared() -> None:
    status = one(a_contract(2), some_nodes(2, 2, 4))
    clustering = rendered(status)["models"][0]["clustering"]
    assert {
        cluster["identity"]: cluster["since"] for cluster in clustering["clusters"].values()
    } == {
        0: NOW,
        1: NOW - 60,
    }


def test_another_version_of_the_page_has_another_etag() -> None:
    status = one(a_contract(2), some_nodes(2, 2, 4))
    assert PageRenderer("one").render(status).etag != PageRenderer("two").render(status).etag
    assert rendered(status, PageRenderer("one"))["page_version"] == "one"


def test_edges_connect_the_same_nodes_when_some_nodes_are_left_out() -> None:
    arrays = some_nodes(2, 5, NODES_MAX + 500)
    clustering = mapped(one(a_contract(2), arrays))
    ids = np.array(clustering["nodes"]["id"])
    ends = ids[np.array(clustering["edges"]).reshape(-1, 2)]
    there = {tuple(pair) for pair in arrays["node_id"][arrays["edge"]].tolist()}
    assert {tuple(pair) for pair in ends.tolist()} == {
        pair for pair in there if set(pair) <= set(ids.tolist())
    }


def test_the_etag_ignores_only_the_clock() -> None:
    renderer = PageRenderer()
    status = one(a_contract(3), some_nodes(3, 2, 20))
    etag = renderer.render(status).etag
    assert renderer.render(replace(status, now=NOW + 5)).etag == etag
    assert rendered(replace(status, now=NOW + 5), renderer)["now"] == NOW + 5
    assert renderer.render(replace(status, rejected={"sequence": 1})).etag != etag


def test_a_cluster_keeps_its_colour_when_its_number_changes() -> None:
    renderer = PageRenderer()
    contract = a_contract(3)
    arrays = some_nodes(3, 4, 40)
    first = one(contract, arrays)
    before = mapped(first, renderer)
    # the oldest cluster is gone, and the others are counted from the other end
    alive = arrays["cluster"] > 0
    after = {name: arrays[name][alive] for name in ("node_id", "weight", "count", "sigma")}
    after |= {
        "cluster": 3 - arrays["cluster"][alive],
        "edge": arrays["edge"][:0],
        "edge_age": arrays["edge_age"][:0],
    }
    after |= {
        name: arrays[name][:0:-1] for name in ("centre", "centre_weight", "counted", "recent")
    }
    second = one(contract, after)
    snapshot = second.models["fcac"].snapshot
    assert snapshot is not None
    lineage = a_lineage(snapshot, first.models["fcac"].lineage)
    second = replace(second, models={"fcac": replace(second.models["fcac"], lineage=lineage)})
    later = mapped(second, renderer)
    colours = [_colours(clustering) for clustering in (before, later)]
    assert len(colours[1]) == 30
    assert all(colours[0][node] == colour for node, colour in colours[1].items())


def _colours(clustering: dict[str, Any]) -> dict[int, int]:
    """id of a node -> colour slot of its cluster."""
    ids = clustering["nodes"]["id"]
    clusters = clustering["nodes"]["cluster"]
    return {node: clustering["slots"][number] for node, number in zip(ids, clusters, strict=True)}


def test_the_history_keeps_its_ends_and_every_change_up_to_a_limit() -> None:
    assert cluster_counts([]) == []
    still = [HistoryPoint(float(i), 3, 10, i) for i in range(1000)]
    assert cluster_counts(still) == [(0.0, 3)]
    assert cluster_counts([*still, HistoryPoint(1000.0, 4, 10, 1)]) == [(0.0, 3), (1000.0, 4)]
    restless = [HistoryPoint(float(i), i % 7, 10, i) for i in range(1000)]
    assert len(cluster_counts(restless)) == COUNTS_MAX
    assert (cluster_counts(restless)[0], cluster_counts(restless)[-1]) == (
        (0.0, 0),
        (999.0, 999 % 7),
    )


# Colours


def test_clusters_without_an_identity_take_free_colours() -> None:
    assert colour_slots(0, Lineage()) == []
    assert colour_slots(3, Lineage()) == [0, 1, 2]
    known = {8: Cluster(8, slot=0), 4: Cluster(4, slot=2)}
    assert colour_slots(4, Lineage(9, clusters=known, of_number={1: 8, 3: 4})) == [1, 0, 3, 2]


# Axes


def test_points_without_variance_have_the_first_two_features_as_axes() -> None:
    for points in (np.empty((0, 4)), np.full((1, 4), 0.3), np.full((9, 4), 0.3)):
        assert np.allclose(principal_axes(points), np.eye(4)[:, :2])


@pytest.mark.parametrize(("n", "d"), [(50, 3), (50, 12), (5, 40)])
def test_the_axes_are_the_eigenvectors_of_largest_variance(n: int, d: int) -> None:
    points = np.random.default_rng(3).normal(size=(n, d)) * np.linspace(3, 1, d)
    axes = principal_axes(points)
    assert np.allclose(axes.T @ axes, np.eye(2))
    variances = np.linalg.eigvalsh(np.cov(points.T))
    assert np.isclose(scatter(points, axes) / (n - 1), variances[-2:].sum())
    assert np.all(axes[np.abs(axes).argmax(axis=0), [0, 1]] > 0)


@pytest.mark.parametrize("scale", [1.0, 1e-100, 1e150])
def test_the_first_features_fill_in_where_points_lie_on_a_line(scale: float) -> None:
    line = np.arange(9.0)[:, None] * [0.0, 0.0, 3.0, 4.0] * scale
    expected = np.array([[0.0, 0.0, 0.6, 0.8], [1.0, 0.0, 0.0, 0.0]]).T
    assert np.allclose(principal_axes(line), expected, atol=1e-5)


def test_axes_are_kept_while_points_move_a_little() -> None:
    rng = np.random.default_rng(5)
    points = rng.normal(size=(60, 4)) * [
        1.0,
        0.98,
        0.2,
        0.1,
    ]  # variances so close that principal axes would spin
    axes = steady_axes(points, None)
    for _ in range(50):
        points = points + rng.normal(size=points.shape) * 0.02
        assert steady_axes(points, axes) is axes


def test_axes_that_must_change_rotate_as_little_as_possible() -> None:
    rng = np.random.default_rng(5)
    flat = rng.normal(size=(80, 4)) * [1.0, 0.9, 0.05, 0.05]
    before = steady_axes(flat, None)
    moved = rng.normal(size=(80, 4)) * [0.9, 0.05, 1.0, 0.05]
    after = steady_axes(moved, before)
    assert np.allclose(after.T @ after, np.eye(2))
    assert np.isclose(scatter(moved, after), scatter(moved, principal_axes(moved)))
    nearness = np.abs(np.trace(after.T @ before))
    for angle in np.linspace(0, 2 * np.pi, 60):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        for mirror in (np.eye(2), np.diag([1.0, -1.0])):
            assert np.trace((after @ turn @ mirror).T @ before) <= nearness + 1e-9


def test_only_the_model_shown_has_its_clustering() -> None:
    contract = a_contract(models=("fcac", "other"))
    status = a_status(
        contract,
        [a_snapshot(contract, some_nodes(2, 3, 9), model=name) for name in ("fcac", "other")],
    )
    renderer = PageRenderer()
    for shown, expected in (
        (None, [True, True]),
        ("fcac", [True, False]),
        ("other", [False, True]),
    ):
        content = renderer.render(status, shown).content
        assert content["shown"] == shown
        assert [model["clustering"] is not None for model in content["models"]] == expected


def test_statuses_of_late_are_found_by_their_etags() -> None:
    renderer = PageRenderer()
    status = one(a_contract(2), some_nodes(2, 3, 9))
    etags = [
        renderer.render(replace(status, lag_records=i), "fcac").etag for i in range(RECENT_MAX + 1)
    ]
    assert renderer.recent("fcac", etags[0]) is None
    assert renderer.recent(None, etags[1]) is None
    assert [renderer.recent("fcac", etag) is not None for etag in etags[1:]] == [True] * RECENT_MAX


def test_clients_in_quarantine_are_named_once_whatever_models_exclude_them() -> None:
    contract = a_contract(models=("fcac", "other"))
    listed = [QuarantinedClient(model, "roof", NOW, "odd", False) for model in ("fcac", "other")]
    assert rendered(a_status(contract, quarantined=listed))["quarantined"] == ["roof"]
    assert rendered(a_status(contract))["quarantined"] == []


@pytest.mark.parametrize(
    ("shares", "percents"),
    [
        ([], []),
        ([1.0], [100]),
        ([1 / 3] * 3, [34, 33, 33]),
        ([0.005, 0.005, 0.99], [1, 0, 99]),
        ([0.1, 0.2], [10, 20]),
    ],
)
def test_whole_percents_add_up_to_those_of_the_sum(
    shares: list[float], percents: list[int]
) -> None:
    assert [percent for _, percent in whole_percents(list(enumerate(shares)))] == percents


def test_the_name_that_an_owner_gave_a_client_is_its_title() -> None:
    status = a_status(a_contract(2), client_names={"roof": "Dach, Büro Süd"})
    clients = [ClientStatus("roof", NOW, 1, 1, 1.0), ClientStatus("hall", NOW, 1, 1, 1.0)]
    titles = [(client.client, client.title) for client in clients_of(status, clients)]
    assert titles == [("roof", "Dach, Büro Süd"), ("hall", "hall")]


def test_a_client_is_inactive_after_three_of_its_usual_intervals_and_half_a_minute() -> None:
    clients = [
        ClientStatus("fast", NOW, 1, 1, 1.0, 2.0),
        ClientStatus("hourly", NOW, 1, 1, 0.0, 3600.0),
    ]
    assert [client.inactive_after_s for client in clients_of(a_status(a_contract(2)), clients)] == [
        30,
        10_800,
    ]
