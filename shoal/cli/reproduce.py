"""`shoal reproduce`: the papers' experiments of a clone of shoal; an installed wheel does not have
them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click

from shoal.errors import SettingsError

CLONE = Path(__file__).parents[2]
"""the folder that shoal is imported from; in a clone it has the package `reproduction` as well"""


@click.command(
    "reproduce",
    help="Not available: shoal is not run from a clone, and only a clone has the papers' "
    "experiments.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("anything", nargs=-1)
def _unavailable(anything: tuple[str, ...]) -> None:
    raise SettingsError(
        "the papers' experiments are not part of an installed shoal; run this in a clone: "
        "pip install -e '.[evaluate]', then shoal reproduce"
    )


def _found() -> click.Command:
    if not (CLONE / "reproduction" / "__init__.py").exists():
        return _unavailable
    if str(CLONE) not in sys.path:
        sys.path.append(str(CLONE))
    command = import_module("reproduction.reproduce_command").reproduce
    assert isinstance(command, click.Command)
    return command


reproduce = _found()
