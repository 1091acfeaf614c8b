"""The installed experiments, found by name through the entry-point group `shoal.experiments`.

An experiment is an `Experiment` over trials or a `Study` of its own form; its entry point names that object. Each is a
subcommand of `shoal reproduce` and a chapter of the report of `shoal reproduce all`.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from shoal.errors import SettingsError
from shoal.evaluation.experiment import Experiment
from shoal.evaluation.study import Study
from shoal.plugins import Plugins


def _is_experiment(found: Any) -> TypeGuard[Experiment | Study]:
    return isinstance(found, Experiment | Study)


_EXPERIMENTS = Plugins("shoal.experiments", "experiment", _is_experiment, "an Experiment or a Study")


def experiment_names() -> tuple[str, ...]:
    """The names of all installed experiments in alphabetical order; imports none of them."""
    return _EXPERIMENTS.names()


def load_experiment(name: str) -> Experiment | Study:
    """The experiment of this name, imported on first use.

    Raises `SettingsError` for an unknown name, and for an entry point that does not lead to an experiment.
    """
    return _EXPERIMENTS.load(name)


def trials_experiment(name: str) -> Experiment:
    """The experiment over trials of this name. Raises `SettingsError`."""
    found = load_experiment(name)
    experiment = found if isinstance(found, Experiment) else found.experiment
    if experiment is None:
        raise SettingsError(f"{name} is not an experiment over trials")
    return experiment


def trials_names() -> tuple[str, ...]:
    """The names of the experiments over trials; imports every installed experiment."""
    return tuple(name for name in experiment_names() if isinstance(load_experiment(name), Experiment))
