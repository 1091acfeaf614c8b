"""The trials of an experiment: run on several processes, kept in a file, resumed; and the command
that runs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import click

from reproduction import datasets, report
from reproduction.datasets import Dataset, Fill, Split
from reproduction.experiment import (
    Experiment,
    Result,
    Setting,
    Synthetic,
    read,
    require_scikit_learn,
    summary,
)
from reproduction.experiments import trials_experiment
from shoal.errors import SettingsError, ShoalError
from shoal.runtime import workers

Measures = dict[str, float]
FORMAT: Final = 1


class TrialStore:
    """The trials in one file, and in memory alone if there is no file. Raises `SettingsError`."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._done: dict[str, Measures] = {}
        if path is None:
            return
        if not path.parent.is_dir():
            raise SettingsError(f"{path}: no such folder to keep trials in")
        if path.exists():
            self._done = dict(_lines(path))

    def __len__(self) -> int:
        return len(self._done)

    def get(self, setting: Setting, trial: int) -> Measures | None:
        """The measures of a trial, or None if it is not done."""
        return self._done.get(_key(setting, trial))

    def add(self, setting: Setting, trial: int, measures: Measures) -> None:
        """Keep the measures of a trial that is done."""
        key = _key(setting, trial)
        self._done[key] = measures
        if self._path is None:
            return
        with self._path.open("a+b") as file:
            # A line that was cut has no end; what follows must not be joined to it.
            at_end = file.seek(0, 2)
            if at_end:
                file.seek(at_end - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps([FORMAT, json.loads(key), measures]).encode() + b"\n")


def _key(setting: Setting, trial: int) -> str:
    """Values that the measures of a trial depend on, beside the data and the code."""
    keys = [[name, value] for name, value in setting.keys]
    what: list[Any] = [
        setting.experiment,
        setting.dataset,
        setting.split,
        setting.clients,
        setting.epsilon,
    ]
    return json.dumps([*what, setting.fill, keys, trial])


