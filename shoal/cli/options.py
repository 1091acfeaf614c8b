"""Options that several commands have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.errors import SettingsError
from shoal.text import counted

F = TypeVar("F", bound=Callable[..., object])


if TYPE_CHECKING:
    _TextParameter = click.ParamType[str]
else:
    # Not generic before click 8.4.
    _TextParameter = click.ParamType


class ClientName(_TextParameter):
    """The name of a client as people write it: "Werk Süd" is converted to the valid name, and that
    is printed."""

    name = "client"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The valid name of the client."""
        text = value.strip()
        if not text:
            self.fail("the name of a client has at least one letter or digit", param, ctx)
        from shoal.config.base import given_client_name  # noqa: PLC0415 - loads pydantic

        name = given_client_name(text)
        if name != text and "--json" not in sys.argv:
            click.echo(f"client {text!r} has the name {name}", err=True)
        return name


CLIENT_NAME = ClientName()
"""type of every option and argument that takes the name of a client"""


MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"])
"""type of every option that takes a time, which is UTC"""


def config_option_as(name: str, meaning: str, **attributes: Any) -> Callable[[F], F]:
    """--config FILE as the argument `name`, for a command to which the file means something of its
    own."""
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("--config", name, type=path, help=meaning, **attributes)


config_option = config_option_as("file", "The federation file.", required=True)
"""--config FILE, as the argument `file`"""
model_option = click.option(
    "--model", metavar="NAME", help="The model. [default: the first one of the file]"
)
"""--model NAME of a command about one model, as the argument `model`; see `chosen_model`"""
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
"""--json, as the argument `as_json`"""
log_json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: a line per event, and the totals at the end.",
)
"""--json of a command that runs for long, as the argument `as_json`"""
verbose_option = click.option("--verbose", is_flag=True, help="Log debug events too.")
"""--verbose, as the argument `verbose`"""


def chosen_model(model: str | None, models: Iterable[str], file: Path) -> str:
    """The model of --model, by default the first one of the federation file.

    Raises `SettingsError` for one that the file does not have.
    """
    names = list(models)
    if model is not None and model not in names:
        raise SettingsError(
            f"--model {model}: no such model in {file}; there are {', '.join(names)}"
        )
    return model or names[0]


def note_written(out: Path | None, number: int, unit: str) -> None:
    """Print on standard error what a command has written to its --out; nothing where that is
    standard output."""
    if out is not None:
        click.echo(f"{out}: {counted(number, unit)}", err=True)


def until_idle_option(what: str) -> Callable[[F], F]:
    """Option --until-idle SECONDS; `what` is what does not arrive."""
    return click.option(
        "--until-idle",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help=f"End when no {what} has arrived for this long.",
    )
