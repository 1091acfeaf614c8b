"""`shoal picture`: a picture of a model for a report."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from server_node.pictures.data import read_picture
from server_node.pictures.drawing import draw
from shoal.cli.options import config_option
from shoal.config.models import check_models
from shoal.config.settings import load_config
from shoal.errors import SettingsError
from shoal.protocol.topics import ensure_topics
from shoal.runtime.signed_snapshots import open_federation_log

KINDS = ("overview", "timeline", "cluster")


@click.command()
@config_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file; its name ends in .svg, .png or .pdf.",
)
@click.option("--model", metavar="NAME", help="The model. [default: the first one of the file]")
@click.option(
    "--of",
    "what",
    type=click.Choice(KINDS),
    default="overview",
    show_default=True,
    help="Everything at first sight, clusters over time, or one cluster.",
)
@click.option("--cluster", type=click.IntRange(min=0), metavar="ID", help="The cluster to draw, by its identity.")
def picture(file: Path, out: Path, model: str | None, what: str, cluster: int | None) -> None:
    """Draw the clusters of a model from its newest snapshot and its history, as the page shows them.

    With --cluster, one cluster: what it is in words, its share over time, and where it lies in each feature. It reads
    the log, on any machine that reaches it; a server may run meanwhile. Needs the extra `plot`.
    """
    config = load_config(file)
    check_models(config.contract)
    if what == "cluster" and cluster is None:
        raise SettingsError("--of cluster needs --cluster ID; the page and `shoal events list` have the identities")
    chosen = config.contract.model(model) if model else config.contract.models[0]
    if chosen is None:
        names = ", ".join(one.name for one in config.contract.models)
        raise SettingsError(f"--model {model}: no such model in {file}; there are {names}")
    with closing(open_federation_log(config)) as log:
        ensure_topics(log, config.contract, config.log)
        found = read_picture(log, config.contract, chosen)
    draw(found, what if cluster is None else "cluster", cluster, out)
    click.echo(f"{out}: {chosen.name}, snapshot {found.snapshot.version}", err=True)
