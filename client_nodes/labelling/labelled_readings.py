"""Export of labelled readings: joins readings with their labels by place, and writes CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np

from client_nodes.intake import Batch, decode_batch
from shoal.config.contract import Feature
from shoal.config.feature_text import category_text, ends_text, value_text
from shoal.errors import MessageRejected, MissingExtra, OffsetOutOfRange
from shoal.files import csv_cell
from shoal.kernels.arrays import Floats
from shoal.protocol.labels import Label, place_of_key
from shoal.protocol.topics import LABELS, READINGS
from shoal.transports.base import Log, Positions, Record, beginning

Place = tuple[int, int]

CHUNK_RECORDS = 1000
ALL_CHUNK_RECORDS = 10_000
GAP_RECORDS = 100
"""readings that lie no further apart are read at once"""
WAIT_S = 0.5


class LabelledBlock(NamedTuple):
    """n readings with their labels."""

    times: list[float | None]
    """event time of each, seconds since 1970"""
    values: Floats
    """(n, d) in the units of the contract; NaN where a value is missing"""
    labels: list[Label | None]
    """None for a reading without one"""


class LabelledReadings:
    """The readings of one client with the labels of one model. Reads only; the client may run meanwhile."""

    def __init__(self, readings: Log, model: str, width: int, gaps: bool = False) -> None:
        """`readings` is the client's own log and has both topics; `width` is the number of features d; `gaps`: readings
        may lack values."""
        self._readings = readings
        self._gaps = gaps
        self._model = model
        self._width = width

    def all(self) -> Iterator[LabelledBlock]:
        """Every reading that the log still has, in order, with its newest label.

        The labels are held in memory, about 300 bytes each. Raises as the log does.
        """
        ends = {partition: end for partition, (_, end) in self._readings.bounds(READINGS).items()}
        labels = dict[Place, bytes]()
        for record in self._records(LABELS):
            place = place_of_key(record.key, self._model)
            if place is not None and record.value is not None:
                labels[place] = record.value
        at = beginning(self._readings, READINGS)
        while any(at[partition] < end for partition, end in ends.items()):
            records, at = self._read(READINGS, at, WAIT_S, ALL_CHUNK_RECORDS)
            batch = decode_batch(
                [one for one in records if one.offset < ends[one.partition]], self._width, gaps=self._gaps
            )
            yield LabelledBlock(batch.times, batch.values, [_label(labels.get(place)) for place in batch.places])

    def follow(self, stop: threading.Event) -> Iterator[LabelledBlock]:
        """Readings in the order in which they are labelled, until `stop` is set; once more if they are labelled again.

        It begins with the labels that the log has.
        """
        at = beginning(self._readings, LABELS)
        while not stop.is_set():
            records, at = self._read(LABELS, at, WAIT_S)
            newest = {place: one.value for one in records if (place := place_of_key(one.key, self._model)) is not None}
            for run in _runs(sorted(newest)):
                batch = self._read_run(run)
                labels = [_label(newest.get(place)) for place in batch.places]
                labelled = [number for number, label in enumerate(labels) if label is not None]
                yield LabelledBlock(
                    [batch.times[number] for number in labelled],
                    batch.values[labelled],
                    [labels[number] for number in labelled],
                )

    def _records(self, topic: str) -> Iterator[Record]:
        """The records of a topic up to its present end."""
        ends = {partition: end for partition, (_, end) in self._readings.bounds(topic).items()}
        at = beginning(self._readings, topic)
        while any(at[partition] < end for partition, end in ends.items()):
            records, at = self._read(topic, at, WAIT_S)
            yield from records

    def _read_run(self, run: Sequence[Place]) -> Batch:
        """The readings from the first place to the last, of one partition."""
        (partition, first), (_, last) = run[0], run[-1]
        records, at = list[Record](), {partition: first}
        while at[partition] <= last and at[partition] < self._readings.bounds(READINGS)[partition][1]:
            more, at = self._read(READINGS, at, WAIT_S, last - at[partition] + 1)
            records += [record for record in more if record.offset <= last]
        return decode_batch(records, self._width, gaps=self._gaps)

    def _read(
        self, topic: str, at: Positions, timeout_s: float, limit: int = CHUNK_RECORDS
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`; what retention removes meanwhile is passed over."""
        while True:
            try:
                return self._readings.read(topic, at, limit, timeout_s)
            except OffsetOutOfRange as gone:
                at = {**at, gone.partition: gone.first}


