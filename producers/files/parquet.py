"""Parquet files, batch by batch.

It needs the extra `parquet`, so that nothing else may import this file at its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import InvalidData, MissingExtra, SettingsError
from shoal.producers.files.rows import NumberRows, Row, Rows

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError:
    raise MissingExtra("Parquet replay", "parquet") from None

# A reader holds one batch: a file of any size takes a few megabytes.
BATCH_ROWS = 4096
"""most rows of a batch"""
BATCH_BYTES = 64 * 1024**2
"""most bytes of the file that it is made of"""


class ParquetTable:
    """Parquet file as a `Table` (`shoal.producers.files.tables`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with parquet_errors(path), parquet.ParquetFile(path) as file:
            self.columns: tuple[str, ...] = tuple(file.schema_arrow.names)
            self._rows = int(file.metadata.num_rows)
            row_bytes = 1.0
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                # By the size before compression, which a batch has in memory, and the group with
                # the longest rows.
                row_bytes = max(row_bytes, group.total_byte_size / max(1, group.num_rows))
            self._batch_rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / row_bytes)))
            # Kept once each: a long text repeated is a few bytes of the file.
            self._texts = [
                column.name for column in file.schema_arrow if pa.types.is_string(column.type)
            ]

    def rows(self, wanted: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """See `Table.rows`; no row of a Parquet file is broken."""
        names = list(dict.fromkeys(wanted))
        with parquet_errors(self.path), self._open() as file:
            for batch in file.iter_batches(batch_size=self._batch_rows, columns=names):
                cells = {name: _cells(batch.column(name)) for name in names}
                yield from zip(*(cells[name] for name in wanted), strict=True)

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """See `Table.blocks_apart`."""
        names = list(dict.fromkeys((*features, *others)))
        with parquet_errors(self.path), self._open() as file:
            for batch in file.iter_batches(batch_size=self._batch_rows, columns=names):
                columns = [batch.column(name) for name in features]
                cells = [_cells(batch.column(name)) for name in others]
                own: Sequence[tuple[Any, ...]] = [()] * batch.num_rows
                if cells:
                    own = list(zip(*cells, strict=True))
                if all(map(_holds_numbers, columns)):
                    numbers = np.column_stack([column.to_numpy() for column in columns])
                    yield NumberRows(numbers.astype(np.float64, copy=False), own)
                else:
                    yield list(map(Row, zip(*map(_cells, columns), strict=True), own))

    def _open(self) -> Any:
        return parquet.ParquetFile(self.path, read_dictionary=self._texts)

    def row_lines(self) -> Iterator[int]:
        """See `Table.row_lines`: the numbers of the rows."""
        return iter(range(1, self._rows + 1))

    def count(self) -> int:
        """See `Table.count`; exact."""
        return self._rows


def _holds_numbers(column: Any) -> bool:
    """Whether every cell is a float, so that the array has the numbers that the cells give."""
    are_floats = pa.types.is_float32(column.type) or pa.types.is_float64(column.type)
    return bool(column.null_count == 0 and are_floats)


def _cells(column: Any) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        # Each text becomes an object of Python once, however many rows have it.
        texts = column.dictionary.to_pylist()
        return [None if place is None else texts[place] for place in column.indices.to_pylist()]
    if pa.types.is_timestamp(column.type):
        # Nanoseconds have no Python type, and a zone only says how to show the instant:
        # microseconds, UTC.
        column = column.cast(pa.timestamp("us"), safe=False)
    cells: list[Any] = column.to_pylist()
    return cells


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Raise errors of pyarrow and of the file inside as `InvalidData`, and what is lacking here, a
    codec or a right, as `SettingsError`."""
    try:
        yield
    except pa.ArrowNotImplementedError:
        raise SettingsError(
            f"{path}: the pyarrow installed here lacks its codec or its types; install a newer"
            " pyarrow, or write the file with compression snappy or zstd"
        ) from None
    except PermissionError:
        raise SettingsError(f"{path}: this user may not read it; give it the right to") from None
    except (pa.ArrowException, OSError) as broken:
        raise InvalidData(
            f"{path}: not a Parquet file, or damaged ({type(broken).__name__}). Fetch it again"
        ) from None
