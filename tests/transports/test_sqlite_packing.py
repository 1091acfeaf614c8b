"""Small rows of the embedded log that share a row, compressed: read as they were written."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal.transports.base import UNREADABLE, Record, RecordBatch, TopicSettings
from shoal.transports.sqlite.log import SqliteLog
from shoal.transports.sqlite.packing import PACKED_BYTES, PACKED_ROWS
from shoal.transports.sqlite.reader import SqliteLogReader
from tests.transports.embedded import TOPIC, Clock, opened, values

FORM = (("type", b"reading"), ("v", b"1"))


def rows_of(path: Path) -> list[tuple[int, int | None]]:
    """Offset and number of records of each row."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT offset, batch_records FROM rows_1_0 ORDER BY offset").fetchall()


def expected(records: list[Record]) -> list[tuple[object, ...]]:
    return [(record.offset, record.key, record.value, record.headers) for record in records]


def publish_mixed(log: SqliteLog, clock: Clock) -> Iterator[tuple[object, ...]]:
    """Records of every form, in flushes of all sizes; gives what is to be read of each."""
    chance = random.Random(1)
    offset = 0
    for flush in range(60):
        clock.now_s += 1
        for _ in range(chance.choice([1, 1, 1, 2, 40])):
            key = chance.choice([None, b"", b"attic"])
            value = chance.choice([None, b"", b"a value of many" * 3])
            headers = chance.choice([(), FORM, (*FORM, ("n", b"%d" % offset))])
            log.publish(TOPIC, value, key, headers)
            yield offset, clock.now_s, key, value, headers
            offset += 1
        if flush % 7 == 0:
            batch = [b"of a batch %d" % number for number in range(9)]
            log.publish_batch(TOPIC, RecordBatch(batch, FORM), 0)
            for content in batch:
                yield offset, clock.now_s, None, content, FORM
                offset += 1
        if flush % 20 == 10:
            log.publish(TOPIC, bytes(PACKED_BYTES), b"large", ())
            yield offset, clock.now_s, b"large", bytes(PACKED_BYTES), ()
            offset += 1
        log.flush()


def test_records_of_packed_rows_are_those_that_were_written_from_every_position(
    path: Path, clock: Clock
) -> None:
    with opened(path, TopicSettings(record_bytes_max=2 * PACKED_BYTES), clock=clock) as log:
        written = list(publish_mixed(log, clock))
        read, after = log.read(TOPIC, {0: 0}, limit=10**6)
        found = [
            (record.offset, record.timestamp_ms / 1000, record.key, record.value, record.headers)
            for record in read
        ]
        assert found == written
        assert after == {0: len(written)}
        assert len(rows_of(path)) < len(written) / 4
        with closing(SqliteLogReader(path)) as reader:
            assert list(reader.read(TOPIC, {0: 0}, limit=10**6)[0]) == list(read)
            for position in range(len(written)):
                for limit in (1, 5):
                    part, after = reader.read(TOPIC, {0: position}, limit=limit)
                    assert list(part) == list(read)[position : position + limit]
                    assert after == {0: min(position + limit, len(written))}


def test_rows_that_come_one_by_one_are_packed_and_take_a_third(path: Path) -> None:
    headers = (("type", b"update"), ("v", b"1"), ("author", b"8 bytes."))
    common = b"the statement of privacy, names of fields and of models, and so on. " * 4
    chance = random.Random(2)
    with opened(path) as log:
        for _ in range(3 * PACKED_ROWS):
            log.publish(TOPIC, common + chance.randbytes(40), b"attic", headers)
            log.flush()
    with closing(sqlite3.connect(path)) as db:
        stored, counted = db.execute(
            "SELECT sum(length(value)), sum(size) FROM rows_1_0"
        ).fetchone()
        assert db.execute("SELECT bytes FROM marks WHERE topic = 1").fetchone() == (counted,)
    assert rows_of(path) == [(first, PACKED_ROWS) for first in (0, PACKED_ROWS, 2 * PACKED_ROWS)]
    assert stored < counted / 3


