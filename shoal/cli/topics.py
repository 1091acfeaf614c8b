"""`shoal topics`: creates and checks the topics of a federation."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import click

from shoal.cli.options import config_option, json_option
from shoal.config.settings import load_config
from shoal.protocol.topics import declared_topics, ensure_topics
from shoal.transports import open_log


@click.group()
def topics() -> None:
    """The topics of a federation."""


@topics.command()
@config_option
@json_option
def ensure(file: Path, as_json: bool) -> None:
    """Create the federation's topics where they are missing, and check the existing ones.

    A topic with other settings than declared is an error that names every difference; nothing is changed. On Kafka, run
    this as a user who may create topics; clients and servers then need the rights to read and write only.
    """
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        chosen = config.client.publish_labels, config.upstream.file is not None
        ensure_topics(log, config.contract, config.log, *chosen)
        declared = declared_topics(config.contract, config.log, *chosen)
        bounds = {name: log.bounds(name) for name in declared}
    if as_json:
        click.echo(json.dumps({name: [ends[partition] for partition in sorted(ends)] for name, ends in bounds.items()}))
        return
    for name, ends in bounds.items():
        offsets = sum(end - first for first, end in ends.values())
        click.echo(f"{name}: {len(ends)} partition{'s' * (len(ends) != 1)}, {offsets} offsets kept")