def _lines(path: Path) -> Iterable[tuple[str, Measures]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as unreadable:
        raise SettingsError(f"{path}: cannot be read as trials: {unreadable}") from None
    for line in text.splitlines():
        try:
            version, key, measures = json.loads(line)
        except ValueError:
            continue
        if version != FORMAT or not isinstance(measures, dict):
            raise SettingsError(f"{path}: written by another version of shoal; name another file")
        yield json.dumps(key), measures


@dataclass(frozen=True)
class Job:
    """One trial of one setting."""

    setting: Setting
    trial: int


def run_trials(
    experiment: Experiment, settings: Sequence[Setting], trials: int, jobs: int, store: TrialStore
) -> list[Result]:
    """The results in the order of the settings; a line on stderr as the trials of each are done.

    Trials that are in the store are not run again; those that are run are added to it.
    """
    planned = [Job(setting, trial) for setting in settings for trial in range(trials)]
    left = dict.fromkeys(settings, trials)
    on_terminal = sys.stderr.isatty()
    with click.progressbar(
        length=len(planned), label="trials", file=sys.stderr, hidden=not on_terminal
    ) as bar:
        for job in done_jobs(planned, jobs, store):
            bar.update(1)
            left[job.setting] -= 1
            if not left[job.setting] and not on_terminal:
                click.echo(f"{_title(job.setting)}: {trials} trials done", err=True)
    return [result_of(experiment, setting, trials, store) for setting in settings]


def done_jobs(planned: Sequence[Job], jobs: int, store: TrialStore) -> Iterable[Job]:
    """Each job once its measures are in the store: those that were there first, then the others as
    they are done."""
    waiting = []
    for job in planned:
        if store.get(job.setting, job.trial) is None:
            waiting.append(job)
        else:
            yield job
    for job, measures in workers.spread(run, waiting, jobs):
        store.add(job.setting, job.trial, measures)
        yield job


def run(job: Job) -> Measures:
    """Run one trial, in a worker process."""
    return trials_experiment(job.setting.experiment).run(job.setting, job.trial)


def result_of(experiment: Experiment, setting: Setting, n_trials: int, store: TrialStore) -> Result:
    """The result of a setting whose first `n_trials` trials are in the store."""
    trials = [
        measures for trial in range(n_trials) if (measures := store.get(setting, trial)) is not None
    ]
    measured = {name: summary([trial[name] for trial in trials]) for name in trials[0]}
    published = {
        name: figure for name, figure in experiment.published(setting).items() if name in measured
    }
    agrees: dict[str, bool] = {}
    # The published figures are of the experiment's number of trials; fewer are not compared.
    if len(trials) == experiment.trials:
        for name, figure in published.items():
            verdict = experiment.agrees(setting, name, measured[name], figure)
            if verdict is not None:
                agrees[name] = verdict
    keys = {"dataset": setting.dataset, "split": setting.split, **dict(setting.keys)}
    return Result(keys, len(trials), measured, published, agrees)


def _title(setting: Setting) -> str:
    return " ".join([setting.dataset, setting.split, *(str(value) for _, value in setting.keys)])


@dataclass(frozen=True)
class Options:
    """The options of the command, by the names of its parameters."""

    data: Path | None
    names: tuple[str, ...]
    trials: int | None
    jobs: int
    split: str = "both"
    epsilon: float | None = None
    clients: int | None = None
    fill: Fill = "refuse"
    as_json: bool = False
    check: bool = False
    resume: Path | None = None


@dataclass
class Plan:
    """The settings to run, and why a data set that was chosen cannot be run."""

    settings: list[Setting] = field(default_factory=list)
    errors: list[ShoalError] = field(default_factory=list)


def plan(experiment: Experiment, options: Options) -> Plan:
    """All settings; a data set that cannot be run keeps no other from running. Raises
    `SettingsError`."""
    planned = Plan()
    for name in _synthetic_names(experiment, options):
        planned.settings += _of_synthetic(experiment, name, experiment.synthetic[name], options)
    paths = _files(experiment, options)
    for path in paths:
        try:
            planned.settings += _of_file(experiment, path, options)
        except ShoalError as error:
            planned.errors.append(error)
            if len(paths) > 1:
                click.echo(f"not run: {error}", err=True)
    return planned


def _synthetic_names(experiment: Experiment, options: Options) -> list[str]:
    if options.names:
        return [name for name in options.names if name in experiment.synthetic]
    return [name for name, synthetic in experiment.synthetic.items() if synthetic.by_default]


def _files(experiment: Experiment, options: Options) -> list[Path]:
    """The files of the data sets named, or of those of the experiment that are there."""
    names = [name for name in options.names if name not in experiment.synthetic]
    if options.names and not names:
        return []
    if not names and (not experiment.datasets or (experiment.synthetic and options.data is None)):
        return []
    if options.data is None:
        raise SettingsError(
            "say where the data are, with --data FOLDER or SHOAL_DATA: a folder of NAME.csv.gz "
            "files"
        )
    if not names:
        return datasets.find_any(options.data, experiment.datasets)
    return list(dict.fromkeys(datasets.find(options.data, name) for name in names))


def _chosen_splits(available: Sequence[Split], options: Options) -> list[Split]:
    return [split for split in available if options.split in (split, "both")]


def _of_synthetic(
    experiment: Experiment, name: str, synthetic: Synthetic, options: Options
) -> list[Setting]:
    if synthetic.fixed:
        if options.clients is not None or options.epsilon is not None:
            raise SettingsError(
                f"{name} has its own clients and no noise; leave --clients and --epsilon out"
            )
        chosen = list(synthetic.splits)
        clients = synthetic.clients
    else:
        chosen = _chosen_splits(synthetic.splits, options)
        clients = options.clients or synthetic.clients
    return [
        Setting(experiment.name, name, split, clients, keys, None, options.fill, options.epsilon)
        for split in chosen
        for keys in synthetic.variants
    ]


def _of_file(experiment: Experiment, path: Path, options: Options) -> list[Setting]:
    """Raises `InvalidData`, `SettingsError`."""
    dataset = read(path, options.fill)
    for note in dataset.notes:
        click.echo(note, err=True)
    clients = {
        split: _clients(dataset, split, options.clients, experiment.iid_clients)
        for split in _chosen_splits(experiment.splits, options)
    }
    return [
        Setting(
            experiment.name, dataset.name, split, number, keys, path, options.fill, options.epsilon
        )
        for split, number in clients.items()
        for keys in experiment.variants
    ]


def _clients(dataset: Dataset, split: Split, chosen: int | None, iid_clients: int | None) -> int:
    """The number chosen, the paper's, or one client per 400 rows. Raises `InvalidData`."""
    if split == "iid" and iid_clients is not None:
        return chosen or iid_clients
    known = datasets.FCAC_DATASETS.get(datasets.fcac_name(dataset.name) or "")
    number = chosen or (known.clients if known else datasets.default_clients(len(dataset.rows)))
    if split != "niid":
        return number
    if chosen:
        datasets.deal(dataset.labels, number, split, 0)
        return number
    feasible = datasets.feasible_clients(dataset.labels, number)
    if feasible != number:
        click.echo(
            f"{dataset.name}: too small for {number} clients in the non-IID split; {feasible} are "
            "used",
            err=True,
        )
    return feasible


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
        ["--jobs"],
        type=click.IntRange(1),
        default=workers.usable_cores,
        help="Processes; without it, all cores.",
    )


