"""What people may see of a running server: one immutable picture, replaced whole after each step.

The web threads only ever read the newest picture, so they can neither wait for the server's step nor
see half of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from server_node.lineage import Lineage
from shoal.config.contract import Contract
from shoal.protocol.messages import Snapshot


class ClientStatus(NamedTuple):
    """A client as the server knows it: from its updates alone."""

    client: str
    last_seen: float
    """the server's clock, seconds since 1970"""
    updates: int
    readings: int
    """readings behind its updates so far"""
    readings_per_s: float
    """over the last minute or so"""


class HistoryPoint(NamedTuple):
    """One point of a model's history."""

    time: float
    clusters: int
    nodes: int
    readings: int


class RoundStatus(NamedTuple):
    """How far a model in rounds is."""

    round: int
    phase: Literal["waiting_for_clusters", "collecting", "sleeping"]
    counted: int
    """answers counted in the newest round that closed"""
    received: int
    """answers to the open round so far"""
    shift: float
    """how far that round moved the model, in its own measure; infinite before the first one"""
    expected: int = 0
    """clients that the open round asks and waits for, of those that have answered before"""


@dataclass(frozen=True)
class ModelStatus:
    """One model: its newest snapshot (None before the first), what it waits for until then, and its history."""

    name: str
    algorithm: str
    snapshot: Snapshot | None = None
    waiting_for: str = ""
    """why there is no clustering yet, in plain words; empty when there is one"""
    history: Sequence[HistoryPoint] = ()
    rounds: RoundStatus | None = None
    """None for a model without rounds"""
    lineage: Lineage = field(default_factory=Lineage)
    """who is who among the clusters of the snapshot"""
    since: Mapping[int, float] = field(default_factory=dict)
    """identity -> when it came, seconds since 1970; not told of those that were there before a rebuild"""


@dataclass(frozen=True)
class ServerStatus:
    """The whole server at one instant."""

    contract: Contract
    started_at: float
    now: float
    ready: bool = False
    """the log answers and what stood in it at the start has been read"""
    models: Mapping[str, ModelStatus] = field(default_factory=dict)
    clients: Sequence[ClientStatus] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    """reason -> messages set aside since the start"""
    lag_records: int = 0
    """updates in the log that are not read yet"""
    privacy: Mapping[str, Any] = field(default_factory=dict)
    """the privacy statement of the contract"""


class StatusBoard:
    """Holds the newest status. One writer, any number of readers, no locks: an attribute is replaced."""

    def __init__(self, first: ServerStatus) -> None:
        self._status = first

    @property
    def status(self) -> ServerStatus:
        """The newest status."""
        return self._status

    def set(self, status: ServerStatus) -> None:
        """Replace it."""
        self._status = status
