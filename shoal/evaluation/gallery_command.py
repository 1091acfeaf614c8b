"""`shoal reproduce pictures`: every algorithm on the same two data sets."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.algorithms.registry import algorithm_names
from shoal.errors import SettingsError
from shoal.evaluation import pictures as drawing
from shoal.evaluation import report, scores
from shoal.evaluation.experiments.gallery import DATA_SETS, FORMATS, Clustering, cluster, results


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Draw one PNG for each into this folder.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the data and the algorithms.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def pictures(out: Path | None, seed: int, as_json: bool) -> None:
    """Run every algorithm on two small synthetic data sets: clients that are alike, and clients that are not."""
    if out is not None and not out.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    scores.require_scikit_learn()
    data = [make(seed) for make in DATA_SETS]
    if out is not None:
        drawing.draw_data(data, out / "data.png")
    found: dict[tuple[str, str], Clustering] = {}
    for name in algorithm_names():
        for each in data:
            found[name, each.name] = cluster(name, each, seed)
        if out is not None:
            drawing.draw_clusterings(data, [found[name, each.name] for each in data], out / f"{name}.png")
    if as_json:
        click.echo(report.as_json(results(found)))
    else:
        report.show(results(found), FORMATS)
