"""Remember, then speak: whatever happens in between, every word is said, in order, and repeated as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import LogRefused, LogUnavailable
from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from shoal.runtime.outbox import REMEMBER_S, Outbox
from shoal.transports.base import TopicSettings, beginning
from shoal.transports.sqlite.log import SqliteLog

TOPIC = "plant.updates"


def word(number: int, size: int = 10) -> OutboxRecord:
    return OutboxRecord(TOPIC, b"%d" % number + bytes(size), b"clusters", (("n", b"%d" % number),))


def said(log: SqliteLog) -> list[int]:
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


def test_who_remembers_nothing_says_nothing(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        uplink = Outbox(checkpoint, log)
        assert uplink.speak() == 0
        uplink.remember({}, [], 0.0)
        assert uplink.speak() == 0
    assert said(log) == []


def test_words_are_said_once_in_order(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        uplink = Outbox(checkpoint, log)
        uplink.remember({}, [word(1), word(2)], 0.0)
        assert said(log) == []
        assert uplink.speak() == 2
        assert uplink.speak() == 0
        uplink.remember({}, [word(3)], 0.0)
        assert uplink.speak() == 1
    assert said(log) == [1, 2, 3]


def test_what_was_remembered_but_not_said_is_said_by_the_next_life(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        Outbox(checkpoint, log).remember({}, [word(1), word(2)], 0.0)
    with Checkpoint(path, "a") as checkpoint:
        assert Outbox(checkpoint, log).speak() == 2
    assert said(log) == [1, 2]


def test_the_last_words_are_repeated_to_the_bit_and_older_ones_are_forgotten(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        uplink = Outbox(checkpoint, log)
        for n in range(1, 4):
            uplink.remember({"n": n}, [word(n)], 0.0)
            uplink.speak()
    with Checkpoint(path, "a") as checkpoint:
        uplink = Outbox(checkpoint, log)
        assert uplink.speak() == 1, "the last one: it is not known to be stored"
        uplink.remember({"n": 4}, [word(4)], 0.0)
        assert uplink.speak() == 1
    assert said(log) == [1, 2, 3, 3, 4]
    records, _ = log.read(TOPIC, beginning(log, TOPIC))
    assert records[2][4:] == records[3][4:]


def test_a_log_without_room_loses_nothing(path: Path, tmp_path: Path, log: SqliteLog) -> None:
    log.close()
    with Checkpoint(path, "a") as checkpoint:
        with closing(SqliteLog(tmp_path / "log.db", file_bytes_max=2**20)) as small:
            uplink = Outbox(checkpoint, small)
            uplink.remember({}, [word(1)], 0.0)
            uplink.speak()
            uplink.remember({}, [word(2, 2**21), word(3)], 0.0)
            with pytest.raises(LogUnavailable):
                uplink.speak()
            assert said(small) == [1]
            with pytest.raises(LogUnavailable):
                small.close()
        with closing(SqliteLog(tmp_path / "log.db")) as roomy:
            assert Outbox(checkpoint, roomy).speak() == 2
            assert said(roomy) == [1, 2, 3]


def test_a_word_the_log_will_never_take_stays_remembered_and_is_told(path: Path, tmp_path: Path) -> None:
    with closing(SqliteLog(tmp_path / "other.db")) as log, Checkpoint(path, "a") as checkpoint:
        log.ensure(TOPIC, TopicSettings(record_bytes_max=1000))
        uplink = Outbox(checkpoint, log)
        uplink.remember({}, [word(1, 2000)], 0.0)
        with pytest.raises(LogRefused):
            uplink.speak()
        assert [number for number, _ in checkpoint.pending()] == [1]


def test_what_nobody_is_told_of_is_remembered_when_there_is_time_when_it_is_much_and_once_in_a_while(
    path: Path, log: SqliteLog
) -> None:
    with Checkpoint(path, "a") as checkpoint:
        uplink = Outbox(checkpoint, log)
        assert not uplink.is_time(0, 10, 5.0), "there is nothing to remember"
        assert uplink.is_time(3, 10, 5.0), "nothing was ever remembered"
        uplink.remember({}, [], 5.0)
        assert not uplink.is_time(4, 10, 5.0)
        assert not uplink.is_time(5, 10, 5.0)
        assert uplink.is_time(1, 10, 5.0), "ten in all"
        uplink.remember({}, [], 5.0)
        assert not uplink.is_time(1, 10, 5.0)
        assert uplink.is_time(0, 10, 5.0), "there is nothing else to do"
        uplink.remember({}, [], 5.0)
        assert not uplink.is_time(1, 10, 5.0 + 0.9 * REMEMBER_S)
        assert uplink.is_time(1, 10, 5.0 + REMEMBER_S)


def test_a_clock_that_is_set_back_does_not_put_remembering_off(path: Path, log: SqliteLog) -> None:
    with Checkpoint(path, "a") as checkpoint:
        uplink = Outbox(checkpoint, log)
        uplink.remember({}, [], 1000.0)
        assert not uplink.is_time(1, 10, 0.0)
        assert uplink.is_time(1, 10, REMEMBER_S)
