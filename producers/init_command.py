"""`shoal init`: a federation file from somebody's own data."""

from __future__ import annotations

import difflib
import math
import sys
import tomllib
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import click

from shoal.config.base import client_name_of
from shoal.config.contract import parse_contract
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.producers.column_types import Column, Understood
from shoal.producers.features import FEATURE_NAME_CHARS
from shoal.producers.federation_file import (
    BOUNDS_SENTENCE,
    MISSING_MIN,
    NO_STATES_SENTENCE,
    STATES_SENTENCE,
    TIMES_SENTENCE,
    Plan,
    federation_file,
    next_commands,
)
from shoal.producers.file_plan import plan_of, stem_of
from shoal.producers.files.form import FORM_PARAMETERS
from shoal.producers.people import remarks_on_people
from shoal.producers.sampled_messages import (
    MESSAGES_MAX,
    plan_of_kafka,
    plan_of_mqtt,
    plan_of_sheet,
)
from shoal.producers.sheet import columns_of_sheet
from shoal.producers.source_type import PATH
from shoal.producers.subjects import CONCERNS
from shoal.protocol.reading_faults import CLIPPED_SHARE

NAMES_SHOWN = 24
"""clients whose names are printed"""
SMALL = 1000
"""readings below which private counts show next to nothing: of six clear clusters three at 1 000,
and all at 1 687"""


def lines_of(understood: Understood, with_cells: bool) -> list[str]:
    """What was understood, for people; `with_cells`: with three example cells of each column."""
    # A name may have line breaks.
    names = [" ".join(column.name.split()) for column in understood.columns]
    width = max(map(len, names))
    lines = []
    for name, column in zip(names, understood.columns, strict=True):
        lines.append(f"  {name:<{width}}  {_meaning(column)}")
        if with_cells and column.examples:
            lines[-1] += f"   for instance {', '.join(column.examples)}"
    return lines


def _meaning(column: Column) -> str:
    if column.kind == "feature":
        if column.values:
            return f"feature, a category: {', '.join(column.values)}"
        unit = f" {column.unit}" if column.unit else ""
        if column.period:
            return f"feature, circular: begins again after {column.period:g}{unit}"
        step = f", in steps of {column.step:g}" if column.step else ""
        return f"feature, bounds {column.low:g} to {column.high:g}{unit}{step}"
    return f"{column.kind}: {column.reason}"


@click.command(
    "init",
    # Copies: an option has the environment variable of one command.
    params=[copy(parameter) for parameter in FORM_PARAMETERS],
    epilog="Nothing of the data is kept but the bounds, which the file marks as proposals.",
)
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "--topic",
    help="With --kafka: the topic of JSON messages; with --mqtt: a topic, + and # are wildcards.",
)
@click.option(
    "--kafka",
    metavar="ADDRESS",
    help="Look at the newest messages of --topic at these brokers, host:port.",
)
@click.option(
    "--mqtt",
    metavar="BROKER",
    help="Look at the messages of --topic that arrive at this broker, host:port.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help=f"Wait this long for messages; {MESSAGES_MAX:,} are looked at, at most.",
)
@click.option(
    "--sheet",
    type=PATH,
    help="A CSV that lists the features, one a line: name, unit, lower, upper; step, kind.",
)
@click.option(
    "--out",
    type=PATH,
    help="The federation file to write. [default: the name of the first file, .toml]",
)
@click.option("--name", help="Name of the federation. [default: from the file]")
@click.option(
    "--private/--public",
    "private",
    default=None,
    help="Protect each reading, or not: the data are public; --concerns device or nobody.",
)
@click.option(
    "--concerns",
    type=click.Choice(CONCERNS),
    help="Whom the readings concern: nobody; a device, whose single readings are protected; each"
    " client is a person or a household; several persons, named by --person-column. [default: asked"
    " on a terminal, else device]",
)
@click.option(
    "--person-column",
    metavar="COLUMN",
    help="With --concerns persons: the column, or field, that names the person.",
)
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    help="With --concerns client or persons: the number of clients that will take part."
    " [default: those in the data]",
)
@click.option(
    "--helper-key",
    "helpers",
    multiple=True,
    metavar="KEY",
    help="With --concerns client: mask counts, for the helper with this public key, as `shoal keys"
    " helper` prints it; several times for several.",
)
@click.option(
    "--time-column",
    "time_columns",
    multiple=True,
    help="The column of the time; several times for its parts.",
)
@click.option("--client-column", help="The column that names clients. [default: found by its name]")
@click.option(
    "--bad-quality",
    multiple=True,
    metavar="TEXT",
    help="What means bad in a column or field of quality, besides known words and codes: a word,"
    " bad*, a number, or numbers as 0..63.",
)
@click.option(
    "--diff",
    is_flag=True,
    help="Only print how a new file would differ from the one that is there.",
)
def init_command(files: tuple[Path, ...], **options: Any) -> None:
    """Look at FILES of readings, or at messages, and write a federation file for them.

    Understands delimiter, decimal sign, dates, encoding, header, units in names, constant and text
    columns, the column of the time and a column that names clients. Bounds are proposals. A file
    that is there is never overwritten.

    \b
    shoal init readings.csv
    shoal run readings.toml readings.csv
    shoal init --kafka broker:9092 --topic plant.devices
    shoal init --mqtt broker --topic sensors/+/climate
    shoal init visits.csv --concerns persons --person-column badge
    """
    plan = _plan(files, options)
    stem = stem_of(files[0]) if files else plan.name
    out: Path = options["out"] or Path(f"{stem}.toml")
    for sentence in plan.sentences:
        click.echo(sentence)
    click.echo("\n".join(lines_of(plan.understood, sys.stdout.isatty())))
    people = remarks_on_people(plan)
    for remark in [*_remarks(plan), *people, *_clipped(plan, out)]:
        click.echo(remark)
    text = federation_file(plan)
    # What cannot be is refused here, before there is a file, and not by the command that reads it.
    parse_contract(tomllib.loads(text), str(out))
    if options["diff"]:
        before = []
        if out.exists():
            before = out.read_text(encoding="utf-8").splitlines()
        after = text.splitlines()
        for line in difflib.unified_diff(before, after, str(out), "proposed", lineterm=""):
            click.echo(line)
        return
    try:
        # Also a file that has come since this command began is not overwritten.
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SettingsError(
            f"{out} is there already; --diff shows what would change, --out FILE takes another"
        ) from None
    except OSError as error:
        raise SettingsError(f"{out} cannot be written: {error.strerror}") from None
    click.echo(f"\nWritten: {out}. Next:")
    for command in next_commands(out, plan, files):
        click.echo(f"  {command}")


