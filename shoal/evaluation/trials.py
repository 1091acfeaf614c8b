"""Runs the trials of an experiment: on several processes, resumed from a file, and summed up as results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from shoal.evaluation import workers
from shoal.evaluation.experiment import Experiment, Setting
from shoal.evaluation.registry import trials_experiment
from shoal.evaluation.results import Result, summary
from shoal.evaluation.trial_store import Measures, TrialStore


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
