"""`shoal reproduce`: papers' experiments, run again and compared with the published figures."""

from __future__ import annotations

import click

from shoal.errors import SettingsError
from shoal.evaluation.experiment import Experiment
from shoal.evaluation.registry import experiment_names, load_experiment
from shoal.evaluation.report_command import all_experiments
from shoal.evaluation.trials_command import command_of


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
        name, callback=callback, params=[anything], help=f"Not available: {why}.", context_settings=settings
    )


for _name in experiment_names():
    reproduce.add_command(_command(_name), _name)
reproduce.add_command(all_experiments)
