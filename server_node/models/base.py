"""The contract of one served model, what the server asks of it whatever its family, and the events
that it reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

import numpy as np

from shoal.algorithms.streaming import Arrays
from shoal.algorithms.view import ClusteringView
from shoal.config.resolved import ResolvedContract
from shoal.errors import InvalidData, MessageRejected
from shoal.kernels.arrays import Floats
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import HistoryMessage
from shoal.protocol.messages import Snapshot, Update
from shoal.runtime.checkpoint import SavedPart
from shoal.server_node.models.clients import Clients
from shoal.server_node.models.sequences import NO_CONTENT, Content
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.lineage.events import ClusterChange
from shoal.server_node.report.status import ModelStatus
from shoal.transports.base import Positions


@dataclass(frozen=True)
class ModelEvent:
    """Something a model has done; its fields are those of the event that is logged."""

    event: ClassVar[str]
    """name of the event"""
    level: ClassVar[int] = logging.INFO

    model: str


@dataclass(frozen=True)
class PoolTimedOut(ModelEvent):
    """Fewer clients than configured have sent updates in time: clustering begins with theirs."""

    event = "pool_timed_out"

    clients: int
    updates: int


@dataclass(frozen=True)
class RoundOpened(ModelEvent):
    """Clients are asked for answers by the snapshot of this version."""

    event = "round_opened"

    round: int
    version: int


@dataclass(frozen=True)
class RoundClosed(ModelEvent):
    """The answers of a round are combined, and the parameters have moved by `shift`."""

    event = "round_closed"

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
    """The answers of a round cannot be combined, though each alone is valid. Without those of
    incompatible clients the round closes after all; it is opened again if none is found."""

    event = "round_failed"
    level = logging.WARNING

    round: int
    detail: str


@dataclass(frozen=True)
class IncompatibleClient(ModelEvent):
    """An answer or update of this client keeps those of the others from being combined: it is set
    aside, and the client is to be put into quarantine."""

    event = "incompatible_client"
    level = logging.WARNING

    client: str
    detail: str


@dataclass(frozen=True)
class DriftDetected(ModelEvent):
    """The first round after a sleep has moved the model by its tolerance or more; more rounds
    follow."""

    event = "drift_detected"

    round: int
    shift: float


@dataclass(frozen=True)
class ModelSleeping(ModelEvent):
    """The model has converged, or run its most rounds in a row, and asks for nothing until it
    wakes."""

    event = "model_sleeping"

    round: int
    rounds: int
    """rounds closed since it last woke"""
    shift: float


@dataclass(frozen=True)
class ModelRestarted(ModelEvent):
    """Another model has found another number of clusters: this one starts again from those."""

    event = "model_restarted"

    clusters: int


AnswerResult = Literal["in_time", "late", "too_late", "repeated"]
"""answers to the open round, to a closed one that still counts, to one too old to count; and one
processed before"""


class Processed(NamedTuple):
    """Result of processing one update."""

    new: bool
    """whether the model has taken it; False for one that it knew or that came too late to count"""
    answer: AnswerResult | None = None
    """None for a model without rounds"""


class HistoryChange(NamedTuple):
    """What has changed in the history of a model."""

    model: str
    messages: Sequence[HistoryMessage] = ()
    """the bins, and the names in them"""
    begins_again: bool = False
    """whether these are all, and those published before are to be removed"""


class PublishedSnapshot(NamedTuple):
    """A snapshot that is ready to be published."""

    snapshot: Snapshot
    value: bytes
    """the same as it travels"""
    view: ClusteringView
    lineage: Lineage
    events: Sequence[ClusterEventMessage]
    """events of known clusters since the snapshot before"""
    history: HistoryChange
    """what has changed in the history since then"""
    unusual: bool = False
    """whether the shares of its clusters are unusual for the time of day"""
    unlikeness: Mapping[str, float] = MappingProxyType({})
    """client -> how unlike all others it was on the newest day that was compared, 0 to 1"""


class LearningModel(Protocol):
    """A model that learns from the updates of clients."""

    @property
    def name(self) -> str:
        """The model's name in the contract."""
        ...

    @property
    def clients(self) -> Clients:
        """The clients whose updates it has processed."""
        ...

    @property
    def pending(self) -> bool:
        """Whether updates have been processed that its newest snapshot does not show."""
        ...

    @property
    def needs_whole_log(self) -> bool:
        """Whether it can be rebuilt only from a log that still begins with its first update."""
        ...

    def process(self, update: Update, now: float, content: Content = NO_CONTENT) -> Processed:
        """Take in one validated update; `content` tells it from another one with its number.

        Raises `MessageRejected` ("sequence", "conflict", "arrays", "bounds", "claims").
        """
        ...

    def skip(self, update: Update, now: float, content: Content) -> Processed:
        """Count a validated update of an earlier contract after which the model began anew. Raises
        as `process`."""
        ...

    def unlearn(self, client: str, read_up_to: Positions) -> None:
        """Forget everything that came of this client, which is in quarantine.

        The log is read from its start once more, without that client: a model that learns from the
        log alone begins again, any other drops what it knows already. `read_up_to` is how far the
        log has been read, by partition.
        """
        ...


