"""`shoal reproduce pictures`: every algorithm on the same two data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from shoal.algorithms.registry import algorithm_names
from shoal.errors import SettingsError
from shoal.evaluation import pictures as drawing
from shoal.evaluation import report, scores
from shoal.evaluation.experiments.gallery import DATA_SETS, FORMATS, Clustering, cluster, results
from shoal.evaluation.study import Chapter, Picture, ReportOptions, Study, Table

TITLE: Final = "Run every algorithm on two small synthetic data sets: clients that are alike, and clients that are not."
TEXT: Final = """\
Not from a paper. In *blobs* every client has rows of each of five round clusters; in *skewed* there are four clusters
of different sizes and shapes, and each client has rows of two of them. Seed 0.
"""


@click.command(help=TITLE)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Draw one PNG for each into this folder.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the data and the algorithms.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def pictures(out: Path | None, seed: int, as_json: bool) -> None:
    """The subcommand."""
    if out is not None and not out.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    scores.require_scikit_learn()
    found = _drawn(out, seed)
    if as_json:
        click.echo(report.as_json(results(found)))
    else:
        report.show(results(found), FORMATS)


def _drawn(out: Path | None, seed: int) -> dict[tuple[str, str], Clustering]:
    """All clusterings by algorithm and data set, drawn into a folder if there is one."""
    data = [make(seed) for make in DATA_SETS]
    if out is not None:
        drawing.draw_data(data, out / "data.png")
    found: dict[tuple[str, str], Clustering] = {}
    for name in algorithm_names():
        for each in data:
            found[name, each.name] = cluster(name, each, seed)
        if out is not None:
            drawing.draw_clusterings(data, [found[name, each.name] for each in data], out / f"{name}.png")
    return found


def _chapter(options: ReportOptions) -> Chapter:
    found = _drawn(options.out, 0)
    names = ["data", *dict.fromkeys(name for name, _ in found)]
    drawn = [Picture(options.out / f"{name}.png", name) for name in names]
    return Chapter("pictures", TITLE, TEXT, [Table(results(found), FORMATS)], drawn)


STUDY: Final = Study("pictures", TITLE, pictures, _chapter)
