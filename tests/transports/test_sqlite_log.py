"""What the embedded log promises beyond the laws that every log keeps (`tests/laws/test_log_contract.py`)."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from shoal.errors import LogRefused, LogUnavailable, OffsetGone
from shoal.transports.contract import Record, TopicSettings, beginning, latest
from shoal.transports.sqlite import SqliteLog
from shoal.transports.sqlite_schema import connect
from shoal.transports.sqlite_upkeep import TOMBSTONE_S

MIB = 1024 * 1024
TOPIC = "readings"


class Clock:
    """Seconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1.8e9

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@contextmanager
def opened(path: Path, settings: TopicSettings | None = None, **options: object) -> Iterator[SqliteLog]:
    with closing(SqliteLog(path, **options)) as log:  # type: ignore[arg-type]
        log.ensure(TOPIC, settings)
        yield log


def everything(log: SqliteLog, topic: str = TOPIC) -> list[Record]:
    records, _ = log.read(topic, beginning(log, topic), limit=10**6)
    return records


def values(log: SqliteLog) -> list[bytes | None]:
    return [record.value for record in everything(log)]


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))


def test_nobody_sees_a_record_before_it_is_flushed(path: Path) -> None:
    with opened(path) as writer, opened(path) as reader:
        writer.publish(TOPIC, b"a")
        assert values(writer) == values(reader) == []
        assert writer.bounds(TOPIC) == {0: (0, 0)}
        writer.flush()
        assert values(writer) == values(reader) == [b"a"]


def test_a_flush_is_all_or_nothing_over_topics(path: Path) -> None:
    with opened(path) as writer, opened(path) as reader:
        writer.ensure("other")
        for _ in range(50):
            writer.publish(TOPIC, b"")
            writer.publish("other", b"")
        seen: set[tuple[int, int]] = set()
        writer.flush()
        seen.add((reader.bounds(TOPIC)[0][1], reader.bounds("other")[0][1]))
        assert seen == {(50, 50)}


def test_publish_flushes_by_itself_before_its_buffer_overflows(path: Path) -> None:
    with opened(path, buffer_bytes_max=10_000) as writer, opened(path) as reader:
        for number in range(100):
            writer.publish(TOPIC, b"." * 990)
            waiting = number + 1 - reader.bounds(TOPIC)[0][1]
            assert waiting * 990 <= 10_000
        assert reader.bounds(TOPIC)[0][1] > 80


