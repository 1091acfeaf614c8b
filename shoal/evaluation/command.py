"""`shoal reproduce`: papers' experiments, run again and compared with the published figures."""

from __future__ import annotations

import click

from shoal.evaluation.experiment import Experiment
from shoal.evaluation.registry import experiment_names, load_experiment
from shoal.evaluation.report_command import all_experiments
from shoal.evaluation.trials_command import command_of


@click.group()
def reproduce() -> None:
    """Run a paper's experiment again and compare it with the published figures."""


for name in experiment_names():
    experiment = load_experiment(name)
    reproduce.add_command(command_of(experiment) if isinstance(experiment, Experiment) else experiment.command, name)
reproduce.add_command(all_experiments)