class PublishingModel(Protocol):
    """A model that publishes snapshots."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest one published; None before the first."""
        ...

    @property
    def view(self) -> ClusteringView | None:
        """The clustering of that snapshot."""
        ...

    @property
    def lineage(self) -> Lineage:
        """The lasting identities of its clusters, by the newest snapshot."""
        ...

    def change_cluster(self, change: ClusterChange, place: tuple[int, int]) -> None:
        """Change a known cluster, in all snapshots to come; `place` is (partition, offset) of the
        request.

        Raises `MessageRejected` ("cluster") if there is none.
        """
        ...

    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Do what is due by the clock; one event at least for anything done. `now` in seconds since
        1970."""
        ...

    def snapshot_due(self, now: float) -> bool:
        """Whether to publish a snapshot now."""
        ...

    def snapshot_wait_s(self, now: float) -> float:
        """Seconds until a snapshot will be due by the clock, whatever comes; infinite if the clock
        alone makes none."""
        ...

    def take_snapshot(
        self, positions: Positions, statement: Mapping[str, Any], now: float
    ) -> PublishedSnapshot:
        """The next snapshot. `positions` is where the updates are read on, `statement` the privacy
        statement of the contract. Raises `MessageRejected` ("oversized") for one too large to
        travel."""
        ...

    @property
    def held_history(self) -> int:
        """The numbers that wait until the history of the server is whole."""
        ...

    def take_history(self) -> HistoryChange:
        """What has changed in its history beside a snapshot; nothing while it is not whole."""
        ...

    def status(self) -> ModelStatus:
        """The model as people may see it."""
        ...


class SavedModel(SavedPart, Protocol):
    """A model that a checkpoint keeps, and that can be rebuilt without one."""

    def rebuild(self, published: Snapshot) -> None:
        """Prepare to process the log again from its start, without a checkpoint; `published` is the
        newest snapshot."""
        ...

    def begin_anew(self, state: Mapping[str, Any], before: ResolvedContract) -> None:
        """Go on after a change of the contract, with nothing that was learnt under the earlier one.

        `state` is the saved state of the model's publisher under the contract `before`.
        """
        ...


class ModelRounds(Protocol):
    """The rounds of a model that asks clients for answers. A streaming model has none."""

    @property
    def idle(self) -> bool:
        """Whether it does nothing by itself until updates, time or a wake request come."""
        ...

    def wake(self) -> None:
        """Collect answers at the next opportunity, if it sleeps."""
        ...

    def quarantine(self, client: str) -> None:
        """Wait for this client no more, and count none of its answers in the next round."""
        ...

    def release(self, client: str) -> None:
        """Wait for this client again."""
        ...


class ServedModel(LearningModel, PublishingModel, SavedModel, Protocol):
    """One model of the contract on the server. Everything it decides by the clock is in its
    `state`."""

    @property
    def rounds(self) -> ModelRounds | None:
        """The rounds of the model; None for a streaming model.

        A round must not close before the answers that are in the log in time have been read. So the
        timers of a model with rounds may only be looked at once every update in the log has been
        processed, and after those of models without, from whose clusters it may start in the same
        step.
        """
        ...


COMPUTING_ERRORS: Final = (
    InvalidData,
    MessageRejected,
    ArithmeticError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)
"""errors that a computation on unforeseen arrays can raise; singular matrices are among the
`ValueError`s"""
# Leaving each of n out combines the answers of n - 1 clients n times: above this the time is better
# spent on adding them one by one, which finds several at once.
LEAVE_ONE_OUT_MAX: Final = 200
"""clients up to which each is left out in turn"""


def incompatible_clients(
    answers: Mapping[str, Arrays], combines: Callable[[Collection[str]], bool]
) -> list[str]:
    """The clients, sorted, without whose answers the others combine: as few as are found, none if
    none are.

    `combines` tries the answers of some clients. Those that fail alone are incompatible; else the
    one without whom the others combine, the most unusual one if there are several; else those that
    fail when answers are added one by one, the most usual ones first. A pure function of the
    answers: a rebuild finds the same ones.
    """
    clients = sorted(answers)
    alone = {client for client in clients if not combines([client])}
    if len(alone) == len(clients):
        return []  # what all fail at is no fault of theirs
    if alone and combines([client for client in clients if client not in alone]):
        return sorted(alone)
    unusual = _unusual(answers, clients)
    # The most usual first; of equally usual ones by name, so that every run leaves out the same
    # client.
    usual = sorted(clients, key=lambda client: (unusual[client], client))
    if len(clients) <= LEAVE_ONE_OUT_MAX:
        # The most unusual is the likeliest one, and each try combines all answers once more.
        for client in reversed(usual):
            if combines([other for other in clients if other != client]):
                return [client]
    kept: list[str] = []
    for client in usual:
        if combines(sorted([*kept, client])):
            kept.append(client)
    if not kept:
        return []
    return sorted(set(clients) - set(kept))


def _unusual(answers: Mapping[str, Arrays], clients: Sequence[str]) -> dict[str, float]:
    """Distance of the size of each client's arrays from the median of all, in medians."""
    # A size may overflow or be no number: such an answer is the one to find.
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = {client: _sizes_of(answers[client]) for client in clients}
        # The median: a few wild answers cannot move what the others are compared with.
        middle = np.median(np.stack([sizes[client] for client in clients]), axis=0)
        unusual = {}
        for client in clients:
            # 1e-12: where the others have 0, another 0 is as usual, and anything else is far.
            apart = np.abs(sizes[client] - middle) / (middle + 1e-12)
            unusual[client] = float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))
    return unusual


def _sizes_of(arrays: Arrays) -> Floats:
    """(a,) the largest absolute value in each of these arrays, in the order of their names."""
    return np.array([float(np.abs(array).max(initial=0.0)) for _, array in sorted(arrays.items())])
