"""`shoal labels`: exports the labels that a client has given to its own readings, and labels all of them again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

import click

from client_nodes.bootstrap import CHECKPOINT, NOISE_KEY, open_checkpoint
from client_nodes.intake import positions_in
from client_nodes.labelling.labelled_readings import TEXT_WRITERS, LabelledReadings, ParquetWriter, Writer
from client_nodes.labelling.labeller import Labeller
from client_nodes.labelling.waiting import sequences_of
from client_nodes.learner import saved_sequence_halves
from client_nodes.node import LABELS_PART, required_values
from client_nodes.publisher import OwnUpdates, all_headers, make_signer
from client_nodes.snapshots import Snapshots
from shoal.cli.options import CLIENT_NAME, config_option, json_option
from shoal.config.base import check_client_name
from shoal.config.contract import Feature
from shoal.config.settings import Config, load_config
from shoal.errors import CheckpointInUse, SettingsError
from shoal.files import atomic_file
from shoal.privacy import load_or_create_key
from shoal.protocol.signatures import read_client_key
from shoal.protocol.topics import LABELS, READINGS, ensure_label_topics, ensure_topics, readings_settings
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import Checkpoint, check_required
from shoal.runtime.logs import check_separate, open_client_log, open_federation_log
from shoal.runtime.outbox import Outbox
from shoal.runtime.service import stopped_by_signals
from shoal.transports.base import Log, beginning


def relabel_readings(config: Config, client: str) -> dict[str, int | None]:
    """model -> labels written; None for a model without a snapshot that knows a cluster.

    The labels are made in pieces, each saved as a client saves its own: what a kill leaves undone, the client does when
    it is started, or the next call. Raises `SettingsError` for a client that has never run, `CheckpointInUse` while it
    runs, and as a client does.
    """
    path = config.client.folder / check_client_name(client) / CHECKPOINT
    if not path.exists():
        raise SettingsError(f"{path} is missing: no client {client} has run here; check --name and [client] folder")
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


def _relabel(config: Config, client: str, checkpoint: Checkpoint, readings: Log, log: Log) -> dict[str, int | None]:
    contract = config.resolved
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
    # The outbox may still have updates of the client: they are published as the client publishes them.
    signer = make_signer(read_client_key(config.client.signing_key_file, client))
    outbox = Outbox(checkpoint, log, all_headers(OwnUpdates(log, contract, client, key).headers, signer))
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

name_option = click.option("--name", required=True, type=CLIENT_NAME, metavar="NAME", help="The client's name.")


@click.group()
def labels() -> None:
    """The labels that a client has given to its own readings: cluster, name, novelty."""


@labels.command()
@config_option
@name_option
@click.option("--format", "form", type=click.Choice([*TEXT_WRITERS, PARQUET]), default="csv", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The file. [default: standard output]")
@click.option("--model", metavar="NAME", help="The model that labelled. [default: the first one of the file]")
@click.option("--follow", is_flag=True, help="Write readings as they are labelled, until Ctrl-C (csv and jsonl).")
def export(file: Path, name: str, form: str, out: Path | None, model: str | None, follow: bool) -> None:
    """Write the readings that a client's log still has, each with its label, to a file.

    The columns are time (UTC), the features, and by the newest label: cluster (its lasting identity), name, novelty,
    reason (of a novel reading: the features farthest outside the usual values of its cluster) and version (of the
    snapshot). They are empty for a reading that is not labelled, or whose cluster is not known.
    The client may run meanwhile. The file has raw readings: keep it on the client's site.
    """
    config = load_config(file)
    models = config.resolved.models
    chosen = model or next(iter(models))
    if chosen not in models:
        raise SettingsError(f"--model {chosen}: no such model in {file}; there are {', '.join(models)}")
    if form == PARQUET and (follow or out is None):
        raise SettingsError("parquet needs --out FILE and cannot --follow; csv and jsonl can")
    with _client_log(config, name, chosen) as readings, stopped_by_signals() as stop:
        table = LabelledReadings(readings, chosen, config.contract.width, config.contract.learns_gaps)
        with _writer(form, out, follow, config.contract.features) as (writer, flush):
            for block in table.follow(stop) if follow else table.all():
                writer.write(block)
                if follow:
                    flush()
                elif stop.is_set():
                    raise click.Abort


@labels.command()
@config_option
@name_option
@json_option
def relabel(file: Path, name: str, as_json: bool) -> None:
    """Label all readings that a client's log still has again, by the newest snapshot of every model.

    Stop the client before, and start it again afterwards. Novelty is computed again too, in the order of the readings.
    """
    config = load_config(file)
    done = relabel_readings(config, name)
    if as_json:
        click.echo(json.dumps(done))
        return
    for model, number in done.items():
        if number is None:
            click.echo(f"{model}: no snapshot that knows a cluster yet; its labels are as they were")
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
def _writer(form: str, out: Path | None, follow: bool, features: Sequence[Feature]) -> Iterator[tuple[Writer, Any]]:
    """A writer, and what flushes its file. A file appears whole, but for one that is followed."""
    try:
        with nullcontext(out) if out is None or follow else atomic_file(out, replace=True) as path:
            if path is None or form != PARQUET:
                with _opened(path) as text:
                    yield TEXT_WRITERS[form](text, features), text.flush
            else:
                writer = ParquetWriter(path, features)
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
