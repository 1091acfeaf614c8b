"""`shoal reproduce ranks`: the mean ranks of all algorithms, beside those that the FCAC paper prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from shoal.errors import SettingsError
from shoal.evaluation import pictures, report, scores
from shoal.evaluation.contest import ALL_EPSILONS, PAPERS, Contest, Ranks, rankings, run_contest, tables
from shoal.evaluation.contestants import PUBLISHED
from shoal.evaluation.datasets import fcac_name
from shoal.evaluation.experiments.ranks import BAND, EXPERIMENT, NOISE_TRIALS, TEXT, TRIALS
from shoal.evaluation.published_ranks import EPSILONS
from shoal.evaluation.rank_picture import draw_ranks
from shoal.evaluation.study import Chapter, Picture, ReportOptions, Study
from shoal.evaluation.trials_command import data_option, jobs_option, resume_option

CAPTION: Final = "Mean ranks; a bar joins algorithms whose ranks differ by less than the critical difference"
LARGE_DATASETS: Final = ("fashion_mnist",)
"""on which the report has the paper's algorithms only; 70 000 rows of 784 features"""
NOISE_DATASETS: Final = ("hill_valley", "ozone", "phoneme", "optdigits")
"""of the report: the smaller ones, as noise is wanted at four levels"""
REPORT_TRIALS: Final = 2
"""of all algorithms in the report, most of which have no published ranks"""
REPORTED: Final = f"""\
The command ranks all algorithms on all data, with and without noise, which takes hours; the report has less. The
paper's algorithms are ranked on all data that are in the folder; all algorithms in fewer trials, and not on
{", ".join(LARGE_DATASETS)}; and with the paper's Laplace noise on four of the smaller data sets. What the paper shows
with noise (figure 11) are diagrams without figures.
"""
QUICK_DATASETS: Final = ("hill_valley", "phoneme", "pendigits")


class _Epsilon(click.ParamType[float | None]):
    name = "epsilon"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if value == "none":
            return None
        number = click.FloatRange(0, min_open=True).convert(value, param, ctx)
        return float(number)


def _parameters() -> list[click.Parameter]:
    return [
        data_option(),
        click.Option(
            ["--dataset", "datasets"], multiple=True, metavar="NAME", help="May be repeated; without it, the paper's."
        ),
        click.Option(
            ["--algorithm", "algorithms"], multiple=True, metavar="NAME", help="May be repeated; without it, all."
        ),
        click.Option(
            ["--epsilon", "epsilons"],
            type=_Epsilon(),
            multiple=True,
            help="The paper's Laplace noise, or none. May be repeated; without it none, 15, 25, 50 and 75.",
        ),
        click.Option(
            ["--score", "measures"], type=click.Choice(scores.SCORES), multiple=True, help="Without it, all three."
        ),
        click.Option(["--trials"], type=click.IntRange(1), help=f"Without it, {TRIALS}."),
        click.Option(
            ["--noise-trials"],
            type=click.IntRange(1),
            default=NOISE_TRIALS,
            show_default=True,
            help="Trials of settings with noise.",
        ),
        click.Option(["--quick"], is_flag=True, help="Three small data sets without noise, one trial."),
        jobs_option(),
        resume_option(),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Draw the mean ranks and critical differences into this file.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of tables."),
        click.Option(["--check"], is_flag=True, help=f"Exit with 1 if a mean rank is not within {BAND:g} deviations."),
    ]


def _ranks(**given: Any) -> None:
    quick, trials, out = given["quick"], given["trials"], given["out"]
    chosen = set(given["algorithms"] or PUBLISHED)
    if given["check"] and (quick or given["measures"] or not chosen >= set(PUBLISHED)):
        raise SettingsError(f"--check ranks {', '.join(PUBLISHED)} by all scores; leave --quick and --score out")
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    scores.require_scikit_learn()
    if out is not None:
        pictures.require_matplotlib()
    contest = Contest(
        given["data"],
        given["datasets"] or (QUICK_DATASETS if quick else ()),
        given["algorithms"],
        tuple(dict.fromkeys(given["epsilons"])) or ((None,) if quick else ALL_EPSILONS),
        given["measures"] or scores.SCORES,
        trials or (1 if quick else TRIALS),
        given["noise_trials"],
        given["jobs"],
        given["resume"],
    )
    outcome = run_contest(contest)
    if given["as_json"]:
        rows = json.loads(report.as_json(outcome.results))["rows"]
        click.echo(json.dumps({"rows": rows, "tests": outcome.tests, "left_out": outcome.left_out}, indent=2))
    else:
        for table in tables(outcome):
            click.echo(f"{table.text}\n")
            report.show(table.results, table.formats)
            click.echo()
    if out is not None:
        draw_ranks(rankings(outcome), out)
        click.echo(f"drawn: {out}", err=True)
    if given["check"] and not all(all(result.agrees.values()) for result in outcome.results):
        click.echo("a mean rank does not agree with the published one", err=True)
        raise click.exceptions.Exit(1)


def _chapter(options: ReportOptions) -> Chapter:
    """The paper's algorithms on all data, all algorithms on all but the largest, and with noise on the smaller ones."""
    first = Contest(
        options.data,
        QUICK_DATASETS if options.quick else (),
        tuple(PUBLISHED),
        epsilons=(None,),
        trials=options.trials or (1 if options.quick else TRIALS),
        jobs=options.jobs,
        resume=options.store,
    )
    papers = run_contest(first)
    datasets = {each.dataset: fcac_name(each.dataset) for each in papers.found}
    every = run_contest(
        replace(
            first,
            datasets=tuple(name for name, known in datasets.items() if known not in LARGE_DATASETS),
            algorithms=(),
            trials=min(first.trials, REPORT_TRIALS),
        )
    )
    found = [*tables(papers), *tables(every, leave_out=PAPERS)]
    drawn = [
        _drawn(papers, options.out / "ranks-paper.png", "The paper's algorithms."),
        _drawn(every, options.out / "ranks.png", "All algorithms."),
    ]
    if not options.quick:
        small = tuple(name for name, known in datasets.items() if known in NOISE_DATASETS)
        noisy = run_contest(replace(first, datasets=small, algorithms=(), epsilons=EPSILONS, noise_trials=1))
        found += [replace(table, text=f"With noise. {table.text}") for table in tables(noisy)]
        drawn.append(_drawn(noisy, options.out / "ranks-noise.png", "With noise."))
    return Chapter("ranks", EXPERIMENT.title, f"{TEXT}\n{REPORTED}", found, drawn)


def _drawn(outcome: Ranks, path: Path, what: str) -> Picture:
    draw_ranks(rankings(outcome), path)
    return Picture(path, f"{what} {CAPTION}")


STUDY: Final = Study(
    "ranks",
    EXPERIMENT.title,
    click.Command(
        "ranks",
        callback=_ranks,
        params=_parameters(),
        help=f"{EXPERIMENT.title}\n\nEverything takes hours on one core: give --resume a file, and run the same "
        "command again after a stop.",
    ),
    _chapter,
    EXPERIMENT,
)
