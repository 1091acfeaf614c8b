"""The server: the updates in the log decide its models, and invalid messages are rejected with their bytes."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from server_node.node import ServerNode
from shoal.config.limits import RECORD_BYTES_MAX
from shoal.config.settings import LogSettings
from shoal.errors import InvalidState, MessageRejected, OffsetOutOfRange
from shoal.protocol.checks import COUNT_MAX
from shoal.protocol.messages import REASONS, Update
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import Headers
from tests.server_node.server_fixture import ServerFixture, models_of, states_of
from tests.small_plant import an_update, forged, plant

LARGE = LogSettings(update_bytes_max=RECORD_BYTES_MAX)
"""a log that accepts larger records than clients send"""


@pytest.fixture
def site(tmp_path: Path) -> ServerFixture:
    return ServerFixture(tmp_path)


def updates_of(site: ServerFixture, *named: tuple[str, int]) -> list[Update]:
    """An update for each client and sequence number."""
    return [an_update(site.contract, client, sequence) for client, sequence in named]


def with_weight(update: Update, weight: NDArray[np.float64]) -> Update:
    return replace(update, arrays={**update.arrays, "weight": weight})


def test_a_server_without_updates_publishes_nothing(site: ServerFixture) -> None:
    with site.server() as server:
        assert not server.step()
        assert not server.step()
        assert server.up_to_date
        status = server.status()
    assert site.snapshots() == []
    assert status.ready
    assert status.models["clusters"].snapshot is None
    assert "No client has sent an update yet" in status.models["clusters"].waiting_for
    assert status.clients == []


def test_an_update_without_nodes_is_absorbed(site: ServerFixture) -> None:
    nothing = {"weight": np.empty((0, 2)), "count": np.empty(0, np.int64)}
    site.send(an_update(site.contract, readings=0, arrays=nothing))
    site.run()
    (snapshot,) = site.snapshots()
    assert (snapshot.updates, snapshot.nodes, snapshot.clusters) == (1, 0, 0)


def test_absorbed_updates_are_published_as_a_snapshot(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 1), ("cellar", 1), ("attic", 2)))
    site.run()
    newest = site.snapshots()[-1]
    assert (newest.updates, newest.readings, newest.clients) == (3, 120, 2)
    assert newest.read_up_to == {0: 3}
    assert newest.nodes > 0


def test_a_repeated_update_changes_nothing(tmp_path: Path) -> None:
    once, twice = ServerFixture(tmp_path / "once"), ServerFixture(tmp_path / "twice")
    updates = updates_of(once, ("attic", 1), ("cellar", 1), ("attic", 2))
    once.send(*updates)
    twice.send(*updates, updates[0], *updates)
    assert once.run() == twice.run()
    assert twice.rejected() == {}
    with twice.server() as server:
        seen = server.status().clients
    assert [(client.client, client.updates, client.readings) for client in seen] == [
        ("attic", 2, 80),
        ("cellar", 1, 40),
    ]


def test_updates_in_any_order_are_each_absorbed_once(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 3), ("attic", 1), ("attic", 2), ("attic", 3)))
    site.run()
    assert site.snapshots()[-1].updates == 3


def test_the_batch_size_changes_nothing(tmp_path: Path) -> None:
    updates = updates_of(ServerFixture(tmp_path), *((client, n) for n in range(1, 6) for client in ("attic", "cellar")))
    models = []
    for batch in (1, 3, 200):
        site = ServerFixture(tmp_path / str(batch), batch_updates_max=batch, pool_clients=2)
        site.send(*updates)
        models.append(site.run())
    assert models[0] == models[1] == models[2]


def test_each_of_two_models_absorbs_its_own_updates(tmp_path: Path) -> None:
    both = ServerFixture(tmp_path, plant(models=("left", "right")))
    site = ServerFixture(tmp_path / "one", plant(models=("left", "right")))
    left = [an_update(both.contract, "attic", n, model="left") for n in (1, 2)]
    right = [an_update(both.contract, "cellar", n, model="right") for n in (1, 2, 3)]
    both.send(left[0], right[0], right[1], left[1], right[2])
    site.send(*left)
    models = both.run()
    assert models["left"] == site.run()["left"]
    assert models["left"] != models["right"]
    newest = {snapshot.model: snapshot.updates for snapshot in both.snapshots()}
    assert newest == {"left": 2, "right": 3}
    with both.server() as server:
        assert [client.client for client in server.status().clients] == ["attic", "cellar"]


def test_a_restart_at_any_step_changes_nothing(tmp_path: Path) -> None:
    names = [(client, n) for n in range(1, 5) for client in ("attic", "cellar", "garden")]
    whole, broken = (
        ServerFixture(tmp_path / name, pool_clients=3, batch_updates_max=2) for name in ("whole", "broken")
    )
    for site in (whole, broken):
        site.send(*updates_of(site, *names))
    expected = whole.run()
    with whole.server() as server:
        everything = states_of(server)
    while True:
        with broken.server() as server:
            if not server.step():
                break
            at_exit = states_of(server)
        with broken.server() as server:
            assert states_of(server) == at_exit
    with broken.server() as server:
        assert models_of(server) == expected
        assert states_of(server) == everything
    assert [s.encode() for s in broken.snapshots()[-1:]] == [s.encode() for s in whole.snapshots()[-1:]]


def test_updates_absorbed_but_not_stored_are_absorbed_again_to_the_same_model(tmp_path: Path) -> None:
    killed, undisturbed = (ServerFixture(tmp_path / name, snapshot_updates=4) for name in ("killed", "undisturbed"))
    updates = updates_of(killed, *(("attic", number) for number in range(1, 9)))
    with killed.server() as server:
        for update in updates[:4]:
            killed.send(update)
            assert server.step()
    with killed.server() as server:
        assert killed.snapshots()[-1].updates == 1
        assert server.models()["clusters"].state()["publisher"]["updates"] == 1, (
            "the later ones were not worth a save of their own"
        )
    killed.send(*updates[4:])
    undisturbed.send(*updates)
    assert killed.run() == undisturbed.run()


def test_snapshots_come_by_number_and_by_time(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=3, snapshot_s=10.0)
    with site.server() as server:
        site.send(*updates_of(site, ("attic", 1)))
        server.step()
        assert len(site.snapshots()) == 1, "the first one at once"
        site.send(*updates_of(site, ("attic", 2), ("attic", 3)))
        server.step()
        assert len(site.snapshots()) == 1
        assert not server.up_to_date
        site.clock.now += 10
        assert server.step()
        assert [s.version for s in site.snapshots()] == [2]
        site.send(*updates_of(site, ("attic", 4), ("attic", 5), ("attic", 6)))
        server.step()
        assert site.snapshots()[-1].updates == 6
        assert server.up_to_date
        site.clock.now += 100
        assert not server.step(), "there is nothing new to publish"


def test_a_clock_set_back_does_not_delay_snapshots_for_long(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, snapshot_updates=1000, snapshot_s=10.0)
    site.clock.now = 4e9
    with site.server() as server:
        site.send(*updates_of(site, ("attic", 1)))
        server.step()
        site.clock.now = 1e9
        site.send(*updates_of(site, ("attic", 2)))
        server.step()
        site.clock.now += 10
        server.step()
        assert site.snapshots()[-1].updates == 2


# Rejected messages.


def test_a_rejected_record_keeps_its_bytes_reason_and_origin(site: ServerFixture) -> None:
    good = an_update(site.contract)
    headers = Update.headers()
    records: list[tuple[str, bytes | None, Headers]] = [
        ("clusters", None, ()),
        ("clusters", good.encode(), (("type", b"snapshot"), ("v", b"1"))),
        ("clusters", good.encode(), (("type", b"update"), ("v", b"9"))),
        ("clusters", b"\xc1", headers),
        ("clusters", replace(good, federation="other").encode(), headers),
        ("clusters", replace(good, contract="0" * 32).encode(), headers),
        ("clusters", replace(good, model="none").encode(), headers),
        ("clusters", replace(good, privacy={}).encode(), headers),
        ("clusters", replace(good, arrays={}).encode(), headers),
        ("clusters", with_weight(good, good.arrays["weight"] * np.nan).encode(), headers),
        ("clusters", with_weight(good, good.arrays["weight"] + 9).encode(), headers),
        ("clusters", forged(good, sequence=0), headers),
        ("clusters", forged(good, privacy={"mode": np.zeros(2)}), headers),
        ("clusters", bytes(33_500_000), headers),
    ]
    expected = ["type", "type", "version", "malformed", "federation", "contract", "model", "privacy", "arrays"]
    expected += ["not_finite", "bounds", "sequence", "malformed", "oversized"]
    site.log_settings = LARGE
    site.publish(*records)
    site.send(good)
    site.run()
    rejected = site.rejected()
    assert len(rejected) == len(records)
    for offset, ((_, value, original), reason) in enumerate(zip(records, expected, strict=True)):
        record = rejected[f"plant.updates/0/{offset}".encode()]
        given = dict(record.headers)
        assert record.value == (value or b"")
        assert given["reason"].decode() == reason
        assert given["origin"] == f"plant.updates/0/{offset}".encode()
        assert given["key"] == b"clusters"
        assert [(name.removeprefix("original."), v) for name, v in record.headers if name.startswith("original.")] == [
            *original
        ]
    assert site.snapshots()[-1].updates == 1


def test_a_flood_of_malformed_messages_is_counted_rejected_and_survived(site: ServerFixture, tmp_path: Path) -> None:
    quiet = ServerFixture(tmp_path / "quiet")
    chance = random.Random(3)
    good = [an_update(site.contract, "attic", n) for n in (1, 2, 3)]
    original = an_update(site.contract, "cellar").encode()
    flood: list[tuple[str, bytes | None, Headers]] = []
    for number in range(10_000):
        value = bytearray(original)
        for _ in range(3):
            value[chance.randrange(len(value))] = chance.randrange(256)
        flood.append(
            (
                ("clusters", bytes(value[: chance.randrange(len(value))]), Update.headers()),
                ("clusters", bytes(value), (("type", b"update"), ("v", b"0"))),
                ("clusters", chance.randbytes(chance.randrange(300)), Update.headers()),
                ("", b"", ()),
            )[number % 4]
        )
    half = [(u.model, u.encode(), Update.headers()) for u in good]
    site.publish(half[0], *flood[:5000], half[1], *flood[5000:], half[2])
    quiet.send(*good)
    logging.getLogger("shoal").setLevel(logging.ERROR)
    with site.server() as server:
        while server.step():
            pass
        assert models_of(server) == quiet.run()
        status = server.status()
        counted = server.metrics.registry.get_sample_value("shoal_updates_total", {"result": "rejected"})
        assert counted == sum(status.rejected.values()) == 10_000
        assert set(status.rejected) <= set(REASONS)
        assert len(server._checkpoint.pending()) <= site.settings.batch_updates_max
    rejected = site.rejected()
    assert len(rejected) == 10_000
    for offset, (_, sent, _) in enumerate(flood[:5000], 1):
        record = rejected[f"plant.updates/0/{offset}".encode()]
        assert record.value == sent
        assert dict(record.headers)["reason"].decode() in REASONS


def test_a_record_with_millions_of_headers_is_rejected(site: ServerFixture) -> None:
    site.log_settings = LARGE
    site.publish(("clusters", b"x", (("h", b""),) * 3_000_000))
    site.send(an_update(site.contract))
    site.run()
    (record,) = site.rejected().values()
    assert ("original_headers_cut", b"1") in record.headers
    assert site.run()
    assert site.snapshots()[-1].updates == 1


def test_a_sum_of_readings_is_capped(site: ServerFixture) -> None:
    site.send(*(an_update(site.contract, "exaggerating", n, readings=COUNT_MAX) for n in range(1, 5)))
    site.run()
    assert site.snapshots()[-1].readings == COUNT_MAX
    assert site.snapshots()[-1].updates == 4


def test_an_invalid_sequence_number_is_rejected(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 1), ("attic", 10**6), ("attic", 2)))
    site.run()
    (record,) = site.rejected().values()
    assert dict(record.headers)["reason"] == b"sequence"
    assert site.snapshots()[-1].updates == 2


def test_no_value_of_a_rejected_message_is_logged(site: ServerFixture, caplog: pytest.LogCaptureFixture) -> None:
    good = an_update(site.contract)
    weight = good.arrays["weight"].copy()
    weight[0] = 7.123456789
    site.publish(("clusters", with_weight(good, weight).encode(), Update.headers()))
    with caplog.at_level(logging.DEBUG, "shoal"):
        site.run()
    logged = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "update_rejected"]
    assert [fields["reason"] for fields in logged] == ["bounds"]
    assert [(fields["model"], fields["client"]) for fields in logged] == [("clusters", good.client)]
    assert "123456789" not in str([vars(record) for record in caplog.records])


# Metrics and status.


def test_metrics_count_updates_and_readings(site: ServerFixture) -> None:
    site.send(*updates_of(site, ("attic", 1), ("attic", 1), ("cellar", 1)))
    with site.server() as server:
        while server.step():
            pass
        value = server.metrics.registry.get_sample_value
        assert value("shoal_updates_total", {"result": "absorbed"}) == 2
        assert value("shoal_updates_total", {"result": "repeated"}) == 1
        assert value("shoal_readings_total", {"result": "learned"}) == 80
        assert value("shoal_readings_total", {"result": "repeated"}) == 40, "published twice, learnt once"
        assert value("shoal_end_to_end_latency_seconds_count") == 2
        assert value("shoal_client_last_seen_timestamp_seconds", {"client": "attic"}) == 1e9
        snapshot = server.status().models["clusters"].snapshot
        assert snapshot is not None
        assert value("shoal_nodes", {"model": "clusters"}) == snapshot.nodes
    with site.server() as server:
        value = server.metrics.registry.get_sample_value
        assert value("shoal_nodes", {"model": "clusters"}) == snapshot.nodes, "also before the next snapshot"
        assert value("shoal_snapshot_version", {"model": "clusters"}) == snapshot.version
        assert value("shoal_client_last_seen_timestamp_seconds", {"client": "attic"}) == 1e9, "seen before the restart"
        assert value("shoal_updates_total", {"result": "rejected"}) == 0, "from 0 on, so that the first one shows"
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
        assert server.metrics.registry.get_sample_value("shoal_snapshot_version", {"model": "clusters"}) == 0


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
        assert value("shoal_end_to_end_latency_seconds_count") == 4, "the one for right has no snapshot yet"


def test_cluster_events_add_up_and_are_logged_once_per_snapshot(
    site: ServerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 13))))
    with caplog.at_level(logging.INFO, "shoal"), site.server() as server:
        clusters = site.contract.models[0].name
        steps = 0
        while server.step():
            steps += 1
        value = server.metrics.registry.get_sample_value
        counted = {
            event: value("shoal_cluster_events_total", {"model": clusters, "event": event})
            for event in ("birth", "split", "merge", "death")
        }
        assert None not in counted.values(), "those that never happened are 0"
        change = counted["birth"] + counted["split"] - counted["merge"] - counted["death"]
        assert change == value("shoal_clusters", {"model": clusters}) > 0
    logged = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "clusters_changed"]
    assert 0 < len(logged) <= steps
    assert sum(fields["births"] for fields in logged) == counted["birth"]


def test_identities_survive_a_restart(site: ServerFixture) -> None:
    site.send(*updates_of(site, *(("attic", n) for n in range(1, 7))))
    with site.server() as server:
        while server.step():
            pass
        before, since = server.status().models["clusters"].lineage, server.status().models["clusters"].since
        assert before.of_node
        assert set(since) == set(before.slots)
    with site.server() as server:
        assert server.status().models["clusters"].lineage == before
        assert server.status().models["clusters"].since == since
        site.send(*updates_of(site, *(("attic", n) for n in range(7, 9))))
        while server.step():
            pass
        after, later = server.status().models["clusters"].lineage, server.status().models["clusters"].since
    shared = set(before.of_node) & set(after.of_node)
    assert any(before.of_node[node] == after.of_node[node] for node in shared)
    assert after.born >= before.born
    assert all(later[who] == since[who] for who in set(later) & set(since)), "what stays is as old as it was"
    assert set(later) == set(after.slots), "and dead clusters are dropped"


def test_labels_of_clients_are_bounded(site: ServerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server_node.monitoring.CLIENTS_SHOWN_MAX", 3)
    monkeypatch.setattr("server_node.status.CLIENTS_SHOWN_MAX", 3)
    empty = {"weight": np.empty((0, 2)), "count": np.empty(0, np.int64)}
    site.send(*(an_update(site.contract, f"c{n}", 1, arrays=empty) for n in range(10)))
    site.send(an_update(site.contract, "c0", 2))
    with site.server() as server:
        while server.step():
            pass
        page = [s for family in server.metrics.registry.collect() for s in family.samples if "client" in s.labels]
        assert len(page) == 3
        assert len(server.status().clients) == 3


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


# Checkpoints that do not match.


def test_a_checkpoint_of_another_contract_is_rejected(site: ServerFixture) -> None:
    site.send(an_update(site.contract))
    site.run()
    other = plant({"mode": "formal", "epsilon_per_reading": 5})
    with (
        pytest.raises(InvalidState, match="another contract; put the old federation file back"),
        site.server(contract=other),
    ):
        pass


def test_a_recreated_log_is_rejected(site: ServerFixture) -> None:
    site.send(an_update(site.contract))
    site.run()
    for file in site.folder.glob("federation.db*"):
        file.unlink()
    with pytest.raises(InvalidState, match="the log was made anew"), site.server():
        pass


def test_updates_removed_before_they_were_read_raise_an_error_unless_gaps_are_accepted(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path)
    site.log_settings = LogSettings(updates_retention_bytes=2000)
    site.send(*updates_of(site, ("attic", 1)))
    site.run()
    for n in range(2, 20):
        site.send(*updates_of(site, ("attic", n)))
    with site.server() as server, pytest.raises(OffsetOutOfRange, match="accept_gap = true"):
        server.step()
    site.settings = site.settings.model_copy(update={"accept_gap": True})
    site.run()
    assert site.snapshots()[-1].read_up_to == {0: 19}


def test_after_an_accepted_gap_clients_far_ahead_are_absorbed(tmp_path: Path) -> None:
    site = ServerFixture(tmp_path, accept_gap=True)
    site.log_settings = LogSettings(updates_retention_bytes=2000)
    site.send(*updates_of(site, ("attic", 1)))
    site.run()
    for n in range(5000, 5010):
        site.send(*updates_of(site, ("attic", n)))
    site.run()
    assert site.rejected() == {}
    assert site.snapshots()[-1].updates > 1


def test_a_stored_but_unpublished_snapshot_is_published_after_a_restart(
    site: ServerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.send(*updates_of(site, ("attic", 1)))
    with site.server() as server:
        # The power goes between remembering and speaking.
        monkeypatch.setattr(server._outbox, "publish_pending", lambda: pytest.fail("cut"))
        with pytest.raises(pytest.fail.Exception):
            server.step()
    assert site.snapshots() == []
    site.run()
    assert [snapshot.updates for snapshot in site.snapshots()] == [1]


def test_an_oversized_snapshot_is_not_stored(site: ServerFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    (update,) = updates_of(site, ("attic", 1))
    site.send(update)
    monkeypatch.setattr("shoal.protocol.messages.MESSAGE_BYTES_MAX", len(update.encode()) + 1)
    with site.server() as server:
        with pytest.raises(MessageRejected, match="fewer nodes"):
            server.step()
        assert server._checkpoint.load() is None
    monkeypatch.undo()
    site.run()
    assert site.snapshots()[-1].updates == 1
