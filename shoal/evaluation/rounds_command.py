"""`shoal reproduce fcm | ffcm | kmeans | kfed | mufc | gmm`: the same options and the same output for each."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import click

from shoal.errors import SettingsError
from shoal.evaluation import ffcm_experiment, gmm_experiment, rounds_experiments, scores, workers
from shoal.evaluation.datasets import Fill
from shoal.evaluation.experiments import Asked, Experiment, Setting
from shoal.evaluation.published import Figure

EXPERIMENTS: Final[dict[str, Experiment]] = {
    experiment.name: experiment
    for experiment in (
        rounds_experiments.FCM_EXPERIMENT,
        ffcm_experiment.EXPERIMENT,
        rounds_experiments.KMEANS_EXPERIMENT,
        rounds_experiments.KFED_EXPERIMENT,
        rounds_experiments.MUFC_EXPERIMENT,
        gmm_experiment.EXPERIMENT,
    )
}
SPLIT_NAMES: Final = {"iid": "IID", "niid": "non-IID", "kp": "few classes"}


@dataclass(frozen=True)
class Job:
    """One trial of one setting."""

    setting: Setting
    trial: int


@dataclass(frozen=True)
class Row:
    """One setting: what was found, what was published, and whether the one is as near to the other as promised."""

    setting: Setting
    trials: int
    found: Mapping[str, Figure]
    printed: Mapping[str, Figure]
    agrees: Mapping[str, bool]
    """of the measures about which something is promised"""


def command_of(experiment: Experiment) -> click.Command:
    """The subcommand of one experiment."""
    made_up = "; made up: " + ", ".join(f"{name} ({what})" for name, what in experiment.extra.items())
    options = [
        click.Option(
            ["--data"],
            type=click.Path(path_type=Path),
            envvar="SHOAL_DATA",
            show_envvar=True,
            help="Folder of NAME.csv.gz files: a header, numeric features, a last column `label`.",
        ),
        click.Option(
            ["--dataset", "names"],
            multiple=True,
            metavar="NAME",
            help="May be repeated; without it, the usual ones" + (made_up if experiment.extra else "") + ".",
        ),
        click.Option(["--trials"], type=click.IntRange(1), help=f"Without it, {experiment.trials}."),
        click.Option(
            ["--split"], type=click.Choice([*experiment.splits, "both"]), default="both", help="Without it, each."
        ),
        click.Option(["--epsilon"], type=click.FloatRange(0, min_open=True), help="FCAC's Laplace noise, per feature."),
        click.Option(["--clients"], type=click.IntRange(1), help="Without it, the paper's number."),
        click.Option(
            ["--fill"],
            type=click.Choice(list(get_args(Fill))),
            default="refuse",
            show_default=True,
            help="What to do about missing cells.",
        ),
        click.Option(
            ["--jobs"], type=click.IntRange(1), default=workers.usable_cores, help="Processes; all cores without it."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of a table."),
        click.Option(
            ["--check"], is_flag=True, help="Exit with 1 when a figure is farther from the published one than promised."
        ),
    ]

    def callback(**given: Any) -> None:
        _reproduce(experiment, Asked(**given))

    return click.Command(experiment.name, callback=callback, params=list(options), help=experiment.title)


def _reproduce(experiment: Experiment, asked: Asked) -> None:
    if asked.check and asked.trials not in (None, experiment.trials):
        raise SettingsError(f"--check compares {experiment.trials} trials; leave --trials out")
    settings = experiment.settings(asked)
    if not settings:
        raise SettingsError("nothing to run; name data with --dataset")
    if asked.check and not any(experiment.printed(setting) for setting in settings):
        raise SettingsError("--check has nothing to compare with: of what was asked for, no figure was published")
    rows = _rows(experiment, settings, asked.trials or experiment.trials, asked.jobs)
    click.echo(as_json(rows) if asked.as_json else as_markdown(experiment, rows))
    if asked.check and not all(all(row.agrees.values()) for row in rows):
        click.echo("a figure is farther from the published one than promised", err=True)
        raise click.exceptions.Exit(1)


def _rows(experiment: Experiment, settings: Sequence[Setting], trials: int, jobs: int) -> list[Row]:
    planned = [Job(setting, trial) for setting in settings for trial in range(trials)]
    measured: dict[Setting, dict[int, dict[str, float]]] = {setting: {} for setting in settings}
    with click.progressbar(length=len(planned), label="trials", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        for job, measures in workers.spread(run, planned, jobs):
            measured[job.setting][job.trial] = measures
            bar.update(1)
    rows = []
    for setting, by_trial in measured.items():
        ordered = [by_trial[trial] for trial in sorted(by_trial)]
        found = {name: scores.figure([each[name] for each in ordered]) for name in ordered[0]}
        printed = {name: figure for name, figure in experiment.printed(setting).items() if name in found}
        rows.append(Row(setting, trials, found, printed, _agreements(experiment, setting, found, printed)))
    return rows


def run(job: Job) -> dict[str, float]:
    """One trial, in a worker."""
    return EXPERIMENTS[job.setting.experiment].run(job.setting, job.trial)


def _agreements(
    experiment: Experiment, setting: Setting, found: Mapping[str, Figure], printed: Mapping[str, Figure]
) -> dict[str, bool]:
    bands = {name: experiment.band(setting, name, found[name]) for name in printed}
    return {
        name: abs(found[name].mean - printed[name].mean) <= band for name, band in bands.items() if band is not None
    }


def as_json(rows: Sequence[Row]) -> str:
    """{"rows": [...]} as `reproduce fcac` has it, with the experiment's parameters between split and trials."""
    return json.dumps({"rows": [_plain(row) for row in rows]}, indent=2)


def _plain(row: Row) -> dict[str, Any]:
    metrics = {
        name: {
            "mean": figure.mean,
            "sd": figure.sd,
            "published": row.printed[name].mean if name in row.printed else None,
        }
        for name, figure in row.found.items()
    }
    setting = row.setting
    return {
        "dataset": setting.dataset,
        "split": setting.split,
        **dict(setting.keys),
        "trials": row.trials,
        "metrics": metrics,
    }


def as_markdown(experiment: Experiment, rows: Sequence[Row]) -> str:
    """A table that reads well as it is and in a page."""
    keys = [name for name, _ in rows[0].setting.keys]
    cells = [("data set", "split", *keys, "measure", "published", "obtained", "")]
    for row in rows:
        for place, (name, figure) in enumerate(row.found.items()):
            values = [f"{value:g}" if isinstance(value, float) else str(value) for _, value in row.setting.keys]
            head = (row.setting.dataset, SPLIT_NAMES[row.setting.split], *values)
            form = experiment.digits[name]
            verdict = {True: "as promised", False: "differs", None: ""}[row.agrees.get(name)]
            printed = _said(row.printed[name], form) if name in row.printed else "-"
            cells.append((*(head if place == 0 else [""] * len(head)), name, printed, _said(figure, form), verdict))
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    drawn = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    drawn.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(drawn)


def _said(figure: Figure, form: str) -> str:
    return f"{figure.mean:{form}}" + ("" if math.isnan(figure.sd) else f" ({figure.sd:{form}})")
