"""The experiments of `shoal reproduce`, found by name in a table.

An experiment is an `Experiment` over trials or a `Study` of its own form. Each is a subcommand of
`shoal reproduce` and a chapter of the report of `shoal reproduce all`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from reproduction.experiment import Experiment
from reproduction.report import Study
from shoal.errors import SettingsError

EXPERIMENTS: Final[dict[str, str]] = {
    "clusters": "clusters:EXPERIMENT",
    "continual": "continual:STUDY",
    "dbscan": "shapes:DBSCAN_EXPERIMENT",
    "fcac": "fcac:EXPERIMENT",
    "fcm": "fcm:EXPERIMENT",
    "ffcm": "ffcm:EXPERIMENT",
    "gmm": "gmm:EXPERIMENT",
    "kfed": "one_shot:KFED_EXPERIMENT",
    "kmeans": "kmeans:EXPERIMENT",
    "mufc": "one_shot:MUFC_EXPERIMENT",
    "pictures": "gallery:STUDY",
    "ranks": "ranks_command:STUDY",
    "spectral": "shapes:SPECTRAL_EXPERIMENT",
    "tsk": "tsk:STUDY",
}
"""name -> its module in this folder, and its name there; a module is imported when its experiment
is first asked for"""

PAPERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "fcac": ("The FCAC paper", ("fcac", "kfed", "mufc", "kmeans")),
    "ranks": ("The ranks of the FCAC paper", ("ranks",)),
    "fcm": ("The paper of federated fuzzy c-means", ("fcm",)),
    "ffcm": ("The FFCM paper", ("ffcm",)),
    "thesis": ("A thesis on federated clustering", ("dbscan", "gmm", "spectral")),
    "f2ls": ("The F2LS paper", ("tsk",)),
    "clusters": ("The number of clusters", ("clusters",)),
}
"""page of the report -> its heading and its experiments; an experiment that is on none has a page
of its own"""


def experiment_names() -> tuple[str, ...]:
    """The names of all experiments in alphabetical order; imports none of them."""
    return tuple(sorted(EXPERIMENTS))


def load_experiment(name: str) -> Experiment | Study:
    """The experiment of this name, imported on first use. Raises `SettingsError` for an unknown
    name."""
    if name not in EXPERIMENTS:
        raise SettingsError(
            f"unknown experiment {name!r}; there are: {', '.join(experiment_names())}"
        )
    module, _, attribute = EXPERIMENTS[name].partition(":")
    found = getattr(import_module(f"{__name__}.{module}"), attribute)
    assert isinstance(found, Experiment | Study)
    return found


def trials_experiment(name: str) -> Experiment:
    """The experiment over trials of this name. Raises `SettingsError`."""
    found = load_experiment(name)
    experiment = found if isinstance(found, Experiment) else found.experiment
    if experiment is None:
        raise SettingsError(f"{name} is not an experiment over trials")
    return experiment
