"""`shoal topics`: the federation's topics, declared before anybody needs them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from shoal.config.settings import load_config
from shoal.protocol.topics import declared_topics, ensure_topics
from shoal.transports import open_log


@click.group()
def topics() -> None:
    """The topics of a federation."""


@topics.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The federation file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ensure(file: Path, as_json: bool) -> None:
    """Create the federation's topics where they are missing, and check those that are there.

    A topic that is kept in another way than declared is an error that names every difference; nothing is changed.
    On Kafka this is for whoever may create topics; clients and servers then need to read and write only.
    """
    config = load_config(file)
    log = open_log(config.log)
    try:
        ensure_topics(log, config.contract, config.log)
        bounds = {name: log.bounds(name) for name in declared_topics(config.contract, config.log)}
    finally:
        log.close()
    if as_json:
        click.echo(
            json.dumps({name: [spans[partition] for partition in sorted(spans)] for name, spans in bounds.items()})
        )
        return
    for name, spans in bounds.items():
        records = sum(end - first for first, end in spans.values())
        click.echo(f"{name}: {len(spans)} partition{'s' * (len(spans) != 1)}, {records} offsets kept")