def test_a_publish_that_finds_no_room_has_not_taken_its_record(path: Path) -> None:
    with opened(path, buffer_bytes_max=3000, wait_s=0.0) as log:
        log.publish(TOPIC, b"1" * 2000)
        with locked(path), pytest.raises(LogUnavailable):
            log.publish(TOPIC, b"2" * 2000)
        log.publish(TOPIC, b"2" * 2000)
        log.flush()
        assert values(log) == [b"1" * 2000, b"2" * 2000]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's write transaction, from the file's point of view."""
    with closing(connect(path, durable=False, file_bytes_max=None, wait_s=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_lock_held_too_long_is_worth_a_retry_and_the_retry_stores_everything_once(path: Path) -> None:
    with opened(path) as log:
        log.publish(TOPIC, b"a")
        with locked(path):
            for _ in range(2):
                with pytest.raises(LogUnavailable, match="another process") as refusal:
                    log.flush(timeout_s=0)
                assert refusal.value.retriable
            log.publish(TOPIC, b"b")
            assert values(log) == []  # reading goes on
        log.flush()
        log.flush()
        assert values(log) == [b"a", b"b"]


def test_a_flush_of_nothing_waits_for_nobody(path: Path) -> None:
    with opened(path) as log:
        log.publish(TOPIC, b"a")
        log.flush()
        with locked(path):
            log.flush(timeout_s=0)
        assert values(log) == [b"a"]


def test_a_file_at_its_limit_takes_no_more_until_it_has_more_room_and_loses_nothing(path: Path) -> None:
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


@pytest.mark.parametrize("value_bytes", [1000, 200_000])
def test_a_long_stream_stays_within_bounds_on_disk(path: Path, value_bytes: int) -> None:
    settings = TopicSettings(retain_bytes=4 * MIB)
    with opened(path, settings, durable=False, buffer_bytes_max=MIB) as log, opened(path) as reader:
        at, most = beginning(reader, TOPIC), 0
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


def test_a_reader_who_never_ends_lets_the_write_ahead_log_grow_but_only_while_it_lasts(path: Path) -> None:
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
        assert [record.timestamp_ms for record in everything(log)] == [1_800_000_006_000, 1_800_000_012_000]
        assert values(log) == [b"6 s", b"12 s"]
        with pytest.raises(OffsetGone):
            log.read(TOPIC, {0: 0})


def test_offsets_go_on_where_they_were_when_retention_has_emptied_a_topic(path: Path, clock: Clock) -> None:
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
        with pytest.raises(OffsetGone, match="1 records are gone"):
            log.read(TOPIC, {0: 0})


def test_a_clock_set_back_drops_nothing_too_soon_and_does_not_end_retention(path: Path, clock: Clock) -> None:
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


def test_tombstones_stay_for_a_day_and_are_then_forgotten_without_a_loss(path: Path, clock: Clock) -> None:
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


def test_one_read_is_bounded_in_bytes_but_never_stands_still(path: Path) -> None:
    with opened(path, TopicSettings(partitions=2), read_bytes_max=10_000) as log:
        for size in (20_000, 4000, 4000, 4000, 20_000):
            log.publish(TOPIC, bytes(size))
        log.flush()
        at, sizes = {0: 0}, []
        while at[0] < 5:
            records, at = log.read(TOPIC, at)
            sizes.append([len(record.value or b"") for record in records])
        assert sizes == [[20_000], [4000, 4000], [4000], [20_000]]


@pytest.mark.parametrize(
    "name", ["naïve ☃ 温度 🐟", "records; DROP TABLE topics; --", "\"'`[]\\%_?*", "nul\x00nul", "é" * 249]
)
def test_a_name_is_only_ever_a_value(path: Path, name: str) -> None:
    with opened(path) as log:
        log.ensure(name)
        log.publish(name, b"here")
        log.flush()
        assert [record.topic for record in everything(log, name)] == [name]
        assert values(log) == []


def test_another_thread_is_told_to_open_a_log_of_its_own(path: Path) -> None:
    raised: list[Exception] = []

    def trespass(log: SqliteLog) -> None:
        try:
            log.bounds(TOPIC)
        except LogRefused as error:
            raised.append(error)

    with opened(path) as log:
        thread = threading.Thread(target=trespass, args=(log,))
        thread.start()
        thread.join()
        assert "one log per thread" in str(raised[0])
        log.publish(TOPIC, b"still well")
        log.flush()


def replace(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


@pytest.mark.parametrize("lose", [Path.unlink, replace])
def test_a_file_deleted_or_replaced_while_open_is_noticed(path: Path, lose: Callable[[Path], None]) -> None:
    log = SqliteLog(path)
    log.ensure(TOPIC)
    log.publish(TOPIC, b"a")
    lose(path)
    for call in (log.flush, lambda: log.read(TOPIC, {0: 0}), log.close):
        with pytest.raises(LogRefused, match="deleted or replaced"):
            call()
    log.close()


def test_a_flush_is_on_the_disk_unless_durability_was_waived(path: Path) -> None:
    synchronous = {}
    for durable in (True, False):
        with closing(connect(path, durable=durable, file_bytes_max=None, wait_s=1)) as db:
            (synchronous[durable],) = db.execute("PRAGMA synchronous").fetchone()
    assert synchronous == {True: 2, False: 1}


def test_a_power_cut_at_any_byte_leaves_a_prefix_of_whole_flushes(path: Path, tmp_path: Path) -> None:
    with opened(path) as log:
        for number in range(10):
            for _ in range(3):
                log.publish(TOPIC, b"%d" % number + bytes(5000))
            log.flush()
        wal = path.with_name("log.db-wal")
        found: list[int] = []
        for number, size in enumerate(itertools.chain(range(0, wal.stat().st_size, 7001), [wal.stat().st_size])):
            torn = tmp_path / f"torn{number}.db"
            shutil.copy(path, torn)
            torn.with_name(torn.name + "-wal").write_bytes(wal.read_bytes()[:size])
            with opened(torn) as survivor:
                kept = [int((value or b"")[:1]) for value in values(survivor)]
                found.append(len(kept))
                assert kept == [flush for flush in range(len(kept) // 3) for _ in range(3)]
                survivor.publish(TOPIC, b"on")
                survivor.flush()
                assert survivor.bounds(TOPIC) == {0: (0, len(kept) + 1)}
        assert found == sorted(found)
        assert (found[0], found[-1]) == (0, 30)
