"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def config_option(command: F) -> F:
    """--config FILE, as the argument `file`."""
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("--config", "file", type=path, required=True, help="The federation file.")(command)


def json_option(command: F) -> F:
    """--json, as the argument `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
