"""A statistical test of whether a mechanism's noise has the declared size, using the mechanism only from outside.

For each feature the audit feeds readings at one of two values whose declared privacy loss is at most 1, and guesses
from the row which it was: the upper one if the row is at or above it, the lower one if the row is at or below that,
otherwise no guess. With exact Laplace noise of loss l a guess is right with probability e^l / (1 + e^l), so that the
Clopper-Pearson bounds of the accuracy bound the true loss. The method is one run with independent probes and
abstention: Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidData
from shoal.privacy.bounds import Bounds

Release = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""readings (n, d) in their units -> rows (n, d) in unit coordinates, made by the mechanism"""


@dataclass(frozen=True)
class FeatureAudit:
    """The privacy loss between the two audited values: the declared one, and bounds of the true one."""

    loss_declared: float
    loss_low: float
    loss_high: float

    @property
    def too_little_noise(self) -> bool:
        """The guarantee is broken: even the lower bound of the loss exceeds the declared one."""
        return self.loss_low > self.loss_declared

    @property
    def too_much_noise(self) -> bool:
        """Accuracy is wasted: even the upper bound of the loss is below the declared one."""
        return self.loss_high < self.loss_declared


def audit_features(
    release: Release,
    bounds: Bounds,
    epsilon_per_feature: Sequence[float],
    trials: int,
    generator: np.random.Generator,
    alpha: float = 1e-3,
) -> list[FeatureAudit]:
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
    found = []
    for hits, guessed, loss in zip(right, guesses, epsilons * upper, strict=True):
        low, high = clopper_pearson(int(hits), int(guessed), alpha)
        found.append(FeatureAudit(float(loss), _logit(low), _logit(high)))
    return found


def clopper_pearson(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """Lower and upper bound of a probability after `hits` in `trials`; each is wrong with probability <= `alpha`."""
    low = 0.0 if hits == 0 else _solve(lambda p: _at_least(hits, trials, p) - alpha)
    high = 1.0 if hits == trials else _solve(lambda p: alpha - (1.0 - _at_least(hits + 1, trials, p)))
    return low, high


def _at_least(hits: int, trials: int, p: float) -> float:
    """P(X >= hits) for X binomial (trials, p)."""
    k = np.arange(hits, trials + 1)
    log_choose = np.array([math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1) for i in k])
    return float(np.exp(log_choose + k * math.log(p) + (trials - k) * math.log1p(-p)).sum())


def _solve(rising: Callable[[float], float]) -> float:
    """Where a rising function crosses 0 in (0, 1), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _logit(p: float) -> float:
    if p in (0.0, 1.0):
        return math.copysign(math.inf, p - 0.5)
    return math.log(p / (1.0 - p))
