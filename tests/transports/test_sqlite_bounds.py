"""The embedded log stays as small as its settings say: retention, compaction, the file and its
write-ahead log."""

from __future__ import annotations

import random
import re
from contextlib import closing
from pathlib import Path

import pytest

from shoal.errors import LogError, LogUnavailable, OffsetOutOfRange
from shoal.transports.base import RecordBatch, TopicSettings, beginning, latest
from shoal.transports.sqlite.log import SqliteLog
from shoal.transports.sqlite.records import TOMBSTONE_S
from shoal.transports.sqlite.schema import connect
from tests.transports.embedded import MIB, TOPIC, Clock, disk_bytes, everything, opened, values


def test_a_file_at_its_limit_takes_no_more_until_it_has_more_room_and_loses_nothing(
    path: Path,
) -> None:
    log = SqliteLog(path, file_bytes_max=MIB)
    log.ensure(TOPIC)
    stored = 0
    try:
        for number in range(100):
            log.publish(TOPIC, b"%d" % number + b"." * 50_000)
            log.flush()
            stored += 1
    except LogUnavailable as error:
        refusal = str(error)
    assert "file_bytes_max" in refusal
    assert 10 < stored < 25
    assert len(values(log)) == stored
    with pytest.raises(LogUnavailable):
        log.flush()
    assert len(values(log)) == stored
    with pytest.raises(LogUnavailable):
        log.close()
    log.close()
    assert path.stat().st_size <= MIB
    with opened(path, file_bytes_max=2 * MIB) as roomier:
        roomier.publish(TOPIC, b"." * 50_000)
        roomier.flush()
        assert roomier.bounds(TOPIC) == {0: (0, stored + 1)}


