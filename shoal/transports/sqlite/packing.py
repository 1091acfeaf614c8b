"""Small rows of the embedded log that share a row, compressed.

A sensor that gives a reading a second makes a row of each, and a client an update of some hundred
bytes every ten seconds. Most of such rows is the same in all of them: names of fields, headers, the
contract, the statement of privacy. Once there are `PACKED_ROWS` of them at the end of a partition,
the flush that brings the last one puts all into one row, which takes about a third of the bytes.

The value of a packed row is a msgpack byte string, where that of a row of a batch is an array: the
rows, as columns in msgpack, compressed with zlib. Everything else of the row is that of a batch:
the offset of the first record, the number of records, the bytes of all before compression, by
which retention counts, and the time of the newest. The rows inside keep their own times.

A damaged row costs all records that are in it, and so does a damaged page of the file, with or
without packing: few rows share one, so that a packed row is no larger than a page.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgpack

PACKED_ROWS = 32
"""rows that are packed into one: with more of them hardly anything is won, and more is lost with
one"""
PACKED_BYTES = 64 * 1024
"""most bytes of the rows of a packed one, before compression"""
PACKED_RECORDS = 1000
"""most records of a packed row, as of one of a batch: a damaged row stands for no more"""
PACKED_ROW_BYTES_MAX = PACKED_BYTES // 16
"""a row of more bytes stays as it is: what rows have in common is little beside it. Updates of
1.2 KB take two fifths packed, those of 3 KB three quarters and those of 5 KB four fifths, and each
row that is packed is written twice"""
KEPT_SHARE = 0.9
"""rows that take more than this part of their bytes packed stay as they are, as sums under masks
do"""
CONTENTS_BYTES_MAX = 2 * PACKED_BYTES
"""most bytes of the rows of a packed one in msgpack; those of many headers have more than they
count"""


class Row(NamedTuple):
    """A row of a partition, without its offset and checksum."""

    timestamp_ms: int
    size: int
    """bytes of key, value and headers, of all its records"""
    key: bytes | None
    headers: bytes | None
    value: bytes | None
    batch_records: int | None

    @property
    def records(self) -> int:
        """Number of records."""
        return self.batch_records or 1


def groups(rows: Sequence[Row], bytes_max: int, span_ms_max: float) -> Iterator[list[Row]]:
    """The rows that are packed together, in their order: of at most `bytes_max` bytes, and no
    further apart than `span_ms_max`, as they are removed together."""
    group: list[Row] = []
    size = 0
    records = 0
    for row in rows:
        full = (
            len(group) == PACKED_ROWS
            or size + row.size > bytes_max
            or records + row.records > PACKED_RECORDS
        )
        if group and (full or row.timestamp_ms - group[0].timestamp_ms > span_ms_max):
            yield group
            group = []
            size = 0
            records = 0
        group.append(row)
        size += row.size
        records += row.records
    if group:
        yield group


def packed(rows: Sequence[Row]) -> Row | None:
    """One row in place of several; None where that saves nothing."""
    if len(rows) < 2:
        return None
    size = sum(row.size for row in rows)
    # By column: what is alike stands together.
    contents = msgpack.packb(list(zip(*rows, strict=True)))
    if len(contents) > CONTENTS_BYTES_MAX:
        return None
    compressed = zlib.compress(contents, zlib.Z_BEST_SPEED)
    if len(compressed) > KEPT_SHARE * size:
        return None
    newest_ms = max(row.timestamp_ms for row in rows)
    records = sum(row.records for row in rows)
    return Row(newest_ms, size, None, None, msgpack.packb(compressed), records)


def is_packed(row: Row) -> bool:
    """Whether a row has the form of a packed one: the value of a row of a batch is an array."""
    is_batch = row.batch_records is not None
    return is_batch and isinstance(row.value, bytes) and row.value[:1] in _BYTES


def unpacked(row: Row) -> list[Row] | None:
    """The rows of a packed one; None for any other row, and for one that no log writes."""
    # The form tells most rows apart before anything is decoded.
    if not is_packed(row) or row.value is None:
        return None
    try:
        contents = _decompressed(msgpack.unpackb(row.value))
        columns = msgpack.unpackb(contents, use_list=False)
        rows = [Row(*values) for values in zip(*columns, strict=True)]
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException):
        return None
    sound = 0 < len(rows) <= PACKED_ROWS and all(map(_is_counted, rows))
    if not sound or sum(inner.records for inner in rows) != row.batch_records:
        return None
    return rows


_BYTES = (b"\xc4", b"\xc5", b"\xc6")
"""first byte of a msgpack byte string"""


def _decompressed(compressed: object) -> bytes:
    """Raises ValueError for more than a log packs: a process may write anything into the file."""
    if not isinstance(compressed, bytes):
        raise ValueError("not packed")
    reader = zlib.decompressobj()
    # One more byte than there may be, so that the end of what is allowed is seen.
    contents = reader.decompress(compressed, CONTENTS_BYTES_MAX + 1)
    if not reader.eof or reader.unused_data:
        raise ValueError("more than a log packs")
    return contents


def _is_counted(row: Row) -> bool:
    """Whether a row inside has a number of records; all else of it is checked as that of any row
    is."""
    records: Any = row.batch_records
    return records is None or (type(records) is int and records > 0)
