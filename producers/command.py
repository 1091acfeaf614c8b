"""`shoal producer`: the door."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from producers.bookmark import Bookmark, open_bookmark
from producers.files.replay import Columns, Replay
from producers.files.split import RULES, split_of
from producers.pacing import LONGEST_WAIT_S, Pacing, rate_of, speed_of
from producers.progress import Display, display_on
from producers.publisher import client_folder
from producers.pump import Pump
from producers.report import ProducerTotals, report
from producers.source import Source
from producers.synthetic.source import NAMES, Synthetic, federation_file
from shoal.config.base import check_client_name
from shoal.config.contract import Contract
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.protocol.topics import readings_settings
from shoal.runtime.readings_log import open_readings
from shoal.runtime.service import stopped_by_signals
from shoal.telemetry.events import log_event, start_logging
from shoal.transports.base import Log

IDLE_S = 0.25
"""a stop, and the display, are looked after at least this often"""
PATH = click.Path(path_type=Path)
FOR_MQTT = {"config", "mqtt", "name", "readings", "as_json", "print_federation"}
"""the options that mean something with it"""


@click.command(
    epilog="A producer that was stopped or killed goes on where it was when it is started again with the same options."
)
@click.argument("files", nargs=-1, type=PATH)
@click.option("--config", type=PATH, help="The federation file: its features name the columns to read.")
@click.option("--data", multiple=True, type=PATH, help="A file to replay, like FILES.")
@click.option("--synthetic", type=click.Choice(NAMES), help="Make readings instead of replaying files.")
@click.option("--mqtt", is_flag=True, help="Listen to the sensors of [mqtt] in the federation file, for one client.")
@click.option("--name", help="With --mqtt: the client whose sensors these are, the same at every start.")
@click.option("--print-federation", is_flag=True, help="Print a federation file for the --synthetic stream and end.")
@click.option("--readings", type=PATH, help="Folder of the clients' folders. [default: folder of [client] in the file]")
@click.option("--clients", default=1, show_default=True, help="Number of clients, named client-1, client-2, ...")
@click.option("--split", default="round-robin", show_default=True, help=f"Whose is a row: {RULES}.")
@click.option("--only", metavar="CLIENT", help="Feed this client's part of the split, and nobody else.")
@click.option(
    "--column", "columns", multiple=True, metavar="FEATURE=COLUMN", help="Where a feature's column has another name."
)
@click.option("--time-column", help="ISO 8601 (UTC unless it says otherwise), or epoch in s, ms, µs or ns.")
@click.option("--label-column", help="The column of classes, for the splits by label; it is not part of the readings.")
@click.option(
    "--speed", help="60x: sixty times as fast as it happened; max. [default: max for files, 1x for --synthetic]"
)
@click.option("--rate", help="Readings per second over all clients, instead of a speed: 100/s.")
@click.option(
    "--longest-wait",
    default=LONGEST_WAIT_S,
    show_default=True,
    help="Seconds that a gap in time is waited for at most.",
)
@click.option("--live", is_flag=True, help="Readings have the time at which they are fed, not the source's.")
@click.option("--loop", is_flag=True, help="Begin again after the last row, with later times.")
@click.option("--shuffle", is_flag=True, help="In random order; this needs memory for all rows.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of everything random.")
@click.option(
    "--limit", type=click.IntRange(min=0), help="End after so many readings, counted from the source's beginning."
)
@click.option("--again", is_flag=True, help="Publish all once more, though an earlier run has published it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a line per event, and the totals at the end.")
def producer(**options: Any) -> None:
    """Feed readings into the clients' readings logs, paced, each exactly once.

    Replays FILES (CSV or JSON lines, also .gz, or Parquet; columns by name) one after the other, makes a --synthetic
    stream, or listens to sensors by --mqtt. Each client reads from <readings folder>/<client>/readings.db, or from the
    broker of [readings]. What is no number in a file is passed on as it is: the client refuses and counts it. A
    readings log keeps the newest [client] readings_bytes_max of them.

    \b
    shoal producer --synthetic plant --print-federation > plant.toml
    shoal producer --config plant.toml --synthetic plant --clients 4 --speed 60x
    shoal producer --config rooms.toml rooms.csv.gz --time-column date --split column:room --speed max
    shoal producer --config rooms.toml --mqtt --name room-1
    """
    if options["print_federation"]:
        if options["synthetic"] is None:
            raise SettingsError(f"--print-federation needs --synthetic, one of {', '.join(NAMES)}")
        click.echo(federation_file(options["synthetic"], options["seed"]), nl=False)
        return
    if options["config"] is None:
        raise SettingsError("--config FILE is needed: the federation file; `shoal check --example` prints one")
    # Files and streams show people how far they are. Sensors have no end, so what happens is told; programs hear all.
    level = logging.INFO if options["mqtt"] or options["as_json"] else logging.WARNING
    start_logging("producer", options["as_json"], level, client=options["name"] or options["only"])
    config = load_config(options["config"])
    if config.readings.address and options["readings"]:
        raise SettingsError("--readings means nothing with [readings]; leave one of them out")
    if options["mqtt"] or options["name"] is not None:
        _listen(config, options)
        return
    source = _source(config.contract, options)
    pacing = _pacing(options)
    folder: Path = options["readings"] or config.client.folder
    bookmark = open_bookmark(folder, source.identity)
    if options["again"]:
        bookmark.begin_again()
    began = time.monotonic()
    pump = _pump(source, config, folder, pacing, bookmark, options["limit"])
    log_event("started", federation=config.contract.federation, contract=config.contract.digest)
    _run(pump, display_on(sys.stderr, time.monotonic, options["as_json"]))
    done = ProducerTotals(
        pump.finished, pump.published, pump.already_there, pump.position, source.faults, source.identity
    )
    report(done, time.monotonic() - began, options["as_json"])


def _listen(config: Config, options: dict[str, Any]) -> None:
    if options["name"] is None or not options["mqtt"]:
        raise SettingsError("--mqtt and --name CLIENT go together: one client's sensors are listened to")
    context = click.get_current_context()
    for option in context.command.params:
        name = str(option.name)
        if name not in FOR_MQTT and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            said = option.opts[0] if isinstance(option, click.Option) else name.upper()
            raise SettingsError(f"{said} means nothing with --mqtt; leave it out")
    from producers.mqtt.service import listen  # noqa: PLC0415 - MQTT is an extra

    client = check_client_name(options["name"])
    log_event("started", federation=config.contract.federation, contract=config.contract.digest, client=client)
    began = time.monotonic()
    done = listen(config, client, options["readings"] or config.client.folder, options["as_json"])
    report(done, time.monotonic() - began, options["as_json"])


def _source(contract: Contract, options: dict[str, Any]) -> Source:
    files = [*options["data"], *options["files"]]
    names = [feature.name for feature in contract.features]
    if bool(files) == (options["synthetic"] is not None):
        raise SettingsError("name the files to replay, or a --synthetic stream: one of the two")
    if options["synthetic"] is not None:
        _reject(options, "--synthetic", "columns", "time_column", "label_column", "loop", "shuffle", "only")
        if options["split"] != "round-robin":
            raise SettingsError("--split is for files; the clients of a --synthetic stream have a stream each")
        return Synthetic(options["synthetic"], options["clients"], options["seed"], names)
    split = split_of(options["split"], options["clients"], options["seed"], options["label_column"])
    columns = Columns(_columns(names, options["columns"]), options["time_column"], options["label_column"])
    order = {name: options[name] for name in ("loop", "shuffle", "seed")}
    return Replay(files, columns, split, **order, only=options["only"])


def _columns(names: list[str], mapped: tuple[str, ...]) -> tuple[str, ...]:
    renamed: dict[str, str] = {}
    for pair in mapped:
        feature, equals, column = pair.partition("=")
        if not equals or not column or feature not in names:
            raise SettingsError(f"--column {pair!r}: write FEATURE=COLUMN; the features are {', '.join(names)}")
        renamed[feature] = column
    return tuple(renamed.get(name, name) for name in names)


def _reject(options: dict[str, Any], given: str, *names: str) -> None:
    for name in names:
        if options[name]:
            raise SettingsError(
                f"--{name.replace('_', '-').removesuffix('s')} means nothing with {given}; leave it out"
            )


def _pacing(options: dict[str, Any]) -> Pacing:
    wall = time.time if options["live"] else None
    if options["rate"] is not None:
        _reject(options, "--rate", "speed")
        return Pacing(rate=rate_of(options["rate"]), wall=wall)
    speed = options["speed"] or ("1x" if options["synthetic"] else "max")
    return Pacing(speed=speed_of(speed), longest_wait_s=options["longest_wait"], wall=wall)


def _pump(source: Source, config: Config, folder: Path, pacing: Pacing, bookmark: Bookmark, limit: int | None) -> Pump:
    def readings_of(client: str) -> Log:
        client_folder(folder, client)
        return open_readings(config, client, folder)

    try:
        kept = readings_settings(config.client)
        return Pump(source, readings_of, clock=time.monotonic, pacing=pacing, bookmark=bookmark, limit=limit, kept=kept)
    except SettingsError:
        bookmark.close()
        raise


def _run(pump: Pump, display: Display) -> None:
    """The main loop, until the source ends or somebody asks for an end."""
    with stopped_by_signals() as stop, closing(pump), closing(display):
        while not (pump.finished or stop.is_set()):
            if not pump.step():
                stop.wait(min(pump.wait_s, IDLE_S))
            display.show(pump.position, pump.total)
