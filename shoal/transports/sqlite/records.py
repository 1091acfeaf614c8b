"""Records in the tables of the embedded log: packed, appended, retained and compacted, and read
from a position on.

The records of a batch share rows, which takes a fraction of the time that a row for each of them
does. A row is read, and retained or removed, as a whole; it is small beside what is read at once
and what is retained.

Each row has a checksum of all that is in it. A row that has changed on the disk since it was
written is found when it is read: its records are unreadable ones, and the log goes on behind them.

Retention and compaction bound the file. They run in the writer's own transaction; the work of each
is bounded by what the writer adds.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np

from shoal.errors import LogError, OffsetOutOfRange
from shoal.kernels.arrays import Indices
from shoal.telemetry.events import log_event
from shoal.transports.base import (
    UNREADABLE,
    BytesColumn,
    Headers,
    Positions,
    Record,
    RecordBatch,
    RecordColumns,
    TopicSettings,
    size_of,
)
from shoal.transports.sqlite.packing import (
    PACKED_BYTES,
    PACKED_ROW_BYTES_MAX,
    PACKED_ROWS,
    Row,
    groups,
    is_packed,
    packed,
    unpacked,
)
from shoal.transports.sqlite.schema import (
    Topic,
    Watermarks,
    row_checksum,
    rows_table,
    store_watermarks,
    watermarks,
)

FORMS_MAX = 8
"""most forms of headers among the records of a read; with more, each record is unpacked by itself
"""
FEW_RECORDS = 4
"""most records for which rows of their own, and reading them one by one, are faster"""
ROW_RECORDS_MAX = 1000
ROW_BYTES_MAX = 64 * 1024
"""most records and bytes of a row; a record by itself may have more"""
ROW_SHARE = 64
"""a row has at most this part of the bytes and of the time that are retained, as it is removed as a
whole"""
_COLUMNS = "offset, timestamp_ms, size, key, headers, value, batch_records, checksum"


class Pending(NamedTuple):
    """A buffered row: a record, or several of one batch."""

    size: int
    """bytes of key, value and headers, of all its records"""
    key: bytes | None
    headers: bytes | None
    value: bytes | None
    batch_records: int | None = None
    """number of records of a batch, whose common headers are in `headers` and whose columns are in
    `value`"""

    @property
    def records(self) -> int:
        """Number of records."""
        return self.batch_records or 1


def pack(name: str, value: bytes | None, key: bytes | None, headers: Headers) -> Pending:
    """A record ready for the file. Raises `LogError` for one that would make the flush of all
    buffered ones fail."""
    size = size_of(name, value, key, headers)
    packed = msgpack.packb(headers, buf_size=256) if headers else None
    return Pending(size, key, packed, value)


def row_bytes_max(settings: TopicSettings, buffer_bytes_max: int) -> int:
    """Most bytes of a row of several records of this topic."""
    bytes_max = min(ROW_BYTES_MAX, buffer_bytes_max)
    if settings.retain_bytes is not None:
        bytes_max = min(bytes_max, settings.retain_bytes // ROW_SHARE)
    return bytes_max


def pack_batch(name: str, batch: RecordBatch, bytes_max: int) -> tuple[list[Pending], int]:
    """The records of a batch in rows of about `bytes_max` bytes; and the size of the largest.
    Raises as `pack` does."""
    columns = [batch.values, *(contents for _, contents in batch.varying)]
    alike = len(set(map(len, columns))) == 1 and all(map(_has_bytes, columns))
    if len(batch.values) <= FEW_RECORDS or not alike:  # one by one it is found what is wrong
        single = [pack(name, value, None, headers) for value, headers in batch.records()]
        return single, max((record.size for record in single), default=0)
    titles = [title for title, _ in batch.varying]
    fixed = size_of(name, b"", None, (*batch.headers, *((title, b"") for title in titles)))
    packed = [BytesColumn.of(column) for column in columns]
    sizes = np.full(len(batch.values), fixed, dtype=np.int64)
    for column in packed:
        sizes += column.length or np.array(column.lengths, dtype=np.int64)
    headers = msgpack.packb(batch.headers) if batch.headers else None
    rows = []
    for part, size in _parts(np.cumsum(sizes).tolist(), bytes_max):
        fields = (
            [title, *_packed(column[part])]
            for title, column in zip(("", *titles), packed, strict=True)
        )
        rows.append(
            Pending(
                size,
                None,
                headers,
                msgpack.packb(list(chain.from_iterable(fields))),
                part.stop - part.start,
            )
        )
    return rows, int(sizes.max(initial=0))


def _has_bytes(contents: Sequence[bytes]) -> bool:
    return isinstance(contents, BytesColumn) or {bytes}.issuperset(map(type, contents))


def _parts(ends: Sequence[int], bytes_max: int) -> Iterator[tuple[slice, int]]:
    """Which records of a batch share a row, and their bytes. `ends`: the bytes of each and all
    before it."""
    start = before = 0
    while start < len(ends):
        end = bisect_right(
            ends, before + bytes_max, start + 1, min(len(ends), start + ROW_RECORDS_MAX)
        )
        yield slice(start, end), ends[end - 1] - before
        start = end
        before = ends[end - 1]


def _packed(column: BytesColumn) -> tuple[int | bytes, bytes]:
    """The length of every content, or 4 bytes with the length of each; and the contents."""
    return column.length or np.array(column.lengths, dtype="<u4").tobytes(), column.block


def _unpacked_column(lengths: object, block: object, records: int) -> BytesColumn:
    """The column of this many contents that `_packed` has packed. Raises ValueError for anything
    else."""
    if (
        isinstance(block, bytes)
        and isinstance(lengths, int)
        and lengths > 0
        and lengths * records == len(block)
    ):
        return BytesColumn(block, lengths)
    if isinstance(block, bytes) and isinstance(lengths, bytes) and len(lengths) == 4 * records:
        each = np.frombuffer(lengths, dtype="<u4").tolist()
        if sum(each) == len(block):
            return BytesColumn(block, each)
    raise ValueError("a column that is not as a log writes it")


def read_records(
    db: sqlite3.Connection, name: str, topic: Topic, at: Positions, limit: int, bytes_max: int
) -> tuple[Sequence[Record], Positions, bool]:
    """Up to `limit` records, about `bytes_max` bytes, shared fairly among the partitions, within a
    transaction.

    -> the records, the next positions, and whether nothing is left to read from there.
    """
    known = watermarks(db, topic)
    for partition, position in at.items():
        _check_position(name, partition, position, known)
    # The partitions with the fewest records come first and leave the rest of their share to the
    # others.
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
    # A single part stays as it is: records by column, which are not made one by one.
    records = found[0] if len(found) == 1 else list(chain.from_iterable(found))
    return records, after, ended


class Source(NamedTuple):
    """One partition of a topic."""

    name: str
    topic: Topic
    partition: int

    @property
    def table(self) -> str:
        """The table with its rows."""
        return rows_table(self.topic.number, self.partition)


def _read_partition(
    db: sqlite3.Connection, source: Source, position: int, end: int, limit: int, bytes_max: int
) -> tuple[Sequence[Record], int, int]:
    """Records of one partition, the next position, and their bytes. The first record is returned
    whatever its size."""
    parts: list[Sequence[Record]] = []
    single: list[tuple[Any, ...]] = []
    at = position
    taken = 0
    size = 0
    # Rows are fetched one after the other, as those that are too large together are not to be in
    # memory together.
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM {source.table} WHERE offset >= ? AND offset < ? ORDER BY offset",
        (_first_row(db, source.table, position), end),
    )
    with closing(rows):
        for found in _each_row(rows, source, position):
            offset = found.offset
            row = [offset, *found.row[:-1]]
            batch, record_bytes = _records_in(db, source, found, row, end)
            before = max(0, at - offset)
            row_records = 1 if batch is None else min(len(batch), end - offset)
            n = row_records - before
            if n <= 0:
                continue
            fit = min(n, limit - taken)
            if fit * record_bytes > bytes_max - size:
                # One at least, or a record above the limit would never be read.
                fit_min = 0 if taken else 1
                fit = max((bytes_max - size) // record_bytes, fit_min)
            if fit <= 0:
                at = max(at, offset)
                break
            if batch is None:
                single.append(tuple(row))
            else:
                parts += [*_of_rows(source, single), batch[before : before + fit]]
                single.clear()
            at = offset + before + fit
            taken = taken + fit
            size = size + fit * record_bytes
            if taken == limit or fit < n:
                break
        else:
            at = end  # also past a gap that compaction has left there
    return _joined([*parts, *_of_rows(source, single)]), at, size


class _Together(NamedTuple):
    """The records of a packed row by column: each of its rows has a single one, and is as a log
    writes it."""

    records: RecordColumns
    record_bytes: int
    """bytes of each: they have about the same size"""


class _Unpacked(NamedTuple):
    """What is in a packed row."""

    rows: Sequence[Row]
    together: _Together | None


class _RecentlyUnpacked:
    """The packed rows that were unpacked last, as they were stored, and what is in them.

    A reader that takes few records at a time comes to the same packed row up to `PACKED_ROWS`
    times: a server that stores each update by itself spent a thirtieth of its step on unpacking.
    What is equal to a row that was as written is as written too. Two are kept, as reads of
    partitions take turns; each has `CONTENTS_BYTES_MAX` bytes at most.
    """

    def __init__(self) -> None:
        # Replaced as a whole, as logs of several threads share it.
        self._rows: tuple[tuple[Source, Sequence[Any], _Unpacked], ...] = ()

    def inside(self, source: Source, stored: Sequence[Any]) -> _Unpacked | None:
        """What is in a stored row, if it is known; else None."""
        for known_source, known, inner in self._rows:
            if known == stored and known_source == source:
                return inner
        return None

    def add(self, source: Source, stored: Sequence[Any], inner: _Unpacked) -> None:
        """Keep a packed row that was as written."""
        self._rows = ((source, stored, inner), *self._rows[:1])


_RECENT: Final = _RecentlyUnpacked()


class _Found(NamedTuple):
    """A row that a reader comes to."""

    offset: int
    row: Row
    is_whole: bool
    """whether it is as it was written"""
    together: _Together | None = None
    """what is in a packed row, where it need not be looked at row by row"""


def _records_in(
    db: sqlite3.Connection, source: Source, found: _Found, row: list[Any], end: int
) -> tuple[Sequence[Record] | None, int]:
    """The records of a row of several, None for a row of one; and the bytes of each. `row`: offset
    and columns, which are marked where no log has written them."""
    if found.together is not None:
        return found.together
    if found.is_whole:
        return _as_written(source, row, found.row.batch_records)
    return _damaged(db, source, found.offset, end), 0


def _each_row(rows: Iterable[Sequence[Any]], source: Source, position: int) -> Iterator[_Found]:
    """Each row; in place of a packed one that is not read by column those in it that have records
    from the position on. `rows`: in the order of `_COLUMNS`."""
    for stored in rows:
        offset, *values, checksum = stored
        row = Row(*values)
        inner = _RECENT.inside(source, stored)
        if inner is None:
            if row_checksum(offset, *row) != checksum:
                yield _Found(offset, row, is_whole=False)
                continue
            inner_rows = unpacked(row)
            if inner_rows is None:
                yield _Found(offset, row, is_whole=True)
                continue
            inner = _Unpacked(inner_rows, _together(source, offset, inner_rows))
            _RECENT.add(source, stored, inner)
        if inner.together is not None:
            yield _Found(offset, row, is_whole=True, together=inner.together)
            continue
        offsets = accumulate((inner_row.records for inner_row in inner.rows), initial=offset)
        for inner_offset, inner_row in zip(offsets, inner.rows, strict=False):
            if inner_offset + inner_row.records > position:
                yield _Found(inner_offset, inner_row, is_whole=True)


def _together(source: Source, offset: int, rows: Sequence[Row]) -> _Together | None:
    """The records of the rows of a packed one by column; None where a row has several, or is not as
    a log writes it."""
    times, sizes, keys, headers, values, batch_records = zip(*rows, strict=True)
    if batch_records.count(None) < len(rows):
        return None
    offsets = range(offset, offset + len(rows))
    records = _by_column(source, offsets, (times, sizes, keys, headers, values))
    return None if records is None else _Together(records, sum(sizes) // len(rows))


def _first_row(db: sqlite3.Connection, table: str, position: int) -> int:
    """The offset of the row that may have the record at this position: one that begins there, or
    before it."""
    # Whatever number of records that has, which may be what is damaged.
    row = db.execute(
        f"SELECT offset FROM {table} WHERE offset <= ? ORDER BY offset DESC LIMIT 1", (position,)
    ).fetchone()
    return position if row is None else int(row[0])


def _as_written(
    source: Source, row: list[Any], batch_records: object
) -> tuple[Sequence[Record] | None, int]:
    """The records of a row of several, None for a row of one; and the bytes of each.

    They have about the same size. A row that no log has written counts as without any, since its
    size may be any number.
    """
    if batch_records is None:
        return None, row[2] if _is_sound(row[1], row[2], row[3], row[5]) else 0
    batch = _batch(source, row, batch_records)
    if batch is None:
        row[1] = None  # unreadable, whatever else it has
        return None, 0
    return batch, row[2] // len(batch)


def _damaged(db: sqlite3.Connection, source: Source, offset: int, end: int) -> Sequence[Record]:
    """Unreadable records in place of a row that is not as it was written; a warning says which.

    How many there were is known by the row behind it, as its own number may be what has changed.
    """
    column = "SELECT offset, timestamp_ms FROM"
    before = db.execute(
        f"{column} {source.table} WHERE offset < ? ORDER BY offset DESC LIMIT 1", (offset,)
    ).fetchone()
    behind = db.execute(
        f"{column} {source.table} WHERE offset > ? ORDER BY offset LIMIT 1", (offset,)
    ).fetchone()
    records = 1
    # Compaction leaves gaps behind rows, and those have one record.
    if not source.topic.settings.compact:
        next_offset = end if behind is None else min(behind[0], end)
        records = min(max(next_offset - offset, 1), ROW_RECORDS_MAX)
    log_event(
        "log_row_damaged",
        logging.ERROR,
        topic=source.name,
        partition=source.partition,
        offset=offset,
        records=records,
        written_after=_time_text(before),
        written_before=_time_text(behind),
    )
    unreadable = ((UNREADABLE, b"changed since it was written"),)
    return [
        Record(source.name, source.partition, place, 0, None, None, unreadable)
        for place in range(offset, offset + records)
    ]


def _time_text(row: tuple[Any, ...] | None) -> str:
    """The time of a row, in UTC; empty without one, or where that is no time."""
    if row is None or not isinstance(row[1], int):
        return ""
    try:
        return datetime.fromtimestamp(row[1] / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def _batch(source: Source, row: Sequence[Any], records: object) -> Sequence[Record] | None:
    """The records of a row of a batch; None for one that no log writes."""
    first, timestamp_ms, size, key, headers, value = row
    fixed = _unpacked(headers)
    is_sound = _is_sound(timestamp_ms, size, key, value) and key is None and value is not None
    if not isinstance(records, int) or records < 1 or not is_sound or fixed is None:
        return None
    try:
        fields = msgpack.unpackb(value)
        titles = fields[::3]
        pairs = zip(fields[1::3], fields[2::3], strict=True)
        values, *varying = [_unpacked_column(lengths, block, records) for lengths, block in pairs]
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not all(isinstance(title, str) for title in titles):
        return None
    if len(varying) > 1:
        own = zip(*varying, strict=True)
        headers_of = [(*fixed, *zip(titles[1:], contents, strict=True)) for contents in own]
        return [
            Record(
                source.name,
                source.partition,
                first + place,
                timestamp_ms,
                None,
                content,
                headers_of[place],
            )
            for place, content in enumerate(values)
        ]
    form = fixed
    last: Sequence[bytes]
    if varying:
        last = varying[0]
        form = (*fixed, (titles[1], last[0]))
    elif fixed:
        # Of equal headers the last content is the one that all records have.
        last = [fixed[-1][1]] * records
    else:
        last = [b""] * records
    columns = (range(first, first + records), [timestamp_ms] * records, [None] * records, values)
    return RecordColumns(
        source.name, source.partition, columns, [form], np.zeros(records, dtype=np.intp), last
    )


def _of_rows(source: Source, rows: Sequence[tuple[Any, ...]]) -> list[Sequence[Record]]:
    """The records of these rows, which are of one record each; as one sequence, or none."""
    columns = _in_columns(source, rows) if len(rows) > FEW_RECORDS else None
    if not rows:
        return []
    return [columns or list(_one_by_one(source, rows))]


def _joined(parts: Sequence[Sequence[Record]]) -> Sequence[Record]:
    """The records of all parts, which are of one partition and ascend; by column if all are and
    have few forms."""
    by_column = [part for part in parts if isinstance(part, RecordColumns)]
    if len(parts) == 1:
        return parts[0]
    if not parts or len(by_column) < len(parts):
        return list(chain.from_iterable(parts))
    forms: dict[tuple[Headers, str], tuple[int, Headers]] = {}
    form_of = []
    for part in by_column:
        numbers = []
        for form in part.forms:
            # Of one form are headers that differ in the last content alone.
            last_title = form[-1][0] if form else ""
            number, _ = forms.setdefault((form[:-1], last_title), (len(forms), form))
            numbers.append(number)
        form_of.append(np.array(numbers)[part.form_of])
    if len(forms) > FORMS_MAX:
        return list(chain.from_iterable(parts))
    first = by_column[0].offsets[0]
    end = by_column[-1].offsets[-1] + 1
    offsets: Sequence[int] = range(first, end)
    # Compaction and rows that cannot be read leave gaps.
    if len(offsets) != sum(map(len, by_column)):
        offsets = list(chain.from_iterable(part.offsets for part in by_column))
    columns = (
        offsets,
        list(chain.from_iterable(part.timestamps_ms for part in by_column)),
        list(chain.from_iterable(part.keys for part in by_column)),
        _joined_contents([part.values for part in by_column]),
    )
    last = _joined_contents([part.last_contents or [b""] * len(part) for part in by_column])
    of_all = [form for _, form in forms.values()]
    return RecordColumns(
        by_column[0].topic, by_column[0].partition, columns, of_all, np.concatenate(form_of), last
    )


def _joined_contents(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Contents of all parts; in one block if those of each are."""
    blocks = [part for part in parts if isinstance(part, BytesColumn)]
    if len(blocks) < len(parts):
        return list(chain.from_iterable(parts))
    lengths = {part.length for part in blocks}
    length = lengths.pop() if len(lengths) == 1 else None
    return BytesColumn(
        b"".join([part.block for part in blocks]),
        length or list(chain.from_iterable(part.lengths for part in blocks)),
    )