def _runs(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Ascending places in runs of one partition without large gaps."""
    run: list[Place] = []
    for place in places:
        if run and (place[0] != run[-1][0] or place[1] - run[-1][1] > GAP_RECORDS):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _label(value: bytes | None) -> Label | None:
    """None for a record that is no label, as the reading is still there."""
    if value is None:
        return None
    try:
        return Label.decode(value)
    except MessageRejected:
        return None


MICROSECONDS = 1e6


class Writer(Protocol):
    """Writes blocks of labelled readings."""

    def write(self, block: LabelledBlock) -> None:
        """Write a row for each reading."""
        ...

    def close(self) -> None:
        """Write what is left; the file itself stays open where the caller has opened it."""
        ...


def columns_of(features: Sequence[Feature]) -> list[str]:
    """`time`, the features, `cluster`, `name`, `novelty`, `reason`, `version`.

    A column of ours gets an underscore where a feature has its name.
    """
    taken, names = {feature.name for feature in features}, []
    for name in ("time", "cluster", "name", "novelty", "reason", "version"):
        unique = name
        while unique in taken:
            unique += "_"
        names.append(unique)
    return [names[0], *(feature.name for feature in features), *names[1:]]


class CsvWriter:
    """CSV with a header; an empty field where there is no value."""

    def __init__(self, file: TextIO, features: Sequence[Feature]) -> None:
        self._features = features
        self._rows = csv.writer(file, lineterminator="\n")
        self._rows.writerow(columns_of(features))

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        self._rows.writerows([time, *map(csv_cell, others)] for time, *others in _rows(block, self._features))

    def close(self) -> None:
        """Nothing is left to write."""


class JsonLinesWriter:
    """One JSON object per line; null where there is no value."""

    def __init__(self, file: TextIO, features: Sequence[Feature]) -> None:
        self._file = file
        self._features = features
        self._columns = columns_of(features)

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        for row in _rows(block, self._features):
            table = dict(zip(self._columns, row, strict=True))
            self._file.write(json.dumps(table, ensure_ascii=False, allow_nan=False) + "\n")

    def close(self) -> None:
        """Nothing is left to write."""


class ParquetWriter:
    """A Parquet file: times as timestamps (UTC, microseconds), null where there is no value."""

    def __init__(self, path: Path, features: Sequence[Feature]) -> None:
        """Raises `MissingExtra` without pyarrow."""
        if importlib.util.find_spec("pyarrow") is None:
            raise MissingExtra("writing Parquet", "parquet")
        import pyarrow  # noqa: PLC0415 - an extra
        import pyarrow.parquet  # noqa: PLC0415 - the same

        self._pyarrow, self._features = pyarrow, features
        time, *values, cluster, name, novelty, reason, version = columns_of(features)
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
            ]
        )
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema)

    def write(self, block: LabelledBlock) -> None:
        """See `Writer.write`."""
        times = [None if time is None else round(time * MICROSECONDS) for time in block.times]
        values: list[Any] = [self._pyarrow.array(column, from_pandas=True) for column in block.values.T]
        for j in _categories(self._features):
            values[j] = [
                None if math.isnan(one) else category_text(one, self._features[j]) for one in block.values[:, j]
            ]
        columns: list[Any] = [times, *values, *_label_columns(block, self._features)]
        self._file.write_table(
            self._pyarrow.table(
                [
                    one if isinstance(one, self._pyarrow.Array) else self._pyarrow.array(one, form.type)
                    for one, form in zip(columns, self._schema, strict=True)
                ],
                schema=self._schema,
            )
        )

    def close(self) -> None:
        """Write the end of the file."""
        self._file.close()


TEXT_WRITERS: dict[str, Callable[[TextIO, Sequence[Feature]], Writer]] = {"csv": CsvWriter, "jsonl": JsonLinesWriter}


def _label_columns(block: LabelledBlock, features: Sequence[Feature]) -> list[list[Any]]:
    """Cluster, name, novelty, reason and version of each reading; None where there is none."""
    return [
        [None if label is None else label.identity for label in block.labels],
        [None if label is None or not label.name else label.name for label in block.labels],
        [None if label is None else label.novelty for label in block.labels],
        [_reason(label, row, features) for label, row in zip(block.labels, block.values, strict=True)],
        [None if label is None else label.version for label in block.labels],
    ]


def _reason(label: Label | None, values: Floats, features: Sequence[Feature]) -> str | None:
    """Why a reading is novel, such as "Light 1540 lux: usual 390-640 in day"; None for one that is not."""
    if label is None or not label.usual_in:
        return None
    if not label.reasons:
        return f"each feature is usual in {label.usual_in}, their combination is not"
    named = []
    for reason in label.reasons:
        feature = features[reason.feature]
        ends = ends_text(reason.low, reason.high, feature)
        named.append(f"{feature.name} {value_text(float(values[reason.feature]), feature)}: usual {ends}")
    return f"{'; '.join(named)} in {label.usual_in}"


def _categories(features: Sequence[Feature]) -> list[int]:
    return [j for j, feature in enumerate(features) if feature.kind == "category"]


def _rows(block: LabelledBlock, features: Sequence[Feature]) -> Iterator[list[Any]]:
    columns = _label_columns(block, features)
    has_gaps = bool(np.isnan(block.values).any())
    categories = _categories(features)
    for time, values, *label in zip(block.times, block.values.tolist(), *columns, strict=True):
        there: list[Any] = [None if math.isnan(value) else value for value in values] if has_gaps else values
        for j in categories:
            there[j] = None if there[j] is None else category_text(there[j], features[j])
        yield [None if time is None else _iso(time), *there, *label]


def _iso(time: float) -> str:
    """2026-03-01T08:15:02.500000Z; for every time that a reading can have, also before the year 1."""
    return f"{np.datetime64(round(time * MICROSECONDS), 'us')}Z"
