"""Labels: every reading gets its cluster and lasting identity by the newest snapshot, in the
client's own log only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import streaming_algorithm
from shoal.errors import InvalidState
from shoal.protocol.messages import Snapshot
from shoal.runtime.checkpoint import Checkpoint
from shoal.transports.sqlite.log import SqliteLog
from tests.client_nodes.known_clusters import FIRST_IDENTITY, known_snapshot, near_nodes, publish
from tests.client_nodes.site import Site, readings
from tests.small_plant import FORMAL, a_snapshot, plant


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, label=True)


def in_order(site: Site, n: int, model: str = "clusters") -> list[dict[str, Any]]:
    labels = site.labels()
    return [labels[f"{model}/0/{number}".encode()] for number in range(n)]


def expected(site: Site, snapshot: Snapshot, values: np.ndarray) -> list[int]:
    bounds = site.contract.bounds
    unit = bounds.to_unit(bounds.clip(values)[0])
    return [int(cluster) for cluster in streaming_algorithm("fcac").predict(snapshot.arrays, unit)]


def test_no_readings_give_no_labels(site: Site) -> None:
    publish(site, known_snapshot(site.contract))
    site.run()
    assert site.labels() == {}


def test_labels_are_off_by_default(tmp_path: Path) -> None:
    site = Site(tmp_path)
    publish(site, known_snapshot(site.contract))
    site.add_readings(readings(5))
    site.run()
    with site.readings() as log:
        log.ensure("labels", None)
        assert log.bounds("labels") == {0: (0, 0)}


def test_a_label_has_cluster_identity_name_novelty_version_and_time(site: Site) -> None:
    snapshot = known_snapshot(site.contract, version=7)
    publish(site, snapshot)
    values = np.concatenate([readings(30), near_nodes(snapshot, site.contract, 200)])
    site.add_readings(values)
    site.run()
    labels = in_order(site, 230)
    assert [label["cluster"] for label in labels] == expected(site, snapshot, values)
    identity_of = {cluster.number: cluster.identity for cluster in snapshot.cluster_identities}
    assert [label["identity"] for label in labels] == [
        identity_of.get(label["cluster"]) for label in labels
    ]
    assert len({label["identity"] for label in labels}) > 2
    for number, label in enumerate(labels):
        assert set(label) == {"cluster", "identity", "name", "novelty", "version", "time"}
        assert label["name"] == ("cellar" if label["identity"] == FIRST_IDENTITY else "")
        assert (label["version"], label["time"]) == (7, 1e9 + number)


@pytest.mark.parametrize("empty", ["none", "without nodes", "without known clusters"])
def test_readings_from_before_the_first_known_cluster_are_labelled_when_it_comes(
    site: Site, empty: str
) -> None:
    if empty == "without nodes":
        half = streaming_algorithm("fcac").server({}, 2)
        publish(site, a_snapshot(site.contract, arrays=half.snapshot(), clusters=0, nodes=0))
    elif empty == "without known clusters":
        publish(site, a_snapshot(site.contract))
    values = readings(30)
    site.add_readings([*values[:10], ["wet"], *values[10:20]])
    site.run()
    assert site.labels() == {}
    site.add_readings(values[20:])
    site.run()
    snapshot = known_snapshot(site.contract, version=2)
    publish(site, snapshot)
    site.run()
    labels = site.labels()
    found = [labels[f"clusters/0/{n}".encode()]["cluster"] for n in range(31) if n != 10]
    assert found == expected(site, snapshot, values)
    assert {label["version"] for label in labels.values()} == {2}


def test_a_running_client_labels_earlier_readings_piece_by_piece_while_it_labels_new_ones(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path, label=True, batch_readings_max=20)
    site.add_readings(readings(100))
    with site.node() as node:
        while node.step():
            pass
        publish(site, known_snapshot(site.contract))
        site.add_readings(readings(5))
        labelled = []
        while node.step():
            labelled.append(len(site.labels()))
    assert labelled == [25, 45, 65, 85, 105]


def test_earlier_readings_that_retention_has_removed_stay_unlabelled(tmp_path: Path) -> None:
    site = Site(tmp_path, label=True, readings_bytes_max=2500)
    site.add_readings(readings(30))
    site.run()
    site.add_readings(readings(30))
    site.run()
    with site.readings() as log:
        first, end = log.bounds("readings")[0]
    assert first > 5
    publish(site, known_snapshot(site.contract))
    site.run()
    assert sorted(int(key.split(b"/")[2]) for key in site.labels()) == list(range(first, end))


def test_a_rejected_reading_has_no_label_and_the_others_keep_their_offsets(site: Site) -> None:
    publish(site, known_snapshot(site.contract))
    site.add_readings([[20.0, 40.0], ["wet"], [21.0, 41.0]])
    site.run()
    assert list(site.labels()) == [b"clusters/0/0", b"clusters/0/2"]


def test_a_withheld_reading_is_labelled_too(tmp_path: Path) -> None:
    site = Site(tmp_path, plant({"mode": "paper", "epsilon_nominal_per_feature": 5}), label=True)
    publish(site, known_snapshot(site.contract))
    site.add_readings(np.array([[20.0, 50.0]] * 3))
    assert site.run()["withheld"] == 3
    assert len(site.labels()) == 3


def test_labels_are_made_from_the_reading_without_noise(tmp_path: Path) -> None:
    site = Site(tmp_path, plant({"mode": "formal", "epsilon_per_reading": 1}), label=True)
    snapshot = known_snapshot(site.contract)
    publish(site, snapshot)
    values = readings(40)
    site.add_readings(values)
    site.run()
    assert [label["cluster"] for label in in_order(site, 40)] == expected(site, snapshot, values)


def test_later_readings_follow_newer_snapshots_and_older_ones_are_ignored(site: Site) -> None:
    with site.node() as node:
        for version, expected in ((1, 1), (5, 5), (3, 5), (6, 6)):
            publish(site, known_snapshot(site.contract, version=version))
            with site.readings() as log:
                (_, end) = log.bounds("readings")[0]
            site.add_readings(readings(1))
            node.step()
            assert site.labels()[f"clusters/0/{end}".encode()]["version"] == expected


def test_labelling_again_after_a_kill_changes_no_label(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(site, known_snapshot(site.contract))
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
    good = known_snapshot(site.contract, version=2)
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


def test_identities_of_numbers_that_the_arrays_do_not_have_are_ignored(site: Site) -> None:
    snapshot = known_snapshot(site.contract)
    huge = [[2**50, 1, "", True, 0, 0, 1e9, 0.5, False, 0.0, ""]]
    publish(site, replace(snapshot, identities=snapshot.identities + huge))
    site.add_readings(readings(5))
    site.run()
    assert len(site.labels()) == 5


def test_each_model_labels_every_reading(tmp_path: Path) -> None:
    site = Site(tmp_path, plant(models=("left", "right")), label=True)
    publish(site, known_snapshot(site.contract, version=4, model="right"), key=b"right")
    site.add_readings(readings(2))
    site.run()
    assert {key: label["version"] for key, label in site.labels().items()} == {
        b"right/0/0": 4,
        b"right/0/1": 4,
    }
    publish(site, known_snapshot(site.contract, version=3, model="left"), key=b"left")
    site.run()
    versions = {key: label["version"] for key, label in site.labels().items()}
    assert versions == {b"left/0/0": 3, b"left/0/1": 3, b"right/0/0": 4, b"right/0/1": 4}


def test_labels_change_no_update(tmp_path: Path) -> None:
    published = []
    for label in (False, True):
        site = Site(tmp_path / str(label), label=label)
        publish(site, known_snapshot(site.contract))
        site.add_readings(readings(100))
        site.run()
        published.append(site.publications())
    assert published[0] == published[1]


def test_a_damaged_state_of_labels_is_reported(site: Site) -> None:
    site.add_readings(readings(5))
    site.run()
    with site.node() as node:
        assert node._labels is not None
        for broken in ({}, {"models": {"clusters": {"backlog": {}}}}, {"models": None}):
            with pytest.raises(InvalidState, match="labels is damaged"):
                node._labels.restore(broken)


# Novelty.


def known_and_then(site: Site, n: int, *last: list[float]) -> list[dict[str, Any]]:
    """The labels of `last` after n readings near the nodes of known clusters."""
    snapshot = known_snapshot(site.contract)
    publish(site, snapshot)
    site.add_readings([*near_nodes(snapshot, site.contract, n), *map(np.array, last)])
    site.run()
    return in_order(site, n + len(last))[n:]


def test_novelty_is_unknown_until_enough_readings_of_a_cluster_are_known(site: Site) -> None:
    (label,) = known_and_then(site, 50, [49.0, 1.0])
    assert label["novelty"] is None


def test_a_reading_outside_the_bounds_is_novel_and_counted_once_by_a_client_killed_in_between(
    site: Site,
) -> None:
    labels = known_and_then(site, 6000, [5000.0, -1e300])
    assert labels[0]["novelty"] > 0.999
    with site.node() as node:
        assert node._labels is not None
        novel = node._labels.novel["clusters"]
        assert 1 <= novel <= 25
    site.add_readings(np.array([[5000.0, 1.0]]))
    with site.node() as node:
        node.step()
        assert node._labels is not None
        assert node._labels.novel["clusters"] == novel + 1
        value = node.metrics.registry.get_sample_value
        assert value("shoal_readings_novel_total", {"model": "clusters"}) == 1, (
            "the process has counted only one"
        )


def test_the_threshold_of_novel_readings_is_a_setting(tmp_path: Path) -> None:
    site = Site(tmp_path, label=True, novelty_quantile=0.5)
    known_and_then(site, 3000)
    with site.node() as node:
        assert node._labels is not None
        assert 800 < node._labels.novel["clusters"] <= 1600


def test_novelty_belongs_to_the_identity_whatever_number_the_snapshot_gives_it(site: Site) -> None:
    known_and_then(site, 3000)
    snapshot = known_snapshot(site.contract, version=2)
    other = known_snapshot(site.contract, version=3, first=77)
    values = near_nodes(snapshot, site.contract, 20, seed=1)
    publish(site, snapshot)
    site.add_readings(values)
    site.run()
    assert all(
        label["novelty"] is not None for label in in_order(site, 3020)[3000:] if label["identity"]
    )
    publish(site, other)
    site.add_readings(values)
    site.run()
    assert all(label["novelty"] is None for label in in_order(site, 3040)[3020:])


def test_a_new_log_of_the_federation_begins_with_other_identities(site: Site) -> None:
    known_and_then(site, 3000)
    for file in site.folder.glob("federation.db*"):
        file.unlink()
    publish(site, known_snapshot(site.contract))
    site.add_readings(readings(1))
    site.run()
    assert in_order(site, 3001)[3000]["novelty"] is None


def test_novelty_does_not_depend_on_batches(tmp_path: Path) -> None:
    found = []
    for size in (7, 1000):
        site = Site(tmp_path / str(size), label=True, batch_readings_max=size)
        known_and_then(site, 700, [49.0, 1.0])
        found.append(in_order(site, 701))
    assert found[0] == found[1]


# Kills.


@pytest.mark.long
@pytest.mark.parametrize("call", ["save", "flush"])
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_call_loses_and_repeats_nothing(
    tmp_path: Path, call: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings before the first snapshot, then the snapshot, then more readings; all labels, counts
    and published labels are those of a client that was never killed."""
    kind = Checkpoint if call == "save" else SqliteLog
    real = getattr(kind, call)

    class Cut(BaseException):
        pass

    def outcome(folder: Path, number: int | None) -> tuple[Any, bool]:
        site = Site(
            folder,
            label=True,
            publish_labels=True,
            batch_readings_max=100,
            publish_readings=150,
            novelty_quantile=0.9,
        )
        publish(site, a_snapshot(site.contract))
        site.add_readings(near_nodes(known_snapshot(site.contract), site.contract, 300))
        site.run()
        publish(site, known_snapshot(site.contract, version=2))
        site.add_readings(near_nodes(known_snapshot(site.contract), site.contract, 100, seed=1))
        calls = 0

        def cut(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if isinstance(self, SqliteLog) and not self._pending:
                return real(self, *args, **kwargs)
            calls += 1
            if calls == number and not after:
                if isinstance(self, SqliteLog):
                    self._pending.clear()
                raise Cut
            result = real(self, *args, **kwargs)
            if calls == number:
                raise Cut
            return result

        was_cut = False
        with monkeypatch.context() as patched:
            patched.setattr(kind, call, cut)
            try:
                site.run()
            except Cut:
                was_cut = True
        site.run()
        with site.node() as node:
            assert node._labels is not None
            novel = node._labels.novel
        return (site.labels(), novel, site.published_labels()), was_cut

    undisturbed, _ = outcome(tmp_path / "undisturbed", None)
    assert len(undisturbed[0]) == len(undisturbed[2]) == 400
    assert undisturbed[1]["clusters"] > 5
    for number in range(1, 100):
        found, was_cut = outcome(tmp_path / str(number), number)
        assert found == undisturbed, number
        if not was_cut:
            assert number > 3
            return
    pytest.fail("the client never ended")