def _in_columns(source: Source, rows: Sequence[tuple[Any, ...]]) -> RecordColumns | None:
    """The records of these rows; None unless all rows are sound, and their headers are of few
    forms."""
    if not rows:
        return None
    offsets, *columns = zip(*rows, strict=True)
    return _by_column(source, offsets, columns)


def _by_column(
    source: Source, offsets: Sequence[int], columns: Sequence[Sequence[Any]]
) -> RecordColumns | None:
    """The same; `columns`: times, sizes, keys, headers and values of the rows."""
    times, sizes, keys, headers, values = columns
    # Types by column, in a few calls: a check of each row would take longer than reading it.
    kinds = [set(map(type, column)) for column in (times, sizes, keys, headers, values)]
    if kinds[0] | kinds[1] != {int} or min(sizes) < 0 or kinds[3] not in ({bytes}, {type(None)}):
        return None
    if not {bytes, type(None)}.issuperset(kinds[2] | kinds[4]):
        return None
    found = forms_of(headers)
    if found is None:
        return None
    return RecordColumns(source.name, source.partition, (offsets, times, keys, values), *found)


def forms_of(
    packed: Sequence[bytes | None],
) -> tuple[list[Headers], Indices, Sequence[bytes]] | None:
    """The forms of packed headers, which form each one has, and its last content; None for more
    than `FORMS_MAX`."""
    form_of = np.zeros(len(packed), dtype=np.intp)
    headers = [pairs for pairs in packed if pairs is not None]
    if not headers:
        return [()], form_of, ()
    if len(headers) == len(packed) and headers.count(headers[0]) == len(headers):
        form = _unpacked(headers[0])
        if form is None:
            return None
        last_content = form[-1][1] if form else b""
        return [form], form_of, [last_content] * len(headers)
    lengths = np.fromiter(map(len, headers), np.intp, len(headers))
    forms: list[Headers] = []
    last_contents = np.empty(len(headers), dtype=object)
    # np.unique would load numpy.ma, a megabyte that a small client needs for nothing else.
    # Headers of one length are compared as one table of bytes.
    for length in sorted(set(lengths.tolist())):
        left = np.flatnonzero(lengths == length)
        bits = np.frombuffer(b"".join([headers[place] for place in left]), np.uint8).reshape(
            -1, length
        )
        while len(left):
            form = _unpacked(headers[left[0]])
            if form is None or len(forms) == FORMS_MAX:
                return None
            # The last content is at the end, and its length is before it.
            last_length = len(form[-1][1]) if form else 0
            kept = length - last_length
            same = (bits[:, :kept] == bits[0, :kept]).all(axis=1)
            last_contents[left[same]] = [headers[place][kept:] for place in left[same]]
            form_of[left[same]] = len(forms)
            forms.append(form)
            left = left[~same]
            bits = bits[~same]
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
    """Whether a row, its headers aside, is as `pack` makes it: a process may write anything into
    the file."""
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
        raise LogError(
            f"{name}/{partition}: position {position} was asked for; positions begin at 0"
        )
    if position < mark.first:
        raise OffsetOutOfRange(name, partition, position, mark.first)
    if position > mark.next:
        raise LogError(
            f"{name}/{partition}: position {position} was asked for but the log ends at "
            f"{mark.next}: this is not the log that the position is from. Give the address of "
            "that log, or start again with a new checkpoint"
        )


