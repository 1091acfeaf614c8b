"""Moons and circles, the data of the thesis's experiments with clusters that are not round.

M. Uranga, "Federated clustering" (2024), section 4.1: two classes, five clients with 3 000 rows each. It prints neither
the noise nor seeds, and scores by silhouettes, which are low for the true classes of such data (moons .33, circles .11)
and so cannot tell a right clustering from a wrong one. What is checked here is the agreement with the true classes: the
column *published* has the least value that is required, or 0 for a difference that must not be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from shoal.evaluation.datasets import Dataset
from shoal.evaluation.experiment import Keys, Setting, Synthetic, data_of
from shoal.evaluation.results import Figure, python_format
from shoal.evaluation.splits import Split

CLIENTS: Final = 5
ROWS: Final = 15_000
CIRCLE_FACTOR: Final = 0.5
"""radius of the inner circle, the outer one's is 1"""
SPLITS: Final[tuple[Split, ...]] = ("iid", "label", "sector")
SHAPES: Final[dict[str, tuple[str, float]]] = {
    "moons-0.05": ("two half moons", 0.05),
    "moons-0.1": ("two half moons", 0.1),
    "circles-0.05": ("two circles", 0.05),
    "circles-0.1": ("two circles", 0.1),
}
"""by name: what they are, and the standard deviation of their noise"""
FORMATS: Final = {
    "ari": python_format(".3f"),
    "ami": python_format(".3f"),
    "nmi": python_format(".3f"),
    "clusters": python_format(".1f"),
    "noise": python_format(".2%"),
    "pooled_dbscan": python_format(".3f"),
    "difference": python_format(".2g"),
}


def synthetic_shapes(variants: tuple[Keys, ...]) -> dict[str, Synthetic]:
    """The four data sets, with the parameters that an experiment runs on each."""
    return {
        name: Synthetic(f"{what}, noise {noise:g}", CLIENTS, SPLITS, variants) for name, (what, noise) in SHAPES.items()
    }


def shape(name: str, seed: int, rows: int = ROWS) -> Dataset:
    """One of `SHAPES`; needs scikit-learn."""
    from sklearn.datasets import make_circles, make_moons  # noqa: PLC0415 - an extra that edge clients do without

    what, noise = SHAPES[name]
    if what == "two circles":
        table, labels = make_circles(rows, noise=noise, factor=CIRCLE_FACTOR, random_state=seed)
    else:
        table, labels = make_moons(rows, noise=noise, random_state=seed)
    return Dataset(name, np.asarray(table, dtype=np.float64), labels.astype(np.int64), ("0", "1"))


def dataset_of(setting: Setting, trial: int) -> Dataset:
    """The rows of a trial: those of a file, or drawn anew."""
    return shape(setting.dataset, trial) if setting.path is None else data_of(setting)


def at_least(setting: Setting, measure: str, measured: Figure, published: Figure) -> bool | None:
    """Agreement: scores at least as high as required, differences exactly as required; nothing for what is not."""
    if measure == "difference":
        return measured.mean == published.mean
    return measured.mean >= published.mean


def required(**figures: float) -> Mapping[str, Figure]:
    """Values that are required of measures."""
    return {name: Figure(value) for name, value in figures.items()}
