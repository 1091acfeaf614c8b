"""`shoal reproduce`: papers' experiments, run again and compared with published figures, each or
all in a report."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from reproduction import datasets
from reproduction.experiment import Experiment, Result, require_scikit_learn
from reproduction.experiments import experiment_names, load_experiment
from reproduction.report import Chapter, ReportOptions, Study, Table, require_matplotlib
from reproduction.report_pages import write_pages
from reproduction.trials_command import (
    Options,
    Plan,
    TrialStore,
    command_of,
    data_option,
    jobs_option,
    plan,
    resume_option,
    run_trials,
)
from shoal.errors import SettingsError, ShoalError

TITLE: Final = (
    "Run every experiment, and write one report of published and obtained figures, with pictures."
)
HELP: Final = f"""{TITLE}

Markdown, one page for each experiment, and report.html with everything. All of it takes two hours
or more on one core; a run that was stopped is resumed by the same command. --quick writes the same
form from little data in a minute.
"""


def _report(
    data: Path | None,
    out: Path,
    only: tuple[str, ...],
    trials: int | None,
    quick: bool,
    jobs: int,
    resume: Path | None,
) -> None:
    if data is None:
        raise SettingsError(
            "say where the data are, with --data FOLDER or SHOAL_DATA: a folder of NAME.csv.gz "
            "files"
        )
    require_scikit_learn()
    require_matplotlib()
    names = only or experiment_names()
    experiments = {name: load_experiment(name) for name in names}
    out.mkdir(parents=True, exist_ok=True)
    options = ReportOptions(data, out, jobs, trials, quick, resume or out / "trials.jsonl")
    chapters: list[Chapter] = []
    errors: list[ShoalError] = []
    for name, experiment in experiments.items():
        click.echo(f"{name}:", err=True)
        try:
            made = _chapter(experiment, options)
        except ShoalError as error:
            click.echo(f"{name}: not run: {error}", err=True)
            errors.append(error)
            made = Chapter(name, experiment.title, f"Not run: {error}\n", [])
        chapters.append(made)
    for path in write_pages(chapters, options):
        click.echo(path)
    if errors:
        # What could be run is in the report; the first error decides how the command ends.
        raise errors[0]


def _chapter(experiment: Experiment | Study, options: ReportOptions) -> Chapter:
    return (
        _of_trials(experiment, options)
        if isinstance(experiment, Experiment)
        else experiment.chapter(options)
    )


def _of_trials(experiment: Experiment, options: ReportOptions) -> Chapter:
    """The chapter of an experiment over trials. Raises `ShoalError` if nothing of it can be run."""
    chosen = planned(experiment, options)
    if not chosen.settings:
        raise (
            chosen.errors[0]
            if chosen.errors
            else SettingsError("no data set of this experiment is there")
        )
    trials = options.trials or (1 if options.quick else experiment.trials)
    results = run_trials(
        experiment, chosen.settings, trials, options.jobs, TrialStore(options.store)
    )
    text = experiment.text + "".join(f"\nNot run: {error}\n" for error in chosen.errors)
    # What was published comes first. Results of different parameters have different columns.
    parts = [
        [result for result in results if bool(result.published) is published]
        for published in (True, False)
    ]
    tables = [Table(alike, experiment.formats) for part in parts for alike in _by_columns(part)]
    return Chapter(experiment.name, experiment.title, text, tables)


def _by_columns(results: list[Result]) -> list[list[Result]]:
    found: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        found.setdefault((tuple(result.keys), tuple(result.measured)), []).append(result)
    return list(found.values())


def planned(experiment: Experiment, options: ReportOptions) -> Plan:
    """All synthetic data and all files of the experiment that are there; for a quick report the
    smallest one."""
    assert options.data is not None
    files = datasets.find_any(options.data, experiment.datasets) if experiment.datasets else []
    names = [*experiment.synthetic, *map(datasets.stem, files)]
    if options.quick:
        small = [name for name, data_set in experiment.synthetic.items() if data_set.by_default]
        smallest = sorted(files, key=lambda path: path.stat().st_size)
        names = [*small, *map(datasets.stem, smallest)][:1]
    return plan(experiment, Options(options.data, tuple(names), options.trials, options.jobs))


all_experiments: Final = click.Command(
    "all",
    callback=_report,
    help=HELP,
    params=[
        data_option(),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path, file_okay=False),
            required=True,
            help="Folder of the report; made if it is missing.",
        ),
        click.Option(
            ["--experiment", "only"],
            multiple=True,
            metavar="NAME",
            help="May be repeated; without it, all of them.",
        ),
        click.Option(
            ["--trials"],
            type=click.IntRange(1),
            help="Of each setting; without it, the papers' numbers.",
        ),
        click.Option(
            ["--quick"], is_flag=True, help="The form of the report: one small data set, one trial."
        ),
        jobs_option(),
        resume_option(),
    ],
)


@click.group()
def reproduce() -> None:
    """Run a paper's experiment again and compare it with the published figures."""


def _command(name: str) -> click.Command:
    try:
        experiment = load_experiment(name)
    except SettingsError as broken:
        return _unavailable(name, broken)
    return command_of(experiment) if isinstance(experiment, Experiment) else experiment.command


def _unavailable(name: str, why: SettingsError) -> click.Command:
    """A replacement for an experiment that cannot be imported, so that the others still work."""

    def callback(anything: tuple[str, ...]) -> None:
        raise why

    anything = click.Argument(["anything"], nargs=-1)
    settings = {"ignore_unknown_options": True}
    return click.Command(
        name,
        callback=callback,
        params=[anything],
        help=f"Not available: {why}.",
        context_settings=settings,
    )


for _name in experiment_names():
    reproduce.add_command(_command(_name), _name)
reproduce.add_command(all_experiments)
