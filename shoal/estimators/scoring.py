"""Scores of a clustering against the true classes, as the papers print them."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Final

from shoal.errors import MissingExtra
from shoal.kernels.arrays import Ints

SCORES: Final = ("ari", "ami", "nmi")


def require_scikit_learn() -> None:
    """Raise `MissingExtra` unless scikit-learn is installed; called before any work is planned."""
    if importlib.util.find_spec("sklearn") is None:
        raise MissingExtra("scoring a clustering", "evaluate")


def scores(classes: Ints, labels: Ints) -> dict[str, float]:
    """classes (n,), labels (n,) -> `ari`, `ami` and `nmi`; mutual informations are normalised by the arithmetic mean.

    Raises `MissingExtra` without scikit-learn.
    """
    require_scikit_learn()
    from sklearn import metrics  # noqa: PLC0415 - an extra that edge clients do without

    with warnings.catch_warnings():
        # scikit-learn takes many clusters of few rows for a regression target by mistake, and warns.
        warnings.simplefilter("ignore", UserWarning)
        return {
            "ari": float(metrics.adjusted_rand_score(classes, labels)),
            "ami": float(metrics.adjusted_mutual_info_score(classes, labels)),
            "nmi": float(metrics.normalized_mutual_info_score(classes, labels)),
        }
