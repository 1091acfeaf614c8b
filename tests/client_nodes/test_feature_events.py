"""Stuck features and drift within a cluster, from the readings log of a client to what its site and
the federation get."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from shoal.config.changes import Standing
from shoal.config.settings import load_config
from shoal.errors import LogError
from shoal.protocol.codec import pack
from shoal.protocol.events import SiteEvent
from shoal.protocol.readings import Reading
from shoal.protocol.topics import SITE_EVENTS, ensure_label_topics
from shoal.runtime.logs import open_client_log
from shoal.server_node.outputs.events_command import events as events_command
from shoal.transports.base import latest
from tests.client_nodes.known_clusters import known_snapshot, near_nodes, publish
from tests.client_nodes.site import Site
from tests.house.small_federation import create_federation

HOURS = 24 * 60
HOUR_S = 3600.0
STUCK = slice(24 * 50, 24 * 54)
STUCK_AT = 20.517
STANDINGS: tuple[Standing, ...] = ("same", "anew")


def planted(folder: Path, **settings: object) -> Site:
    """A site with an hourly reading in one cluster for two months; after 40 days its feature damp
    rises by three standard deviations, and after 50 warm is stuck for four days."""
    site = Site(folder, label=True, **settings)
    snapshot = known_snapshot(site.contract)
    publish(site, snapshot)
    (centre,) = near_nodes(snapshot, site.contract, 1)
    values = (centre + np.random.default_rng(3).normal(0, 0.2, (HOURS, 2))).round(2)
    values[24 * 40 :, 1] += 0.6
    values[STUCK, 0] = STUCK_AT
    readings = [
        (Reading(1e9 + HOUR_S * number, row).encode(), Reading.headers())
        for number, row in enumerate(values)
    ]
    site.add_records(*readings)
    return site


def site_events(site: Site) -> dict[str, SiteEvent]:
    with site.readings() as log:
        return {
            key.decode(): SiteEvent.decode(record.value)
            for key, record in latest(log, SITE_EVENTS).items()
        }


def test_what_is_found_of_features_is_an_event_of_the_site_and_a_count_and_no_value(
    tmp_path: Path,
) -> None:
    site = planted(tmp_path, publish_labels=True)
    with site.node() as node:
        while node.step():
            pass
        assert node.metrics is not None
        value = node.metrics.registry.get_sample_value
        counted = {}
        for kind in ("stuck", "stuck_ended", "drift", "level_shift"):
            for feature in ("warm", "damp"):
                labels = {"kind": kind, "feature": feature}
                counted[kind, feature] = value("shoal_site_events_total", labels)
    events = [event for event in site_events(site).values() if event.feature]
    kinds = {(event.kind, event.feature) for event in events}
    assert kinds == {("stuck", "warm"), ("stuck_ended", "warm"), ("level_shift", "damp")}
    for kind, number in counted.items():
        assert number == sum((event.kind, event.feature) == kind for event in events), kind
    for event in events:
        if event.kind.startswith("stuck"):
            assert event.model == ""
            assert str(STUCK_AT) not in event.text
            assert event.at is not None
            offset = int(event.id.split("/")[2])
            assert event.at == 1e9 + HOUR_S * offset
    published = site.published_labels()
    to_federation = [key.decode() for key in published if b"/stuck/" in key]
    assert to_federation
    assert not any("drift" in key.decode() or "level_shift" in key.decode() for key in published)
    assert not any(str(STUCK_AT) in json.dumps(published[key.encode()]) for key in to_federation)


def test_a_client_that_publishes_no_labels_publishes_no_event(tmp_path: Path) -> None:
    site = planted(tmp_path)
    site.run()
    assert [event.kind for event in site_events(site).values() if event.feature]
    assert not site.settings.publish_labels
    with site.federation() as log, pytest.raises(LogError):
        log.bounds(site.contract.labels_topic)


def test_events_are_written_once_by_a_client_that_is_started_again_and_again(
    tmp_path: Path,
) -> None:
    whole = planted(tmp_path / "whole")
    whole.run()
    site = planted(tmp_path / "pieces", batch_readings_max=200)
    for _ in range(6):
        with site.node() as node:
            node.step()
    site.run()
    kinds = [(event.id, event.text) for event in site_events(site).values() if event.feature]
    expected = [(event.id, event.text) for event in site_events(whole).values() if event.feature]
    assert sorted(kinds) == sorted(expected)


def test_either_is_turned_off_by_its_setting(tmp_path: Path) -> None:
    site = planted(tmp_path, stuck_per_month=0.0, drift_per_month=0.0)
    site.run()
    assert not [event for event in site_events(site).values() if event.feature]


def test_the_events_of_a_feature_are_listed_with_their_feature_and_without_a_model(
    tmp_path: Path,
) -> None:
    file = create_federation(tmp_path, readings=5)
    text = "warm has had one value for 9 hours (109 readings)"
    event = SiteEvent(
        "stuck/0/1/stuck/0", "stuck", "house", "attic", "", 0, 109, 1e9, text=text, feature="warm"
    )
    log = open_client_log(load_config(file), "attic")
    ensure_label_topics(log)
    log.publish(SITE_EVENTS, event.encode(), event.id.encode(), event.headers())
    log.flush()
    log.close()
    listed = CliRunner().invoke(
        events_command, ["list", "--config", str(file), "--client", "attic"]
    )
    assert listed.output == f"2001-09-09T01:46:40Z {text}\n"


def test_under_another_contract_runs_go_on_and_trends_begin_anew(tmp_path: Path) -> None:
    site = planted(tmp_path / "before")
    site.run()
    with site.node() as node:
        assert node._labels is not None
        state = node._labels.state()
    assert state["models"]["clusters"]["drift"]["states"]
    for standing in STANDINGS:
        # As at the first start under the other contract, when nothing was restored yet.
        with Site(tmp_path / standing, label=True).node() as node:
            assert node._labels is not None
            node._labels.restore(node._labels.moved(state, {"clusters": standing}))
            again = node._labels.state()
        assert pack(again["stuck"]) == pack(state["stuck"])
        begun = again["models"]["clusters"]["drift"]
        assert begun["states"] == [], "between other bounds the same level is at another place"
