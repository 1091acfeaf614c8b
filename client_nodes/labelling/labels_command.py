"""`shoal labels`: exports readings with the labels that a client has given to them, and labels all
of them again.

Labels and readings are joined by place, and written as CSV, JSON lines or Parquet.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import click
import numpy as np

from shoal.cli.options import CLIENT_NAME, chosen_model, config_option, json_option, note_written
from shoal.client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, open_checkpoint
from shoal.client_nodes.intake import Batch, decode_batch, positions_in
from shoal.client_nodes.labelling.labeller import Labeller
from shoal.client_nodes.labelling.waiting import sequences_of
from shoal.client_nodes.learner import saved_sequence_halves
from shoal.client_nodes.node import LABELS_PART, required_values
from shoal.client_nodes.publisher import OwnUpdates, all_headers, make_signer
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.base import check_client_name
from shoal.config.contract import Feature, category_text, ends_text, value_text
from shoal.config.settings import Config, load_config
from shoal.errors import (
    CheckpointInUse,
    MessageRejected,
    MissingExtra,
    OffsetOutOfRange,
    SettingsError,
)
from shoal.files import atomic_file, csv_cell
from shoal.kernels.arrays import Floats
from shoal.privacy import load_or_create_key
from shoal.protocol.labels import Label, place_of_key
from shoal.protocol.published_contract import contract_in
from shoal.protocol.signatures import read_client_key
from shoal.protocol.topics import (
    LABELS,
    READINGS,
    ensure_label_topics,
    ensure_topics,
    readings_settings,
)
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint, Outbox, check_required
from shoal.runtime.logs import check_separate, open_client_log, open_federation_log
from shoal.runtime.service import stopped_by_signals
from shoal.transports.base import Log, Positions, Record, beginning

Place = tuple[int, int]

CHUNK_RECORDS = 1000
ALL_CHUNK_RECORDS = 10_000
GAP_RECORDS = 100
"""readings that lie no further apart are read at once"""
# A command that follows labels looks this often whether it is to stop.
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
    """The readings of one client with the labels of one model. Reads only; the client may run
    meanwhile."""

    def __init__(self, readings: Log, model: str, width: int, gaps: bool = False) -> None:
        """`readings` is the client's own log and has both topics; `width` is the number of features
        d; `gaps`: readings may lack values."""
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
                [one for one in records if one.offset < ends[one.partition]],
                self._width,
                gaps=self._gaps,
            )
            yield LabelledBlock(
                batch.times, batch.values, [_label(labels.get(place)) for place in batch.places]
            )

    def follow(self, stop: threading.Event) -> Iterator[LabelledBlock]:
        """Readings in the order in which they are labelled, until `stop` is set; once more if they
        are labelled again.

        It begins with the labels that the log has.
        """
        at = beginning(self._readings, LABELS)
        while not stop.is_set():
            records, at = self._read(LABELS, at, WAIT_S)
            newest = {
                place: one.value
                for one in records
                if (place := place_of_key(one.key, self._model)) is not None
            }
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
        (partition, first) = run[0]
        (_, last) = run[-1]
        records = list[Record]()
        at = {partition: first}
        while (
            at[partition] <= last and at[partition] < self._readings.bounds(READINGS)[partition][1]
        ):
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


def relabel_readings(config: Config, client: str) -> dict[str, int | None]:
    """model -> labels written; None for a model without a snapshot that knows a cluster.

    The labels are made in pieces, each saved as a client saves its own: what a kill leaves undone,
    the client does when it is started, or the next call. Raises `SettingsError` for a client that
    has never run, `CheckpointInUse` while it runs, and as a client does.
    """
    path = config.client.folder / check_client_name(client) / CHECKPOINT
    if not path.exists():
        raise SettingsError(
            f"{path} is missing: no client {client} has run here; check --name and [client] folder"
        )
    with ExitStack() as stack:
        try:
            checkpoint = stack.enter_context(open_checkpoint(config, client))
        except CheckpointInUse:
            raise CheckpointInUse(
                f"{path}: in use by another process; stop client {client}, relabel, then start it again"
            ) from None
        readings = stack.enter_context(closing(open_client_log(config, client)))
        log = stack.enter_context(closing(open_federation_log(config)))
        check_separate(readings, log)
        ensure_topics(log, config.contract, config.log, config.client.publish_labels)
        return _relabel(config, client, checkpoint, readings, log)


def _relabel(
    config: Config, client: str, checkpoint: Checkpoint, readings: Log, log: Log
) -> dict[str, int | None]:
    contract = contract_in(log, config.resolved)
    state = checkpoint.load()
    if state is None:
        return dict.fromkeys(contract.models, 0)
    check_required(state, required_values(contract.digest, readings.identity(READINGS)))
    snapshots = Snapshots(config.contract, Validator(contract), log)
    key = load_or_create_key(config.client.folder / client / NOISE_KEY)
    halves = saved_sequence_halves(contract, state["learner"])
    sequences = sequences_of(contract, halves, key, client, readings.identity(READINGS))
    labeller = Labeller(contract, client, config.client, snapshots, readings, sequences)
    labeller.ensure_topics()
    if LABELS_PART in state:
        labeller.restore(state[LABELS_PART])
    labeller.follow()
    can = labeller.label_again(positions_in(state["intake"]), beginning(readings, READINGS))
    # The outbox may still have updates of the client: they are published as the client publishes
    # them.
    signer = make_signer(read_client_key(config.client.signing_key_file, client))
    outbox = Outbox(
        checkpoint, log, all_headers(OwnUpdates(log, contract, client, key).headers, signer)
    )
    labels = dict.fromkeys(can, 0)
    while labeller.has_work:
        done = labeller.label_backlog()
        readings.flush()
        for model, number in done.labels_of.items():
            labels[model] += number
        outbox.store({**state, LABELS_PART: labeller.state()}, done.records, time.time())
        if config.client.publish_labels:
            outbox.publish_pending()
    return {model: number if can[model] else None for model, number in labels.items()}


PARQUET = "parquet"

name_option = click.option(
    "--name", required=True, type=CLIENT_NAME, metavar="NAME", help="The client's name."
)


@click.group()
def labels() -> None:
    """The labels that a client has given to its own readings: cluster, name, novelty."""


@labels.command()
@config_option
@name_option
@click.option(
    "--format",
    "form",
    type=click.Choice([*TEXT_WRITERS, PARQUET]),
    default="csv",
    show_default=True,
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file. [default: standard output]",
)
@click.option(
    "--model", metavar="NAME", help="The model that labelled. [default: the first one of the file]"
)
@click.option(
    "--follow",
    is_flag=True,
    help="Write readings as they are labelled, until Ctrl-C (csv and jsonl).",
)
@click.option(
    "--parts",
    is_flag=True,
    help="One more column: the part of the only cluster that a reading lies in.",
)
def export(
    file: Path, name: str, form: str, out: Path | None, model: str | None, follow: bool, parts: bool
) -> None:
    """Write the readings that a client's log still has, each with its label, to a file.

    The columns are time (UTC), the features, and by the newest label: cluster (its lasting
    identity), name, novelty, reason (of a novel reading: the features farthest outside the usual
    values of its cluster) and version (of the snapshot). They are empty for a reading that is not
    labelled, or whose cluster is not known. The client may run meanwhile. The file has raw
    readings: keep it on the client's site.
    """
    config = load_config(file)
    chosen = chosen_model(model, config.resolved.models, file)
    if form == PARQUET and (follow or out is None):
        raise SettingsError("parquet needs --out FILE and cannot --follow; csv and jsonl can")
    written = 0
    with _client_log(config, name, chosen) as readings, stopped_by_signals() as stop:
        table = LabelledReadings(
            readings, chosen, config.contract.width, config.contract.learns_gaps
        )
        with _writer(form, out, follow, config.contract.features, parts) as (writer, flush):
            for block in table.follow(stop) if follow else table.all():
                writer.write(block)
                written += len(block.labels)
                if follow:
                    flush()
                elif stop.is_set():
                    raise click.Abort
    note_written(out, written, "reading")


@labels.command()
@config_option
@name_option
@json_option
def relabel(file: Path, name: str, as_json: bool) -> None:
    """Label again all readings that a client's log still has, by the newest snapshot of every
    model.

    Stop the client before, and start it again afterwards. Novelty is computed again too, in the
    order of the readings.
    """
    config = load_config(file)
    done = relabel_readings(config, name)
    if as_json:
        click.echo(json.dumps(done))
        return
    for model, number in done.items():
        if number is None:
            click.echo(
                f"{model}: no snapshot that knows a cluster yet; its labels are as they were"
            )
        else:
            click.echo(f"{model}: {number} readings labelled")


@contextmanager
def _client_log(config: Config, client: str, model: str) -> Iterator[Log]:
    folder = config.client.folder / check_client_name(client)
    if not (folder / "readings.db").exists():
        raise SettingsError(f"{folder} has no readings; check --name and [client] folder")
    with closing(open_client_log(config, client)) as readings:
        readings.ensure(READINGS, readings_settings(config.client))
        ensure_label_topics(readings)
        if not config.client.label and not any(end for _, end in readings.bounds(LABELS).values()):
            raise SettingsError(
                f"client {client} has no labels: set label = true in [client] and start the client again; "
                "`shoal labels relabel` labels the readings that it has learnt already"
            )
        yield readings


@contextmanager
def _writer(
    form: str, out: Path | None, follow: bool, features: Sequence[Feature], parts: bool
) -> Iterator[tuple[Writer, Any]]:
    """A writer, and what flushes its file. A file appears whole, but for one that is followed."""
    try:
        with nullcontext(out) if out is None or follow else atomic_file(out, replace=True) as path:
            if path is None or form != PARQUET:
                with _opened(path) as text:
                    yield TEXT_WRITERS[form](text, features, parts), text.flush
            else:
                writer = ParquetWriter(path, features, parts)
                with closing(writer):
                    yield writer, lambda: None
    except OSError as error:
        if out is None or isinstance(error, BrokenPipeError):
            raise
        raise SettingsError(f"{out}: cannot be written: {error.strerror}") from None


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file