def test_retention_makes_the_room_that_a_file_at_its_limit_needs(path: Path) -> None:
    with opened(path, TopicSettings(retain_bytes=MIB // 2), file_bytes_max=MIB) as log:
        for _ in range(200):
            log.publish(TOPIC, b"." * 50_000)
            log.flush()
        first, end = log.bounds(TOPIC)[0]
        assert end == 200
        assert (end - first) * 50_000 <= MIB // 2 < (end - first + 1) * 50_000
    assert path.stat().st_size <= MIB


def test_another_number_of_bytes_can_be_kept_from_now_on_and_nothing_else(path: Path) -> None:
    with closing(SqliteLog(path, durable=False)) as log:
        log.set_retention(TOPIC, TopicSettings(retain_bytes=100_000))
        identity = log.identity(TOPIC)
        for _ in range(100):
            log.publish(TOPIC, b"x" * 1000)
            log.flush()
        log.set_retention(TOPIC, TopicSettings(retain_bytes=5_000))
        log.publish(TOPIC, b"x" * 1000)
        log.flush()
        assert log.bounds(TOPIC) == {0: (96, 101)}
        with pytest.raises(LogError, match="record_bytes_max"):
            log.set_retention(TOPIC, TopicSettings(retain_bytes=5_000, record_bytes_max=10))
    with closing(SqliteLog(path, durable=False)) as log:
        log.ensure(TOPIC, TopicSettings(retain_bytes=5_000))
        assert log.identity(TOPIC) == identity


@pytest.mark.parametrize("value_bytes", [1000, 200_000])
def test_a_long_stream_stays_within_bounds_on_disk(path: Path, value_bytes: int) -> None:
    settings = TopicSettings(retain_bytes=4 * MIB)
    with opened(path, settings, durable=False, buffer_bytes_max=MIB) as log, opened(path) as reader:
        at = beginning(reader, TOPIC)
        most = 0
        for number in range(150 * MIB // value_bytes):
            log.publish(TOPIC, bytes(value_bytes))
            if number % (MIB // value_bytes) == 0:
                log.flush()
                _, at = reader.read(TOPIC, at, limit=2000)
                most = max(most, disk_bytes(path))
        log.flush()
        first, end = log.bounds(TOPIC)[0]
        assert 3 * MIB < (end - first) * value_bytes <= 4 * MIB
    # The write-ahead log is moved at 16 MiB, and may pass it by one transaction's pages.
    assert most < 2 * 4 * MIB + 24 * MIB
    assert disk_bytes(path) < 2 * 4 * MIB


def test_a_compacted_topic_stays_as_small_as_its_newest_records(path: Path) -> None:
    with opened(path, TopicSettings(compact=True), durable=False) as log:
        for number in range(500):
            log.publish(TOPIC, bytes(200_000), key=b"model %d" % (number % 2))
            log.flush()
        assert len(everything(log)) == 2
        assert log.bounds(TOPIC) == {0: (0, 500)}
    assert path.stat().st_size < 2 * MIB


def test_a_file_that_was_large_gives_its_pages_back(path: Path, clock: Clock) -> None:
    with opened(path, TopicSettings(retain_s=60.0), clock=clock, durable=False) as log:
        for _ in range(60):
            log.publish(TOPIC, bytes(MIB))
        log.flush()
        clock.now_s += 61
        for _ in range(20):
            log.publish(TOPIC, b"small")
            log.flush()
        assert log.bounds(TOPIC) == {0: (60, 80)}
    assert path.stat().st_size < 20 * MIB


def test_a_reader_who_never_ends_lets_the_write_ahead_log_grow_but_only_while_it_lasts(
    path: Path,
) -> None:
    with opened(path, TopicSettings(retain_bytes=MIB), durable=False) as log:
        with closing(connect(path, durable=False, file_bytes_max=None, wait_s=0)) as stuck:
            stuck.execute("BEGIN")
            stuck.execute("SELECT count(*) FROM topics").fetchall()
            for _ in range(100):
                log.publish(TOPIC, bytes(MIB))
                log.flush()
            assert disk_bytes(path) > 100 * MIB
        for _ in range(100):
            log.publish(TOPIC, bytes(MIB))
            log.flush()
        assert disk_bytes(path) < 24 * MIB
        assert log.bounds(TOPIC)[0][1] == 200


def test_retention_by_age_drops_what_is_too_old_and_only_that(path: Path, clock: Clock) -> None:
    with opened(path, TopicSettings(retain_s=10.0), clock=clock) as log:
        for text in (b"0 s", b"6 s", b"12 s"):
            log.publish(TOPIC, text)
            log.flush()
            clock.now_s += 6
        assert [record.timestamp_ms for record in everything(log)] == [
            1_800_000_006_000,
            1_800_000_012_000,
        ]
        assert values(log) == [b"6 s", b"12 s"]
        with pytest.raises(OffsetOutOfRange):
            log.read(TOPIC, {0: 0})


def test_offsets_go_on_where_they_were_when_retention_has_emptied_a_topic(
    path: Path, clock: Clock
) -> None:
    settings = TopicSettings(retain_s=10.0)
    with opened(path, settings, clock=clock) as log:
        log.publish(TOPIC, b"old")
        log.flush()
        clock.now_s += 100
        log.flush()  # nothing to store, but time to look after what is there
        assert log.bounds(TOPIC) == {0: (1, 1)}
        assert values(log) == []
    with opened(path, settings, clock=clock) as log:
        assert log.bounds(TOPIC) == {0: (1, 1)}
        log.publish(TOPIC, b"new")
        log.flush()
        assert [(record.offset, record.value) for record in everything(log)] == [(1, b"new")]
        with pytest.raises(OffsetOutOfRange, match="1 records are lost"):
            log.read(TOPIC, {0: 0})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("together", [1, 12, 300])
def test_what_retention_removes_is_nowhere_in_the_file(
    path: Path, together: int, packed: bool
) -> None:
    chance = random.Random(together)
    with opened(path, TopicSettings(retain_bytes=500_000), durable=False) as log:
        for first in range(0, 3900 if together == 1 else 12_000, together):
            numbers = range(first, first + together)
            marked = [b"value %09d" % number + chance.randbytes(150) for number in numbers]
            if packed:
                marked = [value[:15] + bytes(150) for value in marked]
            log.publish_batch(
                TOPIC, RecordBatch(marked, (), [("n", [b"%d" % number for number in numbers])]), 0
            )
            log.flush()
        kept, end = log.bounds(TOPIC)[0]
    found = {int(number) for number in re.findall(rb"value (\d{9})", path.read_bytes())}
    assert kept > 0
    assert found <= set(range(kept, end))
    # What is packed is not found as text.
    assert packed or found == set(range(kept, end))


def test_a_clock_set_back_drops_nothing_too_soon_and_does_not_end_retention(
    path: Path, clock: Clock
) -> None:
    with opened(path, TopicSettings(retain_s=10.0), clock=clock) as log:
        log.publish(TOPIC, b"ahead")
        log.flush()
        clock.now_s -= 1000
        log.publish(TOPIC, b"right")
        log.flush()
        clock.now_s += 9
        log.flush()
        assert values(log) == [b"ahead", b"right"]
        clock.now_s += 1002
        log.flush()
        assert values(log) == []


def test_tombstones_stay_for_a_day_and_are_then_forgotten_without_a_loss(
    path: Path, clock: Clock
) -> None:
    with opened(path, TopicSettings(compact=True), clock=clock) as log:
        for key, value in ((b"gone", b"1"), (b"here", b"2"), (b"gone", None)):
            log.publish(TOPIC, value, key)
        log.flush()
        assert [record.offset for record in everything(log)] == [1, 2]
        clock.now_s += TOMBSTONE_S - 1
        log.flush()
        assert [record.offset for record in everything(log)] == [1, 2]
        clock.now_s += 2 + 60
        log.flush()
        assert [record.offset for record in everything(log)] == [1]
        assert log.read(TOPIC, {0: 0})[1] == {0: 3}
        assert list(latest(log, TOPIC)) == [b"here"]


def test_a_compacted_topic_with_retention_counts_only_what_it_keeps(path: Path) -> None:
    with opened(path, TopicSettings(compact=True, retain_bytes=3000)) as log:
        for _ in range(20):
            log.publish(TOPIC, b"." * 999, key=b"a")
            log.flush()
        assert log.bounds(TOPIC) == {0: (0, 20)}  # replaced, never more than 2000 bytes
        for key in (b"b", b"c", b"d"):
            log.publish(TOPIC, b"." * 999, key=key)
            log.flush()
        assert list(latest(log, TOPIC)) == [b"b", b"c", b"d"]
        assert log.bounds(TOPIC) == {0: (20, 23)}
