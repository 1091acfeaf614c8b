"""`shoal producer`: feeds readings from an installed source into the clients' readings logs."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shoal.cli.options import config_option_as, log_json_option
from shoal.config.extension_settings import SOURCES
from shoal.config.settings import load_config
from shoal.errors import InvalidData, SettingsError
from shoal.producers.source_type import PATH, ProducerTask, SourceType, report
from shoal.protocol.reading_faults import unusable
from shoal.telemetry.events import start_logging


def source_types(problems: list[str] | None = None) -> list[SourceType]:
    """All installed source types, by name, but for broken ones: the others can be used.

    `problems` gets what is wrong with those.
    """
    sources = []
    for name in SOURCES.names():
        try:
            source = SOURCES.load(name)
            if not isinstance(source, SourceType):
                raise SettingsError(
                    f"source of readings {name!r} is not a shoal.producers.source_type.SourceType"
                )
            sources.append(source)
        except SettingsError as broken:
            if problems is not None:
                problems.append(str(broken))
    return sources


class ProducerCommand(click.Command):
    """A command that also takes the options of every installed source type."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, with those of the sources after --readings."""
        own = super().get_params(ctx)
        # A parameter that several sources share is one object, and is added once.
        added: dict[int, click.Parameter] = {}
        for source in source_types():
            for parameter in source.parameters:
                added[id(parameter)] = parameter
        return [*own[:2], *added.values(), *own[2:]]


@click.command(
    cls=ProducerCommand,
    epilog="A producer that was stopped or killed continues where it was when it is started again"
    " with the same options.",
)
@config_option_as("config", "The federation file: its features name the columns to read.")
@click.option(
    "--readings",
    type=PATH,
    help="Folder of the clients' folders. [default: folder of [client] in the file]",
)
@click.option(
    "--print-federation",
    is_flag=True,
    help="Print a federation file that fits the source, and end.",
)
@log_json_option
@click.pass_context
def producer(context: click.Context, /, **options: Any) -> None:
    """Feed readings into the clients' readings logs, paced, each exactly once.

    Replays FILES (CSV or JSON lines, also .gz, or Parquet; columns by name) one after the other,
    makes a --synthetic stream, reads a topic by --kafka, or receives sensor values by --mqtt. Each
    client reads from <readings folder>/<client>/readings.db, or from the broker of [readings]. A
    value in a file that is not a number is passed on unchanged: the client rejects and counts it. A
    readings log keeps the newest [client] readings_bytes_max bytes.

    \b
    shoal producer --synthetic plant --print-federation > plant.toml
    shoal producer --config plant.toml --synthetic plant --clients 4 --speed 60x
    shoal producer --config rooms.toml rooms.csv.gz --time-column date --split column:room
    shoal producer --config rooms.toml --mqtt --name room-1
    """
    broken: list[str] = []
    sources = source_types(broken)
    for line in broken:
        click.echo(f"shoal: left out: {line}", err=True)
    chosen = [source for source in sources if source.is_chosen(options)]
    if options["print_federation"]:
        click.echo(_federation_file(sources, chosen, options), nl=False)
        return
    if options["config"] is None:
        raise SettingsError(
            "--config FILE is needed: the federation file; `shoal check --example` prints one"
        )
    source = _only_one(sources, chosen)
    _check_options(context, source)
    # A person sees the progress of files and streams. Sensors have no end, so events are printed;
    # programs get all.
    level = logging.WARNING
    if source.shows_events or options["as_json"]:
        level = logging.INFO
    start_logging("producer", options["as_json"], level, client=source.client_name(options))
    config = load_config(options["config"])
    if config.readings.address and options["readings"]:
        raise SettingsError("--readings means nothing with [readings]; leave one of them out")
    if config.contract.privacy.privacy_unit.is_user and not source.gives_users(config, options):
        raise SettingsError(
            'unit = "user" of [privacy] needs a user id with every reading: name the column of'
            " FILES that has it with --user-column, or the field of messages with user_id of"
            " [mqtt]; a producer of your own sets the header user_id"
        )
    folder: Path = options["readings"] or config.readings_folder
    start = time.monotonic()
    totals = source.run(ProducerTask(config, folder, options, options["as_json"]))
    report(totals, time.monotonic() - start, options["as_json"])
    if totals.unusable:
        raise InvalidData(unusable(totals.rejected))


def _only_one(sources: list[SourceType], chosen: list[SourceType]) -> SourceType:
    if not chosen:
        raise SettingsError(
            f"name a source of readings: {' or '.join(source.label for source in sources)}"
        )
    if len(chosen) > 1:
        labels = " and ".join(source.label for source in chosen)
        raise SettingsError(f"{labels} are sources of readings; give one of them")
    return chosen[0]


def _federation_file(
    sources: list[SourceType], chosen: list[SourceType], options: dict[str, Any]
) -> str:
    if not chosen:
        able = [
            source
            for source in sources
            if type(source).federation_file is not SourceType.federation_file
        ]
        raise SettingsError(
            f"--print-federation needs {' or '.join(source.label for source in able)}"
        )
    return _only_one(sources, chosen).federation_file(options)


def _check_options(context: click.Context, source: SourceType) -> None:
    """Raises `SettingsError` for an option that was given and belongs to other sources only."""
    taken = {parameter.name for parameter in (*source.parameters, *context.command.params)}
    for parameter in context.command.get_params(context):
        name = str(parameter.name)
        if name not in taken and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            label = name.upper()
            if isinstance(parameter, click.Option):
                label = parameter.opts[0]
            raise SettingsError(f"{label} means nothing with {source.label}; leave it out")