def resume_option() -> click.Option:
    """--resume, the same in every experiment."""
    return click.Option(
        ["--resume"],
        type=click.Path(path_type=Path, dir_okay=False),
        help="Keep every finished trial in this file, and do not run again those that are in it. "
        "Begin another file after a change of data or code.",
    )


def command_of(experiment: Experiment) -> click.Command:
    """The subcommand of one experiment."""

    def callback(**options: Any) -> None:
        _reproduce(experiment, Options(**options))

    return click.Command(
        experiment.name, callback=callback, params=_parameters(experiment), help=experiment.title
    )


def _parameters(experiment: Experiment) -> list[click.Parameter]:
    synthetic = ", ".join(
        f"{name} ({data_set.description})" for name, data_set in experiment.synthetic.items()
    )
    return [
        data_option(),
        click.Option(
            ["--dataset", "names"],
            multiple=True,
            metavar="NAME",
            help="May be repeated; without it, the paper's that are there"
            + (f"; synthetic: {synthetic}." if synthetic else "."),
        ),
        click.Option(
            ["--trials"], type=click.IntRange(1), help=f"Without it, {experiment.trials}."
        ),
        click.Option(
            ["--split"],
            type=click.Choice([*experiment.splits, "both"]),
            default="both",
            help="Without it, each.",
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
        click.Option(
            ["--check"],
            is_flag=True,
            help="Exit with 1 if a figure does not agree with the published one.",
        ),
    ]


def _reproduce(experiment: Experiment, options: Options) -> None:
    if options.check and options.trials not in (None, experiment.trials):
        raise SettingsError(f"--check compares {experiment.trials} trials; leave --trials out")
    require_scikit_learn()
    planned = plan(experiment, options)
    if not planned.settings:
        raise (
            planned.errors[0]
            if planned.errors
            else SettingsError("nothing to run; name data with --dataset")
        )
    if options.check and not any(experiment.published(setting) for setting in planned.settings):
        raise SettingsError(
            "--check has nothing to compare with: no figure was published for these settings"
        )
    store = TrialStore(options.resume)
    results = run_trials(
        experiment, planned.settings, options.trials or experiment.trials, options.jobs, store
    )
    report.show(results, experiment.formats, json_only=options.as_json)
    if planned.errors:
        # Whatever could be run was run and printed; the first error decides how the command ends.
        raise planned.errors[0]
    if options.check:
        report.require_agreement(results)
