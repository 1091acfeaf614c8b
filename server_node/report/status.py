"""The status of a running server, for people: one immutable value, replaced as a whole.

The threads of the web page only ever read the newest status, so they can neither wait for the
server's step nor see half of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.config.resolved import ResolvedContract
from shoal.protocol.messages import Snapshot
from shoal.protocol.quarantine import QuarantinedClient
from shoal.protocol.regions import Region
from shoal.server_node.report.lineage.clusters import Lineage


class DailyRate(NamedTuple):
    """Readings that a client publishes in a day at the rate of its newest updates for one model."""

    readings: float
    updates: float


class ClientStatus(NamedTuple):
    """A client as the server knows it: from its updates alone."""

    client: str
    last_seen: float
    """seconds since 1970, by the server's clock"""
    updates: int
    readings: int
    """readings behind its updates so far"""
    readings_per_s: float
    """over the last minute or so"""
    interval_s: float = 0.0
    """seconds that usually pass at most between two of its updates"""
    daily: DailyRate | None = None
    """None until it is known"""
    rejected: int | None = None
    """readings that it has rejected or withheld since its first start; None if it does not say"""


class HistoryPoint(NamedTuple):
    """The sizes of one snapshot in a model's history."""

    time: float
    """time of the newest reading, seconds since 1970"""
    clusters: int
    nodes: int
    readings: int


class RecentEvent(NamedTuple):
    """Event of a known cluster, as people read it."""

    at: float
    """time at which it happened, seconds since 1970: see `ClusterEventMessage.happened_at`"""
    kind: str
    """one of `EVENT_KINDS`"""
    cluster: int
    """its lasting identity"""
    other: int | None
    """the cluster that it parted from or merged into"""
    text: str
    """the event as a sentence"""
    until: float | None = None
    """time of the last readings of a cluster that is new, where these ended before it was found"""
    found_later_at: float | None = None
    """time of the newest reading when it was found; None: at `at`"""

    @property
    def found_at(self) -> float:
        """Time of the newest reading when it was found, seconds since 1970."""
        return self.at if self.found_later_at is None else self.found_later_at


class RoundStatus(NamedTuple):
    """Progress of a model in rounds."""

    round: int
    phase: str
    """one of the phases of `round_state.Phase`"""
    counted: int
    """answers counted in the newest round that closed"""
    received: int
    """answers to the open round so far"""
    shift: float
    """distance by which that round moved the model, in its own measure; infinite before the first
    one"""
    expected: int = 0
    """clients that the open round asks and waits for, of those that have answered before"""


@dataclass(frozen=True)
class ModelStatus:
    """One model: its newest snapshot (None before the first), what it waits for until then, and its
    history."""

    name: str
    algorithm: str
    snapshot: Snapshot | None = None
    waiting_for: str = ""
    """why there is no clustering yet, in plain words; empty when there is one"""
    history: Sequence[HistoryPoint] = ()
    rounds: RoundStatus | None = None
    """None for a model without rounds"""
    lineage: Lineage = field(default_factory=Lineage)
    """lasting identities of its clusters"""
    events: Sequence[RecentEvent] = ()
    """newest events of clusters, the newest last"""
    unusual: bool = False
    """whether an alarm is on: the shares of its clusters are unusual for the time of day"""
    unlike: Sequence[tuple[str, float]] = ()
    """clients whose shares differ from those of all others, and the start of the first day of it,
    seconds since 1970"""
    note: str = ""
    """further facts that people must know before they believe what is shown of it"""


@dataclass(frozen=True)
class ServerStatus:
    """The whole server at one instant."""

    contract: ResolvedContract
    started_at: float
    now: float
    ready: bool = False
    """whether every update that was in the log at the start has been read"""
    models: Mapping[str, ModelStatus] = field(default_factory=dict)
    clients: Sequence[ClientStatus] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    """reason -> messages rejected since the start"""
    quarantined: Sequence[QuarantinedClient] = ()
    """clients that a model absorbs nothing from"""
    lag_records: int | None = 0
    """updates in the log that are not read yet; None where that is not known"""
    regions: Sequence[Region] = ()
    """the regions below, those below another one after it"""
    remark: str = ""
    """further facts that people must know of the noise of this run"""
    clients_note: str = ""
    """further facts that people must know of the clients listed"""
    client_names: Mapping[str, str] = field(default_factory=dict)
    """client -> name that its owner gave it, of those that people are shown under another name"""
    ended: bool = False
    """whether the source of all readings has ended, and they are learnt: no client is expected to
    send more"""
    unavailable: bool = False
    """whether the newest attempt to read or write the log, or a file of the server, has failed"""
    history_read: float = 1.0
    """the share that is there of a history that is made again from the log"""


def newest_clients(clients: Iterable[ClientStatus], most: int) -> list[ClientStatus]:
    """The clients that were seen last, `most` of them, sorted by name."""
    newest = sorted(clients, key=lambda client: -client.last_seen)[:most]
    return sorted(newest, key=lambda client: client.client)


class StatusBoard:
    """Holds the newest status. One writer, any number of readers, no locks: an attribute is
    replaced.

    `stale_s`: seconds after which a status that was not replaced is out of date, as the
    writer's step hangs; by default none is. `clock` gives seconds and never goes back.
    """

    def __init__(
        self,
        first: ServerStatus,
        stale_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = first
        self._clock = clock
        self._posted_s = clock()
        self.stale_s = stale_s

    @property
    def status(self) -> ServerStatus:
        """The newest status."""
        return self._status

    def post(self, status: ServerStatus) -> None:
        """Replace it."""
        self._status = status
        self._posted_s = self._clock()

    @property
    def is_stale(self) -> bool:
        """Whether the newest status is older than `stale_s`."""
        return self._clock() - self._posted_s > self.stale_s
