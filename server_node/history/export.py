"""Writes the history as CSV, as JSON lines or as Parquet: one row for each bin and cluster, or bin and client."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from server_node.history.summary import client_name
from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file
from shoal.protocol.history import NO_CLUSTER, HistoryBin, HistoryNames, pairs

Row = list[Any]
"""values in the order of `COLUMNS`; the time in seconds since 1970"""
PARQUET: Final = "parquet"
FORMATS: Final = ("csv", "jsonl", PARQUET)
COLUMNS: Final = {
    "clusters": {
        "time": "time",
        "seconds": "int64",
        "cluster": "int64",
        "name": "string",
        "label": "string",
        "readings": "int64",
        "share": "float64",
    },
    "clients": {"time": "time", "seconds": "int64", "client": "string", "readings": "int64", "share": "float64"},
}
"""what is written -> column -> type"""
BLOCK_ROWS = 10_000
SHARE_DIGITS = 6


def rows_of(one: HistoryBin, names: HistoryNames | None, what: str) -> Iterator[Row]:
    """The rows of a bin, the largest first. Readings of no known cluster have no cluster, name or label."""
    counts = pairs(one.clusters if what == "clusters" else one.clients)
    total = sum(readings for _, readings in counts)
    titles = {} if names is None else {identity: [name, label] for identity, name, label in names.clusters}
    for number, readings in sorted(counts, key=lambda pair: (-pair[1], pair[0])):
        if what == "clients":
            who: Row = [client_name(number, [] if names is None else names.clients)]
        else:
            who = [None, None, None] if number == NO_CLUSTER else [number, *titles.get(number, ["", ""])]
        yield [one.start, one.width_s, *who, readings, round(readings / total, SHARE_DIGITS) if total else 0.0]


def write_rows(rows: Iterable[Row], form: str, out: Path | None, what: str) -> None:
    """Write all rows to `out`, where the file appears whole, or to standard output.

    Raises `SettingsError` for a file that cannot be written, and `MissingExtra` without pyarrow.
    """
    if out is None:
        return _write_text(rows, form, sys.stdout, what)
    try:
        with atomic_file(out, replace=True) as path:
            if form == PARQUET:
                _write_parquet(rows, path, what)
            else:
                with path.open("w", encoding="utf-8", newline="") as text:
                    _write_text(rows, form, text, what)
    except OSError as error:
        raise SettingsError(f"{out}: cannot be written: {error.strerror}") from None


def _write_text(rows: Iterable[Row], form: str, text: Any, what: str) -> None:
    columns = list(COLUMNS[what])
    table = csv.writer(text, lineterminator="\n")
    if form == "csv":
        table.writerow(columns)
    for start, *values in rows:
        row = [f"{np.datetime64(start, 's')}Z", *values]
        if form == "csv":
            table.writerow(row)
        else:
            text.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def _write_parquet(rows: Iterable[Row], path: Path, what: str) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("writing Parquet", "parquet")
    import pyarrow  # noqa: PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415 - the same

    kinds = {"time": pyarrow.timestamp("s", tz="UTC")}
    schema = pyarrow.schema(
        [(name, kinds.get(kind) or getattr(pyarrow, kind)()) for name, kind in COLUMNS[what].items()]
    )
    left = iter(rows)
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        while block := list(islice(left, BLOCK_ROWS)):
            columns = [
                pyarrow.array(column, form.type) for column, form in zip(zip(*block, strict=True), schema, strict=True)
            ]
            file.write_table(pyarrow.table(columns, schema=schema))
