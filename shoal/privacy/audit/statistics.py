"""What guesses say of a privacy loss: exact bounds of a probability, and of the epsilon that it takes.

An attacker guesses which of two equally likely inputs made an output, and may abstain. At most a share of
e^epsilon / (1 + e^epsilon) of the guesses is right, if the mechanism is epsilon-differentially private for these two
inputs. So a lower bound of that share is a lower bound of epsilon, whatever the mechanism is inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ALPHA = 1e-3
"""how often a bound may fail"""
THRESHOLDS_MAX = 16
"""thresholds at which scores are examined"""
SCORE_STEP = 1e-6
"""scores closer than this count as equal"""


class Loss(NamedTuple):
    """What the guesses of an attack say of epsilon."""

    trials: int
    guesses: int
    """the trials in which the attack did not abstain"""
    hits: int
    """right ones among them"""
    estimate: float
    """epsilon that fits the hits best; 0 without guesses"""
    low: float
    """Clopper-Pearson lower bound of epsilon; 0 where the guesses bound nothing"""
    high: float
    """upper bound of the epsilon of this attack; other attacks may find more. Infinite where nothing is bounded"""


def loss_from_guesses(trials: int, guesses: int, hits: int, alpha: float = ALPHA) -> Loss:
    """The loss behind `hits` right ones of `guesses` in `trials`; each bound fails with probability at most `alpha`."""
    low, high = clopper_pearson(hits, guesses, alpha)
    estimate = logit((hits + 0.5) / (guesses + 1.0))
    return Loss(trials, guesses, hits, max(0.0, estimate), max(0.0, logit(low)), logit(high))


def loss_from_scores(scores: NDArray[np.float64], first: NDArray[np.bool_], alpha: float = ALPHA) -> Loss:
    """The loss that the best threshold finds: scores (n,) above 0 stand for the first input, which `first` (n,) was it.

    A guess is made where a score is at least as far from 0 as a threshold. With several thresholds `alpha` is divided
    between them, so that taking the best of them is sound.
    """
    sizes = np.abs(scores)
    found = np.unique(np.round(sizes[sizes > SCORE_STEP] / SCORE_STEP)) * SCORE_STEP
    if not len(found):
        return loss_from_guesses(len(scores), 0, 0, alpha)
    if len(found) > THRESHOLDS_MAX:
        found = np.quantile(found, np.linspace(0.0, 1.0, THRESHOLDS_MAX), method="nearest")
    right = (scores > 0) == first
    losses = []
    for threshold in found.tolist():
        guessed = sizes >= threshold - SCORE_STEP
        losses.append(
            loss_from_guesses(len(scores), int(guessed.sum()), int((guessed & right).sum()), alpha / len(found))
        )
    return max(losses, key=lambda loss: (loss.low, loss.guesses))


def clopper_pearson(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """Lower and upper bound of a probability after `hits` in `trials`; each is wrong with probability <= `alpha`."""
    tail = _Binomial(trials)
    low = 0.0 if hits == 0 else _solve(lambda p: tail.at_least(hits, p) - alpha)
    high = 1.0 if hits == trials else _solve(lambda p: alpha - (1.0 - tail.at_least(hits + 1, p)))
    return low, high


def logit(p: float) -> float:
    """ln p / (1 - p): the epsilon at which a guess is right with probability p."""
    if p in (0.0, 1.0):
        return math.copysign(math.inf, p - 0.5)
    return math.log(p / (1.0 - p))


class _Binomial:
    """Tails of the binomial distribution of `trials`."""

    def __init__(self, trials: int) -> None:
        log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1, dtype=np.float64)))])
        self._k = np.arange(trials + 1)
        self._trials = trials
        self._log_choose = log_factorial[trials] - log_factorial - log_factorial[::-1]

    def at_least(self, hits: int, p: float) -> float:
        """P(X >= hits) for X binomial (trials, p)."""
        k = self._k[hits:]
        return float(np.exp(self._log_choose[hits:] + k * math.log(p) + (self._trials - k) * math.log1p(-p)).sum())


def _solve(rising: Callable[[float], float]) -> float:
    """Where a rising function crosses 0 in (0, 1), by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
