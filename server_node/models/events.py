"""What models on the server report to monitoring: one class for each event of the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class ModelEvent:
    """Something a model has done. Its fields are the fields of the log event `EVENT`."""

    EVENT: ClassVar[str]
    LEVEL: ClassVar[int] = logging.INFO

    model: str


@dataclass(frozen=True)
class PoolTimedOut(ModelEvent):
    """Fewer clients than configured have sent updates in time: clustering begins with theirs."""

    EVENT: ClassVar[str] = "pool_timed_out"

    clients: int
    updates: int


@dataclass(frozen=True)
class RoundOpened(ModelEvent):
    """Clients are asked for answers by the snapshot of this version."""

    EVENT: ClassVar[str] = "round_opened"

    round: int
    version: int


@dataclass(frozen=True)
class RoundClosed(ModelEvent):
    """The answers of a round are combined, and the parameters have moved by `shift`."""

    EVENT: ClassVar[str] = "round_closed"

    round: int
    answers: int
    """answers combined, late ones to earlier rounds included"""
    expected: int
    """clients that were asked and waited for"""
    by: Literal["quorum", "deadline"]
    shift: float
    duration_s: float


@dataclass(frozen=True)
class RoundFailed(ModelEvent):
    """The answers of a round cannot be combined, though each alone is valid; the round is opened again."""

    EVENT: ClassVar[str] = "round_failed"
    LEVEL: ClassVar[int] = logging.WARNING

    round: int
    detail: str


@dataclass(frozen=True)
class DriftDetected(ModelEvent):
    """The first round after a sleep has moved the model by its tolerance or more; more rounds follow."""

    EVENT: ClassVar[str] = "drift_detected"

    round: int
    shift: float


@dataclass(frozen=True)
class ModelSleeping(ModelEvent):
    """The model has converged, or run its most rounds in a row, and asks for nothing until it wakes."""

    EVENT: ClassVar[str] = "model_sleeping"

    round: int
    rounds: int
    """rounds closed since it last woke"""
    shift: float


@dataclass(frozen=True)
class ModelRestarted(ModelEvent):
    """Another model has found another number of clusters: this one starts again from those."""

    EVENT: ClassVar[str] = "model_restarted"

    clusters: int
