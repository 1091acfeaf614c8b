"""From the options of `shoal reproduce` to the settings that are run: which data, splits and numbers of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from shoal.errors import SettingsError, ShoalError
from shoal.evaluation import datasets, splits
from shoal.evaluation.datasets import Dataset, Fill
from shoal.evaluation.experiment import Experiment, Setting, Synthetic, read
from shoal.evaluation.splits import Split


@dataclass(frozen=True)
class Options:
    """The options of the command, by the names of its parameters."""

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
    resume: Path | None = None


@dataclass
class Plan:
    """The settings to run, and why a data set that was chosen cannot be run."""

    settings: list[Setting] = field(default_factory=list)
    errors: list[ShoalError] = field(default_factory=list)


def plan(experiment: Experiment, options: Options) -> Plan:
    """All settings; a data set that cannot be run keeps no other from running. Raises `SettingsError`."""
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
        raise SettingsError("say where the data are, with --data FOLDER or SHOAL_DATA: a folder of NAME.csv.gz files")
    if not names:
        return datasets.find_any(options.data, experiment.datasets)
    return list(dict.fromkeys(datasets.find(options.data, name) for name in names))


def _chosen_splits(available: Sequence[Split], options: Options) -> list[Split]:
    return [split for split in available if options.split in (split, "both")]


def _of_synthetic(experiment: Experiment, name: str, synthetic: Synthetic, options: Options) -> list[Setting]:
    if synthetic.fixed:
        if options.clients is not None or options.epsilon is not None:
            raise SettingsError(f"{name} has its own clients and no noise; leave --clients and --epsilon out")
        chosen, clients = list(synthetic.splits), synthetic.clients
    else:
        chosen, clients = _chosen_splits(synthetic.splits, options), options.clients or synthetic.clients
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
        Setting(experiment.name, dataset.name, split, number, keys, path, options.fill, options.epsilon)
        for split, number in clients.items()
        for keys in experiment.variants
    ]


def _clients(dataset: Dataset, split: Split, chosen: int | None, iid_clients: int | None) -> int:
    """The number chosen, the paper's, or one client per 400 rows. Raises `InvalidData`."""
    if split == "iid" and iid_clients is not None:
        return chosen or iid_clients
    known = datasets.FCAC_DATASETS.get(datasets.fcac_name(dataset.name) or "")
    number = chosen or (known.clients if known else splits.default_clients(len(dataset.rows)))
    if split != "niid":
        return number
    if chosen:
        splits.deal(dataset.labels, number, split, 0)
        return number
    feasible = splits.feasible_clients(dataset.labels, number)
    if feasible != number:
        click.echo(
            f"{dataset.name}: too small for {number} clients in the non-IID split; {feasible} are used", err=True
        )
    return feasible
