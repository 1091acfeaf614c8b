"""What the embedded log promises beyond the laws that every log keeps
(`tests/laws/test_log_contract.py`)."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from shoal.errors import LogError, LogUnavailable, OffsetOutOfRange
from shoal.transports.base import Headers, RecordBatch, TopicSettings
from shoal.transports.sqlite.log import QUIET_POLL_S, SqliteLog
from shoal.transports.sqlite.reader import SqliteLogReader
from shoal.transports.sqlite.schema import (
    add_batches,
    add_checksums,
    add_packing,
    connect,
    writing,
)
from tests.transports.embedded import MIB, TOPIC, everything, locked, opened, values


def test_no_reader_sees_a_record_before_it_is_flushed(path: Path) -> None:
    with opened(path) as writer, opened(path) as reader:
        writer.publish(TOPIC, b"a")
        assert values(writer) == values(reader) == []
        assert writer.bounds(TOPIC) == {0: (0, 0)}
        writer.flush()
        assert values(writer) == values(reader) == [b"a"]


def test_a_flush_is_all_or_nothing_over_topics(path: Path) -> None:
    with opened(path, file_bytes_max=20 * 16384) as log:
        log.ensure("other")
        log.publish(TOPIC, b"there is room for this")
        log.publish("other", bytes(MIB))
        with pytest.raises(LogUnavailable):
            log.flush()
        assert (log.bounds(TOPIC), log.bounds("other")) == ({0: (0, 0)}, {0: (0, 0)})
        with closing(SqliteLog(path)) as roomier:
            assert values(roomier) == []
        with pytest.raises(LogUnavailable):
            log.close()


def test_two_busy_partitions_are_read_side_by_side(path: Path) -> None:
    with opened(path, TopicSettings(partitions=2)) as log:
        for number in range(80):
            log.publish(TOPIC, b"", partition=int(number > 30))
        log.flush()
        _, after = log.read(TOPIC, {0: 0, 1: 0}, limit=10)
        assert after == {0: 5, 1: 5}


def test_a_read_at_the_end_asks_only_whether_the_file_has_changed(path: Path) -> None:
    statements: list[str] = []
    with (
        opened(path, TopicSettings(partitions=2)) as reader,
        opened(path, TopicSettings(partitions=2)) as writer,
    ):
        assert reader._connection is not None
        reader._connection.set_trace_callback(statements.append)
        for round_ in range(3):
            writer.publish(TOPIC, b"%d" % round_, partition=round_ % 2)
            writer.flush()
            records, after = reader.read(TOPIC, {0: (round_ + 1) // 2, 1: round_ // 2})
            assert [record.value for record in records] == [b"%d" % round_]
            statements.clear()
            assert reader.read(TOPIC, after) == ([], after)
            assert statements == ["PRAGMA data_version"]


@pytest.mark.parametrize(("quiet_s", "looks_min", "looks_max"), [(0.0, 6, 200), (60.0, 1, 5)])
def test_a_reader_of_a_quiet_log_looks_four_times_a_second_and_one_of_a_busy_log_often(
    path: Path, quiet_s: float, looks_min: int, looks_max: int
) -> None:
    statements: list[str] = []
    with opened(path) as log:
        assert log._connection is not None
        assert log.read(TOPIC, {0: 0}) == ([], {0: 0})
        log._read_s -= quiet_s
        log._connection.set_trace_callback(statements.append)
        log.read(TOPIC, {0: 0}, timeout_s=0.5)
    # Two of them are before the first wait, and after the last one. A loaded machine takes fewer
    # than a quiet one of a busy log, which takes a hundred; four a second are 5 at most.
    assert looks_min <= statements.count("PRAGMA data_version") <= looks_max


def test_a_record_makes_the_reader_of_a_quiet_log_look_often_again(path: Path) -> None:
    with opened(path) as log, opened(path) as writer:
        log._read_s -= 60.0
        assert log._quiet_pause_s() == QUIET_POLL_S
        writer.publish(TOPIC, b"news")
        writer.flush()
        assert len(log.read(TOPIC, {0: 0}, timeout_s=60.0)[0]) == 1
        assert log._quiet_pause_s() < QUIET_POLL_S / 2


def test_a_read_at_the_end_finds_what_is_added_and_is_not_misled_by_a_caller(path: Path) -> None:
    with opened(path) as log, opened(path) as other:
        at = {0: 0}
        for number, writer in enumerate([other, log, log, other]):
            assert log.read(TOPIC, at) == ([], at)
            writer.publish(TOPIC, b"%d" % number)
            writer.flush()
            records, at = log.read(TOPIC, at)
            assert [record.value for record in records] == [b"%d" % number]
        # Positions belong to the reader: it may change them.
        at[0] = 1
        assert [record.value for record in log.read(TOPIC, at)[0]] == [b"1", b"2", b"3"]
        at.clear()
        assert log.read(TOPIC, at, timeout_s=60.0) == ([], {})


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


def test_a_batch_is_flushed_in_parts_before_the_buffer_overflows(path: Path) -> None:
    batch = RecordBatch([b"%d" % number * 500 for number in range(1, 100)], ())
    with opened(path, buffer_bytes_max=10_000) as writer, opened(path) as reader:
        writer.publish_batch(TOPIC, RecordBatch([b"first"], ()), 0)
        writer.publish_batch(TOPIC, batch, 0)
        stored = reader.bounds(TOPIC)[0][1]
        assert 0 < (100 - stored) * 500 <= 10_000
        writer.flush()
        assert values(reader) == [b"first", *batch.values]


def test_a_batch_that_finds_no_room_has_not_taken_a_record(path: Path) -> None:
    batch = RecordBatch([b"2" * 1000, b"3" * 1000], ())
    with opened(path, buffer_bytes_max=3000, wait_s=0.0) as log:
        log.publish(TOPIC, b"1" * 2000)
        with locked(path), pytest.raises(LogUnavailable):
            log.publish_batch(TOPIC, batch, 0)
        log.publish_batch(TOPIC, batch, 0)
        log.flush()
        assert values(log) == [b"1" * 2000, *batch.values]


def test_a_lock_held_too_long_is_worth_a_retry_and_the_retry_stores_everything_once(
    path: Path,
) -> None:
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


def test_a_flush_of_nothing_waits_for_no_lock(path: Path) -> None:
    with opened(path) as log:
        log.publish(TOPIC, b"a")
        log.flush()
        with locked(path):
            log.flush(timeout_s=0)
        assert values(log) == [b"a"]


def test_one_read_is_bounded_in_bytes_but_always_advances(path: Path) -> None:
    with opened(path, TopicSettings(partitions=2), read_bytes_max=10_000) as log:
        for size in (20_000, 4000, 4000, 4000, 20_000):
            log.publish(TOPIC, bytes(size))
        log.flush()
        at = {0: 0}
        sizes = []
        while at[0] < 5:
            records, at = log.read(TOPIC, at)
            sizes.append([len(record.value or b"") for record in records])
        assert sizes == [[20_000], [4000, 4000], [4000], [20_000]]
        for _ in range(4):
            log.publish(TOPIC, bytes(4000), partition=1)
        log.flush()
        assert log.read(TOPIC, {0: 1, 1: 0})[1] == {0: 2, 1: 1}  # 10 000 bytes for both together


@pytest.mark.parametrize(
    "name",
    ["naïve ☃ 温度 🐟", "records; DROP TABLE topics; --", "\"'`[]\\%_?*", "nul\x00nul", "é" * 249],
)
def test_a_name_is_only_ever_a_value(path: Path, name: str) -> None:
    with opened(path) as log:
        log.ensure(name)
        log.publish(name, b"here")
        log.flush()
        assert [record.topic for record in everything(log, name)] == [name]
        assert values(log) == []


def test_use_from_another_thread_is_an_error_that_says_what_to_do(path: Path) -> None:
    raised: list[Exception] = []

    def trespass(log: SqliteLog) -> None:
        try:
            log.bounds(TOPIC)
        except LogError as error:
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
def test_a_file_deleted_or_replaced_while_open_is_noticed(
    path: Path, lose: Callable[[Path], None]
) -> None:
    log = SqliteLog(path)
    log.ensure(TOPIC)
    log.publish(TOPIC, b"a")
    lose(path)
    for call in (log.flush, lambda: log.read(TOPIC, {0: 0}), log.close):
        with pytest.raises(LogError, match="deleted or replaced"):
            call()
    log.close()


def test_a_flush_is_on_the_disk_unless_durability_was_waived(path: Path) -> None:
    synchronous = {}
    for durable in (True, False):
        with closing(connect(path, durable=durable, file_bytes_max=None, wait_s=1)) as db:
            (synchronous[durable],) = db.execute("PRAGMA synchronous").fetchone()
    assert synchronous == {True: 2, False: 1}


def test_a_flush_that_need_not_be_synced_is_seen_by_others_and_syncs_the_next_one_again(
    path: Path,
) -> None:
    with opened(path) as log, opened(path) as other:
        traced: list[str] = []
        assert log._connection is not None
        log._connection.set_trace_callback(traced.append)
        for value, flush in ((b"a", log.flush_unsynced), (b"b", log.flush)):
            log.publish(TOPIC, value)
            flush()
            records, _ = other.read(TOPIC, {0: 0})
            assert records[-1].value == value
        pragmas = [
            entry
            for entry in traced
            if entry.startswith("PRAGMA synchronous =") or entry == "COMMIT"
        ]
        assert pragmas == [
            "PRAGMA synchronous = NORMAL",
            "COMMIT",
            "PRAGMA synchronous = 2",
            "COMMIT",
        ]


def test_a_transaction_broken_off_leaves_nothing_behind_and_the_file_free(path: Path) -> None:
    with (
        opened(path) as log,
        closing(connect(path, durable=False, file_bytes_max=None, wait_s=0)) as db,
    ):
        with suppress(KeyboardInterrupt), writing(db):
            db.execute("UPDATE marks SET next = 7")
            raise KeyboardInterrupt
        assert log.bounds(TOPIC) == {0: (0, 0)}
        log.publish(TOPIC, b"a")
        log.flush(timeout_s=0)
        assert log.bounds(TOPIC) == {0: (0, 1)}


def test_a_power_cut_at_any_byte_leaves_a_prefix_of_whole_flushes(
    path: Path, tmp_path: Path
) -> None:
    with opened(path) as log:
        for number in range(10):
            for _ in range(3):
                log.publish(TOPIC, b"%d" % number + bytes(5000))
            log.flush()
        wal = path.with_name("log.db-wal")
        found: list[int] = []
        for number, size in enumerate(
            itertools.chain(range(0, wal.stat().st_size, 7001), [wal.stat().st_size])
        ):
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


def test_a_log_keeps_little_of_its_file_in_memory_however_much_goes_through_it(
    tmp_path: Path,
) -> None:
    with closing(SqliteLog(tmp_path / "log.db")) as log:
        assert log._connection is not None
        (kept,) = log._connection.execute("PRAGMA cache_size").fetchone()
    assert kept == -512  # KiB; SQLite's own default is four times as much for each connection


def test_headers_that_differ_little_from_those_before_come_back_as_they_were(path: Path) -> None:
    producer = (("source", b"s"), ("number", b"1"))
    published: list[Headers] = [
        producer,
        (("source", b"s"), ("number", b"2")),
        (("source", b"s"), ("number", b"10")),
        (("source", b"s"), ("raw", b"10")),
        (("source", b"t"), ("number", b"10")),
        (("source", b""), ("number", b"10s")),
        (("source", b"s"), ("number", b"")),
        (("source", b"s"), ("number", b"")),
        (),
        producer,
        (("source", b"s"),),
        (("source", b"s" * 300), ("number", b"r" * 300)),
        (("source", b"s" * 300), ("number", b"q" * 300)),
    ]
    with opened(path) as log:
        for headers in published:
            log.publish(TOPIC, b"", headers=headers)
        log.flush()
        assert [record.headers for record in log.read(TOPIC, {0: 0})[0]] == published


HEADERS: dict[str, Callable[[int], Headers]] = {
    "none": lambda number: (),
    "equal": lambda number: (("type", b"reading"), ("v", b"1")),
    "the last content differs": lambda number: (("type", b"reading"), ("number", b"%d" % number)),
    "another content differs too": lambda number: (
        ("type", b"reading"),
        ("s", b"ab"[number % 2 :]),
        ("number", b"x" * number),
    ),
    "names of equal length differ": lambda number: (
        ("type", b"reading"),
        (("row", "raw")[number % 2], b"%d" % number),
    ),
    "some have none": lambda number: (("number", b"1"),) * (number % 2),
    "all forms differ": lambda number: (("source", b"%d" % number), ("number", b"1")),
    "one without content": lambda number: (("number", b""),),
}


@pytest.mark.parametrize("name", HEADERS)
def test_many_records_of_one_read_are_those_of_reads_one_by_one(path: Path, name: str) -> None:
    published = [
        (
            b"v" * (number % 3) if number % 5 else None,
            b"key" if number % 7 == 0 else None,
            HEADERS[name](number),
        )
        for number in range(40)
    ]
    with opened(path) as log:
        for value, key, headers in published:
            log.publish(TOPIC, value, key or (b"k" if value is None else None), headers)
        log.flush()
        records, _ = log.read(TOPIC, {0: 0})
        one_by_one = [log.read(TOPIC, {0: offset}, 1)[0][0] for offset in range(40)]
        assert [(record.value, record.headers) for record in records] == [
            (value, own) for value, _, own in published
        ]
        assert records == one_by_one
        assert [records[place] for place in range(-40, 40)] == one_by_one * 2
        assert list(records[3:30:4]) == one_by_one[3:30:4]
        with pytest.raises(IndexError):
            records[40]


def both_ways(log: SqliteLog, batches: Sequence[RecordBatch]) -> None:
    """The same records twice: in batches, and each by itself in the topic "single"."""
    log.ensure("single")
    for batch in batches:
        log.publish_batch(TOPIC, batch, 0)
        for value, headers in batch.records():
            log.publish("single", value, headers=headers)
        log.flush()


def numbered(first: int, n: int, *more: str) -> RecordBatch:
    numbers = [b"%d" % number for number in range(first, first + n)]
    return RecordBatch(
        [number * 7 for number in numbers],
        (("type", b"x"),),
        [(name, numbers) for name in ("n", *more)],
    )


def test_records_of_rows_of_many_are_read_from_any_position_as_far_as_the_limit(path: Path) -> None:
    with opened(path) as log:
        both_ways(
            log,
            [
                numbered(0, 1),
                numbered(1, 2500),
                RecordBatch([b"same length"] * 50, (("type", b"x"),)),
                numbered(2501, 3, "more"),
                RecordBatch([b"", b""], ()),
                numbered(2504, 40),
            ],
        )
        apart = [(record.offset, record[3:]) for record in log.read("single", {0: 0}, 10_000)[0]]
        for position in (
            0,
            1,
            2,
            999,
            1000,
            1001,
            2400,
            2500,
            2501,
            2551,
            2553,
            2555,
            2560,
            len(apart),
        ):
            for limit in (1, 2, 3, 700, 10_000):
                records, after = log.read(TOPIC, {0: position}, limit)
                assert [(record.offset, record[3:]) for record in records] == apart[
                    position : position + limit
                ]
                assert after == {0: min(position + limit, len(apart))}


def test_a_read_of_rows_of_many_is_bounded_in_bytes_and_always_advances(path: Path) -> None:
    with opened(path, read_bytes_max=10_000) as log:
        log.publish_batch(TOPIC, RecordBatch([b"." * 2990] * 20, (("type", b"xxxxxx"),)), 0)
        log.publish(TOPIC, bytes(20_000))
        log.flush()
        at = {0: 0}
        sizes = []
        while at[0] < 21:
            records, at = log.read(TOPIC, at)
            sizes.append(len(records))
        assert sizes == [3, 3, 3, 3, 3, 3, 2, 1]


def test_what_is_retained_is_as_exact_as_a_row_of_many_is_small(path: Path) -> None:
    with opened(path, TopicSettings(retain_bytes=64_000), durable=False) as log:
        for _ in range(20):
            log.publish_batch(TOPIC, RecordBatch([b"." * 100] * 137, ()), 0)
            log.flush()
            first, end = log.bounds(TOPIC)[0]
            assert end < 640 or 63_000 < 100 * (end - first) <= 64_000
        assert [record.offset for record in everything(log)] == list(range(first, end))
        with pytest.raises(OffsetOutOfRange):
            log.read(TOPIC, {0: first - 1})
        # A single record that needs the room of several rows.
        log.publish(TOPIC, b"." * 30_000)
        log.flush()
        first, end = log.bounds(TOPIC)[0]
        assert 33_000 < 100 * (end - 1 - first) <= 34_000


LAYOUT_2 = """
    CREATE TABLE topics (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, identity BLOB NOT NULL,
        partitions INTEGER NOT NULL, compact INTEGER NOT NULL,
        retain_bytes INTEGER, retain_s REAL, record_bytes_max INTEGER NOT NULL);
    CREATE TABLE marks (
        topic INTEGER NOT NULL, partition INTEGER NOT NULL,
        first INTEGER NOT NULL, next INTEGER NOT NULL, bytes INTEGER NOT NULL,
        PRIMARY KEY (topic, partition)) WITHOUT ROWID;
    CREATE TABLE time (boot TEXT NOT NULL, steady_ms INTEGER NOT NULL, now_ms INTEGER NOT NULL);
    INSERT INTO topics VALUES
        (1, 'readings', X'01', 2, 0, 500, NULL, 1000), (2, 'keys', X'02', 1, 1, NULL, NULL, 1000);
    CREATE TABLE records_1_0 (
        offset INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, size INTEGER NOT NULL,
        key BLOB, headers BLOB, value BLOB);
    CREATE TABLE records_1_1 (
        offset INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, size INTEGER NOT NULL,
        key BLOB, headers BLOB, value BLOB);
    CREATE TABLE records_2_0 (
        offset INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, size INTEGER NOT NULL,
        key BLOB, headers BLOB, value BLOB);
    CREATE INDEX records_2_0_keys ON records_2_0 (key);
    CREATE INDEX records_2_0_tombstones ON records_2_0 (timestamp_ms) WHERE value IS NULL;
    INSERT INTO records_1_0 VALUES (3, 1800000000000, 102, NULL, X'9192A16EC40133', zeroblob(100)),
        (4, 1800000000000, 102, NULL, X'9192A16EC40134', zeroblob(100));
    INSERT INTO records_2_0 VALUES (7, 1800000000000, 5, X'61', NULL, X'62626262');
    INSERT INTO marks VALUES (1, 0, 3, 5, 204), (1, 1, 0, 0, 0), (2, 0, 0, 8, 5);
    PRAGMA application_id = 0x53484F4C;
    PRAGMA user_version = 2;
