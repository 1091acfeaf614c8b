"""The metrics of clusters: their shares and centres, births and ends, what is new, and what a
reading costs."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from shoal.config.privacy_report import privacy_report
from shoal.config.resolved import resolve
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import COARSE_S, FINE_S, NO_CLUSTER, HistoryBin
from shoal.server_node import monitoring
from shoal.server_node.monitoring import BirthOrEnd, ClusterMonitoring, ServerMonitoring
from shoal.server_node.node import ServerNode
from shoal.server_node.report.description import describe
from shoal.server_node.report.lineage.clusters import Cluster, Lineage
from shoal.server_node.report.units import view_of
from shoal.telemetry.metrics import ServerMetrics
from tests.server_node.server_fixture import ServerFixture, updates_of
from tests.server_node.web_statuses import a_contract, a_lineage, a_snapshot, some_nodes


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def test_the_centre_of_each_known_cluster_is_a_metric_in_units_and_within_bounds(
    site: ServerFixture,
) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 13))))
    for moment in ("as published", "after a restart"):
        with site.server() as server:
            while server.step():
                pass
            model = server.status().models["clusters"]
            assert model.snapshot is not None
            described = describe(view_of(model.snapshot, server.status().contract), site.contract)
            expected = {
                ("clusters", str(identity), "", feature.name, feature.unit): value
                for number, identity in model.lineage.of_number.items()
                for feature, value in zip(
                    site.contract.features, described[number].centre, strict=True
                )
            }
            assert samples(server, "shoal_cluster_centre") == pytest.approx(expected), moment
            assert expected


def test_metrics_of_clusters_are_bounded_and_those_of_ended_clusters_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitoring, "CLUSTERS_LABELLED_MAX", 3)
    monkeypatch.setattr(monitoring, "FEATURES_LABELLED_MAX", 2)
    contract = a_contract(5)
    metrics = ServerMetrics()
    shown = ClusterMonitoring(metrics, resolve(contract))
    seen = []
    for clusters in (7, 2, 0):
        snapshot = a_snapshot(contract, some_nodes(5, clusters, 3 * clusters))
        shown.clusters("fcac", view_of(snapshot, resolve(contract)), a_lineage(snapshot))
        family = {family.name: family.samples for family in metrics.registry.collect()}
        seen.append(
            (len(family["shoal_cluster_recent_share"]), len(family["shoal_cluster_centre"]))
        )
    assert seen == [(3, 6), (2, 4), (0, 0)]
    snapshot = a_snapshot(contract, some_nodes(5, 2, 6))
    shown.clusters("fcac", view_of(snapshot, resolve(contract)), a_lineage(snapshot))
    again = ClusterMonitoring(metrics, resolve(contract))
    again.clusters("fcac", view_of(snapshot, resolve(contract)), Lineage())
    family = {family.name: family.samples for family in metrics.registry.collect()}
    assert not family["shoal_cluster_centre"], "of a node that was thrown away nothing stays"


def test_a_cluster_lies_where_its_heaviest_part_lies_and_never_beyond_the_bounds() -> None:
    contract = a_contract(2)
    metrics = ServerMetrics()
    arrays = some_nodes(2, 3, 9)
    arrays["centre"] = np.array([[0.1, 0.1], [1.7, -0.4], [0.2, 0.2]])
    arrays["centre_weight"] = np.array([5.0, 9.0, 1.0])
    lineage = Lineage(5, clusters={4: Cluster(4)}, of_number={0: 4, 1: 4, 2: 4})
    ClusterMonitoring(metrics, resolve(contract)).clusters(
        "fcac", view_of(a_snapshot(contract, arrays), resolve(contract)), lineage
    )
    value = metrics.registry.get_sample_value
    for feature, bound in zip(
        contract.features, (contract.features[0].high, contract.features[1].low), strict=True
    ):
        labels = {
            "model": "fcac",
            "cluster": "4",
            "name": "",
            "feature": feature.name,
            "unit": feature.unit,
        }
        assert value("shoal_cluster_centre", labels) == bound


def test_identities_from_before_a_rebuild_have_no_centre_in_a_smaller_model() -> None:
    contract = a_contract(2)
    metrics = ServerMetrics()
    view = view_of(a_snapshot(contract, some_nodes(2, 2, 6)), resolve(contract))
    known = {identity: Cluster(identity) for identity in (4, 5)}
    ClusterMonitoring(metrics, resolve(contract)).clusters(
        "fcac", view, Lineage(6, clusters=known, of_number={0: 4, 2: 5})
    )
    [centres] = (
        family for family in metrics.registry.collect() if family.name == "shoal_cluster_centre"
    )
    assert {sample.labels["cluster"] for sample in centres.samples} == {"4"}


def test_of_snapshots_between_two_readings_of_metrics_the_newest_is_shown() -> None:
    metrics = ServerMetrics()
    done: list[int] = []
    for number in range(3):
        metrics.put_off.put("clusters", "fcac", partial(done.append, number))
    metrics.put_off.put("events", "fcac", partial(done.append, 7))
    assert not done
    assert [*metrics.registry.collect()]
    assert done == [2, 7]


def test_the_newest_births_and_ends_of_clusters_are_metrics_with_their_times(
    site: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 13))))
    site.run()
    events = [
        ClusterEventMessage.decode(record.value)
        for record in site.records_in(site.contract.events_topic)
    ]
    # The updates of the tests are a second later than their newest reading, whose time it is.
    expected = {
        (event.model, event.kind, str(event.cluster), event.text): event.at - 1
        for event in events
        if event.kind == "birth"
    }
    with site.server() as server:
        assert samples(server, "shoal_cluster_event_timestamp_seconds") == expected, (
            "after a restart too"
        )
    monkeypatch.setattr(monitoring, "EVENTS_LABELLED_MAX", 2)
    metrics = ServerMetrics()
    shown = ClusterMonitoring(metrics, resolve(site.contract))
    kinds = ["birth", "birth", "gone", "merged", "share_moved", "named"]
    shown.births_and_ends(
        "clusters", (BirthOrEnd(kind, place, f"{place}", place) for place, kind in enumerate(kinds))
    )
    value = metrics.registry.get_sample_value
    for place, kind in enumerate(kinds):
        labels = {"model": "clusters", "event": kind, "cluster": str(place), "text": str(place)}
        assert value("shoal_cluster_event_timestamp_seconds", labels) == (
            place if kind in ("gone", "merged") else None
        )


def test_the_share_of_readings_of_no_known_cluster_is_that_of_the_newest_bin() -> None:
    contract = a_contract(2)
    metrics = ServerMetrics()
    shown = ClusterMonitoring(metrics, resolve(contract))

    def one(width: int, start: int, clusters: list[int]) -> HistoryBin:
        return HistoryBin.of(
            contract.federation, contract.digest, "fcac", width, start, 1, clusters, [], []
        )

    def share() -> float | None:
        return metrics.registry.get_sample_value("shoal_unknown_share", {"model": "fcac"})

    shown.counted("fcac", [])
    shown.counted("fcac", [one(COARSE_S, 0, [NO_CLUSTER, 5]), one(FINE_S, 0, [])])
    assert share() is None, "no readings, no share"
    older = one(FINE_S, 300, [1, 30, NO_CLUSTER, 10])
    newer = one(FINE_S, 600, [1, 10, NO_CLUSTER, 10])
    shown.counted("fcac", [older, newer])
    assert share() == 0.5
    shown.counted("fcac", [one(FINE_S, 900, [1, 7])])
    assert share() == 0


def test_names_that_owners_gave_are_joined_to_the_metrics_of_their_clients() -> None:
    metrics = ServerMetrics()
    contract = resolve(a_contract(2))
    value = metrics.registry.get_sample_value
    ServerMonitoring(metrics, contract, {"roof": "Dach, Büro Süd"})
    assert value("shoal_client_info", {"client": "roof", "name": "Dach, Büro Süd"}) == 1
    # As after an error, with other settings.
    ServerMonitoring(metrics, contract)
    assert value("shoal_client_info", {"client": "roof", "name": "Dach, Büro Süd"}) is None


def test_epsilon_is_that_of_the_contract_and_infinite_without_a_guarantee() -> None:
    for contract in (a_contract(2, models=("one", "two")), a_contract(2, privacy={"mode": "off"})):
        metrics = ServerMetrics()
        ServerMonitoring(metrics, resolve(contract))
        value = metrics.registry.get_sample_value
        report = privacy_report(resolve(contract))
        for model in report["models"]:
            promised = math.inf if model["epsilon"] is None else model["epsilon"]
            assert (
                value("shoal_model_epsilon", {"model": model["name"], "unit": model["unit"]})
                == promised
            )
        total = math.inf if report["epsilon"] is None else report["epsilon"]
        assert value("shoal_models_epsilon") == total


def samples(server: ServerNode, name: str) -> dict[tuple[str, ...], float]:
    """The values of the labels of each series of a metric -> its value."""
    for family in server.metrics.registry.collect():
        if family.name == name:
            return {tuple(sample.labels.values()): sample.value for sample in family.samples}
    return {}