MIB = 1024 * 1024
PIECE_RECORDS = 20_000
PIECE_BYTES = 64 * MIB
"""bytes: a flush removes at most this and twice what it adds, so over many flushes removing keeps
up with adding"""
KEYS_MAX = 200
"""keys in a statement"""
TOMBSTONE_S = 24 * 3600.0
"""seconds for which a compacted topic keeps a tombstone, so that a reader that was not running sees
it"""


def store(
    db: sqlite3.Connection,
    topic: Topic,
    partition: int,
    mark: Watermarks,
    batch: list[Pending],
    now_ms: int,
) -> None:
    """Append `batch`, perhaps empty, to a partition, and apply retention and compaction to it,
    within a transaction."""
    table = rows_table(topic.number, partition)
    before = replace(mark)
    # Retention first, so that a file at its limit has room for the batch.
    _retain(db, table, mark, topic.settings, now_ms, batch)
    _append(db, table, mark, batch, now_ms, topic.settings)
    if topic.settings.compact:
        _compact(db, table, mark, batch, now_ms)
    if mark != before:
        store_watermarks(db, topic, partition, mark)


def _append(
    db: sqlite3.Connection,
    table: str,
    mark: Watermarks,
    batch: list[Pending],
    now_ms: int,
    settings: TopicSettings,
) -> None:
    rows = [Row(now_ms, *pending) for pending in batch]
    first = mark.next
    mark.next += sum(row.records for row in rows)
    mark.bytes += sum(row.size for row in rows)
    if settings.compact or any(row.size > PACKED_ROW_BYTES_MAX for row in rows):
        # A key of a compacted topic is found by its column.
        mark.loose = 0
    elif mark.loose + len(rows) < PACKED_ROWS:
        mark.loose += len(rows)
    else:
        first, rows = _packed_with_loose(db, table, mark, first, rows, settings)
        mark.loose = 0
    offsets = accumulate((row.records for row in rows), initial=first)
    db.executemany(
        f"INSERT INTO {table} ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (offset, *row, row_checksum(offset, *row))
            for offset, row in zip(offsets, rows, strict=False)
        ],
    )


