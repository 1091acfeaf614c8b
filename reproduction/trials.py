"""The trials of an experiment: run on several processes, kept in a file, resumed from it, and summed up as results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from reproduction.experiment import Experiment, Result, Setting, summary
from reproduction.experiments import trials_experiment
from shoal.errors import SettingsError
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
    """What the measures of a trial depend on, beside the data and the code."""
    keys = [[name, value] for name, value in setting.keys]
    what: list[Any] = [setting.experiment, setting.dataset, setting.split, setting.clients, setting.epsilon]
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
    with click.progressbar(length=len(planned), label="trials", file=sys.stderr, hidden=not on_terminal) as bar:
        for job in done_jobs(planned, jobs, store):
            bar.update(1)
            left[job.setting] -= 1
            if not left[job.setting] and not on_terminal:
                click.echo(f"{_title(job.setting)}: {trials} trials done", err=True)
    return [result_of(experiment, setting, trials, store) for setting in settings]


def done_jobs(planned: Sequence[Job], jobs: int, store: TrialStore) -> Iterable[Job]:
    """Each job once its measures are in the store: those that were there first, then the others as they are done."""
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
    trials = [measures for trial in range(n_trials) if (measures := store.get(setting, trial)) is not None]
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


def _title(setting: Setting) -> str:
    return " ".join([setting.dataset, setting.split, *(str(value) for _, value in setting.keys)])
