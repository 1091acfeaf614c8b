"""`shoal history`: the history of the clusters of a federation, from its log, as text, CSV, JSON
lines or Parquet."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain, islice
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
from shoal.config.settings import load_config
from shoal.errors import MissingExtra, SettingsError
from shoal.files import atomic_file, csv_cell
from shoal.protocol.history import BINS_KEPT, COARSE_S, NO_CLUSTER, HistoryBin, HistoryNames, pairs
from shoal.protocol.published_contract import contract_in
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.history.cycles import CHANCE, find_cycles, hidden_periods, lines_of
from shoal.server_node.history.logged import LoggedHistory
from shoal.server_node.history.shares import client_name
from shoal.server_node.outputs.encoding import as_json as encoded
from shoal.server_node.outputs.encoding import plain
from shoal.server_node.outputs.history_views import cycles_view
from shoal.transports import open_log_to_read

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
        "client_name": "string",
        "readings": "int64",
        "share": "float64",
    },
}
"""kind of rows -> column -> type"""
# Arrow and Parquet take tables in blocks; a history of a year is never whole in memory.
BLOCK_ROWS = 10_000
# A share of one reading among a million still shows; more digits are those of rounding.
SHARE_DIGITS = 6


def rows_of(
    counted: HistoryBin, names: HistoryNames | None, what: str, client_names: Mapping[str, str]
) -> Iterator[Row]:
    """The rows of a bin, the largest first. Readings of no known cluster have no cluster, name or
    label. `client_names` are those that owners gave; other clients have an empty one."""
    by_client = what == "clients"
    counts = pairs(counted.clients if by_client else counted.clusters)
    total = sum(readings for _, readings in counts)
    clients = [] if names is None else names.clients
    titles = {} if names is None else {entry[0]: entry[1:] for entry in names.clusters}
    for number, readings in sorted(counts, key=lambda pair: (-pair[1], pair[0])):
        if by_client:
            client = client_name(number, clients)
            who: Row = [client, client_names.get(client, "")]
        elif number == NO_CLUSTER:
            who = [None, None, None]
        else:
            who = [number, *titles.get(number, ["", ""])]
        share = round(readings / total, SHARE_DIGITS) if total else 0.0
        yield [counted.start, counted.width_s, *who, readings, share]


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
            # `csv_cell`: a name that begins with `=` would be a formula where a spreadsheet opens
            # the file.
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
    fields = []
    for name, kind in COLUMNS[what].items():
        fields.append((name, kinds.get(kind) or getattr(pyarrow, kind)()))
    schema = pyarrow.schema(fields)
    unwritten = iter(rows)
    written = 0
    with pyarrow.parquet.ParquetWriter(path, schema) as file:
        while block := list(islice(unwritten, BLOCK_ROWS)):
            columns = zip(*block, strict=True)
            arrays = [
                pyarrow.array(column, field.type)
                for column, field in zip(columns, schema, strict=True)
            ]
            file.write_table(pyarrow.table(arrays, schema=schema))
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
    help="Seconds of a bin: 300 for the last two days, 1800 and 21600 for the last year.",
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
    name and label, or client and client_name (as its owner calls it), then readings and share.
    Times are those of the updates. A server may run meanwhile; a bin is in the log once a snapshot
    has been published after it.
    """
    config = load_config(file)
    chosen = chosen_model(model, config.resolved.models, file)
    if form == PARQUET and out is None:
        raise SettingsError("parquet needs --out FILE")
    with closing(open_log_to_read(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        source = LoggedHistory(log, contract_in(log, config.resolved), chosen)
        start = -math.inf if first is None else first.replace(tzinfo=UTC).timestamp()
        end = math.inf if last is None else last.replace(tzinfo=UTC).timestamp()
        names = source.names(chosen)
        bins = source.each_bin(chosen, int(step), start, end)
        titles = config.server.client_names
        rows = chain.from_iterable(rows_of(counted, names, what, titles) for counted in bins)
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
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, config.contract, config.log)
        source = LoggedHistory(log, contract_in(log, config.resolved), chosen)
        cycles = find_cycles(source, config.contract, chosen)
        hidden = hidden_periods(source, chosen)
    if as_json:
        click.echo(encoded(plain(cycles_view(chosen, cycles, hidden))))
    else:
        click.echo("\n".join(lines_of(chosen, cycles, chance, hidden)))
