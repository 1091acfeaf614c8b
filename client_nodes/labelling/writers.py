"""Write labelled readings as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from shoal.client_nodes.labelling.labelled_readings import LabelledBlock
from shoal.config.contract import (
    Feature,
    category_text,
    ends_text,
    names_without_units,
    value_text,
)
from shoal.errors import (
    MissingExtra,
)
from shoal.files import csv_cell
from shoal.kernels.arrays import Floats
from shoal.protocol.labels import Label

# Arrow and NumPy keep times as whole numbers.
MICROSECONDS = 1e6


class Writer(Protocol):
    """Writes blocks of labelled readings."""

    def write(self, block: LabelledBlock) -> None:
        """Write a row for each reading."""
        ...

    def close(self) -> None:
        """Write what is left; the file itself stays open where the caller has opened it."""
        ...


def columns_of(features: Sequence[Feature], parts: bool = False) -> list[str]:
    """`time`, the features, `cluster`, `name`, `novelty`, `reason`, `version`, and `part`.

    The last one only with `parts`. A column of ours gets an underscore where a feature has its
    name.
    """
    taken = {feature.name for feature in features}
    own = ["time", "cluster", "name", "novelty", "reason", "version"]
    if parts:
        own.append("part")
    names = []
    for name in own:
        unique = name
        while unique in taken:
            unique += "_"
        names.append(unique)
    return [names[0], *(feature.name for feature in features), *names[1:]]


class CsvWriter:
    """CSV with a header; an empty field where there is no value."""

    def __init__(self, file: TextIO, features: Sequence[Feature], parts: bool = False) -> None:
        self._features = features
        self._parts = parts
        self._rows = csv.writer(file, lineterminator="\n")
        # Features have the names of columns of somebody's file.
        self._rows.writerow(map(csv_cell, columns_of(features, parts)))

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        self._rows.writerows(
            [time, *map(csv_cell, rest)]
            for time, *rest in _rows(block, self._features, self._parts)
        )

    def close(self) -> None:
        """Nothing is left to write."""


class JsonLinesWriter:
    """One JSON object per line; null where there is no value."""

    def __init__(self, file: TextIO, features: Sequence[Feature], parts: bool = False) -> None:
        self._file = file
        self._features = features
        self._parts = parts
        self._columns = columns_of(features, parts)

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        for row in _rows(block, self._features, self._parts):
            table = dict(zip(self._columns, row, strict=True))
            # Python would write NaN, which is no JSON; a missing value is null.
            self._file.write(json.dumps(table, ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        """Nothing is left to write."""


class ParquetWriter:
    """A Parquet file: times as timestamps (UTC, microseconds), null where there is no value."""

    def __init__(self, path: Path, features: Sequence[Feature], parts: bool = False) -> None:
        """Raises `MissingExtra` without pyarrow."""
        if importlib.util.find_spec("pyarrow") is None:
            raise MissingExtra("writing Parquet", "parquet")
        import pyarrow  # noqa: PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415 - the same

        self._pyarrow = pyarrow
        self._features = features
        self._parts = parts
        names = columns_of(features, parts)
        time = names[0]
        values = names[1 : len(features) + 1]
        cluster, name, novelty, reason, version, *part = names[len(features) + 1 :]
        columns = [(time, pyarrow.timestamp("us", tz="UTC"))]
        for value, feature in zip(values, features, strict=True):
            is_text = feature.kind == "category"
            columns.append((value, pyarrow.string() if is_text else pyarrow.float64()))
        columns += [
            (cluster, pyarrow.int64()),
            (name, pyarrow.string()),
            (novelty, pyarrow.float64()),
            (reason, pyarrow.string()),
            (version, pyarrow.int64()),
        ]
        columns += [(name, pyarrow.string()) for name in part]
        self._schema = pyarrow.schema(columns)
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema)

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        times = [None if time is None else round(time * MICROSECONDS) for time in block.times]
        values: list[Any] = [
            self._pyarrow.array(column, from_pandas=True) for column in block.values.T
        ]
        for j in _categories(self._features):
            feature = self._features[j]
            values[j] = [
                None if math.isnan(place) else category_text(place, feature)
                for place in block.values[:, j]
            ]
        columns: list[Any] = [times, *values, *_label_columns(block, self._features, self._parts)]
        arrays = []
        for column, form in zip(columns, self._schema, strict=True):
            # Columns of numbers are arrays already, with null for NaN.
            is_array = isinstance(column, self._pyarrow.Array)
            arrays.append(column if is_array else self._pyarrow.array(column, form.type))
        self._file.write_table(self._pyarrow.table(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the end of the file."""
        self._file.close()


TEXT_WRITERS: dict[str, type[CsvWriter | JsonLinesWriter]] = {
    "csv": CsvWriter,
    "jsonl": JsonLinesWriter,
}


def _label_columns(
    block: LabelledBlock, features: Sequence[Feature], parts: bool
) -> list[list[Any]]:
    """Cluster, name, novelty, reason, version and, with `parts`, part of each reading.

    None where there is none.
    """
    columns: list[list[Any]] = [[], [], [], [], [], []]
    for label, values in zip(block.labels, block.values, strict=True):
        cells: list[Any] = [None] * len(columns)
        if label is not None:
            name = label.name or None
            reason = _reason(label, values, features)
            part = label.part or None
            cells = [label.identity, name, label.novelty, reason, label.version, part]
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    return columns if parts else columns[:-1]


def _reason(label: Label, values: Floats, features: Sequence[Feature]) -> str | None:
    """Why a reading is novel, such as "Light 1540 lux: usual 390-640 in day".

    None for one that is not novel, and of a cluster that is not new to the client.
    """
    parts = []
    if label.new_here:
        parts.append(f"new here: on no earlier day in {label.name or f'cluster {label.identity}'}")
    if label.usual_in and not label.reasons:
        parts.append(f"each feature is usual in {label.usual_in}, their combination is not")
    elif label.usual_in:
        parts.append(_outside_text(label, values, features))
    return "; ".join(parts) or None


def _outside_text(label: Label, values: Floats, features: Sequence[Feature]) -> str:
    named = []
    names = names_without_units(features)
    for reason in label.reasons:
        feature = features[reason.feature]
        name = names[reason.feature]
        ends = ends_text(reason.low, reason.high, feature)
        named.append(f"{name} {value_text(float(values[reason.feature]), feature)}: usual {ends}")
    return f"{'; '.join(named)} in {label.usual_in}"


def _categories(features: Sequence[Feature]) -> list[int]:
    return [j for j, feature in enumerate(features) if feature.kind == "category"]


def _rows(block: LabelledBlock, features: Sequence[Feature], parts: bool) -> Iterator[list[Any]]:
    columns = _label_columns(block, features, parts)
    has_gaps = bool(np.isnan(block.values).any())
    categories = _categories(features)
    for time, values, *label in zip(block.times, block.values.tolist(), *columns, strict=True):
        cells: list[Any] = values
        if has_gaps:
            cells = [None if math.isnan(value) else value for value in values]
        for j in categories:
            if cells[j] is not None:
                cells[j] = category_text(cells[j], features[j])
        yield [None if time is None else _iso(time), *cells, *label]


def _iso(seconds: float) -> str:
    """2026-03-01T08:15:02.500000Z; for every time of a reading, also before the year 1."""
    # NumPy's type has years that Python's `datetime` lacks.
    return f"{np.datetime64(round(seconds * MICROSECONDS), 'us')}Z"
