"""`shoal reproduce fcac | fcm | ffcm | kmeans | kfed | mufc | gmm`: the same options and the same report for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import click

from shoal.errors import SettingsError
from shoal.evaluation import report, scores, workers
from shoal.evaluation.datasets import Fill
from shoal.evaluation.experiment import Experiment, Setting
from shoal.evaluation.experiments import fcac, fcm, ffcm, gmm, kfed, kmeans, mufc
from shoal.evaluation.planning import Options, plan
from shoal.evaluation.results import Result, summary

EXPERIMENTS: Final[dict[str, Experiment]] = {
    module.EXPERIMENT.name: module.EXPERIMENT for module in (fcac, fcm, ffcm, kmeans, kfed, mufc, gmm)
}
Measures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """One trial of one setting."""

    setting: Setting
    trial: int


def command_of(experiment: Experiment) -> click.Command:
    """The subcommand of one experiment."""

    def callback(**options: Any) -> None:
        _reproduce(experiment, Options(**options))

    return click.Command(experiment.name, callback=callback, params=_parameters(experiment), help=experiment.title)


def _parameters(experiment: Experiment) -> list[click.Parameter]:
    synthetic = ", ".join(f"{name} ({each.description})" for name, each in experiment.synthetic.items())
    return [
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
            help="May be repeated; without it, the paper's that are there"
            + (f"; synthetic: {synthetic}." if synthetic else "."),
        ),
        click.Option(["--trials"], type=click.IntRange(1), help=f"Without it, {experiment.trials}."),
        click.Option(
            ["--split"], type=click.Choice([*experiment.splits, "both"]), default="both", help="Without it, each."
        ),
        click.Option(
            ["--epsilon"],
            type=click.FloatRange(0, min_open=True),
            help="The FCAC paper's Laplace noise, per feature; without it, no noise.",
        ),
        click.Option(
            ["--clients"],
            type=click.IntRange(1),
            help="Without it, the paper's number; for other data one per 400 rows, from 2 to 50.",
        ),
        click.Option(
            ["--fill"],
            type=click.Choice(list(get_args(Fill))),
            default="refuse",
            show_default=True,
            help="What to do about missing cells.",
        ),
        click.Option(
            ["--jobs"], type=click.IntRange(1), default=workers.usable_cores, help="Processes; without it, all cores."
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of a table."),
        click.Option(["--check"], is_flag=True, help="Exit with 1 if a figure does not agree with the published one."),
    ]


def _reproduce(experiment: Experiment, options: Options) -> None:
    if options.check and options.trials not in (None, experiment.trials):
        raise SettingsError(f"--check compares {experiment.trials} trials; leave --trials out")
    scores.require_scikit_learn()
    planned = plan(experiment, options)
    if not planned.settings:
        raise planned.errors[0] if planned.errors else SettingsError("nothing to run; name data with --dataset")
    if options.check and not any(experiment.published(setting) for setting in planned.settings):
        raise SettingsError("--check has nothing to compare with: no figure was published for these settings")
    results = _run_all(experiment, planned.settings, options.trials or experiment.trials, options.jobs)
    if options.as_json:
        click.echo(report.as_json(results))
    else:
        report.show(results, experiment.formats)
    if planned.errors:
        # Whatever could be run was run and printed; the first error decides how the command ends.
        raise planned.errors[0]
    if options.check and not all(all(result.agrees.values()) for result in results):
        click.echo("a figure does not agree with the published one", err=True)
        raise click.exceptions.Exit(1)


def _run_all(experiment: Experiment, settings: Sequence[Setting], trials: int, jobs: int) -> list[Result]:
    """The results in the order of the settings; a line on stderr as the trials of each are done."""
    planned = [Job(setting, trial) for setting in settings for trial in range(trials)]
    measured: dict[Setting, dict[int, Measures]] = {setting: {} for setting in settings}
    on_terminal = sys.stderr.isatty()
    with click.progressbar(length=len(planned), label="trials", file=sys.stderr, hidden=not on_terminal) as bar:
        for job, measures in workers.spread(run, planned, jobs):
            by_trial = measured[job.setting]
            by_trial[job.trial] = measures
            bar.update(1)
            if len(by_trial) == trials and not on_terminal:
                click.echo(f"{_title(job.setting)}: {trials} trials done", err=True)
    return [
        _result(experiment, setting, [by_trial[trial] for trial in range(trials)])
        for setting, by_trial in measured.items()
    ]


def _title(setting: Setting) -> str:
    return " ".join([setting.dataset, setting.split, *(str(value) for _, value in setting.keys)])


def run(job: Job) -> Measures:
    """Run one trial, in a worker process."""
    return EXPERIMENTS[job.setting.experiment].run(job.setting, job.trial)


def _result(experiment: Experiment, setting: Setting, trials: Sequence[Measures]) -> Result:
    measured = {name: summary([each[name] for each in trials]) for name in trials[0]}
    published = {name: figure for name, figure in experiment.published(setting).items() if name in measured}
    agrees: dict[str, bool] = {}
    # The published figures are of the experiment's number of trials; fewer are not compared.
    if len(trials) == experiment.trials:
        for name, figure in published.items():
            verdict = experiment.agrees(setting, name, measured[name], figure)
            if verdict is not None:
                agrees[name] = verdict
    keys = {"dataset": setting.dataset, "split": setting.split, **dict(setting.keys)}
    return Result(keys, len(trials), measured, published, agrees)
