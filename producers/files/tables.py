"""Tables: files of readings, row by row. CSV and JSON lines, also compressed, in bounded memory.

A row that cannot be read (ragged, too long, not a JSON object) is given as None and counted in
`faults`: it becomes a reading without values, which the client rejects and counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from shoal.errors import SettingsError
from shoal.producers.files.csv_table import CsvTable
from shoal.producers.files.dialect import (
    FOUND,
    DialectOptions,
)
from shoal.producers.files.json_table import JsonTable
from shoal.producers.files.line_table import LineTable
from shoal.producers.files.rows import Rows

COLUMNS_NAMED_MAX = 12
NAME_CHARS = 64
"""most columns that an error names, and most characters of each"""

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".dat", ".asc", ".prn")
"""suffixes of tables whose cells a sign separates, or runs of spaces"""
LINE_SUFFIXES = (".lp", ".line", ".influx")
"""suffixes of files in the line protocol of InfluxDB"""
Cells = Sequence[Any]


class Table(Protocol):
    """One file of readings."""

    @property
    def path(self) -> Path: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, as in the file; none in an empty file."""
        ...

    def rows(self, wanted: Sequence[str]) -> Iterator[Cells | None]:
        """The cells of the columns `wanted`, row by row; None for a broken row.

        Raises `InvalidData` for a damaged file.
        """
        ...

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """What `rows` gives for `features` and `others` together, in blocks, features apart.

        They are converted where that is quick. Other rows may come in blocks of one, so that no
        fault is counted before its row is given.
        """
        ...

    def row_lines(self) -> Iterator[int]:
        """The line of each row in the file, from 1: the last line of one that has several."""
        ...

    def count(self) -> int:
        """About how many rows there are, quickly."""
        ...


def open_table(
    path: Path, faults: Counter[str], options: DialectOptions = FOUND, numbers: Sequence[str] = ()
) -> Table:
    """The file by its suffix: .csv and its like, .jsonl .ndjson, .lp, each also .gz, and .parquet.

    `options`: what a person says about the dialect of CSV files; `numbers`: the columns that hold
    numbers; empty: all. Raises `SettingsError`.
    """
    if not path.is_file():
        raise SettingsError(f"{path}: no such file")
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in TEXT_SUFFIXES:
        return CsvTable(path, faults, options, numbers)
    if suffix in (".jsonl", ".ndjson", ".json"):
        return JsonTable(path, faults, options)
    if suffix in LINE_SUFFIXES:
        return LineTable(path, faults)
    if suffix in (".parquet", ".pq"):
        from shoal.producers.files.parquet import ParquetTable  # noqa: PLC0415 - an extra

        return ParquetTable(path)
    raise SettingsError(
        f"{path}: files of readings are {' '.join(TEXT_SUFFIXES)} .jsonl .ndjson .lp (each also"
        " .gz) or .parquet"
    )


def require_columns(table: Table, wanted: Sequence[str]) -> None:
    """Raise `SettingsError`, naming the columns, when a wanted one is missing or occurs twice."""
    for name in wanted:
        if table.columns.count(name) == 1:
            continue
        numbered = re.compile(rf"{re.escape(name)} #\d+")
        times = sum(numbered.fullmatch(column) is not None for column in table.columns)
        problem = "is missing"
        if times > 1:
            problem = f"occurs {times} times; take '{name} #1' or another"
        columns = [repr(shortened(column)) for column in table.columns[:COLUMNS_NAMED_MAX]]
        there = ", ".join(columns)
        more = len(table.columns) - COLUMNS_NAMED_MAX
        if more > 0:
            there += f" and {more} more"
        raise SettingsError(f"{table.path}: column {name!r} {problem}; the columns are {there}")


def shortened(name: str) -> str:
    """The beginning of a name of a column; of a file that is no table it may be anything."""
    if len(name) <= NAME_CHARS:
        return name
    return f"{name[: NAME_CHARS - 3]}..."
