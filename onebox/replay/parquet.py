"""Parquet files of readings of many clients, and their readings as Arrow record batches of one
form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal.config.base import check_client_name
from shoal.errors import InvalidData, MissingExtra, SettingsError
from shoal.protocol.checks import MOMENT_MAX

try:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet
except ImportError:
    raise MissingExtra("A replay", "parquet") from None

from shoal.producers.files.parquet import parquet_errors

CLIENT = "client"
TIME = "t"
SEQUENCE = "sequence"
PIECE_ROWS: Final = 1024 * 1024
"""most rows of a piece, which has whole row groups, but at least one group"""
BATCH_ROWS: Final = 128 * 1024
ROWS_PER_FILE: Final = 2**40
"""most rows of a file: the sequence numbers of file f begin at f times this"""


@dataclass(frozen=True)
class Columns:
    """The columns of the files."""

    features: tuple[str, ...]
    """d columns in the order of the contract, with its names"""
    client: str
    time: str
    sequence: str | None = None
    """column that orders readings of one client with one time; None: the order of the files and of
    the rows in them"""

    @property
    def all(self) -> list[str]:
        """Every column that is read, once."""
        return [self.client, self.time, *filter(None, [self.sequence]), *self.features]


class Piece(NamedTuple):
    """Successive row groups of one file."""

    path: Path
    file: int
    """number of the file in the order given"""
    number: int
    """number of the piece in the file"""
    row_groups: tuple[int, ...]
    first_row: int
    """row of the file that is its first one"""


@dataclass(frozen=True)
class ReadingsFile:
    """One Parquet file."""

    path: Path
    rows: int
    digest: str
    """16 hexadecimal digits over its footer, which holds sizes, places and ranges of all columns"""
    rows_of_groups: tuple[int, ...]

    @classmethod
    def open(cls, path: Path, columns: Sequence[str]) -> ReadingsFile:
        """Read the footer. Raises `SettingsError` (a folder, no file or column) and `InvalidData`
        (not Parquet)."""
        if path.is_dir():
            raise SettingsError(f"{path}: a folder; name the files in it: {path / '*.parquet'}")
        if not path.is_file():
            raise SettingsError(f"{path}: no such file")
        with parquet_errors(path), parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            metadata = file.metadata
            rows = tuple(
                int(metadata.row_group(number).num_rows)
                for number in range(metadata.num_row_groups)
            )
            # Changed data change the footer's statistics or sizes: gigabytes need not be read for
            # it.
            footer = metadata.serialized_size
        for column in columns:
            if (times := names.count(column)) != 1:
                found = "is missing" if not times else f"occurs {times} times"
                raise SettingsError(
                    f"{path}: column {column!r} {found}; the columns are {', '.join(names[:12])}"
                )
        with path.open("rb") as raw:
            # 8: the length of the footer and the magic number behind it.
            raw.seek(-min(footer + 8, path.stat().st_size), 2)
            digest = hashlib.sha256(raw.read()).hexdigest()[:16]
        return cls(path, sum(rows), digest, rows)

    def pieces(self, file: int) -> list[Piece]:
        """The file in pieces; `file` is its number."""
        pieces: list[Piece] = []
        groups: list[int] = []
        first = row = 0
        for group, rows in enumerate(self.rows_of_groups):
            # Whole row groups: to read a part of one, all of it is decompressed.
            if groups and row + rows - first > PIECE_ROWS:
                pieces.append(Piece(self.path, file, len(pieces), tuple(groups), first))
                groups = []
                first = row
            groups.append(group)
            row += rows
        if not groups:
            return pieces
        return [*pieces, Piece(self.path, file, len(pieces), tuple(groups), first)]


def schema_of(width: int) -> Any:
    """The form of readings in a replay: client, time in seconds since 1970, sequence number, and d
    = `width` values."""
    values = [(f"x{number}", pa.float64()) for number in range(width)]
    return pa.schema([(CLIENT, pa.string()), (TIME, pa.float64()), (SEQUENCE, pa.int64()), *values])


def scan(piece: Piece, columns: Columns) -> Iterator[Any]:
    """The readings of a piece, in batches of the form `schema_of`. Raises `InvalidData`."""
    row = piece.first_row
    with parquet_errors(piece.path), parquet.ParquetFile(piece.path) as file:
        wanted = list(dict.fromkeys(columns.all))
        for batch in file.iter_batches(
            BATCH_ROWS, row_groups=list(piece.row_groups), columns=wanted
        ):
            if columns.sequence is None:
                first = piece.file * ROWS_PER_FILE + row
                sequence = pa.array(np.arange(first, first + len(batch)))
            else:
                sequence = batch.column(columns.sequence)
            row += len(batch)
            yield normalise(batch, columns, sequence)


def normalise(batch: Any, columns: Columns, sequence: Any) -> Any:
    """A batch with the columns of the files -> one of the form `schema_of`.

    Nulls become NaN, which clients reject. Raises `InvalidData` for readings without a client, a
    time or a number in the sequence, and for names that no client can have.
    """
    clients = batch.column(columns.client).cast(pa.string())
    times = _seconds(batch.column(columns.time), columns.time)
    numbers = _cast(sequence, pa.int64(), columns.sequence or SEQUENCE)
    for array, column in (
        (clients, columns.client),
        (times, columns.time),
        (numbers, columns.sequence),
    ):
        if array.null_count:
            raise InvalidData(
                f"column {column!r} is empty in a row: a replay orders readings by client and time"
            )
    for name in pc.unique(clients).to_pylist():
        # Of each name once and before anything is learnt: a worker that fails halfway wastes hours.
        check_client_name(name)
    # Milliseconds taken for seconds lie beyond it, which is the usual mistake.
    latest = pc.max(pc.abs(times)).as_py()
    if (latest is not None and not latest <= MOMENT_MAX) or pc.any(pc.is_nan(times)).as_py():
        raise InvalidData(
            f"column {columns.time!r} has a time that cannot be; times are seconds since 1970"
        )
    values = [
        _cast(batch.column(name), pa.float64(), name).fill_null(float("nan"))
        for name in columns.features
    ]
    return pa.record_batch([clients, times, numbers, *values], schema=schema_of(len(values)))


def _seconds(times: Any, column: str) -> Any:
    """Seconds since 1970 of times or numbers."""
    if pa.types.is_timestamp(times.type):
        # Nanoseconds are beyond what a float64 can tell apart.
        times = pc.cast(times, pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())
        return pc.divide(times.cast(pa.float64(), safe=False), 1e6)
    return _cast(times, pa.float64(), column)


def _cast(array: Any, wanted: Any, column: str) -> Any:
    if not (
        pa.types.is_integer(array.type)
        or pa.types.is_floating(array.type)
        or pa.types.is_decimal(array.type)
    ):
        raise InvalidData(
            f"column {column!r} is of the type {array.type}; a replay takes numbers, and times as "
            "such"
        )
    try:
        return array.cast(wanted, safe=pa.types.is_integer(wanted))
    except pa.ArrowInvalid:
        raise InvalidData(f"column {column!r} has numbers that are no {wanted}") from None
