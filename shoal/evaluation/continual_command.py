"""`shoal reproduce continual`: the continual-learning scenario of the FCAC paper, measured and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from shoal.errors import SettingsError
from shoal.evaluation import pictures, report, scores, workers
from shoal.evaluation.experiments.continual import FORMATS, MODES, SCHEDULE, Mode, Round, results, run, subsets
from shoal.evaluation.study import Chapter, Picture, ReportOptions, Study, Table

SEEDS: Final = 5
TITLE: Final = "Two clients and a server learn three Gaussians in three rounds: is anything forgotten on the way?"
TEXT: Final = """\
Published: section 5.2 of the FCAC paper, figures 4 to 9, which are pictures without figures; the data are drawn from
its description. `kept` is the least share of a subset's rows, over all subsets learnt so far, that are within the
vigilance of a node of the client that learnt them; `covered`, the same of the server; `found`, the least share that
lies in a cluster of its own Gaussian.
"""


@click.command(help=TITLE)
@click.option(
    "--seeds", type=click.IntRange(1), default=SEEDS, show_default=True, help="Runs, of as many seeds from 0."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Draw the run of seed 0 into this file.")
@click.option("--jobs", type=click.IntRange(1), default=workers.usable_cores, help="Processes; without it, all cores.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def continual(seeds: int, out: Path | None, jobs: int, as_json: bool) -> None:
    """The subcommand."""
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    scores.require_scikit_learn()
    if out is not None:
        pictures.require_matplotlib()
    runs = _measured(seeds, jobs)
    if out is not None:
        pictures.draw_rounds(runs["changed", 0], subsets(0), SCHEDULE, out)
        click.echo(f"drawn: {out}", err=True)
    found = results(runs)
    if as_json:
        click.echo(report.as_json(found))
    else:
        report.show(found, FORMATS)


def _measured(seeds: int, jobs: int) -> dict[tuple[Mode, int], list[Round]]:
    runs: dict[tuple[Mode, int], list[Round]] = {}
    planned = [(mode, seed) for mode in MODES for seed in range(seeds)]
    for job, rounds in workers.spread(_run, planned, jobs):
        runs[job] = rounds
        click.echo(f"contribute {job[0]}, seed {job[1]}: done", err=True)
    return runs


def _run(job: tuple[Mode, int]) -> list[Round]:
    mode, seed = job
    return run(seed, mode)


def _chapter(options: ReportOptions) -> Chapter:
    runs = _measured(1 if options.quick else options.trials or SEEDS, options.jobs)
    drawn = options.out / "continual.png"
    pictures.draw_rounds(runs["changed", 0], subsets(0), SCHEDULE, drawn)
    caption = "Both clients and the server after each round, seed 0 (figures 7 to 9 of the FCAC paper in one)"
    return Chapter("continual", TITLE, TEXT, [Table(results(runs), FORMATS)], [Picture(drawn, caption)])


STUDY: Final = Study("continual", TITLE, continual, _chapter)