def _packed_with_loose(
    db: sqlite3.Connection,
    table: str,
    mark: Watermarks,
    first: int,
    rows: list[Row],
    settings: TopicSettings,
) -> tuple[int, list[Row]]:
    """The rows to append at `first`, packed with the loose ones before them, which are removed; and
    where they begin then."""
    loose = _loose_rows(db, table, mark, first)
    if loose:
        # Removed before anything is written: a full file has their room.
        first = loose[0][0]
        db.execute(f"DELETE FROM {table} WHERE offset >= ?", (first,))
        rows = [*(row for _, row in loose), *rows]
    bytes_max = row_bytes_max(settings, PACKED_BYTES)
    span_ms_max = math.inf if settings.retain_s is None else 1000 * settings.retain_s / ROW_SHARE
    together: list[Row] = []
    for group in groups(rows, bytes_max, span_ms_max):
        row = packed(group)
        if row is None:
            together.extend(group)
        else:
            together.append(row)
    return first, together


def _loose_rows(
    db: sqlite3.Connection, table: str, mark: Watermarks, end: int
) -> list[tuple[int, Row]]:
    """The rows at the end of a partition that are to be packed, with their offsets; none unless all
    are as they were written, as a packed row says so of what is in it."""
    newest = db.execute(
        f"SELECT {_COLUMNS} FROM {table} ORDER BY offset DESC LIMIT ?",
        # A number in the file may be any.
        (min(max(mark.loose, 0), PACKED_ROWS),),
    ).fetchall()
    loose = []
    for offset, *values, checksum in newest:
        row = Row(*values)
        if is_packed(row):
            # The number of loose rows was too large: a packed row inside another is not read.
            break
        written = row_checksum(offset, *row)
        if written is None or written != checksum or not _is_packable(row):
            return []
        if offset + row.records != end:
            return []
        loose.append((offset, row))
        end = offset
    return loose[::-1]


