"""Writes labelled readings as CSV, as JSON lines or as Parquet."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from client_nodes.labelling.labelled_readings import LabelledBlock
from shoal.errors import MissingExtra

MICROSECONDS = 1e6


class Writer(Protocol):
    """Writes blocks of labelled readings."""

    def write(self, block: LabelledBlock) -> None:
        """Write a row for each reading."""
        ...

    def close(self) -> None:
        """Write what is left; the file itself stays open where the caller has opened it."""
        ...


def columns_of(features: Sequence[str]) -> list[str]:
    """`time`, the features, `cluster`, `name`, `novelty`, `version`.

    A column of ours gets an underscore where a feature has its name.
    """
    names = []
    for name in ("time", "cluster", "name", "novelty", "version"):
        unique = name
        while unique in features:
            unique += "_"
        names.append(unique)
    return [names[0], *features, *names[1:]]


class CsvWriter:
    """CSV with a header; an empty field where there is no value."""

    def __init__(self, file: TextIO, features: Sequence[str]) -> None:
        self._rows = csv.writer(file, lineterminator="\n")
        self._rows.writerow(columns_of(features))

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        self._rows.writerows(_rows(block))

    def close(self) -> None:
        """Nothing is left to write."""


class JsonLinesWriter:
    """One JSON object per line; null where there is no value."""

    def __init__(self, file: TextIO, features: Sequence[str]) -> None:
        self._file = file
        self._columns = columns_of(features)

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        for row in _rows(block):
            table = dict(zip(self._columns, row, strict=True))
            self._file.write(json.dumps(table, ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        """Nothing is left to write."""


class ParquetWriter:
    """A Parquet file: times as timestamps (UTC, microseconds), null where there is no value."""

    def __init__(self, path: Path, features: Sequence[str]) -> None:
        """Raises `MissingExtra` without pyarrow."""
        if importlib.util.find_spec("pyarrow") is None:
            raise MissingExtra("writing Parquet", "parquet")
        import pyarrow  # noqa: PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415 - the same

        self._pyarrow = pyarrow
        time, *values, cluster, name, novelty, version = columns_of(features)
        self._schema = pyarrow.schema(
            [
                (time, pyarrow.timestamp("us", tz="UTC")),
                *((value, pyarrow.float64()) for value in values),
                (cluster, pyarrow.int64()),
                (name, pyarrow.string()),
                (novelty, pyarrow.float64()),
                (version, pyarrow.int64()),
            ]
        )
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema)

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        times = [None if time is None else round(time * MICROSECONDS) for time in block.times]
        columns: list[Sequence[Any] | NDArray[np.float64]] = [times, *block.values.T, *_label_columns(block)]
        self._file.write_table(
            self._pyarrow.table(
                [self._pyarrow.array(one, form.type) for one, form in zip(columns, self._schema, strict=True)],
                schema=self._schema,
            )
        )

    def close(self) -> None:
        """Write the end of the file."""
        self._file.close()


TEXT_WRITERS: dict[str, Callable[[TextIO, Sequence[str]], Writer]] = {"csv": CsvWriter, "jsonl": JsonLinesWriter}


def _label_columns(block: LabelledBlock) -> list[list[Any]]:
    """Cluster, name, novelty and version of each reading; None where there is none."""
    return [
        [None if label is None else label.identity for label in block.labels],
        [None if label is None or not label.name else label.name for label in block.labels],
        [None if label is None else label.novelty for label in block.labels],
        [None if label is None else label.version for label in block.labels],
    ]


def _rows(block: LabelledBlock) -> Iterator[list[Any]]:
    for time, values, *label in zip(block.times, block.values.tolist(), *_label_columns(block), strict=True):
        yield [None if time is None else _iso(time), *values, *label]


def _iso(time: float) -> str:
    """2026-03-01T08:15:02.500000Z; for every time that a reading can have, also before the year 1."""
    return f"{np.datetime64(round(time * MICROSECONDS), 'us')}Z"