def test_rows_that_packing_saves_nothing_of_stay_as_they_are(path: Path) -> None:
    chance = random.Random(3)
    contents = [chance.randbytes(200) for _ in range(PACKED_ROWS + 1)]
    with opened(path) as log:
        for content in contents:
            log.publish(TOPIC, content)
            log.flush()
        assert values(log) == contents
    assert rows_of(path) == [(offset, None) for offset in range(len(contents))]


def test_packed_rows_are_retained_no_longer_than_a_part_of_the_time_and_the_bytes(
    path: Path, clock: Clock
) -> None:
    """A row is removed as a whole, when the newest record in it is."""
    retained_s = 6400.0
    with opened(path, TopicSettings(retain_s=retained_s), clock=clock) as log:
        for _ in range(6 * PACKED_ROWS):
            clock.now_s += 10
            log.publish(TOPIC, b"at %012.1f" % clock.now_s)
            log.flush()
        assert max(records or 1 for _, records in rows_of(path)) == 11
        oldest_s = clock.now_s - 10 * (6 * PACKED_ROWS - 1)
        for _ in range(3):
            clock.now_s += retained_s / 3
            log.flush()
            kept = [float(value[3:]) for value in values(log) if value is not None]
            must = [time_s for time_s in kept if time_s >= clock.now_s - retained_s]
            assert len(kept) - len(must) < 11
            expected_first = max(oldest_s, clock.now_s - retained_s)
            assert min(kept, default=expected_first) <= expected_first


def test_a_damaged_packed_row_costs_its_own_records_and_a_damaged_loose_one_is_not_hidden(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as log:
        for number in range(2 * PACKED_ROWS + 3):
            log.publish(TOPIC, b"value %d" % number)
            log.flush()
        # Unpacked once while it was whole: its records may not be given again from that.
        log.read(TOPIC, {0: PACKED_ROWS}, 1)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(
                "UPDATE rows_1_0 SET value = zeroblob(length(value)) WHERE offset = ?",
                (PACKED_ROWS,),
            )
            # A loose one: packed with those behind it, it would count as written so.
            db.execute("UPDATE rows_1_0 SET value = x'00' WHERE offset = ?", (2 * PACKED_ROWS + 1,))
        for number in range(2 * PACKED_ROWS + 3, 4 * PACKED_ROWS):
            log.publish(TOPIC, b"value %d" % number)
            log.flush()
        damaged = {*range(PACKED_ROWS, 2 * PACKED_ROWS), 2 * PACKED_ROWS + 1}
        read, _ = log.read(TOPIC, {0: 0})
        for record in read:
            assert (UNREADABLE in dict(record.headers)) == (record.offset in damaged)
            if record.offset not in damaged:
                assert record.value == b"value %d" % record.offset
        assert [record.offset for record in read] == list(range(4 * PACKED_ROWS))
    damaged = [entry for entry in caplog.records if entry.msg == "log_row_damaged"]
    said = {vars(entry)["fields"]["records"] for entry in damaged}
    assert said == {1, PACKED_ROWS}


@pytest.mark.parametrize("loose", [-5, 0, 10**12])
def test_any_number_of_loose_rows_in_the_file_leaves_the_records_as_they_are(
    path: Path, clock: Clock, loose: int
) -> None:
    """A clock that stands: rows of one time pack so well that a packed row among loose ones would
    be packed again, and not be read."""
    with opened(path, clock=clock) as log:
        for number in range(PACKED_ROWS + 5):
            log.publish(TOPIC, b"value %d" % number)
            log.flush()
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE marks SET loose = ?", (loose,))
        for number in range(PACKED_ROWS + 5, 3 * PACKED_ROWS):
            log.publish(TOPIC, b"value %d" % number)
            log.flush()
        assert values(log) == [b"value %d" % number for number in range(3 * PACKED_ROWS)]


def test_batches_that_are_packed_have_no_more_records_than_a_damaged_row_stands_for(
    path: Path,
) -> None:
    batch = [b"%d" % number for number in range(90)]
    with opened(path) as log:
        for _ in range(PACKED_ROWS):
            log.publish_batch(TOPIC, RecordBatch(batch, FORM), 0)
            log.flush()
        assert max(records or 1 for _, records in rows_of(path)) == 11 * len(batch)
        read, _ = log.read(TOPIC, {0: 0}, limit=10**6)
        assert [record.value for record in read] == PACKED_ROWS * batch