def _is_packable(row: Row) -> bool:
    """Whether a row is one that a log writes, so that none of another process makes those beside it
    unreadable."""
    counted = row.batch_records is None or row.batch_records > 0
    return counted and _is_sound(row.timestamp_ms, row.size, row.key, row.value)


def _retain(
    db: sqlite3.Connection,
    table: str,
    mark: Watermarks,
    settings: TopicSettings,
    now_ms: int,
    incoming: list[Pending],
) -> None:
    """Remove the oldest rows that are too old, or that with `incoming` exceed `retain_bytes`.

    It runs before the append: a file at its limit gets the room from what is removed. Only a prefix
    is removed, so a record with a timestamp in the future keeps later records until then, and
    nothing is removed too soon.
    """
    if settings.retain_bytes is None and settings.retain_s is None:
        return
    added = sum(pending.size for pending in incoming)
    excess = 0 if settings.retain_bytes is None else mark.bytes + added - settings.retain_bytes
    expired_ms = -1.0 if settings.retain_s is None else now_ms - 1000 * settings.retain_s
    bytes_max = PIECE_BYTES + 2 * added
    cut = mark.first
    last = None
    freed = 0
    oldest = db.execute(
        f"SELECT offset, timestamp_ms, size, batch_records FROM {table} ORDER BY offset LIMIT ?",
        (PIECE_RECORDS + 2 * sum(pending.records for pending in incoming),),
    )
    for offset, timestamp_ms, size, batch_records in oldest:
        if not (isinstance(timestamp_ms, int) and isinstance(size, int)):
            # not written by a log: it goes when it is the oldest
            cut = offset + 1
            last = offset
            continue
        if freed >= bytes_max or (freed >= excess and timestamp_ms >= expired_ms):
            break
        records = 1
        if isinstance(batch_records, int) and batch_records > 0:
            records = batch_records
        cut = min(offset + records, mark.next)
        last = offset
        freed = freed + size
    oldest.close()
    if last is not None:
        db.execute(f"DELETE FROM {table} WHERE offset <= ?", (last,))
        mark.first = max(cut, mark.first)
        mark.bytes -= freed


