"""Records in the tables of the embedded log: packed, appended, retained and compacted, and read from a position on.

Retention and compaction bound the file. They run in the writer's own transaction; the work of each is bounded by what
the writer adds.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import add
from typing import Any, NamedTuple

import msgpack
import numpy as np

from shoal.errors import LogError, OffsetOutOfRange
from shoal.kernels.arrays import Indices
from shoal.transports.base import (
    UNREADABLE,
    Headers,
    Positions,
    Record,
    RecordBatch,
    RecordColumns,
    TopicSettings,
    size_of,
)
from shoal.transports.sqlite.schema import Topic, Watermarks, records_table, store_watermarks, watermarks

FORMS_MAX = 8
"""most forms of headers among the records of a read; with more, each record is unpacked by itself"""
FEW_RECORDS = 4
"""most records for which reading row by row is faster"""


class Pending(NamedTuple):
    """A buffered record. `size`: bytes of key, value and headers."""

    size: int
    key: bytes | None
    headers: bytes | None
    value: bytes | None


def pack(name: str, value: bytes | None, key: bytes | None, headers: Headers) -> Pending:
    """A record ready for the file. Raises `LogError` for one that would make the flush of all buffered ones fail."""
    size = size_of(name, value, key, headers)
    packed = msgpack.packb(headers, buf_size=256) if headers else None
    return Pending(size, key, packed, value)


def pack_batch(name: str, batch: RecordBatch) -> list[Pending]:
    """What `pack` gives for each record of the batch. Raises as it does."""
    columns = [batch.values, *(contents for _, contents in batch.varying)]
    if len(set(map(len, columns))) != 1 or not {bytes}.issuperset(map(type, chain.from_iterable(columns))):
        # One by one it is found what is wrong.
        return [pack(name, value, None, headers) for value, headers in batch.records()]
    titles = [(title, b"") for title, _ in batch.varying]
    fixed = size_of(name, b"", None, (*batch.headers, *titles))
    lengths: Iterable[int] = repeat(fixed)
    for column in columns:
        lengths = map(add, lengths, map(len, column))
    sizes = list(lengths)
    headers = _packed_headers(batch) if batch.headers or titles else repeat(None, len(sizes))
    return list(map(Pending, sizes, repeat(None), headers, batch.values))


def _packed_headers(batch: RecordBatch) -> Iterable[bytes]:
    """The packed headers of each record: what is packed before a content is the same for all contents of its length."""
    number = len(batch.headers) + len(batch.varying)
    before = msgpack.Packer().pack_array_header(number) + b"".join(map(msgpack.packb, batch.headers))
    packed: list[Iterable[bytes]] = []
    for title, contents in batch.varying:
        heads = {n: before + msgpack.packb((title, bytes(n)))[: -n or None] for n in set(map(len, contents))}
        packed.append([heads[len(content)] + content for content in contents])
        before = b""
    if not packed:
        return repeat(before, len(batch.values))
    return packed[0] if len(packed) == 1 else map(b"".join, zip(*packed, strict=True))


def read_records(
    db: sqlite3.Connection, name: str, topic: Topic, at: Positions, limit: int, bytes_max: int
) -> tuple[Sequence[Record], Positions, bool]:
    """Up to `limit` records, about `bytes_max` bytes, shared fairly among the partitions, within a transaction.

    -> the records, the next positions, and whether nothing is left to read from there.
    """
    known = watermarks(db, topic)
    for partition, position in at.items():
        _check_position(name, partition, position, known)
    # The partitions with the fewest records come first and leave the rest of their share to the others.
    waiting = sorted(at, key=lambda partition: (known[partition].next - at[partition], partition))
    found: list[Sequence[Record]] = []
    after = dict(at)
    for served, partition in enumerate(waiting):
        left = len(waiting) - served
        share = math.ceil((limit - sum(map(len, found))) / left)
        if share == 0 or at[partition] == known[partition].next:
            continue
        source = Source(name, topic, partition)
        taken, after[partition], size = _read_partition(
            db, source, at[partition], known[partition].next, share, bytes_max // left
        )
        found.append(taken)
        bytes_max = max(0, bytes_max - size)
    ended = all(position == known[partition].next for partition, position in after.items())
    return found[0] if len(found) == 1 else list(chain.from_iterable(found)), after, ended


class Source(NamedTuple):
    """One partition of a topic."""

    name: str
    topic: Topic
    partition: int


def _read_partition(
    db: sqlite3.Connection, source: Source, position: int, end: int, limit: int, bytes_max: int
) -> tuple[Sequence[Record], int, int]:
    """Records of one partition, the next position, and their bytes. The first record is returned whatever its size."""
    table = records_table(source.topic.number, source.partition)
    where, values = f"FROM {table} WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?", (position, end, limit)
    # The size is asked for first, as records that are too large together are not to be fetched together.
    size = None
    if min(limit, end - position) > FEW_RECORDS:
        (size,) = db.execute(f"SELECT total(size) FROM (SELECT size {where})", values).fetchone()
    rows = db.execute(f"SELECT offset, timestamp_ms, size, key, headers, value {where}", values)
    # Rows that no log has written can have any sum, and none.
    if size is not None and 0 <= size <= bytes_max:
        fetched = rows.fetchall()
        # Fewer than the limit: everything up to the end was read, also a gap that compaction has left there.
        after = fetched[-1][0] + 1 if len(fetched) == limit else end
        return _in_columns(source, fetched) or list(_one_by_one(source, fetched)), after, int(size)
    records: list[Record] = []
    size = 0
    for row in rows:
        offset, timestamp_ms, row_bytes, key, _, value = row
        row_bytes = row_bytes if _is_sound(timestamp_ms, row_bytes, key, value) else 0
        if records and size + row_bytes > bytes_max:
            rows.close()
            return records, offset, size
        size += row_bytes
        records += _one_by_one(source, [row])
    return records, records[-1].offset + 1 if len(records) == limit else end, size


def _in_columns(source: Source, rows: Sequence[tuple[Any, ...]]) -> RecordColumns | None:
    """The records of these rows; None unless all rows are sound, and their headers are of few forms."""
    if not rows:
        return None
    offsets, times, sizes, keys, headers, values = zip(*rows, strict=True)
    # Types by column, in a few calls: a check of each row would take longer than reading it.
    kinds = [set(map(type, column)) for column in (times, sizes, keys, headers, values)]
    if kinds[0] | kinds[1] != {int} or min(sizes) < 0 or kinds[3] not in ({bytes}, {type(None)}):
        return None
    if not {bytes, type(None)}.issuperset(kinds[2] | kinds[4]):
        return None
    found = _forms_of(headers)
    return (
        None if found is None else RecordColumns(source.name, source.partition, (offsets, times, keys, values), *found)
    )


def _forms_of(packed: Sequence[bytes | None]) -> tuple[list[Headers], Indices, Sequence[bytes]] | None:
    """The forms of packed headers, which form each one has, and its last content; None for more than `FORMS_MAX`."""
    form_of = np.zeros(len(packed), dtype=np.intp)
    headers = [each for each in packed if each is not None]
    if not headers:
        return [()], form_of, ()
    lengths = np.fromiter(map(len, headers), np.intp, len(headers))
    forms: list[Headers] = []
    last_contents = np.empty(len(headers), dtype=object)
    # np.unique would load numpy.ma, a megabyte that a small client needs for nothing else.
    # Headers of one length are compared as one table of bytes.
    for length in sorted(set(lengths.tolist())):
        left = np.flatnonzero(lengths == length)
        bits = np.frombuffer(b"".join([headers[place] for place in left]), np.uint8).reshape(-1, length)
        while len(left):
            form = _unpacked(headers[left[0]])
            if form is None or len(forms) == FORMS_MAX:
                return None
            # The last content is at the end, and its length is before it.
            kept = length - (len(form[-1][1]) if form else 0)
            same = (bits[:, :kept] == bits[0, :kept]).all(axis=1)
            last_contents[left[same]] = [headers[place][kept:] for place in left[same]]
            form_of[left[same]] = len(forms)
            forms.append(form)
            left, bits = left[~same], bits[~same]
    return forms, form_of, last_contents.tolist()


def _one_by_one(source: Source, rows: Iterable[tuple[Any, ...]]) -> Iterator[Record]:
    """The record of each row; an unreadable one for a row that no log writes."""
    for offset, timestamp_ms, size, key, headers, value in rows:
        unpacked = _unpacked(headers)
        if unpacked is None or not _is_sound(timestamp_ms, size, key, value):
            unreadable = ((UNREADABLE, b"not as a log writes it"),)
            yield Record(source.name, source.partition, offset, 0, None, None, unreadable)
        else:
            yield Record(source.name, source.partition, offset, timestamp_ms, key, value, unpacked)


def _is_sound(timestamp_ms: object, size: object, key: object, value: object) -> bool:
    """Whether a row, its headers aside, is as `pack` makes it: a process may write anything into the file."""
    sized = type(timestamp_ms) is int and type(size) is int and size >= 0
    return sized and (key is None or type(key) is bytes) and (value is None or type(value) is bytes)


def _unpacked(headers: Any) -> Headers | None:
    """The headers of a row as `pack` makes them, else None."""
    if headers is None:
        return ()
    try:
        unpacked = msgpack.unpackb(headers, use_list=False)
        for pair in unpacked:
            title, content = pair
            if type(pair) is not tuple or type(title) is not str or type(content) is not bytes:
                return None
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    return unpacked if type(unpacked) is tuple else None


def _check_position(name: str, partition: int, position: int, known: dict[int, Watermarks]) -> None:
    if partition not in known:
        raise LogError(f"topic {name!r} has partitions 0 to {len(known) - 1}, not {partition}")
    mark = known[partition]
    if position < 0:
        raise LogError(f"{name}/{partition}: position {position} was asked for; positions begin at 0")
    if position < mark.first:
        raise OffsetOutOfRange(name, partition, position, mark.first)
    if position > mark.next:
        raise LogError(
            f"{name}/{partition}: position {position} was asked for but the log ends at {mark.next}: this is not "
            "the log that the position is from. Give the address of that log, or start again with a new checkpoint"
        )


MIB = 1024 * 1024
PIECE_RECORDS = 20_000
PIECE_BYTES = 64 * MIB
"""bytes: a flush removes at most this and twice what it adds, so over many flushes removing keeps up with adding"""
TOMBSTONE_S = 24 * 3600.0
"""seconds for which a compacted topic keeps a tombstone, so that a reader that was not running sees it"""
SPARE_PAGES = 256
VACUUM_PAGES = 512


def store(
    db: sqlite3.Connection, topic: Topic, partition: int, mark: Watermarks, batch: list[Pending], now_ms: int
) -> None:
    """Append `batch`, perhaps empty, to a partition, and apply retention and compaction to it, within a transaction."""
    table, before = records_table(topic.number, partition), replace(mark)
    # Retention first, so that a file at its limit has room for the batch.
    _retain(db, table, mark, topic.settings, now_ms, batch)
    _append(db, table, mark, batch, now_ms)
    if topic.settings.compact:
        _compact(db, table, mark, batch, now_ms)
    if mark != before:
        store_watermarks(db, topic, partition, mark)


def _append(db: sqlite3.Connection, table: str, mark: Watermarks, batch: list[Pending], now_ms: int) -> None:
    db.executemany(
        f"INSERT INTO {table} (offset, timestamp_ms, size, key, headers, value) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (offset, now_ms, size, key, headers, value)
            for offset, (size, key, headers, value) in enumerate(batch, mark.next)
        ),
    )
    mark.next += len(batch)
    mark.bytes += sum(pending.size for pending in batch)


def _retain(
    db: sqlite3.Connection, table: str, mark: Watermarks, settings: TopicSettings, now_ms: int, incoming: list[Pending]
) -> None:
    """Remove the oldest records that are too old, or that with `incoming` exceed `retain_bytes`.

    It runs before the append: a file at its limit gets the room from what is removed. Only a prefix is removed, so a
    record with a timestamp in the future keeps later records until then, and nothing is removed too soon.
    """
    if settings.retain_bytes is None and settings.retain_s is None:
        return
    added = sum(pending.size for pending in incoming)
    excess = 0 if settings.retain_bytes is None else mark.bytes + added - settings.retain_bytes
    expired_ms = -1.0 if settings.retain_s is None else now_ms - 1000 * settings.retain_s
    bytes_max = PIECE_BYTES + 2 * added
    cut, freed = mark.first, 0
    oldest = db.execute(
        f"SELECT offset, timestamp_ms, size FROM {table} ORDER BY offset LIMIT ?",
        (PIECE_RECORDS + 2 * len(incoming),),
    )
    for offset, timestamp_ms, size in oldest:
        if not (isinstance(timestamp_ms, int) and isinstance(size, int)):
            cut = offset + 1  # not written by a log: it goes when it is the oldest
            continue
        if freed >= bytes_max or (freed >= excess and timestamp_ms >= expired_ms):
            break
        cut, freed = offset + 1, freed + size
    oldest.close()
    if cut > mark.first:
        db.execute(f"DELETE FROM {table} WHERE offset < ?", (cut,))
        mark.first = cut
        mark.bytes -= freed


def _compact(db: sqlite3.Connection, table: str, mark: Watermarks, batch: list[Pending], now_ms: int) -> None:
    """Remove the records that the batch, just appended, replaces, and tombstones that are old enough."""
    newest = {pending.key: offset for offset, pending in enumerate(batch, mark.next - len(batch))}
    for key, offset in newest.items():
        _drop(db, table, mark, "key = ? AND offset < ?", (key, offset))
    expired_ms = now_ms - 1000 * TOMBSTONE_S
    _drop(
        db,
        table,
        mark,
        f"offset IN (SELECT offset FROM {table} WHERE value IS NULL AND timestamp_ms < ? LIMIT {PIECE_RECORDS})",
        (expired_ms,),
    )


def release_free_pages(db: sqlite3.Connection) -> None:
    """Return pages to the disk when much of the file is free; some stay for the next records."""
    # Both numbers are in the header of the file: to ask for them reads no page.
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    # A quarter stays, or the file would shrink and grow with every sweep of a busy topic.
    spare = max(SPARE_PAGES, pages // 4)
    if free > 2 * spare:
        # One page per statement: it frees a page each time it is stepped, and the sqlite3 module steps it only once.
        for _ in range(min(free - spare, VACUUM_PAGES)):
            db.execute("PRAGMA incremental_vacuum(1)")


def _drop(db: sqlite3.Connection, table: str, mark: Watermarks, where: str, values: tuple[object, ...]) -> None:
    # A row that no log has written may have a size that is no whole number, and infinite ones have no sum.
    size = "CASE typeof(size) WHEN 'integer' THEN size END"
    freed, count = db.execute(f"SELECT total({size}), count(*) FROM {table} WHERE {where}", values).fetchone()
    if count:
        db.execute(f"DELETE FROM {table} WHERE {where}", values)
        mark.bytes -= int(freed)
