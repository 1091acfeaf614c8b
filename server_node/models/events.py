"""What models on the server report to monitoring, one class for each kind of event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelEvent:
    """Something a model has done."""

    model: str


@dataclass(frozen=True)
class PoolTimedOut(ModelEvent):
    """Fewer clients than configured have sent updates in time: clustering begins with theirs."""

    clients: int
    updates: int


@dataclass(frozen=True)
class RoundOpened(ModelEvent):
    """Clients are asked for answers by the snapshot of this version."""

    round: int
    version: int


@dataclass(frozen=True)
class RoundClosed(ModelEvent):
    """The answers of a round are combined, and the parameters have moved by `shift`."""

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
    """The answers of a round cannot be combined, though each alone is valid. Without those of odd clients the
    round closes after all; it is opened again if none is found."""

    round: int
    detail: str


@dataclass(frozen=True)
class OddClient(ModelEvent):
    """An answer or update of this client keeps those of the others from being combined: it is set aside, and the client
    is to be put into quarantine."""

    client: str
    detail: str


@dataclass(frozen=True)
class DriftDetected(ModelEvent):
    """The first round after a sleep has moved the model by its tolerance or more; more rounds follow."""

    round: int
    shift: float


@dataclass(frozen=True)
class ModelSleeping(ModelEvent):
    """The model has converged, or run its most rounds in a row, and asks for nothing until it wakes."""

    round: int
    rounds: int
    """rounds closed since it last woke"""
    shift: float


@dataclass(frozen=True)
class ModelRestarted(ModelEvent):
    """Another model has found another number of clusters: this one starts again from those."""

    clusters: int
