"""A statistical test of whether a mechanism's noise has the declared size, using the mechanism only from outside.

For each feature the audit feeds readings at one of two values whose declared privacy loss is at most 1, and guesses
from the row which it was: the upper one if the row is at or above it, the lower one if the row is at or below that,
otherwise no guess. With exact Laplace noise of loss l a guess is right with probability e^l / (1 + e^l), so that the
Clopper-Pearson bounds of the accuracy bound the true loss. The method is one run with independent probes and
abstention: Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidData
from shoal.privacy.audit.finding import LossFinding
from shoal.privacy.audit.statistics import ALPHA, loss_from_guesses
from shoal.privacy.base import Bounds

Release = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""readings (n, d) in their units -> rows (n, d) in unit coordinates, made by the mechanism"""


def audit_features(
    release: Release,
    bounds: Bounds,
    epsilon_per_feature: Sequence[float],
    trials: int,
    generator: np.random.Generator,
    alpha: float = ALPHA,
) -> list[LossFinding]:
    """One audit per feature from `trials` readings; each bound fails with probability at most `alpha`.

    Raises `InvalidData` if the mechanism withholds rows, which none with a guarantee does.
    """
    epsilons = np.asarray(epsilon_per_feature, dtype=np.float64)
    upper = np.minimum(1.0, 1.0 / epsilons)
    was_upper = generator.integers(0, 2, size=(trials, bounds.d)).astype(np.bool_)
    rows = release(bounds.from_unit(np.where(was_upper, upper, 0.0)))
    if rows.shape != was_upper.shape:
        raise InvalidData(f"an audit of {trials} readings got rows of shape {rows.shape}")
    guess_upper, guess_lower = rows >= upper, rows <= 0.0
    right = (guess_upper & was_upper).sum(axis=0) + (guess_lower & ~was_upper).sum(axis=0)
    guesses = (guess_upper | guess_lower).sum(axis=0)
    return [
        LossFinding(
            "two values", f"feature {j + 1}", float(loss), loss_from_guesses(trials, int(guessed), int(hits), alpha)
        )
        for j, (hits, guessed, loss) in enumerate(zip(right, guesses, epsilons * upper, strict=True))
    ]
