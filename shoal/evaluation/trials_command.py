"""The subcommand of `shoal reproduce` of each experiment over trials: the same options and report for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from shoal.errors import SettingsError
from shoal.evaluation import report, scores, workers
from shoal.evaluation.datasets import Fill
from shoal.evaluation.experiment import Experiment
from shoal.evaluation.planning import Options, plan
from shoal.evaluation.trial_store import TrialStore
from shoal.evaluation.trials import run_trials


def data_option() -> click.Option:
    """--data, the same in every experiment."""
    return click.Option(
        ["--data"],
        type=click.Path(path_type=Path),
        envvar="SHOAL_DATA",
        show_envvar=True,
        help="Folder of NAME.csv.gz files: a header, numeric features, a last column `label`.",
    )


def jobs_option() -> click.Option:
    """--jobs, the same in every experiment."""
    return click.Option(
        ["--jobs"], type=click.IntRange(1), default=workers.usable_cores, help="Processes; without it, all cores."
    )


def resume_option() -> click.Option:
    """--resume, the same in every experiment."""
    return click.Option(
        ["--resume"],
        type=click.Path(path_type=Path, dir_okay=False),
        help="Keep every finished trial in this file, and do not run again those that are in it. Begin another file "
        "after a change of data or code.",
    )


def command_of(experiment: Experiment) -> click.Command:
    """The subcommand of one experiment."""

    def callback(**options: Any) -> None:
        _reproduce(experiment, Options(**options))

    return click.Command(experiment.name, callback=callback, params=_parameters(experiment), help=experiment.title)


def _parameters(experiment: Experiment) -> list[click.Parameter]:
    synthetic = ", ".join(f"{name} ({each.description})" for name, each in experiment.synthetic.items())
    return [
        data_option(),
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
        jobs_option(),
        resume_option(),
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
    store = TrialStore(options.resume)
    results = run_trials(experiment, planned.settings, options.trials or experiment.trials, options.jobs, store)
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
