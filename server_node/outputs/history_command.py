"""`shoal history`: the history of the clusters of a federation, from its log, as text, CSV, JSON
lines or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from shoal.cli.options import (
    MOMENT,
    chosen_model,
    config_option,
    json_option,
    model_option,
    note_written,
)
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import load_config
from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file, csv_cell
from shoal.protocol.history import BINS_KEPT, COARSE_S, NO_CLUSTER, HistoryBin, HistoryNames, pairs
from shoal.protocol.published_contract import contract_in
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.history.cycles import CHANCE, find_cycles, lines_of
from shoal.server_node.history.store import decode_record
from shoal.server_node.history.summary import client_name
from shoal.server_node.outputs.changes_command import LoggedHistory
from shoal.server_node.outputs.encoding import plain
from shoal.server_node.outputs.history_views import cycles_view
from shoal.transports import open_log
from shoal.transports.base import Log, latest

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
    "clients": {
        "time": "time",
        "seconds": "int64",
        "client": "string",
        "readings": "int64",
        "share": "float64",
    },
}
"""kind of rows -> column -> type"""
# Arrow and Parquet take tables in blocks; a history of a year is never whole in memory.
BLOCK_ROWS = 10_000
# A share of one reading among a million still shows; more digits are those of rounding.
SHARE_DIGITS = 6


def rows_of(one: HistoryBin, names: HistoryNames | None, what: str) -> Iterator[Row]:
    """The rows of a bin, the largest first. Readings of no known cluster have no cluster, name or
    label."""
    counts = pairs(one.clusters if what == "clusters" else one.clients)
    total = sum(readings for _, readings in counts)
    titles = (
        {}
        if names is None
        else {identity: [name, label] for identity, name, label in names.clusters}
    )
    for number, readings in sorted(counts, key=lambda pair: (-pair[1], pair[0])):
        if what == "clients":
            who: Row = [client_name(number, [] if names is None else names.clients)]
        else:
            who = (
                [None, None, None]
                if number == NO_CLUSTER
                else [number, *titles.get(number, ["", ""])]
            )
        yield [
            one.start,
            one.width_s,
            *who,
            readings,
            round(readings / total, SHARE_DIGITS) if total else 0.0,
        ]


def write_rows(rows: Iterable[Row], form: str, out: Path | None, what: str) -> int:
    """Write all rows to `out`, where the file appears whole, or to standard output. Returns their
    number.

    Raises `SettingsError` for a file that cannot be written, and `MissingExtra` without pyarrow.
    """
    if out is None:
        return _write_text(rows, form, sys.stdout, what)
    try:
        with atomic_file(out, replace=True) as path:
            if form == PARQUET:
                return _write_parquet(rows, path, what)
            with path.open("w", encoding="utf-8", newline="") as text:
                return _write_text(rows, form, text, what)
    except OSError as error:
        raise SettingsError(f"{out}: cannot be written: {error.strerror}") from None


def _write_text(rows: Iterable[Row], form: str, text: Any, what: str) -> int:
    columns = list(COLUMNS[what])
    written = 0
    table = csv.writer(text, lineterminator="\n")
    if form == "csv":
        table.writerow(columns)
    for start, *values in rows:
        written += 1
        row = [f"{np.datetime64(start, 's')}Z", *values]
        if form == "csv":
            table.writerow([row[0], *map(csv_cell, values)])
        else:
            text.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
    return written


def _write_parquet(rows: Iterable[Row], path: Path, what: str) -> int:
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("writing Parquet", "parquet")
    import pyarrow  # noqa: PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415 - the same

    kinds = {"time": pyarrow.timestamp("s", tz="UTC")}
    schema = pyarrow.schema(
        [
            (name, kinds.get(kind) or getattr(pyarrow, kind)())
            for name, kind in COLUMNS[what].items()
        ]
    )
    left = iter(rows)
    written = 0
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        while block := list(islice(left, BLOCK_ROWS)):
            columns = [
                pyarrow.array(column, form.type)
                for column, form in zip(zip(*block, strict=True), schema, strict=True)
            ]
            file.write_table(pyarrow.table(columns, schema=schema))
            written += len(block)
    return written


@click.group()
def history() -> None:
    """The history of a model: the readings of each cluster over time, and cycles of features."""


@history.command()
@config_option
@click.option("--format", "form", type=click.Choice(FORMATS), default="csv", show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file. [default: standard output]",
)
@model_option
@click.option("--from", "first", type=MOMENT, help="Only bins that start then or later (UTC).")
@click.option("--to", "last", type=MOMENT, help="Only bins that start then or earlier (UTC).")
@click.option(
    "--step",
    type=click.Choice([str(width) for width in BINS_KEPT]),
    default=str(COARSE_S),
    show_default=True,
    help="Seconds of a bin: 300 for the last two days, 1800 for the last year.",
)
@click.option(
    "--of",
    "what",
    type=click.Choice(["clusters", "clients"]),
    default="clusters",
    show_default=True,
    help="A row for each cluster, or for each client, in each bin.",
)
def export(
    file: Path,
    form: str,
    out: Path | None,
    model: str | None,
    first: datetime | None,
    last: datetime | None,
    step: str,
    what: str,
) -> None:
    """Write the history of a model to a file, oldest bin first.

    The columns are time (the start of the bin, UTC), seconds (its width), then cluster (identity),
    name and label, or client, then readings and share. Times are those of the updates. A server may
    run meanwhile; a bin is in the log once a snapshot has been published after it.
    """
    config = load_config(file)
    chosen = chosen_model(model, config.resolved.models, file)
    if form == PARQUET and out is None:
        raise SettingsError("parquet needs --out FILE")
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        rows = _rows(
            log,
            contract_in(log, config.resolved),
            chosen,
            int(step),
            (_seconds(first), _seconds(last)),
            what,
        )
        note_written(out, write_rows(rows, form, out, what), "row")


@history.command("cycles")
@config_option
@model_option
@click.option(
    "--chance",
    type=click.FloatRange(0, 1),
    default=CHANCE,
    show_default=True,
    help="Show the cycles whose chance is below this.",
)
@json_option
def show_cycles(file: Path, model: str | None, chance: float, as_json: bool) -> None:
    """Show which features follow the time of the day or the day of the week.

    How much of the variance of a feature the usual day, or week, explains, when it is lowest and
    highest, and the chance of so large a cycle where there is none. It takes eight whole days
    (weeks) of history.
    """
    config = load_config(file)
    chosen = chosen_model(model, config.resolved.models, file)
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        history = LoggedHistory(log, contract_in(log, config.resolved), chosen)
        found = find_cycles(history, config.contract, chosen)
    click.echo(
        as_json(plain(cycles_view(chosen, found)))
        if as_json
        else "\n".join(lines_of(chosen, found, chance))
    )


def _rows(
    log: Log,
    contract: ResolvedContract,
    model: str,
    width: int,
    span: tuple[float | None, float | None],
    what: str,
) -> Iterator[Row]:
    """The rows of the bins in the log that start within the span."""
    bins: list[HistoryBin] = []
    names: HistoryNames | None = None
    for record in latest(log, contract.contract.history_topic).values():
        found = decode_record(record, contract)
        message = None if found is None else found.message
        if isinstance(message, HistoryNames) and message.model == model:
            names = message
        if isinstance(message, HistoryBin) and (message.model, message.width_s) == (model, width):
            bins.append(message)
    first, last = span
    for one in sorted(bins, key=lambda one: one.start):
        if (first is None or one.start >= first) and (last is None or one.start <= last):
            yield from rows_of(one, names, what)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.replace(tzinfo=UTC).timestamp()
