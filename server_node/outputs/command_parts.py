"""Common parts of the commands: the log of a federation, moments, and figures in lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from shoal.config.settings import Config, load_config
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.transports.base import Log


@contextmanager
def opened_log(file: Path, *, read_only: bool = False) -> Iterator[tuple[Config, Log]]:
    """The settings in a federation file, and the log of the federation, which has the topics.

    `read_only`: publish nothing, and change no file.
    """
    config = load_config(file)
    with closing(open_federation_log(config, read_only=read_only)) as log:
        ensure_topics(log, config.contract, config.log)
        yield config, log


def print_result(as_json: bool, values: Mapping[str, Any], text: str) -> None:
    """Print what a command has done: as one JSON object, or as a line for people."""
    click.echo(json.dumps(values) if as_json else text)


def unix_seconds(moment: datetime | None) -> float | None:
    """The moment that an option names, which is one of UTC, in seconds since 1970; None where it is
    left out."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC).timestamp()


def percent_text(share: float) -> str:
    """A share as text, small ones with two digits."""
    if share < 0.1:
        return f"{100 * share:.2g} %"
    return f"{100 * share:.0f} %"


def chance_text(chance: float) -> str:
    """A chance as text."""
    if chance < 1e-4:
        return "chance below 0.01 %"
    return f"chance {percent_text(chance)}"
