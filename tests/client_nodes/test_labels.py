"""Labels: every reading gets its cluster in the newest snapshot, in the client's own log only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms.registry import streaming_algorithm
from shoal.config.privacy import declared_bounds
from shoal.protocol.messages import Snapshot
from tests.client_nodes.site import Site, readings
from tests.small_plant import FORMAL, a_snapshot, plant


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, label=True)


def publish(site: Site, *snapshots: Snapshot, key: bytes = b"clusters") -> None:
    with site.federation() as log:
        for snapshot in snapshots:
            log.publish(site.contract.snapshots_topic, snapshot.encode(), key, Snapshot.headers())
        log.flush()


def expected(site: Site, snapshot: Snapshot, values: np.ndarray) -> list[int]:
    bounds = declared_bounds(site.contract)
    unit = bounds.to_unit(bounds.clip(values)[0])
    return [int(cluster) for cluster in streaming_algorithm("fcac").predict(snapshot.arrays, unit)]


def test_no_readings_give_no_labels(site: Site) -> None:
    publish(site, a_snapshot(site.contract))
    site.run()
    assert site.labels() == {}


def test_labels_are_off_by_default(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.add_readings(readings(5))
    site.run()
    with site.readings() as log:
        log.ensure("labels", None)
        assert log.bounds("labels") == {0: (0, 0)}


def test_without_a_snapshot_the_cluster_is_minus_one(site: Site) -> None:
    site.add_readings(readings(3))
    site.run()
    assert site.labels() == {
        f"clusters/0/{n}".encode(): {"cluster": -1, "version": 0, "time": 1e9 + n} for n in range(3)
    }


def test_a_snapshot_without_nodes_gives_cluster_minus_one(site: Site) -> None:
    half = streaming_algorithm("fcac").server({}, 2)
    publish(site, a_snapshot(site.contract, arrays=half.snapshot(), clusters=0, nodes=0))
    site.add_readings(readings(3))
    site.run()
    assert [label["cluster"] for label in site.labels().values()] == [-1] * 3


def test_readings_are_labelled_by_the_newest_snapshot(site: Site) -> None:
    snapshot = a_snapshot(site.contract, version=7)
    publish(site, snapshot)
    values = readings(30)
    site.add_readings(values)
    site.run()
    labels = [site.labels()[f"clusters/0/{n}".encode()] for n in range(30)]
    assert [label["cluster"] for label in labels] == expected(site, snapshot, values)
    assert len({label["cluster"] for label in labels}) > 1
    assert {label["version"] for label in labels} == {7}


def test_a_rejected_reading_has_no_label_and_the_others_keep_their_offsets(site: Site) -> None:
    site.add_readings([[20.0, 40.0], ["wet"], [21.0, 41.0]])
    site.run()
    assert list(site.labels()) == [b"clusters/0/0", b"clusters/0/2"]


def test_a_withheld_reading_is_labelled_too(tmp_path: Path) -> None:
    site = Site(tmp_path, plant({"mode": "paper", "epsilon_nominal_per_feature": 5}), label=True)
    site.add_readings(np.array([[20.0, 50.0]] * 3))
    assert site.run()["withheld"] == 3
    assert len(site.labels()) == 3


def test_labels_are_made_from_the_reading_without_noise(tmp_path: Path) -> None:
    site = Site(tmp_path, plant({"mode": "formal", "epsilon_per_reading": 1}), label=True)
    snapshot = a_snapshot(site.contract)
    publish(site, snapshot)
    values = readings(40)
    site.add_readings(values)
    site.run()
    labels = [site.labels()[f"clusters/0/{n}".encode()]["cluster"] for n in range(40)]
    assert labels == expected(site, snapshot, values)


def test_later_readings_follow_newer_snapshots_and_older_ones_are_ignored(site: Site) -> None:
    with site.node() as node:
        for version, expected in ((1, 1), (5, 5), (3, 5), (6, 6)):
            publish(site, a_snapshot(site.contract, version=version))
            with site.readings() as log:
                (_, end) = log.bounds("readings")[0]
            site.add_readings(readings(1))
            node.step()
            assert site.labels()[f"clusters/0/{end}".encode()]["version"] == expected


def test_labelling_again_after_a_kill_changes_no_label(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(site, a_snapshot(site.contract))
    site.add_readings(readings(20))
    with site.node() as node:
        monkeypatch.setattr(node._outbox, "store", lambda *_: pytest.fail("cut"))
        with pytest.raises(pytest.fail.Exception):
            node.step()
    before = site.labels()
    assert len(before) == 20
    site.run()
    assert site.labels() == before


def test_snapshots_that_fail_validation_are_ignored(site: Site) -> None:
    good = a_snapshot(site.contract, version=2)
    zero = replace(good, version=9, arrays={**good.arrays, "sigma": np.zeros(good.nodes)})
    publish(site, zero, replace(good, version=9, federation="other"), key=b"a")
    publish(site, a_snapshot(plant(FORMAL), version=9), key=b"b")
    publish(site, good)
    with site.federation() as log:
        for value in (b"junk", b"", None):
            log.publish(site.contract.snapshots_topic, value, b"c", Snapshot.headers())
        log.flush()
    site.add_readings(readings(5))
    site.run()
    assert {label["version"] for label in site.labels().values()} == {2}


def test_each_model_labels_every_reading(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(models=("left", "right")), label=True)
    publish(site, a_snapshot(site.contract, version=4, model="right"), key=b"right")
    site.add_readings(readings(2))
    site.run()
    versions = {key: label["version"] for key, label in site.labels().items()}
    assert versions == {b"left/0/0": 0, b"left/0/1": 0, b"right/0/0": 4, b"right/0/1": 4}


def test_labels_change_no_update(tmp_path: Path) -> None:
    published = []
    for label in (False, True):
        site = Site(tmp_path / str(label), label=label)
        publish(site, a_snapshot(site.contract))
        site.add_readings(readings(100))
        site.run()
        published.append([record[4:] for record in site.published()])
    assert published[0] == published[1]
