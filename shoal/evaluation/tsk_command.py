"""`shoal reproduce tsk`: the tables of the F2LS paper, by its own form and by tsk's sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from shoal.errors import SettingsError
from shoal.evaluation import datasets, report
from shoal.evaluation.experiment import Setting
from shoal.evaluation.experiments.tsk import CLIENTS, EXPERIMENT, PUBLISHED, TITLE, TRIALS, VARIANTS
from shoal.evaluation.study import Chapter, ReportOptions, Study, Table
from shoal.evaluation.trial_store import TrialStore
from shoal.evaluation.trials import run_trials
from shoal.evaluation.trials_command import data_option, jobs_option, resume_option

QUICK_TRIALS: Final = 2
TEXT: Final = """\
Published: tables I and II of the F2LS paper, the means of its three clients. `lm` are the models of single clients,
`fm` is the federated one, each on the test rows of the clients; `gain` is the error of the first less that of the
second. Rules *merged*: each client runs fuzzy c-means alone, chooses the number of clusters by the correlation index,
and the server joins near centres (at most 1.5 standard deviations apart by complete linkage; the paper does not give
its threshold). Rules by *sums*: tsk with six rules. *gradient* is the paper's: 5000 steps of .01, or until no
coefficient moves by 1e-4. Bands: in scenario 1, .02 (mpg) and .03 (wine) around the paper's mean for gradient, and at
most .135 (mpg) for least squares by sums; the gain is above 0 everywhere. The figures of single clients are not
compared, because they vary by .05 to .1 from trial to trial.
"""


def settings(folder: Path | None, names: tuple[str, ...]) -> list[Setting]:
    """Every data set of the paper that is in the folder, or those named, in every form. Raises `SettingsError`."""
    if folder is None:
        raise SettingsError("say where the data are, with --data FOLDER or SHOAL_DATA: a folder of NAME.csv.gz files")
    for name in names:
        if name not in PUBLISHED:
            raise SettingsError(f"{name} is not a data set of the paper; choose from {', '.join(PUBLISHED)}")
    paths = [datasets.find(folder, name) for name in names] or datasets.find_any(folder, tuple(PUBLISHED))
    return [
        Setting(EXPERIMENT.name, datasets.stem(path), "iid", CLIENTS, keys, path) for path in paths for keys in VARIANTS
    ]


def _tsk(**given: Any) -> None:
    trials = given["trials"] or (QUICK_TRIALS if given["quick"] else TRIALS)
    if given["check"] and trials != TRIALS:
        raise SettingsError(f"--check compares {TRIALS} trials; leave --trials and --quick out")
    planned = settings(given["data"], given["names"])
    results = run_trials(EXPERIMENT, planned, trials, given["jobs"], TrialStore(given["resume"]))
    if given["as_json"]:
        click.echo(report.as_json(results))
    else:
        report.show(results, EXPERIMENT.formats)
    if given["check"] and not all(all(result.agrees.values()) for result in results):
        click.echo("a figure does not agree with the published one", err=True)
        raise click.exceptions.Exit(1)


def _chapter(options: ReportOptions) -> Chapter:
    trials = options.trials or (QUICK_TRIALS if options.quick else TRIALS)
    results = run_trials(EXPERIMENT, settings(options.data, ()), trials, options.jobs, TrialStore(options.store))
    return Chapter(EXPERIMENT.name, TITLE, TEXT, [Table(results, EXPERIMENT.formats)])


STUDY: Final = Study(
    EXPERIMENT.name,
    TITLE,
    click.Command(
        EXPERIMENT.name,
        callback=_tsk,
        help=TITLE,
        params=[
            data_option(),
            click.Option(
                ["--dataset", "names"],
                multiple=True,
                metavar="NAME",
                help=f"{' or '.join(PUBLISHED)}; may be repeated; without it, those that are there.",
            ),
            click.Option(["--trials"], type=click.IntRange(1), help=f"Without it, {TRIALS}."),
            click.Option(["--quick"], is_flag=True, help=f"{QUICK_TRIALS} trials: shows that it runs."),
            jobs_option(),
            resume_option(),
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of a table."),
            click.Option(["--check"], is_flag=True, help="Exit with 1 if a figure is outside of its band."),
        ],
    ),
    _chapter,
    EXPERIMENT,
)
