"""What an experiment with an algorithm in rounds is: settings, trials of each, measures, and what was published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SettingsError
from shoal.evaluation import datasets, splits
from shoal.evaluation.datasets import Dataset, Fill
from shoal.evaluation.fcac_protocol import noised
from shoal.evaluation.published import Figure

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """One row of the result: what is varied, and what is not."""

    experiment: str
    dataset: str
    split: str
    clients: int
    keys: tuple[tuple[str, Any], ...] = ()
    """the experiment's own parameters, by name"""
    path: Path | None = None
    fill: Fill = "refuse"
    epsilon: float | None = None

    def __getitem__(self, name: str) -> Any:
        return dict(self.keys)[name]

    @property
    def known(self) -> str | None:
        """The data set's name in the papers."""
        return datasets.known_as(self.dataset) or self.dataset

    @property
    def as_fcac_ran_it(self) -> bool:
        """Whether the FCAC paper has figures of this: its data, its split among as many clients, no noise."""
        key = datasets.known_as(self.dataset)
        dealt = self.split in ("iid", "niid") and key is not None and self.clients == datasets.KNOWN[key].clients
        return dealt and self.epsilon is None


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    data: Path | None
    names: tuple[str, ...]
    trials: int | None
    split: str
    epsilon: float | None
    clients: int | None
    fill: Fill
    jobs: int
    as_json: bool
    check: bool


@dataclass(frozen=True)
class Experiment:
    """One paper's experiment."""

    name: str
    title: str
    """for people, one line"""
    trials: int
    splits: tuple[str, ...]
    digits: Mapping[str, str]
    """how each measure is printed"""
    settings: Callable[[Asked], Sequence[Setting]]
    """Raises `SettingsError`, `InvalidData`"""
    run: Callable[[Setting, int], dict[str, float]]
    """one trial -> its measures; the trial's number is the seed of all that is random in it"""
    printed: Callable[[Setting], Mapping[str, Figure]]
    """what was published for the setting, by measure"""
    band: Callable[[Setting, str, Figure], float | None]
    """(setting, measure, what was found) -> how far off the published mean it may be; None: nothing is promised"""
    extra: Mapping[str, str] = field(default_factory=dict)
    """made-up data that --dataset also takes, and what they are"""


def chosen_splits(asked: Asked, experiment_splits: tuple[str, ...]) -> tuple[str, ...]:
    """Those asked for; "both" are all of the experiment."""
    return experiment_splits if asked.split == "both" else (asked.split,)


def chosen_files(asked: Asked, usual: Sequence[str]) -> list[Path]:
    """The files of the data sets named, or of the usual ones that are there. Raises `SettingsError`."""
    if asked.data is None:
        raise SettingsError("say where the data are, with --data FOLDER or SHOAL_DATA: a folder of NAME.csv.gz files")
    if asked.names:
        return list(dict.fromkeys(datasets.find(asked.data, name) for name in asked.names))
    found = []
    for name in usual:
        try:
            found.append(datasets.find(asked.data, name))
        except SettingsError:
            continue
    if not found:
        raise SettingsError(f"{asked.data}: none of {', '.join(usual)} (.csv.gz) is in it; name data with --dataset")
    return found


@lru_cache(maxsize=2)
def read(path: Path, fill: Fill) -> Dataset:
    """The data set, if this process has not just read it."""
    return datasets.read(path, fill)


def data_of(setting: Setting, unit: bool = False) -> Dataset:
    """The data set of the setting; `unit` brings every feature to 0..1 over all rows."""
    if setting.path is None:
        raise SettingsError(f"{setting.dataset} is made up; it has no file")
    dataset = read(setting.path, setting.fill)
    if not unit:
        return dataset
    span = np.ptp(dataset.rows, axis=0)
    rows = (dataset.rows - dataset.rows.min(axis=0)) / np.where(span > 0, span, 1.0)
    return Dataset(dataset.name, rows, dataset.labels, dataset.classes)


def clients_of(setting: Setting, dataset: Dataset, trial: int) -> list[Floats]:
    """Each client's rows, with the setting's noise."""
    if setting.split == "kp":
        parts = few_classes(dataset.labels, setting.clients, trial)
    else:
        parts = splits.dealt(dataset.labels, setting.clients, "iid" if setting.split == "iid" else "niid", trial)
    clients = [dataset.rows[part] for part in parts]
    return clients if setting.epsilon is None else [noised(rows, setting.epsilon, trial) for rows in clients]


def few_classes(labels: NDArray[np.int64], clients: int, trial: int) -> list[NDArray[np.int64]]:
    """k-FED's setting: each client holds rows of floor(sqrt(K)) + 1 of the K classes only, as evenly as that goes."""
    generator = np.random.default_rng(trial)
    classes = np.unique(labels)
    each = min(len(classes), int(np.sqrt(len(classes))) + 1)
    # Going round a shuffled list of classes, every class has a client as long as there are places for all.
    places = np.concatenate([generator.permutation(classes) for _ in range(clients * each // len(classes) + 1)])
    wants = [np.unique(places[client * each : (client + 1) * each]) for client in range(clients)]
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in classes:
        rows = generator.permutation(np.flatnonzero(labels == label))
        holders = [client for client, wanted in enumerate(wants) if label in wanted] or [int(label) % clients]
        for client, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
            parts[client].append(share)
    return [np.concatenate(part) if part else np.empty(0, dtype=np.int64) for part in parts]


def clients_for(asked: Asked, dataset: Dataset, split: str) -> int:
    """The number asked for, the FCAC paper's, or one per 400 rows."""
    known = datasets.known_as(dataset.name)
    number = asked.clients or (datasets.KNOWN[known].clients if known else splits.usual_clients(len(dataset.rows)))
    return splits.feasible_clients(dataset.labels, number) if split == "niid" and not asked.clients else number
