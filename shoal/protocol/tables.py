"""Packed tables: whole numbers in rows and columns as few bytes, for messages that are kept in great numbers.

A packed table is compressed by zlib (RFC 1950). Within are the number of rows (4 bytes, little-endian), then the
columns, one after the other: 1, 2, 4 or 8, the bytes of each number in it, then its numbers (signed, little-endian). In
all columns but the last each number is the difference from the one above it; the first is itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.errors import MessageRejected
from shoal.protocol.checks import require

Table = NDArray[np.int64]
"""(rows, columns)"""
FORMS: Final[Mapping[int, str]] = {1: "<i1", 2: "<i2", 4: "<i4", 8: "<i8"}
"""bytes of a number -> its type"""
HEAD_BYTES = 4
COMPRESSION_LEVEL = 4
"""a quarter of the time of zlib's own 6; the tables of a bin become 3 % longer"""


def pack_table(table: Table) -> bytes:
    """table (n, columns) -> bytes."""
    parts = [struct.pack("<I", len(table))]
    last = table.shape[1] - 1
    for number, column in enumerate(np.array(table.T, order="C")):
        if number < last:
            column[1:] -= column[:-1].copy()
        low, high = int(column.min(initial=0)), int(column.max(initial=0))
        width = next(width for width in FORMS if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1)
        parts += [bytes([width]), column.astype(FORMS[width]).tobytes()]
    return zlib.compress(b"".join(parts), COMPRESSION_LEVEL)


def unpack_table(packed: bytes, columns: int, rows_max: int) -> Table:
    """bytes -> table (n, columns). Raises `MessageRejected` ("malformed"), also for more rows than `rows_max`."""
    contents = _inflated(packed, HEAD_BYTES + columns * (1 + max(FORMS) * rows_max))
    require(len(contents) >= HEAD_BYTES, "malformed", "a table without a length")
    (rows,) = struct.unpack_from("<I", contents)
    require(rows <= rows_max, "malformed", f"a table of {rows} rows, at most {rows_max}")
    table, place = np.empty((columns, rows), dtype=np.int64), HEAD_BYTES
    for number, column in enumerate(table):
        width = contents[place] if place < len(contents) else 0
        end = place + 1 + width * rows
        require(width in FORMS and end <= len(contents), "malformed", "a table with broken columns")
        column[:] = np.frombuffer(contents, FORMS[width], rows, place + 1)
        if number < columns - 1:
            np.cumsum(column, out=column)
        place = end
    require(place == len(contents), "malformed", "a table with more than its columns")
    return table.T


def _inflated(packed: bytes, bytes_max: int) -> bytes:
    """Never more than `bytes_max`, however much a hostile message would become."""
    inflater = zlib.decompressobj()
    try:
        contents = inflater.decompress(packed, bytes_max)
    except zlib.error:
        raise MessageRejected("malformed", "a table that is not compressed by zlib") from None
    require(inflater.eof and not inflater.unused_data, "malformed", "a table that is too long, or cut off")
    return contents
