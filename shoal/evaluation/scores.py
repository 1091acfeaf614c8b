"""Scores of a clustering against the truth, as the papers print them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import MissingExtra
from shoal.evaluation.published import Figure


def scores(truth: NDArray[np.int64], found: NDArray[np.int64]) -> tuple[float, float, float]:
    """labels (n,), (n,) -> ARI, AMI and NMI; the mutual informations are normalised by the arithmetic mean.

    Raises `MissingExtra` without scikit-learn.
    """
    try:
        from sklearn import metrics  # noqa: PLC0415 - the edge never needs it
    except ImportError:
        raise MissingExtra("scoring a clustering", "evaluate") from None
    with warnings.catch_warnings():
        # scikit-learn takes many clusters of few rows for a regression target by mistake, and warns.
        warnings.simplefilter("ignore", UserWarning)
        return (
            float(metrics.adjusted_rand_score(truth, found)),
            float(metrics.adjusted_mutual_info_score(truth, found)),
            float(metrics.normalized_mutual_info_score(truth, found)),
        )


def figure(values: Sequence[float]) -> Figure:
    """Mean and population standard deviation (divided by n, as in the papers' tables)."""
    return Figure(float(np.mean(values)), float(np.std(values)))
