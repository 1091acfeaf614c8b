"""`shoal replay`: thousands of clients over files of readings, on one machine or on a cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import click

from shoal.cli.options import config_option
from shoal.client_nodes.publisher import make_signer
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config, load_config
from shoal.kernels.forms import PROCESS
from shoal.onebox.replay.engine import Engine
from shoal.onebox.replay.parquet import Columns
from shoal.onebox.replay.plan import PARTS_MAX, ReplayPlan, make_plan
from shoal.onebox.replay.results import ReplayedRecord, records
from shoal.onebox.replay.run import ENGINES, Progress, ReplayResult, open_engine, replay
from shoal.privacy import load_or_create_key
from shoal.producers.files.source import FilesSettings
from shoal.producers.progress import Meter, display_on
from shoal.protocol.messages import Update
from shoal.protocol.signatures import read_client_key
from shoal.protocol.topics import ensure_topics
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.logs import open_federation_log
from shoal.runtime.workers import usable_cores
from shoal.telemetry.events import log_event, start_logging
from shoal.text import counted

# A flush waits for the log; one for each update would take most of the time.
FLUSH_EVERY = 1000


def publish(config: Config, records: Iterable[ReplayedRecord]) -> int:
    """Publish records in their order, signed as their clients would; returns how many.

    A server drops the updates that it has already, so publishing again after a kill changes
    nothing. Raises as the log does, and `SettingsError` when a client's signing key cannot be read.
    """
    template = config.client.signing_key_file
    # The key of a client is read from its file once, and not for each of its records.
    signer = lru_cache(maxsize=None)(lambda client: make_signer(read_client_key(template, client)))
    count = 0
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        for record in records:
            message = OutboxRecord(
                config.contract.updates_topic, record.value, record.model.encode(), Update.headers()
            )
            headers = message.headers + signer(record.client)(message)
            log.publish(message.topic, message.value, message.key, headers)
            count += 1
            if count % FLUSH_EVERY == 0:
                log.flush()
        log.flush()
    return count


FILES = click.Path(path_type=Path, dir_okay=False)
KEY = "noise.key"


@click.command(
    "replay",
    epilog="A replay that was stopped or killed continues when the same command is given again.",
)
@config_option
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--client-column", help="Column with the client of each reading. [default: that of [files]]"
)
@click.option(
    "--time-column",
    help="Column with its time: a timestamp, or seconds since 1970. [default: that of [files]]",
)
@click.option(
    "--sequence-column",
    help="Column of whole numbers that orders readings of one client with one time. [default: the "
    "order of the rows]",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="local",
    show_default=True,
    help="What runs the work.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 4096),
    help="Workers on this machine. [default: one for each core]",
)
@click.option(
    "--parts",
    type=click.IntRange(1, PARTS_MAX),
    help="Parts that the clients are split into; a worker holds the readings of one. [default: of "
    "about 32 MiB]",
)
@click.option("--address", help="Use this running cluster: a master of Spark.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("replay"),
    show_default=True,
    help="Folder for the results; workers on other machines must see it under the same path.",
)
@click.option(
    "--bytes-max",
    type=click.IntRange(min=1),
    help="Most bytes of readings, unpacked. [default: 200 times the files, and 1 GiB at least]",
)
@click.option(
    "--key",
    type=FILES,
    help="File with the secret that all noise is made from. [default: FOLDER/noise.key]",
)
@click.option(
    "--publish", "publishes", is_flag=True, help="Publish the updates to [log], for `shoal server`."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: a line per event, and the totals at the end.",
)
def replay_command(**options: Any) -> None:
    """Learn readings that are there already: Parquet FILES of thousands of clients.

    Each client learns its own readings in the order of their times, and makes the updates that
    `shoal client` makes from them when it reads every reading at the reading's time. They are
    written to FOLDER, in one order for every engine and every number of workers, and printed with
    their SHA-256. Models in rounds (k-means, FCM, GMM) are run to their end by exact sums. Raw
    readings are on every machine that takes part: replay where they may be.

    \b
    shoal replay --config plant.toml --client-column machine --time-column time day-*.parquet
    shoal replay --config plant.toml --engine spark --publish day-*.parquet
    """
    config = load_config(options["file"])
    statement = config.resolved.mode.describe().text()
    start_logging("replay", options["as_json"])
    plan = _plan(config, options)
    log_event("privacy", statement=statement)
    PROCESS.check()
    start = time.monotonic()
    workers = options["workers"] or usable_cores()
    with closing(open_engine(options["engine"], workers, options["address"])) as engine:
        began = time.monotonic()
        result = _run(plan, engine, options["as_json"])
        learnt_s = time.monotonic() - began
        published = publish(config, records(plan)) if options["publishes"] else 0
        summary = _summary(result, options["engine"], began - start, learnt_s, published)
        # Before the engine is closed: at the first use of the extra `fast`, its workers are
        # compiling kernels still.
        click.echo(json.dumps(summary) if options["as_json"] else _text(summary, plan))


def _plan(config: Config, options: dict[str, Any]) -> ReplayPlan:
    folder: Path = options["folder"]
    features = tuple(feature.name for feature in config.contract.features)
    columns = Columns(features, *_columns(config, options), options["sequence_column"])
    # What cannot be replayed is found before a folder is made.
    sizes = options["parts"], options["bytes_max"]
    make_plan(config, columns, options["files"], folder, b"", *sizes)
    folder.mkdir(parents=True, exist_ok=True)
    key = load_or_create_key(options["key"] or folder / KEY)
    return make_plan(config, columns, options["files"], folder, key, *sizes)


def _columns(config: Config, options: dict[str, Any]) -> tuple[str, str]:
    """The columns of client and time: those of the options, or else of [files], as `shoal init`
    writes it."""
    files = config.source("files")
    assert isinstance(files, FilesSettings)
    client = options["client_column"]
    rule, _, split_column = files.split.partition(":")
    if not client and rule == "column":
        client = split_column
    time_column = options["time_column"]
    # A time may be in two columns, a date and a time of the day: a replay needs it in one.
    if not time_column and len(files.time_columns) == 1:
        time_column = files.time_columns[0]
    if not client:
        raise click.UsageError(
            "name the column of the client, --client-column; [files] has no split by one"
        )
    if not time_column:
        raise click.UsageError(
            "name the column of the time, --time-column; [files] has not a single one"
        )
    return client, time_column


def _run(plan: ReplayPlan, engine: Engine, as_json: bool) -> ReplayResult:
    """Run the replay and show its progress: a bar or lines for people, an event now and then for
    programs."""
    display = display_on(sys.stderr, time.monotonic)
    meter = Meter()

    def readings(learnt: int, total: int) -> None:
        if as_json:
            meter.note(time.monotonic(), learnt, total)
            left_s = None if meter.remaining_s is None else round(meter.remaining_s, 1)
            log_event("replay_progress", readings=learnt, total=total, left_s=left_s)
        else:
            display.show(learnt, total)

    with closing(display):
        return replay(
            plan,
            engine,
            Progress(readings, _log_round),
        )


def _log_round(model: ResolvedModel, number: int, shift: float) -> None:
    log_event("replay_round", model=model.name, round=number, shift=float(f"{shift:.3g}"))


def _summary(
    result: ReplayResult, engine: str, started_s: float, learnt_s: float, published: int
) -> dict[str, Any]:
    totals = result.totals
    models = {}
    for name, outcome in result.models.items():
        models[name] = {
            "rounds": outcome.rounds,
            "answers": outcome.answers,
            "digest": outcome.digest,
        }
    return {
        "engine": engine,
        "clients": totals.clients,
        "readings": totals.readings,
        "rejected": totals.rejected,
        "records": totals.records,
        "published": published,
        "digest": result.digest,
        "models": models,
        "start_s": round(started_s, 3),
        "seconds": round(learnt_s, 3),
    }


def _text(summary: dict[str, Any], plan: ReplayPlan) -> str:
    readings = counted(summary["readings"], "reading")
    clients = counted(summary["clients"], "client")
    updates = counted(summary["records"], "update")
    lines = [
        f"Replayed {readings} of {clients} in {summary['seconds']:,.1f} s; "
        f"rejected: {summary['rejected']:,}.",
        f"{plan.folder} has {updates}; SHA-256: {summary['digest']}",
    ]
    for name, model in summary["models"].items():
        lines.append(
            f"Model {name}: {model['rounds']} rounds, with {model['answers']:,} clients in the "
            f"last one; its SHA-256 is {model['digest']}"
        )
    if summary["published"]:
        lines.append(f"{summary['published']:,} updates are published.")
    return "\n".join(lines)
