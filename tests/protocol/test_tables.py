"""Packed tables: what was packed comes back, and no bytes of others make more of it than is
allowed."""

from __future__ import annotations

import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.errors import MessageRejected
from shoal.kernels.arrays import Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.history import FEW_ROWS, pack_table, unpack_table

ROWS_MAX = 2 * FEW_ROWS
TABLES = st.tuples(st.integers(0, ROWS_MAX), st.integers(1, 4)).flatmap(
    lambda shape: arrays(
        np.int64, shape, elements=st.integers(-1, 300) | st.integers(-COUNT_MAX, COUNT_MAX)
    )
)


@given(TABLES)
def test_a_table_comes_back_as_it_was_packed(table: Ints) -> None:
    again = unpack_table(pack_table(table), table.shape[1], ROWS_MAX)
    assert again.dtype == np.int64
    assert np.array_equal(again, table)


def test_two_hundred_clients_of_a_thousand_readings_take_less_than_two_bytes_each() -> None:
    readings = np.random.default_rng(1).poisson(1000, 200)
    assert len(pack_table(np.column_stack([np.arange(200), readings]))) < 400


def test_a_table_is_as_the_protocol_describes_it() -> None:
    expected = (
        b"\x02\0\0\0"
        + b"\x01\xff\x05"
        + b"\x02"
        + (7).to_bytes(2, "little")
        + (300).to_bytes(2, "little")
    )
    assert zlib.decompress(pack_table(np.array([[-1, 7], [4, 300]]))) == expected


@given(st.binary(max_size=60), st.integers(1, 3))
def test_any_bytes_are_a_table_within_bounds_or_rejected(contents: bytes, columns: int) -> None:
    for packed in (contents, zlib.compress(contents)):
        with suppress(MessageRejected):
            table = unpack_table(packed, columns, ROWS_MAX)
            assert table.shape[1] == columns
            assert len(table) <= ROWS_MAX


@pytest.mark.parametrize(
    "packed",
    [
        zlib.compress(bytes(100_000_000)),
        pack_table(np.ones((ROWS_MAX + 1, 2), np.int64)),
        pack_table(np.ones((3, 2), np.int64))[:-1],
        pack_table(np.ones((3, 2), np.int64)) + b"more",
        zlib.compress(b"\x01\0\0\0\x03abc\x01a"),
        zlib.compress(b"\x01\0"),
        zlib.compress(b"\x01\0\0\0\x01a"),
        zlib.compress(b"\x01\0\0\0\x01a\x01bc"),
        zlib.compress(b"\x02\0\0\0\x08" + 2 * (b"\xff" * 7 + b"\x7f") + b"\x01ab"),
    ],
    ids=["zeros", "rows", "cut", "longer", "width", "head", "column", "contents", "beyond 64 bits"],
)
def test_what_is_no_table_of_two_columns_is_malformed(packed: bytes) -> None:
    with pytest.raises(MessageRejected, match="malformed"):
        unpack_table(packed, 2, ROWS_MAX)
