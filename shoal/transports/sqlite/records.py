"""Records in the tables of the embedded log: packed for writing, and read from a position on."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from itertools import chain, repeat
from operator import add
from typing import Any, NamedTuple

import msgpack

from shoal.errors import LogError, OffsetOutOfRange
from shoal.transports.base import Headers, Positions, Record, RecordBatch
from shoal.transports.limits import UNREADABLE, size_of
from shoal.transports.sqlite.topics import Topic, Watermarks, records_table, watermarks


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
) -> tuple[list[Record], Positions]:
    """Inside a transaction: up to `limit` records, about `bytes_max` bytes, shared fairly among the partitions."""
    known = watermarks(db, topic)
    for partition, position in at.items():
        _check_position(name, partition, position, known)
    # The partitions with the fewest records come first and leave the rest of their share to the others.
    waiting = sorted(at, key=lambda partition: (known[partition].next - at[partition], partition))
    records: list[Record] = []
    after = dict(at)
    for served, partition in enumerate(waiting):
        left = len(waiting) - served
        share = math.ceil((limit - len(records)) / left)
        if share == 0 or at[partition] == known[partition].next:
            continue
        source = Source(name, topic, partition)
        taken, after[partition], size = _read_partition(
            db, source, at[partition], known[partition].next, share, bytes_max // left
        )
        records += taken
        bytes_max = max(0, bytes_max - size)
    return records, after


class Source(NamedTuple):
    """One partition of a topic."""

    name: str
    topic: Topic
    partition: int


def _read_partition(
    db: sqlite3.Connection, source: Source, position: int, end: int, limit: int, bytes_max: int
) -> tuple[list[Record], int, int]:
    """Records of one partition, the next position, and their bytes. The first record is returned whatever its size."""
    name, topic, partition = source
    records: list[Record] = []
    size = 0
    rows = db.execute(
        f"SELECT offset, timestamp_ms, size, key, headers, value FROM {records_table(topic.number, partition)} "
        "WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?",
        (position, end, limit),
    )
    packed, unpacked = None, _unpacked(None)
    for offset, timestamp_ms, record_bytes, key, headers, value in rows:
        if headers != packed:
            packed, unpacked = headers, _unpacked_after(headers, packed, unpacked)
        if unpacked is None or not _is_sound(timestamp_ms, record_bytes, key, value):
            records.append(Record(name, partition, offset, 0, None, None, ((UNREADABLE, b"not as a log writes it"),)))
            continue
        size += record_bytes
        if records and size > bytes_max:
            rows.close()
            return records, offset, size - record_bytes
        records.append(Record(name, partition, offset, timestamp_ms, key, value, unpacked))
    # Fewer than the limit: everything up to the end was read, also a gap that compaction has left there.
    return records, records[-1].offset + 1 if len(records) == limit else end, size


def _is_sound(timestamp_ms: object, size: object, key: object, value: object) -> bool:
    """Whether a row is as `pack` makes it, its headers aside: a process may write anything into the file."""
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


def _unpacked_after(headers: Any, before: Any, unpacked: Headers | None) -> Headers | None:
    """What `_unpacked` gives, where `before` gave `unpacked`: those of readings differ in the last content alone."""
    if unpacked and isinstance(headers, bytes) and len(headers) == len(before):
        title, content = unpacked[-1]
        # The last content is at the end, and its length is before it.
        kept = len(before) - len(content)
        if headers[:kept] == before[:kept]:
            return (*unpacked[:-1], (title, headers[kept:]))
    return _unpacked(headers)


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
