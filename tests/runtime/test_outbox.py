"""The outbox: every stored record is published, in order, whatever happens in between, and repeated
bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import LogError, LogUnavailable
from shoal.runtime.checkpoint import STORE_INTERVAL_S, Checkpoint, Outbox, OutboxRecord
from shoal.transports.base import TopicSettings, beginning
from shoal.transports.sqlite.log import SqliteLog

TOPIC = "plant.updates"


def outbox_record(number: int, size: int = 10) -> OutboxRecord:
    return OutboxRecord(TOPIC, b"%d" % number + bytes(size), b"clusters", (("n", b"%d" % number),))


def published(log: SqliteLog) -> list[int]:
    records, _ = log.read(TOPIC, beginning(log, TOPIC))
    return [int(dict(record.headers)["n"]) for record in records]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    with closing(SqliteLog(tmp_path / "log.db")) as opened:
        opened.ensure(TOPIC)
        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.db"


def test_an_empty_outbox_publishes_nothing(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        outbox = Outbox(checkpoint, log)
        assert outbox.publish_pending() == 0
        outbox.store({}, [], 0.0)
        assert outbox.publish_pending() == 0
    assert published(log) == []


def test_records_are_published_once_in_order(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        outbox = Outbox(checkpoint, log)
        outbox.store({}, [outbox_record(1), outbox_record(2)], 0.0)
        assert published(log) == []
        assert outbox.publish_pending() == 2
        assert outbox.publish_pending() == 0
        outbox.store({}, [outbox_record(3)], 0.0)
        assert outbox.publish_pending() == 1
    assert published(log) == [1, 2, 3]


def test_records_stored_but_not_published_are_published_by_the_next_process(
    path: Path, log: SqliteLog
) -> None:
    with Checkpoint(path, "a") as checkpoint:
        Outbox(checkpoint, log).store({}, [outbox_record(1), outbox_record(2)], 0.0)
    with Checkpoint(path, "a") as checkpoint:
        assert Outbox(checkpoint, log).publish_pending() == 2
    assert published(log) == [1, 2]


def test_the_newest_record_is_repeated_bit_for_bit_and_older_ones_are_deleted(
    path: Path, log: SqliteLog
) -> None:
    with Checkpoint(path, "a") as checkpoint:
        outbox = Outbox(checkpoint, log)
        for n in range(1, 4):
            outbox.store({"n": n}, [outbox_record(n)], 0.0)
            outbox.publish_pending()
    with Checkpoint(path, "a") as checkpoint:
        outbox = Outbox(checkpoint, log)
        assert outbox.publish_pending() == 1, "the newest one: it is not known to be published"
        outbox.store({"n": 4}, [outbox_record(4)], 0.0)
        assert outbox.publish_pending() == 1
    assert published(log) == [1, 2, 3, 3, 4]
    records, _ = log.read(TOPIC, beginning(log, TOPIC))
    assert records[2][4:] == records[3][4:]


def test_a_log_without_room_loses_nothing(path: Path, tmp_path: Path, log: SqliteLog) -> None:
    log.close()
    with Checkpoint(path, "a") as checkpoint:
        with closing(SqliteLog(tmp_path / "log.db", file_bytes_max=2**20)) as small:
            outbox = Outbox(checkpoint, small)
            outbox.store({}, [outbox_record(1)], 0.0)
            outbox.publish_pending()
            outbox.store({}, [outbox_record(2, 2**21), outbox_record(3)], 0.0)
            with pytest.raises(LogUnavailable):
                outbox.publish_pending()
            assert published(small) == [1]
            with pytest.raises(LogUnavailable):
                small.close()
        with closing(SqliteLog(tmp_path / "log.db")) as roomy:
            assert Outbox(checkpoint, roomy).publish_pending() == 2
            assert published(roomy) == [1, 2, 3]


def test_a_record_that_the_log_refuses_stays_stored_and_raises(path: Path, tmp_path: Path) -> None:
    with closing(SqliteLog(tmp_path / "other.db")) as log, Checkpoint(path, "a") as checkpoint:
        log.ensure(TOPIC, TopicSettings(record_bytes_max=1000))
        outbox = Outbox(checkpoint, log)
        outbox.store({}, [outbox_record(1, 2000)], 0.0)
        with pytest.raises(LogError):
            outbox.publish_pending()
        assert [number for number, _ in checkpoint.pending()] == [1]


def test_learning_alone_is_stored_when_idle_when_it_is_much_and_after_the_interval(
    path: Path, log: SqliteLog
) -> None:
    with Checkpoint(path, "a") as checkpoint:
        outbox = Outbox(checkpoint, log)
        assert not outbox.should_store(0, 10, 5.0), "there is nothing to store"
        assert outbox.should_store(3, 10, 5.0), "nothing was ever stored"
        outbox.store({}, [], 5.0)
        assert not outbox.should_store(4, 10, 5.0)
        assert not outbox.should_store(5, 10, 5.0)
        assert outbox.should_store(1, 10, 5.0), "ten in all"
        outbox.store({}, [], 5.0)
        assert not outbox.should_store(1, 10, 5.0)
        assert outbox.should_store(0, 10, 5.0), "the step was idle"
        outbox.store({}, [], 5.0)
        assert not outbox.should_store(1, 10, 5.0 + 0.9 * STORE_INTERVAL_S)
        assert outbox.should_store(1, 10, 5.0 + STORE_INTERVAL_S)


def test_records_wait_to_be_stored_while_there_is_more_to_learn_at_once(
    path: Path, log: SqliteLog
) -> None:
    with Checkpoint(path, "a") as checkpoint:
        outbox = Outbox(checkpoint, log)
        outbox.store({}, [], 5.0)
        assert outbox.should_store(1, 10, 5.0, made=True), "there is no more"
        outbox.store({}, [], 5.0)
        assert not outbox.should_store(1, 10, 5.0, made=True, more=True)
        assert not outbox.should_store(1, 10, 5.0, more=True)
        assert outbox.should_store(1, 10, 5.0), "they wait, though this step made none"
        assert outbox.should_store(1, 10, 5.0 + STORE_INTERVAL_S, more=True)
        outbox.store({}, [], 6.0)
        assert not outbox.should_store(1, 10, 6.0), "none waits any more"
        assert not outbox.should_store(8, 10, 6.0, made=True, more=True)
        assert outbox.should_store(1, 10, 6.0, more=True), "ten in all"


def test_a_clock_that_is_set_back_does_not_delay_the_next_store(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        outbox = Outbox(checkpoint, log)
        outbox.store({}, [], 1000.0)
        assert not outbox.should_store(1, 10, 0.0)
        assert outbox.should_store(1, 10, STORE_INTERVAL_S)