def _compact(
    db: sqlite3.Connection, table: str, mark: Watermarks, batch: list[Pending], now_ms: int
) -> None:
    """Remove the records that the batch, just appended, replaces, and tombstones that are old
    enough."""
    first = mark.next - len(batch)
    newest = {pending.key: offset for offset, pending in enumerate(batch, first)}
    if len(newest) == len(batch):
        # What was there before the batch; two statements for each key would take far longer.
        keys = list(newest)
        for start in range(0, len(keys), KEYS_MAX):
            some = keys[start : start + KEYS_MAX]
            places = ", ".join("?" * len(some))
            _drop(db, table, mark, f"key IN ({places}) AND offset < ?", (*some, first))
    else:
        for key, offset in newest.items():
            _drop(db, table, mark, "key = ? AND offset < ?", (key, offset))
    expired_ms = now_ms - 1000 * TOMBSTONE_S
    _drop(
        db,
        table,
        mark,
        f"offset IN (SELECT offset FROM {table} WHERE value IS NULL AND timestamp_ms < ? LIMIT "
        f"{PIECE_RECORDS})",
        (expired_ms,),
    )


def _drop(
    db: sqlite3.Connection, table: str, mark: Watermarks, where: str, values: tuple[object, ...]
) -> None:
    # A row that no log has written may have a size that is no whole number, and infinite ones have
    # no sum.
    size = "CASE typeof(size) WHEN 'integer' THEN size END"
    freed, count = db.execute(
        f"SELECT total({size}), count(*) FROM {table} WHERE {where}", values
    ).fetchone()
    if count:
        db.execute(f"DELETE FROM {table} WHERE {where}", values)
        mark.bytes -= int(freed)
