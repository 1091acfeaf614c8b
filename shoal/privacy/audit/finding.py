"""What an audit found: a privacy loss beside the declared epsilon, or events that must not occur."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.privacy.audit.statistics import ALPHA, Loss


class Finding(Protocol):
    """The result of one audit."""

    @property
    def audit(self) -> str:
        """What was audited, in a few words."""
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
        """Even the lower bound of epsilon exceeds the declared one."""
        return self.loss.low > self.declared

    @property
    def too_much_noise(self) -> bool:
        """Accuracy is wasted: even the upper bound of the loss is below the declared one."""
        return self.loss.high < self.declared

    def line(self) -> str:
        """See `Finding.line`."""
        loss = self.loss
        return (
            f"{self.audit} ({self.subject}): {loss.trials} trials, {loss.hits} of {loss.guesses} guesses right; "
            f"epsilon {loss.estimate:.2f} estimated, at least {loss.low:.2f}, declared {self.declared:g}: "
            f"{verdict(self)}"
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
            "epsilon_declared": self.declared if math.isfinite(self.declared) else None,
            "epsilon_estimate": loss.estimate,
            "epsilon_low": loss.low if math.isfinite(loss.low) else None,
            "alpha": ALPHA,
            "refuted": self.refuted,
        }


@dataclass(frozen=True)
class EventFinding:
    """How often something occurred that must never occur."""

    audit: str
    subject: str
    trials: int
    unit: str
    """what a trial is, in the plural"""
    occurred: int
    event: str
    """what must not occur, in the plural"""

    @property
    def refuted(self) -> bool:
        """It occurred."""
        return self.occurred > 0

    def line(self) -> str:
        """See `Finding.line`."""
        return (
            f"{self.audit} ({self.subject}): {self.trials} {self.unit}, {self.occurred} {self.event}: {verdict(self)}"
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


def verdict(finding: Finding) -> str:
    """The verdict in words: an audit can refute a claim, and never prove it."""
    return "REFUTED" if finding.refuted else "not refuted"
