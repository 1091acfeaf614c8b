"""The metrics, the events and the status of the server."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.cluster_tree import ClusterTreeClient
from shoal.config.contract import parse_contract
from shoal.config.settings import LogSettings
from shoal.protocol.events import EVENT_KINDS, ClusterEventMessage
from shoal.protocol.messages import ClusterName, Update
from shoal.server_node.node import ServerNode
from shoal.server_node.outputs.web.page_renderer import PageRenderer
from shoal.telemetry.metrics import ServerMetrics
from tests.server_node.server_fixture import ServerFixture, updates_of
from tests.small_plant import OFF, an_update, nodes_at, plant


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def test_metrics_count_updates_and_readings(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 1), ("attic", 1), ("cellar", 1)))
    with site.server() as server:
        while server.step():
            pass
        value = server.metrics.registry.get_sample_value
        assert value("shoal_updates_total", {"result": "absorbed"}) == 2
        assert value("shoal_updates_total", {"result": "repeated"}) == 1
        assert value("shoal_readings_total", {"result": "learned"}) == 80
        assert value("shoal_readings_total", {"result": "repeated"}) == 40, (
            "published twice, learnt once"
        )
        assert value("shoal_end_to_end_latency_seconds_count") == 2
        assert value("shoal_client_last_seen_timestamp_seconds", {"client": "attic"}) == 1e9
        snapshot = server.status().models["clusters"].snapshot
        assert snapshot is not None
        assert value("shoal_nodes", {"model": "clusters"}) == snapshot.nodes
    with site.server() as server:
        value = server.metrics.registry.get_sample_value
        assert value("shoal_nodes", {"model": "clusters"}) == snapshot.nodes, (
            "also before the next snapshot"
        )
        assert value("shoal_snapshot_version", {"model": "clusters"}) == snapshot.version
        assert value("shoal_client_last_seen_timestamp_seconds", {"client": "attic"}) == 1e9, (
            "seen before the restart"
        )
        assert value("shoal_updates_total", {"result": "rejected"}) == 0, (
            "from 0 on, so that the first one shows"
        )
        assert value("shoal_rejected_messages_total", {"reason": "privacy"}) == 0


def test_updates_read_again_after_an_error_are_counted_once(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, pool_clients=5)
    metrics = ServerMetrics()
    value = metrics.registry.get_sample_value
    site.send(*updates_of(site, ("attic", 1), ("cellar", 1)))
    site.publish(("clusters", b"junk", Update.headers()))
    for _ in range(2):
        with site.server(metrics=metrics) as server:
            server.step()
        # It was thrown away, and nothing it did was saved.
        site.delete_checkpoint()
    assert value("shoal_updates_total", {"result": "absorbed"}) == 2
    assert value("shoal_updates_total", {"result": "repeated"}) == 2
    assert value("shoal_updates_total", {"result": "rejected"}) == 1
    assert value("shoal_readings_total", {"result": "learned"}) == 80
    assert value("shoal_readings_total", {"result": "repeated"}) == 80


def test_before_the_first_snapshot_the_version_is_0(site: ServerFixture) -> None:
    with site.server() as server:
        assert (
            server.metrics.registry.get_sample_value(
                "shoal_snapshot_version", {"model": "clusters"}
            )
            == 0
        )


def test_an_update_counts_into_the_latency_of_its_own_model(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, plant(models=("left", "right")), snapshot_updates=2)
    with site.server() as server:
        value = server.metrics.registry.get_sample_value
        site.send(
            an_update(site.contract, "attic", 1, model="left"),
            an_update(site.contract, "attic", 1, model="right"),
        )
        server.step()
        assert value("shoal_end_to_end_latency_seconds_count") == 2
        site.send(
            an_update(site.contract, "attic", 2, model="left"),
            an_update(site.contract, "attic", 2, model="right"),
        )
        site.send(an_update(site.contract, "attic", 3, model="left"))
        server.step()
        assert value("shoal_end_to_end_latency_seconds_count") == 4, (
            "the one for right has no snapshot yet"
        )


def test_what_became_of_clusters_adds_up_and_travels_as_events(
    site: ServerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 13))))
    with caplog.at_level(logging.INFO, "shoal"), site.server() as server:
        while server.step():
            pass
        value = server.metrics.registry.get_sample_value
        counted = {
            event: value("shoal_cluster_events_total", {"model": "clusters", "event": event})
            for event in EVENT_KINDS
        }
        assert None not in counted.values(), "those that never happened are 0"
        change = counted["birth"] + counted["parted"] - counted["merged"] - counted["gone"]
        assert change == value("shoal_clusters", {"model": "clusters"}) > 0
    events = [
        ClusterEventMessage.decode(record.value)
        for record in site.records_in(site.contract.events_topic)
    ]
    assert Counter(event.kind for event in events) == {kind: n for kind, n in counted.items() if n}
    assert len({event.id for event in events}) == len(events)
    assert events[0].centre is not None
    assert set(events[0].centre) == {feature.name for feature in site.contract.features}
    lines = [
        vars(record)["fields"]
        for record in caplog.records
        if record.getMessage() == "cluster_changed"
    ]
    logged = [fields["event_id"] for fields in lines]
    assert logged == [event.id for event in events]


def test_a_memory_that_is_too_small_is_logged_once_and_told_on_the_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"growth_max": 1.0, "mass_max": 400.0, "cluster_mass_max": 400.0, "cells_max": 400}
    models = [{"name": "clusters", "algorithm": "cluster_tree", "options": small}]
    features = [{"name": "warm", "low": -10, "high": 50}, {"name": "damp", "low": 0, "high": 100}]
    tables = {
        "federation": {"name": "plant"},
        "features": features,
        "privacy": OFF,
        "models": models,
    }
    site = ServerFixture(tmp_path, parse_contract(tables))
    generator = np.random.default_rng(0)
    client = ClusterTreeClient(2)
    places = np.stack(
        np.meshgrid(np.linspace(0.1, 0.9, 8), np.linspace(0.1, 0.9, 5)), axis=-1
    ).reshape(-1, 2)
    with caplog.at_level(logging.WARNING, "shoal"), site.server() as server:
        for number in range(1, 13):
            client.learn(
                places[generator.integers(40, size=100)] + generator.normal(0.0, 0.008, (100, 2))
            )
            update = {"algorithm": "cluster_tree", "arrays": client.contribute(), "readings": 100}
            site.send(an_update(site.contract, "attic", number, **update))
            while server.step():
                pass
        state = PageRenderer().render(server.status()).content["models"][0]["state"]
    (fields,) = [
        vars(record)["fields"]
        for record in caplog.records
        if record.getMessage() == "memory_too_small"
    ]
    assert fields["model"] == "clusters"
    assert 20 < fields["places"] <= 48
    assert fields["clusters"] < 10
    assert "memory at its limit tells" in state
    assert "raise the option growth_max" in state


def test_identities_survive_a_restart(site: ServerFixture) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 7))))
    with site.server() as server:
        while server.step():
            pass
        before = server.status().models["clusters"].lineage
        assert before.of_node
        assert before.known
    with site.server() as server:
        assert server.status().models["clusters"].lineage == before
        site.send(*updates_of(site, *(("attic", n) for n in range(7, 9))))
        while server.step():
            pass
        after = server.status().models["clusters"].lineage
    shared = set(before.of_node) & set(after.of_node)
    assert any(before.of_node[node] == after.of_node[node] for node in shared)
    assert after.next_identity >= before.next_identity
    both = [
        (before.clusters[cluster], after.clusters[cluster])
        for cluster in before.clusters.keys() & after.clusters.keys()
    ]
    assert all(earlier.since == later.since for earlier, later in both), (
        "what stays is as old as it was"
    )


def test_a_name_travels_with_its_cluster_and_survives_a_restart_and_a_rebuild(
    site: ServerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "shoal")
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 7))))
    contract = site.contract

    moments = itertools.count(1e9)

    def name(identity: int, text: str) -> None:
        message = ClusterName(
            contract.federation, contract.digest, "clusters", identity, text, made_at=next(moments)
        )
        site.publish(("clusters", message.encode(), ClusterName.headers()))

    with site.server() as server:
        while server.step():
            pass
        identity = server.status().models["clusters"].lineage.known[0].identity
        name(identity, "night")
        name(999, "none")
        while server.step():
            pass
        assert server.status().rejected == {"cluster": 1}
        repeated = server.metrics.registry.get_sample_value(
            "shoal_updates_total", {"result": "repeated"}
        )
        assert repeated == 0, "a name is no update"
    assert [record.getMessage() for record in caplog.records].count("name_requested") == 1
    snapshot = site.snapshots()[-1]
    assert "night" in {
        cluster.name for cluster in snapshot.cluster_identities if cluster.identity == identity
    }
    events = [
        ClusterEventMessage.decode(record.value)
        for record in site.records_in(contract.events_topic)
    ]
    assert [(event.cluster, event.name) for event in events if event.kind == "named"] == [
        (identity, "night")
    ]
    with site.server() as server:
        assert server.status().models["clusters"].lineage.clusters[identity].name == "night"
    site.delete_checkpoint()
    with site.server(rebuild=True) as server:
        while server.step():
            pass
        lineage = server.status().models["clusters"].lineage
        assert lineage.clusters[identity].name == "night"
        assert [cluster.identity for cluster in lineage.known] == sorted(
            {identity[1] for identity in snapshot.identities}
        )
    again = [
        ClusterEventMessage.decode(record.value)
        for record in site.records_in(contract.events_topic)
    ]
    assert {event.id for event in again} == {event.id for event in events}, (
        "a restart may repeat, a rebuild adds none"
    )


def test_labels_of_clients_are_bounded(
    site: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.server_node.monitoring.CLIENTS_LABELLED_MAX", 3)
    empty = nodes_at(np.empty((0, 2)))
    site.send(*(an_update(site.contract, f"c{n}", 1, arrays=empty) for n in range(10)))
    site.send(an_update(site.contract, "c0", 2))
    with site.server() as server:
        while server.step():
            pass
        page = [
            s
            for family in server.metrics.registry.collect()
            for s in family.samples
            if "client" in s.labels
        ]
        assert len(page) == 3
        assert len(server.status().clients) == 10


def test_the_status_has_the_lag(site: ServerFixture) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 6))))
    with site.server() as server:
        assert server.status().lag_records == 5
        assert not server.status().ready
        assert not server.up_to_date
        while server.step():
            pass
        assert server.status().lag_records == 0
        assert server.status().ready
        site.send(*updates_of(site, ("attic", 6)))
        assert server.status().ready, "what stood there at the start is read"


def test_the_retention_margin_is_measured(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    site.log_settings = LogSettings(updates_retention_bytes=2000)
    labels = {"topic": site.contract.updates_topic}

    def margin(server: ServerNode) -> float | None:
        server.status()
        return server.metrics.registry.get_sample_value("shoal_retention_margin_records", labels)

    site.send(*updates_of(site, ("attic", 1)))
    with site.server() as server:
        assert margin(server) == 0
        server.step()
        assert margin(server) == 1
        for n in range(2, 20):
            site.send(*updates_of(site, ("attic", n)))
        with site.log() as log:
            first, _ = log.bounds(site.contract.updates_topic)[0]
        assert first > 1
        assert margin(server) == 1 - first
