"""What the page is given to draw: little, true, and alike from one picture to the next."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from server_node.lineage import Lineage, next_lineage, nodes_and_clusters
from server_node.status import ClientStatus, HistoryPoint, ServerStatus
from server_node.web.page_renderer import HISTORY_MAX, NODES_MAX, VALUES_MAX, PageRenderer, turns
from server_node.web.projection import principal_axes, spread, steady_axes
from server_node.web.tables import CLIENTS_MAX, CLUSTERS_MAX, colours
from shoal.config.contract import Contract
from tests.server_node.web_pictures import NOW, a_contract, a_picture, a_snapshot, some_nodes


def drawn(picture: ServerStatus, easel: PageRenderer | None = None) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((easel or PageRenderer()).draw(picture).body)
    return told


def one(contract: Contract, arrays: dict[str, Any], **parts: Any) -> ServerStatus:
    return a_picture(contract, [a_snapshot(contract, arrays)], **parts)


def test_a_snapshot_without_nodes_is_drawn_as_nothing() -> None:
    for width in (1, 2, 3, 40):
        nothing = {name: array[:0] for name, array in some_nodes(width, 2, 4).items()}
        model = drawn(one(a_contract(width), nothing))["models"][0]
        assert model["drawn"]["nodes"]["id"] == []
        assert model["drawn"]["clusters"] == []
        assert model["drawn"]["edges"] == []


def test_one_node_is_drawn() -> None:
    for width in (1, 2, 3, 40):
        model = drawn(one(a_contract(width), some_nodes(width, 1, 1)))["models"][0]
        assert model["drawn"]["nodes"]["cluster"] == [0]
        assert len(model["drawn"]["axes"]) == 2


def test_two_features_are_drawn_in_their_units() -> None:
    arrays = some_nodes(2, 3, 9)
    shown = drawn(one(a_contract(2), arrays))["models"][0]["drawn"]
    assert shown["axes"] == ["temperature (°C)", "humidity (%)"]
    assert shown["spread_shown"] is None
    assert np.allclose(shown["nodes"]["x"], -20 + 80 * arrays["weight"][:, 0], rtol=1e-5)
    assert np.allclose(shown["nodes"]["y"], 100 * arrays["weight"][:, 1], rtol=1e-5)


def test_one_feature_is_drawn_over_how_often_its_nodes_won() -> None:
    arrays = some_nodes(1, 3, 9)
    shown = drawn(one(a_contract(1), arrays))["models"][0]["drawn"]
    assert shown["axes"] == ["temperature (°C)", "times won, powers of ten"]
    assert np.allclose(shown["nodes"]["y"], np.log10(arrays["count"]), rtol=1e-5)


def test_many_features_are_drawn_on_mixtures_of_them_that_are_named() -> None:
    arrays = some_nodes(5, 2, 20)
    arrays["weight"] = np.full((20, 5), 0.5)
    arrays["weight"][:, 1] = np.linspace(0, 1, 20)
    arrays["weight"][:, 3] = np.linspace(1, 0, 20)
    shown = drawn(one(a_contract(5), arrays))["models"][0]["drawn"]
    assert shown["axes"][0] in ("more humidity, less voltage →", "more voltage, less humidity →")
    assert shown["spread_shown"] == 1.0
    assert shown["features_total"] == 5


def test_values_and_centres_are_in_units_rounded_to_a_thousandth_of_the_bounds() -> None:
    arrays = some_nodes(5, 2, 20)
    shown = drawn(one(a_contract(5), arrays))["models"][0]["drawn"]
    assert [feature["digits"] for feature in shown["features"]] == [2, 1, 0, 3, 1]
    low, span = np.array([-20, 0, 0, 2, 900]), np.array([80, 100, 2000, 1, 200])
    slack = 10.0 ** -np.array([2, 1, 0, 3, 1])
    assert np.all(np.abs(shown["nodes"]["values"] - (low + span * arrays["weight"])) <= slack)
    centres = [cluster["centre"] for cluster in shown["clusters"]]
    assert np.all(np.abs(centres - (low + span * arrays["centre"])) <= slack)


def test_what_is_drawn_is_bounded_however_much_there_is() -> None:
    arrays = some_nodes(VALUES_MAX + 4, 5, NODES_MAX + 500)
    clients = [ClientStatus(f"client {i:04}", NOW, 1, 1, 0.0) for i in range(CLIENTS_MAX + 50)]
    picture = drawn(one(a_contract(VALUES_MAX + 4), arrays, clients=clients))
    model = picture["models"][0]
    assert model["nodes_total"] == NODES_MAX + 500
    nodes = model["drawn"]["nodes"]
    assert len(nodes["id"]) == NODES_MAX
    assert min(nodes["count"]) >= np.sort(arrays["count"])[500]
    assert len(nodes["values"][0]) == VALUES_MAX
    assert max(model["drawn"]["edges"]) < NODES_MAX
    columns = picture["clients"].values()
    assert {len(column) for column in columns} == {CLIENTS_MAX}
    assert picture["clients_total"] == CLIENTS_MAX + 50


def test_of_too_many_clusters_the_heaviest_are_listed_and_all_have_a_mark_and_a_name() -> None:
    arrays = some_nodes(2, CLUSTERS_MAX + 30, CLUSTERS_MAX + 30)
    shown = drawn(one(a_contract(2), arrays))["models"][0]["drawn"]
    assert len(shown["clusters"]) == CLUSTERS_MAX
    assert min(cluster["weight"] for cluster in shown["clusters"]) >= np.sort(arrays["centre_weight"])[30]
    assert len(set(shown["slots"])) == len(set(shown["identities"])) == CLUSTERS_MAX + 30
    assert shown["clusters_weight"] == pytest.approx(arrays["centre_weight"].sum(), rel=1e-5)


def test_of_too_many_clients_those_heard_last_are_listed_by_name() -> None:
    clients = [ClientStatus(f"client-{i:04}", NOW - i, 1, 1, 0.0) for i in reversed(range(CLIENTS_MAX + 50))]
    listed = drawn(one(a_contract(2), some_nodes(2, 2, 4), clients=clients))["clients"]["name"]
    assert listed == [f"client-{i:04}" for i in range(CLIENTS_MAX)]


def test_it_is_told_since_when_a_cluster_is_there() -> None:
    picture = one(a_contract(2), some_nodes(2, 2, 4))
    model = replace(picture.models["fcac"], since={1: NOW - 60})
    shown = drawn(replace(picture, models={"fcac": model}))["models"][0]["drawn"]
    assert [(cluster["identity"], cluster["since"]) for cluster in shown["clusters"]] == [(0, None), (1, NOW - 60)]


def test_another_page_on_the_same_data_is_another_drawing() -> None:
    picture = one(a_contract(2), some_nodes(2, 2, 4))
    assert PageRenderer("one").draw(picture).mark != PageRenderer("two").draw(picture).mark
    assert drawn(picture, PageRenderer("one"))["page"] == "one"


def test_edges_join_the_same_nodes_when_not_all_are_drawn() -> None:
    arrays = some_nodes(2, 5, NODES_MAX + 500)
    shown = drawn(one(a_contract(2), arrays))["models"][0]["drawn"]
    ids = np.array(shown["nodes"]["id"])
    ends = ids[np.array(shown["edges"]).reshape(-1, 2)]
    there = {tuple(pair) for pair in arrays["node_id"][arrays["edge"]].tolist()}
    assert {tuple(pair) for pair in ends.tolist()} == {pair for pair in there if set(pair) <= set(ids.tolist())}


def test_only_the_clock_leaves_the_mark_as_it_was() -> None:
    easel = PageRenderer()
    picture = one(a_contract(3), some_nodes(3, 2, 20))
    mark = easel.draw(picture).mark
    assert easel.draw(replace(picture, now=NOW + 5)).mark == mark
    assert drawn(replace(picture, now=NOW + 5), easel)["now"] == NOW + 5
    assert easel.draw(replace(picture, rejected={"sequence": 1})).mark != mark


def test_a_cluster_keeps_its_colour_when_it_is_given_another_number() -> None:
    easel = PageRenderer()
    contract, arrays = a_contract(3), some_nodes(3, 4, 40)
    first = one(contract, arrays)
    before = drawn(first, easel)["models"][0]["drawn"]
    alive = arrays["cluster"] > 0  # the oldest cluster is gone, and the others are counted from the other end
    after = {name: arrays[name][alive] for name in ("node_id", "weight", "count", "sigma")}
    after |= {"cluster": 3 - arrays["cluster"][alive], "edge": arrays["edge"][:0], "edge_age": arrays["edge_age"][:0]}
    after |= {name: arrays[name][:0:-1] for name in ("centre", "centre_weight")}
    lineage, _ = next_lineage(first.models["fcac"].lineage, *nodes_and_clusters(after))
    second = one(contract, after)
    second = replace(second, models={"fcac": replace(second.models["fcac"], lineage=lineage)})
    later = drawn(second, easel)["models"][0]["drawn"]
    colours = [
        {node: shown["clusters"][number]["slot"] for node, number in zip(*_ids_and_clusters(shown), strict=True)}
        for shown in (before, later)
    ]
    assert len(colours[1]) == 30
    assert all(colours[0][node] == colour for node, colour in colours[1].items())


def _ids_and_clusters(shown: dict[str, Any]) -> tuple[list[int], list[int]]:
    return shown["nodes"]["id"], shown["nodes"]["cluster"]


def test_the_history_keeps_its_ends_and_every_change_while_it_can() -> None:
    assert turns([]) == []
    still = [HistoryPoint(float(i), 3, 10, i) for i in range(1000)]
    assert turns(still) == [[0.0, 3]]
    assert turns([*still, HistoryPoint(1000.0, 4, 10, 1)]) == [[0.0, 3], [1000.0, 4]]
    restless = [HistoryPoint(float(i), i % 7, 10, i) for i in range(1000)]
    assert len(turns(restless)) == HISTORY_MAX
    assert (turns(restless)[0], turns(restless)[-1]) == ([0.0, 0], [999.0, 999 % 7])


# Colours


def test_clusters_without_an_identity_take_the_colours_that_are_left() -> None:
    assert colours(0, Lineage()) == []
    assert colours(3, Lineage()) == [0, 1, 2]
    assert colours(4, Lineage(9, of_cluster={1: 8, 3: 4}, slots={8: 0, 4: 2})) == [1, 0, 3, 2]


# Axes


def test_points_that_spread_nowhere_are_drawn_on_the_first_two_features() -> None:
    for points in (np.empty((0, 4)), np.full((1, 4), 0.3), np.full((9, 4), 0.3)):
        assert np.allclose(principal_axes(points), np.eye(4)[:, :2])


@pytest.mark.parametrize(("n", "d"), [(50, 3), (50, 12), (5, 40)])
def test_the_axes_are_the_eigenvectors_of_largest_variance(n: int, d: int) -> None:
    points = np.random.default_rng(3).normal(size=(n, d)) * np.linspace(3, 1, d)
    axes = principal_axes(points)
    assert np.allclose(axes.T @ axes, np.eye(2))
    variances = np.linalg.eigvalsh(np.cov(points.T))
    assert np.isclose(spread(points, axes) / (n - 1), variances[-2:].sum())
    assert np.all(axes[np.abs(axes).argmax(axis=0), [0, 1]] > 0)


def test_axes_stay_as_they_are_while_points_move_a_little() -> None:
    rng = np.random.default_rng(5)
    points = rng.normal(size=(60, 4)) * [1.0, 0.98, 0.2, 0.1]  # two directions nearly alike: bare axes would spin
    axes = steady_axes(points, None)
    for _ in range(50):
        points = points + rng.normal(size=points.shape) * 0.02
        assert steady_axes(points, axes) is axes


def test_axes_that_must_change_turn_no_further_than_they_have_to() -> None:
    rng = np.random.default_rng(5)
    flat = rng.normal(size=(80, 4)) * [1.0, 0.9, 0.05, 0.05]
    before = steady_axes(flat, None)
    moved = rng.normal(size=(80, 4)) * [0.9, 0.05, 1.0, 0.05]
    after = steady_axes(moved, before)
    assert np.allclose(after.T @ after, np.eye(2))
    assert np.isclose(spread(moved, after), spread(moved, principal_axes(moved)))
    nearness = np.abs(np.trace(after.T @ before))
    for angle in np.linspace(0, 2 * np.pi, 60):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        for mirror in (np.eye(2), np.diag([1.0, -1.0])):
            assert np.trace((after @ turn @ mirror).T @ before) <= nearness + 1e-9
