"""Bounds of a privacy loss by an attacker's guesses, and findings: the loss that was found beside
the declared one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from shoal.kernels.arrays import Bools, Floats

ALPHA = 1e-3
"""probability with which a bound may fail"""
THRESHOLDS_MAX = 16
"""most thresholds at which scores are examined"""
SCORE_STEP = 1e-6
"""difference below which scores count as equal"""


class Loss(NamedTuple):
    """The epsilon that the guesses of an attack prove."""

    trials: int
    guesses: int
    """the trials in which the attack did not abstain"""
    hits: int
    """right guesses"""
    estimate: float
    """epsilon that fits the hits best; 0 without guesses"""
    low: float
    """Clopper-Pearson lower bound of epsilon; 0 where the guesses bound nothing"""
    high: float
    """upper bound of the epsilon of this attack; other attacks may find more. Infinite where
    nothing is bounded"""


def loss_from_guesses(trials: int, guesses: int, hits: int, alpha: float = ALPHA) -> Loss:
    """The loss behind `hits` right ones of `guesses` in `trials`; each bound fails with probability
    at most `alpha`."""
    low, high = clopper_pearson(hits, guesses, alpha)
    # Half a hit and half a miss more keep the estimate finite where all guesses, or none, were
    # right.
    estimate = logit((hits + 0.5) / (guesses + 1.0))
    return Loss(trials, guesses, hits, max(0.0, estimate), max(0.0, logit(low)), logit(high))


def loss_from_scores(scores: Floats, first: Bools, alpha: float = ALPHA) -> Loss:
    """The loss that the best threshold finds: scores (n,) above 0 stand for the first input, which
    `first` (n,) was it.

    A guess is made where a score is at least as far from 0 as a threshold. With several thresholds
    `alpha` is divided between them, so that taking the best of them is sound.
    """
    sizes = np.abs(scores)
    # Scores that differ by rounding alone are one threshold.
    found = np.unique(np.round(sizes[sizes > SCORE_STEP] / SCORE_STEP)) * SCORE_STEP
    if not len(found):
        return loss_from_guesses(len(scores), 0, 0, alpha)
    if len(found) > THRESHOLDS_MAX:
        found = np.quantile(found, np.linspace(0.0, 1.0, THRESHOLDS_MAX), method="nearest")
    # Few thresholds, since each one takes its share of the probability of an error.
    right = (scores > 0) == first
    losses = []
    for threshold in found.tolist():
        guessed = sizes >= threshold - SCORE_STEP
        losses.append(
            loss_from_guesses(
                len(scores), int(guessed.sum()), int((guessed & right).sum()), alpha / len(found)
            )
        )
    # Of equal bounds the one with most guesses, which is the lower threshold.
    return max(losses, key=lambda loss: (loss.low, loss.guesses))


def loss_from_statistic(values: Floats, first: Bools) -> Loss:
    """The loss that one number of each trial shows, such as a size: values (n,), and which trials
    `first` (n,) were.

    The first half of the trials teaches the attack what is usual of either input, the second half
    is guessed: what is nearer to the median of one. A value in the middle between both is no guess.
    """
    # Two halves: an attack judged by the trials that it has learnt from finds what is not there.
    half = len(values) // 2
    if first[:half].all() or not first[:half].any():
        return loss_from_guesses(len(values) - half, 0, 0)
    learnt = values[:half]
    of_first = float(np.median(learnt[first[:half]]))
    of_second = float(np.median(learnt[~first[:half]]))
    beyond = values[half:] - (of_first + of_second) / 2.0
    # Above the middle is the input with the larger median.
    guessed_first = (beyond > 0.0) == (of_first >= of_second)
    right = (guessed_first == first[half:]) & (beyond != 0.0)
    return loss_from_guesses(len(beyond), int((beyond != 0.0).sum()), int(right.sum()))


def clopper_pearson(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """Lower and upper bound of a probability after `hits` in `trials`; each is wrong with
    probability <= `alpha`."""
    tail = _Binomial(trials)
    low = 0.0
    high = 1.0
    if hits > 0:
        low = _solve(lambda p: tail.at_least(hits, p) - alpha)
    if hits < trials:
        high = _solve(lambda p: alpha - (1.0 - tail.at_least(hits + 1, p)))
    return low, high


def logit(p: float) -> float:
    """ln p / (1 - p): the epsilon at which a guess is right with probability p."""
    if p in (0.0, 1.0):
        return math.copysign(math.inf, p - 0.5)
    return math.log(p / (1.0 - p))


class _Binomial:
    """Tails of the binomial distribution of `trials`, summed here because an installed service does
    without SciPy."""

    def __init__(self, trials: int) -> None:
        # Logarithms: factorials of thousands of trials overflow.
        log_factorial = np.concatenate(
            [[0.0], np.cumsum(np.log(np.arange(1, trials + 1, dtype=np.float64)))]
        )
        self._k = np.arange(trials + 1)
        self._trials = trials
        self._log_choose = log_factorial[trials] - log_factorial - log_factorial[::-1]

    def at_least(self, hits: int, p: float) -> float:
        """P(X >= hits) for X binomial (trials, p)."""
        k = self._k[hits:]
        return float(
            np.exp(
                self._log_choose[hits:] + k * math.log(p) + (self._trials - k) * math.log1p(-p)
            ).sum()
        )


def _solve(rising: Callable[[float], float]) -> float:
    """The point in (0, 1) at which a rising function crosses 0, by bisection."""
    low = 0.0
    high = 1.0
    # After 50 halves what is left is the rounding of a number below 1.
    for _ in range(50):
        middle = (low + high) / 2
        if rising(middle) > 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2


class Finding(Protocol):
    """The result of one audit."""

    @property
    def audit(self) -> str:
        """Subject of the audit, in a few words."""
        ...

    @property
    def refuted(self) -> bool:
        """Whether the claim is refuted."""
        ...

    def line(self) -> str:
        """Trials, figures and verdict in one line."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values for JSON; a bound that is not finite is None."""
        ...