"""
"""as the commits until November 2026 have made a log"""


def test_a_log_of_the_layout_before_is_refused_until_it_is_upgraded(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            "PRAGMA page_size = 16384; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;"
        )
        db.executescript(LAYOUT_2)
        for kind in (SqliteLog, SqliteLogReader):
            with pytest.raises(LogError, match=r"in layout 2 of an older .* `shoal upgrade`"):
                kind(path)
        with writing(db):
            add_batches(db)
        with pytest.raises(LogError, match=r"in layout 3 of an older .* `shoal upgrade`"):
            SqliteLog(path)
        with writing(db):
            add_checksums(db)
        with pytest.raises(LogError, match=r"in layout 4 of an older .* `shoal upgrade`"):
            SqliteLog(path)
        with writing(db):
            add_packing(db)
        with closing(SqliteLog(path)) as log, closing(SqliteLogReader(path)) as other:
            assert log.bounds(TOPIC) == {0: (3, 5), 1: (0, 0)}
            kept, after = log.read(TOPIC, {0: 3, 1: 0})
            assert [(record.offset, record.value, record.headers) for record in kept] == [
                (number, bytes(100), (("n", b"%d" % number),)) for number in (3, 4)
            ]
            log.publish_batch(TOPIC, RecordBatch([b"a", b"b"], (), [("n", [b"5", b"6"])]), 0)
            log.publish("keys", b"new", b"a")
            log.flush()
            assert [record[2:] for record in everything(other, TOPIC, {0: 3})][:2] == [
                record[2:] for record in kept
            ]
            assert [(record.value, record.headers) for record in other.read(TOPIC, after)[0]] == [
                (b"a", (("n", b"5"),)),
                (b"b", (("n", b"6"),)),
            ]
            assert [(record.offset, record.value) for record in other.read("keys", {0: 0})[0]] == [
                (8, b"new")
            ]
            for _ in range(3):
                log.publish(TOPIC, bytes(200), partition=0)
            log.flush()
            log.publish(TOPIC, b"", partition=0)
            log.flush()
            assert log.bounds(TOPIC)[0] == (8, 11)
