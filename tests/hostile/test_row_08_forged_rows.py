"""Row 8: whatever is written into the file of the embedded log, the server sets it aside and goes
on."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from zlib import compress

from click.testing import CliRunner
from msgpack import packb

from shoal.cli.keys import server as server_key
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.resolved import resolve
from shoal.config.settings import load_config
from shoal.protocol.ed25519 import PrivateKey, PublicKeys
from shoal.protocol.lease import LEASE_KEY, VERSIONS_AHEAD_MAX, Lease
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.topics import ensure_topics
from shoal.protocol.validation import Validator
from shoal.runtime.logs import SignedTopic, open_federation_log
from shoal.transports import open_log
from shoal.transports.base import TopicSettings, beginning, latest
from shoal.transports.sqlite.schema import row_checksum
from tests.hostile.served_page import ServedPage, started
from tests.house.processes import wait_until
from tests.house.small_federation import write_federation
from tests.small_plant import a_snapshot, an_update

FORGED = 2**53 - 1
NOW_MS = time.time_ns() // 10**6
"""an older time would let the retention of the log remove the rows, and every gap ends a server"""
ROWS = [
    (NOW_MS, 10, b"key", None, "text"),
    (NOW_MS, 10, b"key", None, 5),
    (NOW_MS, 10, b"key", None, 1.5),
    (NOW_MS, 10, "text", None, b"value"),
    (NOW_MS, 10, 7, None, b"value"),
    (NOW_MS, 10, b"key", "text", b"value"),
    (NOW_MS, 10, b"key", b"\xc1", b"value"),
    (NOW_MS, 10, b"key", b"\x01", b"value"),
    (NOW_MS, 10, b"key", b"\x91\x92\x01\x02", b"value"),
    ("now", 10, b"key", None, b"value"),
    (NOW_MS, "big", b"key", None, b"value"),
    (NOW_MS, -1, b"key", None, b"value"),
    (NOW_MS, float("-inf"), b"key", None, b"value"),
    (NOW_MS, float("inf"), b"key", None, b"value"),
    (NOW_MS, 10, None, None, b"value", 3),
    (NOW_MS, 10, None, None, packb(["", 2, b"four"]), 0),
    (NOW_MS, 10, None, None, packb(["", 2, b"four"]), -2),
    (NOW_MS, 10, None, None, packb(["", 2, b"four"]), "2"),
    (NOW_MS, 10, None, None, packb(["", 2, b"four"]), 2**62),
    (NOW_MS, 10, None, None, packb(["", 0, b""]), 2**62),
    (NOW_MS, 10, None, None, packb(["", 2, b"four", "n", b"\1\0\0\0", b"a"]), 2),
    (NOW_MS, 10, None, None, packb(["", 2, b"four", "n", b"\1\0\0\0\2\0\0\0", b"a"]), 2),
    (NOW_MS, 10, None, None, packb(["", 2, b"four", b"n", 1, b"ab"]), 2),
    (NOW_MS, 10, None, None, packb(["", 2, b"four", "n", 1]), 2),
    (NOW_MS, 10, None, None, packb([]), 2),
    (NOW_MS, 10, None, None, packb({"": 2}), 2),
    (NOW_MS, 10, b"key", None, packb(["", 2, b"four"]), 2),
    (NOW_MS, 10, None, b"\xc1", packb(["", 2, b"four"]), 2),
    (NOW_MS, 10, None, None, None, 2),
    (NOW_MS, "big", None, None, packb(["", 2, b"four"]), 2),
    (NOW_MS, 10, None, None, packb(b"not compressed"), 2),
    (NOW_MS, 10, None, None, packb(compress(bytes(10**8))), 2),
    (NOW_MS, 10, None, None, packb(compress(packb([[1], [10], [None], [None], [b"one"]]))), 1),
    (NOW_MS, 10, None, None, packb(compress(packb([[1], [3], [None], [None], [b"a"], [5]]))), 2),
    (NOW_MS, 10, None, None, packb(compress(packb([[1], [3], [None], [None], [b"a"], [-1]]))), 1),
    (NOW_MS, 10, None, None, packb(compress(packb([[1] * 40] * 6))), 40),
]
"""timestamp, size, key, headers, value, records of a batch: each is not as a log writes it"""
COLUMNS = "offset, timestamp_ms, size, key, headers, value, batch_records, checksum"


def insert(path: Path, topic: str) -> None:
    with closing(sqlite3.connect(path, timeout=30)) as db, db:
        db.execute("BEGIN IMMEDIATE")  # the server writes meanwhile
        (number,) = db.execute("SELECT number FROM topics WHERE name = ?", (topic,)).fetchone()
        (first,) = db.execute("SELECT next FROM marks WHERE topic = ?", (number,)).fetchone()
        for offset, row in enumerate(ROWS, first):
            values = (offset, *row, None)[:7]
            # With its checksum, where it has one: who can write the file can compute it.
            db.execute(
                f"INSERT INTO rows_{number}_0 ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, row_checksum(*values)),
            )
        db.execute("UPDATE marks SET next = ? WHERE topic = ?", (first + len(ROWS), number))


def test_rows_that_no_log_has_written_are_set_aside_in_every_topic(tmp_path: Path) -> None:
    file = write_federation(tmp_path, pool_clients=1)
    config = load_config(file)
    contract = config.contract
    with started(file, ["-m", "shoal"]) as page, closing(open_log(config.log)) as log:
        wait_until(lambda: len(page.events("lease_acquired")) == 1)
        ensure_topics(log, contract, config.log)
        for topic in (contract.updates_topic, contract.snapshots_topic):
            insert(tmp_path / "federation.db", topic)
        update = an_update(contract)
        log.publish(
            contract.updates_topic,
            update.encode(),
            contract.update_key(update.model),
            Update.headers(),
        )
        log.flush()

        def rejected() -> int:
            return sum(json.loads(page.request("/v1/status").body)["rejected"].values())

        wait_until(lambda: not page.running() or rejected() == len(ROWS))
        assert page.running(), page.log_text()

        def clients() -> list[str]:
            names: list[str] = json.loads(page.request("/v1/status").body)["clients"]["client"]
            return names

        wait_until(lambda: clients() == [update.client])


def test_a_key_of_forged_rows_can_be_written_again(tmp_path: Path) -> None:
    """Compaction then removes the rows, whatever they have in place of a size."""
    config = load_config(write_federation(tmp_path))
    topic = config.contract.snapshots_topic
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        insert(tmp_path / "federation.db", topic)
        log.publish(topic, b"new", b"key")
        log.flush()
        found = latest(log, topic)[b"key"]
        assert (found.offset, found.value) == (len(ROWS), b"new")


def test_a_forged_generation_ends_no_server_and_keeps_none_from_starting(tmp_path: Path) -> None:
    file = write_federation(tmp_path)
    file.write_text(file.read_text(encoding="utf-8") + "lease_renew_s = 0.2\n", encoding="utf-8")
    config = load_config(file)
    forged = Lease(config.contract.federation, "x", "x", FORGED, 0.2, "nobody")

    def forge() -> None:
        with closing(open_log(config.log)) as log:
            ensure_topics(log, config.contract, config.log)
            log.publish(
                config.contract.snapshots_topic, forged.encode(), LEASE_KEY, Lease.headers()
            )
            log.flush()

    forge()
    for _ in range(2):
        with started(file, ["-m", "shoal"]) as page:
            wait_until(
                lambda page=page: not page.running() or page.request("/readyz").status == 200
            )
            seen = len(page.events("lease_rejected"))

            # Again and again: the server's own next lease, under the same key, may replace one that
            # it has not read.
            def rejected(page: ServedPage = page, seen: int = seen) -> bool:
                forge()
                return not page.running() or len(page.events("lease_rejected")) > seen

            wait_until(rejected)
            assert page.running(), page.log_text()


def test_a_forged_version_hides_no_snapshot(tmp_path: Path) -> None:
    config = load_config(write_federation(tmp_path))
    contract = config.contract
    with closing(open_log(config.log)) as log:
        ensure_topics(log, contract, config.log)

        def publish(version: int) -> None:
            snapshot: Snapshot = replace(a_snapshot(contract), version=version)
            log.publish(
                contract.snapshots_topic,
                snapshot.encode(),
                snapshot.model.encode(),
                Snapshot.headers(),
            )
            log.flush()

        follower = Snapshots(contract, Validator(resolve(contract)), log)
        for version, newest in (
            (1, 1),
            (FORGED, 1),
            (2, 2),
            (2 + VERSIONS_AHEAD_MAX + 1, 2),
            (3, 3),
        ):
            publish(version)
            follower.follow()
            found = follower.newest("clusters")
            assert found is not None
            assert found.version == newest
        assert len(follower.take_rejected()) == 2
        publish(FORGED)
        late = Snapshots(contract, Validator(resolve(contract)), log)
        late.follow()
        publish(4)
        late.follow()
        found = late.newest("clusters")
        assert found is not None
        assert found.version == 4, (
            "a client that starts while the forged one is the newest sees the next true one"
        )


def test_with_a_server_key_only_signed_leases_and_snapshots_count(tmp_path: Path) -> None:
    file = write_federation(tmp_path, pool_clients=1)
    text = file.read_text(encoding="utf-8").replace("[log]", '[log]\nserver_keys = "server.pub"')
    text = text.replace("[server]", '[server]\nsigning_key_file = "server.key"')
    file.write_text(text, encoding="utf-8")
    assert CliRunner().invoke(server_key, ["--config", str(file)]).exit_code == 0
    config = load_config(file)
    contract = config.contract
    forged_lease = Lease(contract.federation, "other", "process", 7, 5.0, "a forger")
    with started(file, ["-m", "shoal"]) as page, closing(open_log(config.log)) as log:
        wait_until(lambda: len(page.events("lease_acquired")) == 1)
        log.publish(contract.snapshots_topic, forged_lease.encode(), LEASE_KEY, Lease.headers())
        forged = a_snapshot(contract, version=9)
        log.publish(
            contract.snapshots_topic, forged.encode(), forged.model.encode(), Snapshot.headers()
        )
        update = an_update(contract)
        log.publish(
            contract.updates_topic,
            update.encode(),
            contract.update_key(update.model),
            Update.headers(),
        )
        log.flush()
        wait_until(lambda: len(page.events("unsigned_records")) > 0)
        with closing(open_federation_log(config)) as signed:
            known = Snapshots(contract, Validator(resolve(contract)), signed)

            def newest_version() -> int:
                known.follow()
                found = known.newest(contract.models[0].name)
                return 0 if found is None else found.version

            wait_until(lambda: newest_version() > 0)
            assert newest_version() < 9, "the forged snapshot is not believed"
            # Compaction may have left the forged lease alone under its key until the server renews
            # its own.
            wait_until(lambda: LEASE_KEY in latest(signed, contract.snapshots_topic))
        assert set(latest(log, contract.snapshots_topic)) >= {LEASE_KEY}


def test_a_record_signed_for_another_key_or_changed_is_left_out(tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        log.ensure("snapshots", TopicSettings())
        before = PrivateKey(b"k" * 32)
        own = PrivateKey(b"n" * 32)
        signed = SignedTopic(log, "snapshots", PublicKeys([before.public]), before)
        signed.publish("snapshots", b"one", b"model", (("type", b"snapshot"), ("v", b"1")))
        signed.flush()
        ((record,), _) = log.read("snapshots", beginning(log, "snapshots"))
        for value, key, headers in (
            (b"two", record.key, record.headers),
            (record.value, b"other", record.headers),
            (record.value, record.key, (("type", b"lease"), *record.headers[1:])),
            (None, record.key, record.headers),
        ):
            log.publish("snapshots", value, key, headers)
        log.flush()
        (records, after) = signed.read("snapshots", beginning(log, "snapshots"))
        assert [record.value for record in records] == [b"one"]
        assert signed.read("snapshots", after)[0] == []
        rotated = SignedTopic(log, "snapshots", PublicKeys([own.public, before.public]), own)
        assert [
            record.value for record in rotated.read("snapshots", beginning(log, "snapshots"))[0]
        ] == [b"one"]
        foreign = SignedTopic(log, "snapshots", PublicKeys([own.public]))
        assert list(foreign.read("snapshots", beginning(log, "snapshots"))[0]) == []