@dataclass(frozen=True)
class LossFinding:
    """The loss that an attack has found, beside the declared one."""

    audit: str
    subject: str
    """the model, or the rows, that were attacked"""
    declared: float
    """epsilon between the two inputs of the attack"""
    loss: Loss

    @property
    def refuted(self) -> bool:
        """Whether even the lower bound of epsilon exceeds the declared one."""
        return self.loss.low > self.declared

    @property
    def too_much_noise(self) -> bool:
        """Whether accuracy is wasted: even the upper bound of the loss is below the declared
        one."""
        return self.loss.high < self.declared

    def line(self) -> str:
        """See `Finding.line`."""
        loss = self.loss
        return (
            f"{self.audit} ({self.subject}): {loss.trials} trials, {loss.hits} of {loss.guesses} "
            f"guesses right; epsilon {loss.estimate:.2f} estimated, at least {loss.low:.2f}, at "
            f"most {loss.high:.2f} by this attack, declared {self.declared:g}: {verdict(self)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """See `Finding.as_dict`."""
        loss = self.loss
        return {
            "audit": self.audit,
            "subject": self.subject,
            "trials": loss.trials,
            "guesses": loss.guesses,
            "hits": loss.hits,
            "epsilon_declared": _finite(self.declared),
            "epsilon_estimate": loss.estimate,
            "epsilon_low": _finite(loss.low),
            "epsilon_high": _finite(loss.high),
            "alpha": ALPHA,
            "refuted": self.refuted,
        }


@dataclass(frozen=True)
class EventFinding:
    """Count of something that must never occur."""

    audit: str
    subject: str
    trials: int
    unit: str
    """name of a trial, in the plural"""
    occurred: int
    event: str
    """name of what must not occur, in the plural"""

    @property
    def refuted(self) -> bool:
        """Whether it occurred."""
        return self.occurred > 0

    def line(self) -> str:
        """See `Finding.line`."""
        return (
            f"{self.audit} ({self.subject}): {self.trials} {self.unit}, {self.occurred}"
            f" {self.event}: {verdict(self)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """See `Finding.as_dict`."""
        return {
            "audit": self.audit,
            "subject": self.subject,
            "trials": self.trials,
            "unit": self.unit,
            "event": self.event,
            "occurred": self.occurred,
            "refuted": self.refuted,
        }


def _finite(epsilon: float) -> float | None:
    """JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else None


def verdict(finding: Finding) -> str:
    """The verdict in words: an audit can refute a claim, and never prove it."""
    return "REFUTED" if finding.refuted else "not refuted"
