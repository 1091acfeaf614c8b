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
from shoal.config.contract import Feature, category_text, ends_text, value_text
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
    """`time`, the features, `cluster`, `name`, `novelty`, `reason`, `version`, and `part` where
    `parts` are asked for.

    A column of ours gets an underscore where a feature has its name.
    """
    taken = {feature.name for feature in features}
    names = []
    for name in ("time", "cluster", "name", "novelty", "reason", "version", *["part"] * parts):
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
        self._rows.writerow(columns_of(features, parts))

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
        self._schema = pyarrow.schema(
            [
                (time, pyarrow.timestamp("us", tz="UTC")),
                *(
                    (value, pyarrow.string() if feature.kind == "category" else pyarrow.float64())
                    for value, feature in zip(values, features, strict=True)
                ),
                (cluster, pyarrow.int64()),
                (name, pyarrow.string()),
                (novelty, pyarrow.float64()),
                (reason, pyarrow.string()),
                (version, pyarrow.int64()),
                *((name, pyarrow.string()) for name in part),
            ]
        )
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema)

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        times = [None if time is None else round(time * MICROSECONDS) for time in block.times]
        values: list[Any] = [
            self._pyarrow.array(column, from_pandas=True) for column in block.values.T
        ]
        for j in _categories(self._features):
            values[j] = [
                None if math.isnan(one) else category_text(one, self._features[j])
                for one in block.values[:, j]
            ]
        columns: list[Any] = [times, *values, *_label_columns(block, self._features, self._parts)]
        self._file.write_table(
            self._pyarrow.table(
                [
                    one
                    if isinstance(one, self._pyarrow.Array)
                    else self._pyarrow.array(one, form.type)
                    for one, form in zip(columns, self._schema, strict=True)
                ],
                schema=self._schema,
            )
        )

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
    """Cluster, name, novelty, reason, version and, where asked for, part of each reading; None
    where there is none."""
    columns: list[list[Any]] = [
        [None if label is None else label.identity for label in block.labels],
        [None if label is None or not label.name else label.name for label in block.labels],
        [None if label is None else label.novelty for label in block.labels],
        [
            _reason(label, row, features)
            for label, row in zip(block.labels, block.values, strict=True)
        ],
        [None if label is None else label.version for label in block.labels],
        [None if label is None or not label.part else label.part for label in block.labels],
    ]
    return columns if parts else columns[:-1]


def _reason(label: Label | None, values: Floats, features: Sequence[Feature]) -> str | None:
    """Why a reading is novel, such as "Light 1540 lux: usual 390-640 in day"; None for one that is
    not."""
    if label is None or not label.usual_in:
        return None
    if not label.reasons:
        return f"each feature is usual in {label.usual_in}, their combination is not"
    named = []
    for reason in label.reasons:
        feature = features[reason.feature]
        ends = ends_text(reason.low, reason.high, feature)
        named.append(
            f"{feature.name} {value_text(float(values[reason.feature]), feature)}: usual {ends}"
        )
    return f"{'; '.join(named)} in {label.usual_in}"


def _categories(features: Sequence[Feature]) -> list[int]:
    return [j for j, feature in enumerate(features) if feature.kind == "category"]


def _rows(block: LabelledBlock, features: Sequence[Feature], parts: bool) -> Iterator[list[Any]]:
    columns = _label_columns(block, features, parts)
    has_gaps = bool(np.isnan(block.values).any())
    categories = _categories(features)
    for read_at, values, *label in zip(block.times, block.values.tolist(), *columns, strict=True):
        there: list[Any] = (
            [None if math.isnan(value) else value for value in values] if has_gaps else values
        )
        for j in categories:
            there[j] = None if there[j] is None else category_text(there[j], features[j])
        yield [None if read_at is None else _iso(read_at), *there, *label]


def _iso(seconds: float) -> str:
    """2026-03-01T08:15:02.500000Z; for every time that a reading can have, also before the year 1."""
    return f"{np.datetime64(round(seconds * MICROSECONDS), 'us')}Z"
