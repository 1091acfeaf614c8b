"""Records in and out of the embedded log's tables: packed for the file, and taken from a position on."""

from __future__ import annotations

import math
import sqlite3
from typing import NamedTuple

import msgpack

from shoal.errors import LogError, OffsetOutOfRange
from shoal.transports.base import Headers, Positions, Record
from shoal.transports.limits import size_of
from shoal.transports.sqlite.topics import Mark, Topic, marks, records_table


class Pending(NamedTuple):
    """One published record on its way into the file. `size`: bytes of key, value and headers."""

    size: int
    key: bytes | None
    headers: bytes | None
    value: bytes | None


def pack(name: str, value: bytes | None, key: bytes | None, headers: Headers) -> Pending:
    """Raises `LogError` now for what the file could not carry later, when others would share the failure."""
    size = size_of(name, value, key, headers)
    packed = msgpack.packb([[title, content] for title, content in headers], buf_size=1024) if headers else None
    return Pending(size, key, packed, value)


def take(
    db: sqlite3.Connection, name: str, topic: Topic, at: Positions, limit: int, bytes_max: int
) -> tuple[list[Record], Positions]:
    """Inside a transaction: up to `limit` records, about `bytes_max` bytes, shared fairly among the partitions."""
    known = marks(db, topic)
    for partition, position in at.items():
        _check_position(name, partition, position, known)
    # Those with least to read come first and leave what they do not need to the others.
    waiting = sorted(at, key=lambda partition: (known[partition].next - at[partition], partition))
    records: list[Record] = []
    after = dict(at)
    for served, partition in enumerate(waiting):
        turns = len(waiting) - served
        share = math.ceil((limit - len(records)) / turns)
        if share == 0 or at[partition] == known[partition].next:
            continue
        source = Source(name, topic, partition)
        taken, after[partition], size = _take_one(
            db, source, at[partition], known[partition].next, share, bytes_max // turns
        )
        records += taken
        bytes_max = max(0, bytes_max - size)
    return records, after


class Source(NamedTuple):
    """One partition of a topic."""

    name: str
    topic: Topic
    partition: int


def _take_one(
    db: sqlite3.Connection, source: Source, position: int, end: int, limit: int, bytes_max: int
) -> tuple[list[Record], int, int]:
    """Records of one partition, where to read next, and their bytes. The first record comes whatever its size."""
    name, topic, partition = source
    records: list[Record] = []
    size = 0
    rows = db.execute(
        f"SELECT offset, timestamp_ms, size, key, headers, value FROM {records_table(topic.number, partition)} "
        "WHERE offset >= ? ORDER BY offset LIMIT ?",
        (position, limit),
    )
    for offset, timestamp_ms, record_bytes, key, headers, value in rows:
        size += record_bytes
        if records and size > bytes_max:
            rows.close()
            return records, offset, size - record_bytes
        records.append(Record(name, partition, offset, timestamp_ms, key, value, _unpack(name, headers)))
    # Fewer than asked for: everything up to the end was seen, also a gap that compaction has left there.
    return records, records[-1].offset + 1 if len(records) == limit else end, size


def _check_position(name: str, partition: int, position: int, known: dict[int, Mark]) -> None:
    if partition not in known:
        raise LogError(f"topic {name!r} has partitions 0 to {len(known) - 1}, not {partition}")
    mark = known[partition]
    if position < 0:
        raise LogError(f"{name}/{partition}: position {position} was asked for; positions begin at 0")
    if position < mark.first:
        raise OffsetOutOfRange(name, partition, position, mark.first)
    if position > mark.next:
        raise LogError(
            f"{name}/{partition}: position {position} was asked for but the log ends at {mark.next}: it is not the log "
            "this position was read from. Give the address of that log, or begin again with a new checkpoint"
        )


def _unpack(name: str, packed: bytes | None) -> Headers:
    if packed is None:
        return ()
    try:
        return tuple((title, content) for title, content in msgpack.unpackb(packed))
    except ValueError as error:
        raise LogError(f"topic {name!r}: a record's headers are damaged; restore a copy of the log") from error
