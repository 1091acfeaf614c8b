"""`shoal labels`: exports readings with the labels that a client has given to them, and labels all
of them again.

Labels and readings are joined by place, and written as CSV, JSON lines or Parquet.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, TextIO

import click

from shoal.cli.options import CLIENT_NAME, chosen_model, config_option, json_option, note_written
from shoal.client_nodes.labelling.labelled_readings import LabelledReadings
from shoal.client_nodes.labelling.relabel import relabel_readings
from shoal.client_nodes.labelling.writers import TEXT_WRITERS, ParquetWriter, Writer
from shoal.config.base import check_client_name
from shoal.config.contract import Feature
from shoal.config.settings import Config, load_config
from shoal.errors import (
    SettingsError,
)
from shoal.files import atomic_file
from shoal.protocol.topics import (
    LABELS,
    READINGS,
    ensure_label_topics,
    readings_settings,
)
from shoal.runtime.logs import open_client_log
from shoal.runtime.service import stopped_by_signals
from shoal.transports.base import Log

PARQUET = "parquet"

name_option = click.option(
    "--name", required=True, type=CLIENT_NAME, metavar="NAME", help="The client's name."
)

NAMED_MAX: Final = 8
"""clients that a message names at most"""


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
        there = sorted(log.parent.name for log in config.client.folder.glob("*/readings.db"))
        others = f"; there are {', '.join(there[:NAMED_MAX])}" if there else ""
        more = f" and {len(there) - NAMED_MAX} more" if len(there) > NAMED_MAX else ""
        raise SettingsError(
            f"{folder} has no readings; check --name and [client] folder{others}{more}"
        )
    with closing(open_client_log(config, client, read_only=True)) as readings:
        readings.ensure(READINGS, readings_settings(config.client))
        ensure_label_topics(readings)
        if not config.client.label and not any(end for _, end in readings.bounds(LABELS).values()):
            raise SettingsError(
                f"client {client} has no labels: set label = true in [client] and start the client"
                " again; `shoal labels relabel` labels the readings that it has learnt already"
            )
        yield readings


@contextmanager
def _writer(
    form: str, out: Path | None, follow: bool, features: Sequence[Feature], parts: bool
) -> Iterator[tuple[Writer, Any]]:
    """A writer, and what flushes its file. A file appears whole, but for one that is followed."""
    try:
        with _output(out, follow) as path:
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


def _output(out: Path | None, follow: bool) -> AbstractContextManager[Path | None]:
    """The path to write to; None for standard output."""
    # Somebody who follows readings wants to see them as they are written.
    if out is None or follow:
        return nullcontext(out)
    return atomic_file(out, replace=True)


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file
