"""The form of files: how they are written, as a person says it where it is not found in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from shoal.config.contract import Contract
from shoal.privacy.base import Missing
from shoal.producers.files.dialect import FOUND, DialectOptions
from shoal.producers.files.times import ORDERS, TimeOptions
from shoal.producers.values import missing_of


class FileForm(NamedTuple):
    """What a person says about files; the rest is found in them."""

    dialect: DialectOptions = FOUND
    times: TimeOptions = TimeOptions()
    missing: Missing = "drop"
    """treatment of a reading that lacks a value"""
    learns_gaps: bool = False
    """whether clients learn readings that lack values"""


AS_FOUND = FileForm()


FORM_PARAMETERS: tuple[click.Parameter, ...] = (
    click.Option(
        ["--decimal"],
        type=click.Choice([".", ","]),
        help="The decimal sign of the numbers. [default: found in the file]",
    ),
    click.Option(
        ["--date-format"],
        metavar="FORMAT",
        help=f"{', '.join(ORDERS)}, or strptime's codes, as in %d.%m.%Y %H:%M. [default: found in"
        " the file]",
    ),
    click.Option(
        ["--timezone"],
        metavar="ZONE",
        help="The zone of times that name none, as in Europe/Berlin. [default: UTC]",
    ),
    click.Option(
        ["--encoding"], help="The encoding of the files, as in cp1252. [default: found in the file]"
    ),
    click.Option(
        ["--na-value", "na_values"],
        multiple=True,
        metavar="TEXT",
        help='A cell that means "no value", as -200, besides empty ones and the usual words.',
    ),
)
"""options that say how files are written, for every command that reads them"""


def form_of(options: Mapping[str, Any], contract: Contract | None = None) -> FileForm:
    """What the command line says about files, of readings under this contract.

    Raises `SettingsError`.
    """
    dialect = DialectOptions(
        options["encoding"] or None, options["decimal"] or None, tuple(options["na_values"])
    )
    times = TimeOptions(options["date_format"] or None, options["timezone"] or None)
    if contract is None:
        return FileForm(dialect, times)
    return FileForm(dialect, times, missing_of(options["missing"], contract), contract.learns_gaps)
