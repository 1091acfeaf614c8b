"""An experiment over trials: its settings, one trial of a setting, and its figures beside the
published ones.

Scores are those that the papers print, against the true classes.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from reproduction import datasets
from reproduction.datasets import FCAC_SPLITS, Dataset, Fill, Split, deal, deal_sectors
from shoal.errors import MissingExtra, SettingsError
from shoal.kernels.arrays import Floats, Ints

Format = Callable[[float], str]
"""writes a number with the digits that its measure is printed with"""
Formats = Mapping[str, Format]
"""formats by measure, in the order of the report"""


@dataclass(frozen=True)
class Figure:
    """Mean and population standard deviation of a measure over trials; the deviation is NaN where
    there is none."""

    mean: float
    sd: float = math.nan

    def written(self, form: Format) -> str:
        """`mean (sd)`, or the mean alone."""
        return form(self.mean) if math.isnan(self.sd) else f"{form(self.mean)} ({form(self.sd)})"


@dataclass(frozen=True)
class Result:
    """One row of a report: what was run, how often, what was measured and what was published for
    it."""

    keys: Mapping[str, Any]
    """the setting that was run: data set, split, and the parameters of the experiment"""
    trials: int
    measured: Mapping[str, Figure]
    published: Mapping[str, Figure]
    """figures that a paper has, by measure"""
    agrees: Mapping[str, bool]
    """verdicts by measure, where the experiment states how near the published figure must be"""


def summary(values: Sequence[float]) -> Figure:
    """Mean and population standard deviation (divided by n, as in the papers' tables)."""
    return Figure(float(np.mean(values)), float(np.std(values)))


def python_format(form: str) -> Format:
    """Numbers as Python's format specification writes them, such as `.4f`."""
    return lambda number: format(number, form)


def half_up(digits: int) -> Format:
    """Numbers with `digits` decimals, ties away from zero, judged by the shortest decimal form
    (69.25 becomes 69.3)."""
    last_digit = Decimal(1).scaleb(-digits)
    return lambda number: str(Decimal(repr(number)).quantize(last_digit, ROUND_HALF_UP))


Keys = tuple[tuple[str, Any], ...]
"""parameters of an experiment: (name, value) pairs in the order of the report"""


@dataclass(frozen=True)
class Setting:
    """One row of a report: data, split, number of clients and parameters, which all its trials have
    in common."""

    experiment: str
    dataset: str
    split: Split
    clients: int
    keys: Keys = ()
    path: Path | None = None
    """path of the data set's file; None for synthetic data"""
    fill: Fill = "refuse"
    epsilon: float | None = None
    """epsilon of the FCAC paper's Laplace noise, per feature; None: no noise"""

    def __getitem__(self, name: str) -> Any:
        return dict(self.keys)[name]

    @property
    def fcac_name(self) -> str:
        """The name of the data set in the FCAC paper, or its own."""
        return datasets.fcac_name(self.dataset) or self.dataset

    @property
    def in_fcac_paper(self) -> bool:
        """Whether the FCAC paper has figures for this: its data, its splits, its number of clients,
        no noise."""
        known = datasets.FCAC_DATASETS.get(datasets.fcac_name(self.dataset) or "")
        same_clients = known is not None and self.clients == known.clients
        return same_clients and self.split in FCAC_SPLITS and self.epsilon is None


Agreement = Callable[[Setting, str, Figure, Figure], bool | None]
"""(setting, measure, measured, published) -> whether they agree; None if that is not claimed for
the measure"""


@dataclass(frozen=True)
class Synthetic:
    """A data set that an experiment generates."""

    description: str
    """text of --help"""
    clients: int
    splits: tuple[Split, ...]
    variants: tuple[Keys, ...]
    by_default: bool = True
    """whether it is run when no data set is named"""
    fixed: bool = False
    """whether its split and clients are part of the data, so that no option changes them or adds
    noise"""


@dataclass(frozen=True)
class Experiment:
    """One experiment over trials, as `shoal reproduce NAME` runs it."""

    name: str
    title: str
    """one line for --help"""
    trials: int
    splits: tuple[Split, ...]
    datasets: tuple[str, ...]
    """files that are run, if they are there, when no data set is named"""
    variants: tuple[Keys, ...]
    """parameters of the settings of each data set and split"""
    formats: Formats
    """format of each measure"""
    run: Callable[[Setting, int], dict[str, float]]
    """(setting, trial) -> value of each measure; the trial's number is the seed of everything
    random in it"""
    published: Callable[[Setting], Mapping[str, Figure]]
    """the published figures of a setting, by measure"""
    agrees: Agreement
    synthetic: Mapping[str, Synthetic] = field(default_factory=dict)
    iid_clients: int | None = None
    """the paper's number of clients in the IID split, if it is not the FCAC paper's"""
    text: str = ""
    """Markdown for the report: the source, the protocol, the band of each measure, and known
    differences"""


def within(band: Callable[[Setting, str, Figure], float | None]) -> Agreement:
    """Agreement of means at most `band(setting, measure, measured)` apart; where the band is None,
    none is claimed."""

    def agrees(setting: Setting, measure: str, measured: Figure, published: Figure) -> bool | None:
        limit = band(setting, measure, measured)
        return None if limit is None else abs(measured.mean - published.mean) <= limit

    return agrees


@lru_cache(maxsize=2)
def read(path: Path, fill: Fill) -> Dataset:
    """The data set in a file; the last two are kept. Raises `InvalidData`, `SettingsError`."""
    return datasets.read(path, fill)


def data_of(setting: Setting, unit: bool = False) -> Dataset:
    """The data set of a setting; `unit` scales every feature to 0..1 over all rows. Raises
    `SettingsError`."""
    if setting.path is None:
        raise SettingsError(f"{setting.dataset} is synthetic; it has no file")
    dataset = read(setting.path, setting.fill)
    if not unit:
        return dataset
    span = np.ptp(dataset.rows, axis=0)
    rows = (dataset.rows - dataset.rows.min(axis=0)) / np.where(span > 0, span, 1.0)
    return Dataset(dataset.name, rows, dataset.labels, dataset.classes)


def parts_of(setting: Setting, dataset: Dataset, trial: int) -> list[Ints]:
    """Positions of the rows of each client in the data set. Raises `InvalidData`,
    `SettingsError`."""
    if setting.split == "sector":
        return deal_sectors(dataset.rows, setting.clients)
    return deal(dataset.labels, setting.clients, setting.split, trial)


def clients_of(setting: Setting, dataset: Dataset, trial: int) -> list[Floats]:
    """The rows (n_i, d) of each client, with the setting's noise. Raises `InvalidData`,
    `SettingsError`."""
    clients: Sequence[Floats] = [dataset.rows[part] for part in parts_of(setting, dataset, trial)]
    epsilon = setting.epsilon
    return [
        rows if epsilon is None else with_laplace_noise(rows, epsilon, trial) for rows in clients
    ]


def with_laplace_noise(rows: Floats, epsilon: float, seed: int) -> Floats:
    """rows (n, d) with the paper's Laplace noise (equations 2-4): scale = a client's own range /
    epsilon, per feature.

    The seed is the trial's for every client, as in the published program. Because of that and of
    the range, this reproduces an experiment and protects nothing; `shoal.privacy` is for readings
    that are private.
    """
    if not len(rows):
        return rows
    scale = np.ptp(rows, axis=0) / epsilon
    return rows + np.random.default_rng(seed).laplace(scale=scale, size=rows.shape)


SCORES: Final = ("ari", "ami", "nmi")


def require_scikit_learn() -> None:
    """Raise `MissingExtra` unless scikit-learn is installed; called before any work is planned."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingExtra("scoring a clustering", "evaluate")


def scores(classes: Ints, labels: Ints) -> dict[str, float]:
    """classes (n,), labels (n,) -> `ari`, `ami` and `nmi`; mutual informations are normalised by
    the arithmetic mean.

    Raises `MissingExtra` without scikit-learn.
    """
    require_scikit_learn()
    from sklearn import metrics  # noqa: PLC0415 - an extra that edge clients do without

    with warnings.catch_warnings():
        # scikit-learn takes many clusters of few rows for a regression target by mistake, and
        # warns.
        warnings.simplefilter("ignore", UserWarning)
        return {
            "ari": float(metrics.adjusted_rand_score(classes, labels)),
            "ami": float(metrics.adjusted_mutual_info_score(classes, labels)),
            "nmi": float(metrics.normalized_mutual_info_score(classes, labels)),
        }
