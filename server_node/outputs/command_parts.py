"""Common parts of the commands that publish requests to the server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
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
