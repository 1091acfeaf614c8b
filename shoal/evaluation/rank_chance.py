"""How far a mean rank of a repeated experiment may be from the printed one by chance alone.

A printed rank is of means over trials, and those vary: algorithms whose scores differ by less than their deviations
change places from run to run. The published deviations tell by how much a mean rank moves with that. Nothing here knows
what was measured, so the band is the same whatever comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.evaluation import published
from shoal.evaluation.published_ranks import COLUMNS
from shoal.evaluation.published_rounds import COMPARED
from shoal.evaluation.results import Figure
from shoal.evaluation.scores import SCORES
from shoal.evaluation.splits import Split

DRAWS: Final = 2000
SEED: Final = 0


def printed(name: str, split: Split, dataset: str, score: str) -> Figure:
    """The figure that table 3 or 4 has for an algorithm of `COLUMNS`, by the paper's name of the data set."""
    if name == "fcac":
        return published.FCAC[split][dataset][score]
    return COMPARED["fedfcm" if name == "ffcm" else name][split][dataset][score]


def chance_deviations(splits: Sequence[Split], datasets: Sequence[str], trials: int) -> dict[str, float]:
    """By algorithm of `COLUMNS`: the standard deviation of its mean rank when the experiment is repeated.

    A mean over `trials` and a printed one over 20 differ by a normal number with the variance
    sd^2 (1 / trials + 1 / 20), where `sd` is the printed deviation of a trial. The three scores of one algorithm on one
    split of one data set are scores of the same labels and move together.
    """
    cells = [(split, dataset) for split in splits for dataset in datasets]
    figures = [[[printed(name, *cell, score) for score in SCORES] for name in COLUMNS] for cell in cells]
    mean = np.array([[[figure.mean for figure in each] for each in cell] for cell in figures])
    sd = np.array([[[figure.sd for figure in each] for each in cell] for cell in figures])
    generator = np.random.default_rng(SEED)
    scale = np.sqrt(1 / trials + 1 / published.TRIALS)
    ranks = [
        _mean_ranks(mean + scale * generator.normal(size=(len(cells), len(COLUMNS), 1)) * sd) for _ in range(DRAWS)
    ]
    return dict(zip(COLUMNS, np.std(ranks, axis=0).tolist(), strict=True))


def _mean_ranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """scores (cells, algorithms, scores) -> (algorithms,) mean ranks, 1 for the highest score; ties count half."""
    higher = (scores[:, None, :] > scores[:, :, None]).sum(axis=2)
    equal = (scores[:, None, :] == scores[:, :, None]).sum(axis=2) - 1
    return np.asarray((1 + higher + equal / 2).mean(axis=(0, 2)))
