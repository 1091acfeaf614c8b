"""`shoal history`: the history of the clusters of a federation, from its log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import click

from server_node.history.export import FORMATS, PARQUET, Row, rows_of, write_rows
from server_node.history.records import decode_record
from shoal.cli.options import config_option
from shoal.config.contract import Contract
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.history import BINS_KEPT, COARSE_S, HistoryBin, HistoryNames
from shoal.protocol.topics import ensure_topics
from shoal.transports import open_log
from shoal.transports.base import Log, latest

MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"])


@click.group()
def history() -> None:
    """The history of a model: the readings that fell to each cluster, in bins of 5 and of 30 minutes."""


@history.command()
@config_option
@click.option("--format", "form", type=click.Choice(FORMATS), default="csv", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file. [default: standard output]")
@click.option("--model", metavar="NAME", help="The model. [default: the first one of the file]")
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

    The columns are time (the start of the bin, UTC), seconds (its width), then cluster (identity), name and label, or
    client, then readings and share. Times are those of the updates. A server may run meanwhile; a bin is in the log
    once a snapshot has been published after it.
    """
    config = load_config(file)
    chosen = model or config.contract.models[0].name
    if config.contract.model(chosen) is None:
        names = ", ".join(one.name for one in config.contract.models)
        raise SettingsError(f"--model {chosen}: no such model in {file}; there are {names}")
    if form == PARQUET and out is None:
        raise SettingsError("parquet needs --out FILE")
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        rows = _rows(log, config.contract, chosen, int(step), (_seconds(first), _seconds(last)), what)
        write_rows(rows, form, out, what)


def _rows(
    log: Log, contract: Contract, model: str, width: int, span: tuple[float | None, float | None], what: str
) -> Iterator[Row]:
    """The rows of the bins in the log that start within the span."""
    bins: list[HistoryBin] = []
    names: HistoryNames | None = None
    for record in latest(log, contract.history_topic).values():
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
