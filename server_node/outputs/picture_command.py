"""`shoal picture`: draws a model for reports, from its newest snapshot and its history."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click

from shoal.cli.options import chosen_model, config_option, model_option
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.topics import ensure_topics
from shoal.runtime.logs import open_federation_log
from shoal.server_node.outputs.changes_command import logged_changes
from shoal.server_node.outputs.picture_data import read_picture
from shoal.server_node.outputs.pictures import KINDS, draw


@click.command()
@config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file; its name ends in .svg, .png or .pdf.",
)
@model_option
@click.option(
    "--of",
    "what",
    type=click.Choice(KINDS),
    default="overview",
    show_default=True,
    help="Everything at first sight, clusters over time, states with their dwells and changes, "
    "changes between the halves of the history, or one cluster.",
)
@click.option(
    "--cluster",
    type=click.IntRange(min=0),
    metavar="ID",
    help="The cluster to draw, by its identity.",
)
def picture(file: Path, out: Path, model: str | None, what: str, cluster: int | None) -> None:
    """Draw the clusters of a model from its newest snapshot and its history, as the page shows
    them.

    With --cluster, one cluster: what it is in words, its share over time, and where it lies in each
    feature. It reads the log, on any machine that reaches it; a server may run meanwhile. Needs the
    extra `plot`.
    """
    config = load_config(file)
    contract = config.resolved
    if what == "cluster" and cluster is None:
        raise SettingsError(
            "--of cluster needs --cluster ID; the page and `shoal events list` have the identities"
        )
    chosen = chosen_model(model, contract.models, file)
    with closing(open_federation_log(config, read_only=True)) as log:
        ensure_topics(log, config.contract, config.log)
        data = read_picture(log, contract, chosen)
        if what == "changes":
            data = replace(data, changes=logged_changes(log, contract, chosen))
    draw(data, what if cluster is None else "cluster", cluster, out)
    click.echo(f"{out}: {chosen}, snapshot {data.snapshot.version}", err=True)
