"""`shoal reproduce continual`: the continual-learning scenario of the FCAC paper, measured and drawn."""

from __future__ import annotations

from pathlib import Path

import click

from shoal.errors import SettingsError
from shoal.evaluation import pictures, report, scores, workers
from shoal.evaluation.experiments.continual import FORMATS, MODES, SCHEDULE, Mode, Round, results, run, subsets


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Runs, of as many seeds from 0.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Draw the run of seed 0 into this file.")
@click.option("--jobs", type=click.IntRange(1), default=workers.usable_cores, help="Processes; without it, all cores.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def continual(seeds: int, out: Path | None, jobs: int, as_json: bool) -> None:
    """Two clients and a server learn three Gaussians in three rounds: is anything forgotten on the way?"""
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    scores.require_scikit_learn()
    if out is not None:
        pictures.require_matplotlib()
    runs: dict[tuple[Mode, int], list[Round]] = {}
    planned = [(mode, seed) for mode in MODES for seed in range(seeds)]
    for job, rounds in workers.spread(_run, planned, jobs):
        runs[job] = rounds
        click.echo(f"contribute {job[0]}, seed {job[1]}: done", err=True)
    if out is not None:
        pictures.draw_rounds(runs["changed", 0], subsets(0), SCHEDULE, out)
        click.echo(f"drawn: {out}", err=True)
    found = results(runs)
    if as_json:
        click.echo(report.as_json(found))
    else:
        report.show(found, FORMATS)


def _run(job: tuple[Mode, int]) -> list[Round]:
    mode, seed = job
    return run(seed, mode)
