"""The histograms of a cluster, against counts by hand, and as JSON."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from shoal.algorithms.view import ClusteringView
from shoal.server_node.outputs.web import create_app, predict
from shoal.server_node.outputs.web.histograms import BINS, histograms
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.status import StatusBoard
from tests.server_node.web_client import WebClient
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

CONTRACT = a_contract(1)
"""temperature from -20 to 60 °C"""
LINEAGE = replace(Lineage(), of_number={0: 10, 1: 11, 2: 11})


def a_view(places: list[float], mass: list[float], cluster: list[int]) -> ClusteringView:
    return ClusteringView.from_nodes(np.array(places).reshape(-1, 1), mass, cluster)


def test_the_mass_of_a_cluster_and_of_all_others_is_counted_in_bins_of_equal_width() -> None:
    view = a_view([0.25, 0.25, 0.6, 0.75, 0.9], [3.0, 1.0, 4.0, 2.0, 9.0], [0, 0, 1, 2, -1])
    (found,) = histograms(view, LINEAGE, 11, CONTRACT)
    assert (found.low, found.high) == (0.0, 40.0), "nodes of no cluster do not count"
    assert dict(enumerate(found.own)) == dict.fromkeys(range(BINS), 0.0) | {
        19: 4 / 6,
        BINS - 1: 2 / 6,
    }
    assert dict(enumerate(found.others)) == dict.fromkeys(range(BINS), 0.0) | {0: 1.0}


def test_values_beyond_the_bounds_count_at_the_bounds() -> None:
    (found,) = histograms(
        a_view([-3.0, 0.5, 7.0], [1.0, 1.0, 1.0], [0, 1, 1]), LINEAGE, 11, CONTRACT
    )
    assert (found.low, found.high) == (-20.0, 60.0)
    assert [found.others[0], found.own[BINS // 2], found.own[-1]] == [1.0, 0.5, 0.5]


def test_one_cluster_one_place_and_no_mass_have_histograms_too() -> None:
    (found,) = histograms(a_view([0.5, 0.5], [1.0, 2.0], [0, 0]), LINEAGE, 10, CONTRACT)
    assert (found.low, found.high, found.own[0], found.others.sum()) == (20.0, 20.0, 1.0, 0.0)
    (found,) = histograms(a_view([0.5, 0.7], [0.0, 0.0], [0, 1]), LINEAGE, 10, CONTRACT)
    assert (found.own.sum(), found.others.sum()) == (0.0, 0.0)
    assert histograms(a_view([0.5], [1.0], [0]), LINEAGE, 99, CONTRACT) == []
    assert histograms(a_view([], [], []), LINEAGE, 10, CONTRACT) == []


def test_nodes_that_tell_how_far_their_rows_spread_count_at_three_places() -> None:
    spread = replace(a_view([0.5, 0.9], [3.0, 1.0], [0, 1]), node_low=np.array([[0.0], [0.9]]))
    spread = replace(spread, node_high=np.array([[1.0], [0.9]]))
    (found,) = histograms(spread, LINEAGE, 10, CONTRACT)
    assert found.own[[0, BINS // 2, BINS - 1]] == pytest.approx(1 / 3)


def test_the_server_answers_with_the_histograms_of_a_known_cluster_in_thousandths() -> None:
    contract = a_contract(4)
    status = a_status(contract, [a_snapshot(contract, some_nodes(4, 3, 120))])
    client = WebClient(create_app(StatusBoard(status), CollectorRegistry(), predict))
    body = client.get("/v1/clusters/1/histograms").json()
    assert [body["model"], body["identity"], body["version"]] == ["fcac", 1, 1]
    assert [feature["name"] for feature in body["features"]] == [
        "temperature",
        "humidity",
        "light",
        "voltage",
    ]
    for feature in body["features"]:
        assert feature["low"] < feature["high"]
        for which in ("own", "others"):
            assert len(feature[which]) == BINS
            assert sum(feature[which]) == pytest.approx(1000, abs=BINS / 2)
    assert client.get("/v1/clusters/77/histograms").status_code == 404
    assert client.get("/v1/clusters/1/histograms?model=other").status_code == 404
    nothing = WebClient(create_app(StatusBoard(a_status(contract)), CollectorRegistry(), predict))
    assert nothing.get("/v1/clusters/1/histograms").status_code == 404