def _plan(files: tuple[Path, ...], options: Mapping[str, Any]) -> Plan:
    """The plan from the one source that is named. Raises `SettingsError` for none or several."""
    named = [name for name in ("kafka", "mqtt", "sheet") if options[name]]
    if files:
        named.append("FILES")
    if not named:
        raise SettingsError("name what to look at, for instance: shoal init readings.csv")
    if len(named) > 1:
        raise SettingsError(
            f"{' and '.join(named)} are different things to look at; give one of them"
        )
    if bool(options["topic"]) != (named[0] in ("kafka", "mqtt")):
        raise SettingsError("--topic goes with --kafka or --mqtt, and each of them needs it")
    if files:
        return plan_of(files, options)
    if options["sheet"]:
        return plan_of_sheet(columns_of_sheet(options["sheet"]), stem_of(options["sheet"]), options)
    click.echo(f"Looking at {MESSAGES_MAX:,} messages, or {options['seconds']:g} s long.", err=True)
    if options["kafka"]:
        return plan_of_kafka(options["kafka"], options["topic"], options)
    return plan_of_mqtt(options["mqtt"], options["topic"], options)


def _clipped(plan: Plan, file: Path) -> list[str]:
    """The features whose bounds in the file that is there clip more than `CLIPPED_SHARE`."""
    if not file.exists():
        return []
    features = load_config(file).contract.features
    bounds = {feature.name: (feature.low, feature.high) for feature in features}
    remarks = []
    for column in plan.understood.of("feature"):
        if column.values or column.period or not len(column.numbers):
            continue
        low, high = bounds.get(column.name, (-math.inf, math.inf))
        share = float(((column.numbers < low) | (column.numbers > high)).mean())
        if share > CLIPPED_SHARE:
            remarks.append(
                f"{column.name}: {share:.1%} of the values lie outside {low:g} to {high:g} of"
                f" {file} and are clipped; proposed: {column.low:g} to {column.high:g}"
            )
    return remarks


def _remarks(plan: Plan) -> list[str]:
    understood = plan.understood
    remarks = []
    if understood.na_values:
        remarks.append(f"{', '.join(understood.na_values)} taken for no value.")
    remarks += [
        f"{name}: {', '.join(codes)} taken for no value, of this feature alone."
        for name, codes in plan.settings.get("na_values_of", {}).items()
    ]
    if plan.source != "mqtt" and understood.missing > MISSING_MIN:
        remarks.append(
            f"{understood.missing:.0%} of the rows lack a value of some feature: learnt for the"
            " others."
        )
    if plan.settings.get("columns"):
        remarks.append(
            f"Names that are not printable, or longer than {FEATURE_NAME_CHARS} characters, are"
            " changed."
        )
    named = [text for text in understood.clients if client_name_of(text) != text]
    if named:
        remarks.append("Clients with another name in folders and messages; commands take both:")
        remarks += [f"  {text!r} is {client_name_of(text)}" for text in named[:NAMES_SHOWN]]
    if len(named) > NAMES_SHOWN:
        remarks.append(f"  and {len(named) - NAMES_SHOWN} more")
    remarks += _remarks_on_models(plan)
    if plan.subjects.kind == "device":
        remarks.append(
            "Protected are single readings of a device. Where they concern people, whose readings"
            " add up: --concerns client or --concerns persons."
        )
    return remarks


def _remarks_on_models(plan: Plan) -> list[str]:
    """What the models that are proposed, or are not, rest on."""
    remarks = []
    are_people = plan.subjects.are_people
    if plan.is_one_stream and not are_people:
        remarks.append(NO_STATES_SENTENCE if plan.private else STATES_SENTENCE)
    if plan.private and plan.understood.rows:
        remarks.append(BOUNDS_SENTENCE)
        if plan.has_times and not are_people:
            remarks.append(TIMES_SENTENCE)
        if plan.readings < SMALL and not are_people:
            remarks.append(
                f"{plan.readings:,} readings are too few for private counts to show clusters; for"
                " public data: --public"
            )
    return remarks
