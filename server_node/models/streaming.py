"""A streaming model on the server: it pools the first updates of several clients, then absorbs each
as it comes."""

from __future__ import annotations

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from shoal.algorithms.streaming import Arrays, Contribution, ServerHalf
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ServerSettings
from shoal.protocol.messages import Snapshot, Update
from shoal.runtime.checkpoint import (
    SavedFields,
    SavedPart,
    SavedParts,
    required_version,
)
from shoal.server_node.history.sources import NOTHING_PUBLISHED, PublishedHistory
from shoal.server_node.models.base import (
    COMPUTING_ERRORS,
    IncompatibleClient,
    ModelEvent,
    PoolTimedOut,
    Processed,
    PublishedSnapshot,
    incompatible_clients,
)
from shoal.server_node.models.publisher import ModelPublisher, PublishedModel
from shoal.server_node.models.sequences import NO_CONTENT, Content
from shoal.server_node.report.lineage.events import ClusterChange
from shoal.server_node.report.status import ModelStatus
from shoal.transports.base import Positions

POOL_BYTES_MAX = 64 * 1024 * 1024
"""bytes of arrays in the pool, which is kept in memory and in every checkpoint"""
# Not 0.05: at 10 000 readings/s a snapshot takes 3 to 6 ms and one with new clusters 10 to 35,
# after which the next 20 came 0.17 to 0.19 s apart, and bursts of updates come every 0.2 s.
SNAPSHOTS_SHARE: Final = 0.08
"""share of a server's time that snapshots of one model may take: those that take long are published
less often"""
SNAPSHOT_WAIT_MAX_S: Final = 2.0
"""longest wait for that reason"""
SNAPSHOT_WEIGHT: Final = 0.1
"""weight of the newest snapshot in the mean time that one takes"""
STATE_VERSION = 15


class PublishedHalf(SavedPart, Protocol):
    """The part of a streaming model that its snapshots are made from."""

    def snapshot(self) -> Arrays:
        """The current model, as the arrays of the algorithm's snapshot table."""
        ...


@dataclass
class _News(SavedFields):
    """News since the newest snapshot."""

    updates: int = 0
    other: bool = False
    """whether something besides updates has come: the name of a cluster, or another snapshot that
    the model follows"""


class StreamingBase(PublishedModel, ABC):
    """Counts the updates of a streaming model, and decides when a snapshot is due."""

    needs_whole_log = True
    rounds = None
    _half: PublishedHalf

    def __init__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        settings: ServerSettings,
        history: PublishedHistory,
        paced: bool,
    ) -> None:
        """`paced`: snapshots that take long on this machine come less often; else the log decides
        alone."""
        self._contract = contract
        self._paced = paced
        self._model = model
        self._settings = settings
        self._algorithm = model.streaming
        self._publisher = ModelPublisher(contract, model, history, settings)
        self._news = _News()
        self._snapshot_takes_s = 0.0
        """processor time, the moving mean of what one snapshot takes"""

    @property
    def plan(self) -> Arrays:
        """The snapshot as of now, published or not: it has the plan that a round of masked counts
        is counted under."""
        return self._half.snapshot()

    @property
    def pending(self) -> bool:
        """Whether updates came after the newest snapshot."""
        return self._news.updates > 0

    def process(self, update: Update, now: float, content: Content = NO_CONTENT) -> Processed:
        """Take in one validated update. Raises `MessageRejected` ("sequence", "conflict")."""
        if not self.clients.take(update.client, update.sequence, update.readings, now, content):
            return Processed(False)
        self.clients.note_rejected(update.client, update.rejected)
        if update.is_report:
            return Processed(True)
        self._news.updates += 1
        self._publisher.count_update(update)
        self._publisher.count_readings(update.readings)
        # An update of counts has no points of its own: its cells are those of a plan, which a
        # snapshot has.
        newest = self._publisher.snapshot
        points = self._algorithm.points(update.arrays, None if newest is None else newest.arrays)
        self._publisher.record(update, *points, now)
        return Processed(True)

    def skip(self, update: Update, now: float, content: Content) -> Processed:
        """Count an update of an earlier contract, which this model cannot learn from. Raises as
        `process` does."""
        processed = self._publisher.skip(update, now, content)
        self._news.updates += processed.new and not update.is_report
        return processed

    def change_cluster(self, change: ClusterChange, place: tuple[int, int]) -> None:
        """Change a known cluster, in all snapshots to come. Raises `MessageRejected`
        ("cluster")."""
        self._news.other |= self._publisher.change_cluster(change, place)

    def unlearn(self, client: str, read_up_to: Positions) -> None:
        """Begin again from nothing: the log, read once more without this client, is what the model
        is made of."""
        self._half = self._empty_half()
        self._publisher.begin_again(read_up_to)
        self._news = _News()

    def snapshot_due(self, now: float) -> bool:
        """Whether enough updates have come, or enough time has passed, since the newest
        snapshot."""
        # Without waiting for an update: the newest snapshot still shows the readings of a client
        # that was unlearned, or places of the contract before.
        if self._publisher.counts.rebuilt:
            return True
        if not (self._news.updates or self._news.other):
            return False
        # A clock that was set back must not lengthen the wait.
        self._publisher.counts.snapshot_at = min(self._publisher.counts.snapshot_at, now)
        by_number = self._news.updates >= self._settings.snapshot_updates
        return (
            by_number
            or self._news.other
            or now >= self._publisher.counts.snapshot_at + self._interval_s
        )

    @property
    def _interval_s(self) -> float:
        """Seconds between two snapshots that are due by the clock."""
        return max(
            self._settings.snapshot_s,
            min(self._snapshot_takes_s / SNAPSHOTS_SHARE, SNAPSHOT_WAIT_MAX_S),
        )

    def snapshot_wait_s(self, now: float) -> float:
        """Seconds until a snapshot is due by the clock; infinite while nothing has come since the
        newest one."""
        if not self._news.updates:
            return math.inf
        return max(0.0, self._publisher.counts.snapshot_at + self._interval_s - now)

    def take_snapshot(
        self, positions: Positions, statement: Mapping[str, Any], now: float
    ) -> PublishedSnapshot:
        """The next snapshot of everything absorbed so far."""
        # Processor time of this thread: on a busy machine the clock would measure what others do,
        # and snapshots would come less often for a reason that publishing them is not.
        began = time.thread_time()
        pooled = self._pooled_updates
        clustered = self._clustered_readings
        published = self._publisher.publish(
            self._half.snapshot(),
            positions,
            statement,
            now,
            pooled=pooled,
            clustered_readings=clustered,
        )
        self._news = _News()
        if self._paced:
            # A snapshot with new clusters takes many times as long as the others, so one alone must
            # not set the pace.
            self._snapshot_takes_s += SNAPSHOT_WEIGHT * (
                time.thread_time() - began - self._snapshot_takes_s
            )
        return published

    def status(self) -> ModelStatus:
        """The model as people may see it."""
        return self._publisher.status(self._waiting_for())

    def state(self) -> dict[str, Any]:
        """Everything a restart needs, the newest snapshot included."""
        return self._saved().state()

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved model. Raises `InvalidState`."""
        self._saved().restore(state)

    def rebuild(self, published: Snapshot) -> None:
        """Go on with the versions and the identities of clusters that were published."""
        self._publisher.counts.version = published.version
        self._publisher.adopt_identities(published)

    def begin_anew(self, state: Mapping[str, Any], before: ResolvedContract) -> None:
        """Go on after a change of the contract, with nothing that was learnt under the earlier
        one."""
        self._publisher.begin_anew(state, before)

    def _parts(self) -> dict[str, SavedPart]:
        return {"publisher": self._publisher, "half": self._half, "news": self._news}

    def _saved(self) -> SavedParts:
        whole = f"the checkpoint of model {self.name}"
        version = required_version(STATE_VERSION, whole)
        return SavedParts(whole, self._parts(), {"version": version})

    @property
    def _clustered_readings(self) -> int | None:
        """Readings that the clusters were learnt from; None: those of the federation's own
        clients."""
        return None

    @property
    def _pooled_updates(self) -> int:
        """Updates that were merged together to begin with."""
        return 0

    @abstractmethod
    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Do what is due by the clock."""

    @abstractmethod
    def _empty_half(self) -> PublishedHalf:
        """The half of a model that has learnt nothing."""

    def _waiting_for(self) -> str:
        # Where it began anew, its clusters are known before the model has a node of them.
        if self.lineage.known:
            return ""
        if self.snapshot is None or self.snapshot.nodes == 0:
            return "The first updates have arrived, but they have too few nodes for a clustering."
        return ""


@dataclass
class _Pool(SavedFields):
    """The updates that came before a model began, which are merged together when it begins."""

    waiting: list[Contribution] | None = field(default_factory=list)
    """None once it has been merged"""
    size: int = 0
    """bytes of their arrays"""
    since: float | None = None
    """time at which its first update came, seconds since 1970"""
    merged: int = 0
    """updates that were merged"""
    wanted: int | None = None
    """updates that were pooled when the model began, for a rebuild; None: the clock and the clients
    decide"""

    def add(self, contribution: Contribution, now: float) -> None:
        """Keep one more."""
        assert self.waiting is not None, "a pool that was merged takes in nothing"
        self.waiting.append(contribution)
        self.size += _bytes(contribution)
        self.since = now if self.since is None else self.since

    def is_over(self, now: float, wait_s: float) -> bool:
        """Whether the time for more clients is over."""
        # A rebuild merges as many updates as were merged the first time. By its own clock it would
        # merge others, and the same log would give another model.
        if self.waiting is None or self.since is None or self.wanted is not None:
            return False
        # A clock that was set back must not lengthen the wait.
        self.since = min(self.since, now)
        return now >= self.since + wait_s

    def take(self) -> list[Contribution]:
        """Every update in it, to be merged."""
        # Sorted by client, so that it does not matter whose update happened to be first in the log.
        taken = sorted(
            self.waiting or (),
            key=lambda contribution: (contribution.client, contribution.sequence),
        )
        self.waiting = None
        self.size = 0
        self.merged = len(taken)
        return taken

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`."""
        waiting = None
        if self.waiting is not None:
            waiting = [[c.client, c.sequence, dict(c.arrays)] for c in self.waiting]
        return super().state() | {"waiting": waiting}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved pool. Raises `KeyError` or `TypeError` for a damaged state."""
        saved = state["waiting"]
        super().restore(
            {
                **state,
                "waiting": None if saved is None else [Contribution(*fields) for fields in saved],
            }
        )


class StreamingModel(StreamingBase):
    """Absorbs the updates of one model. A `ServedModel`.

    The pool holds the updates that came before enough clients had sent one, or before the
    configured time was over: they are merged together, in an order that does not depend on who was
    first.
    """

    _half: ServerHalf

    def __init__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        settings: ServerSettings,
        history: PublishedHistory = NOTHING_PUBLISHED,
        paced: bool = True,
    ) -> None:
        super().__init__(contract, model, settings, history, paced)
        self._half = self._empty_half()
        self._pool = _Pool()
        self._incompatible: list[IncompatibleClient] = []
        """clients whose first updates were left out of the pool, until the next look at timers"""

    @property
    def _pooled_updates(self) -> int:
        return self._pool.merged

    def process(self, update: Update, now: float, content: Content = NO_CONTENT) -> Processed:
        """Take in one validated update, and learn it. Raises `MessageRejected` ("sequence",
        "conflict")."""
        processed = super().process(update, now, content)
        if not processed.new or update.is_report:
            return processed
        contribution = Contribution(update.client, update.sequence, update.arrays)
        if self._pool.waiting is None:
            self._absorb([contribution])
        else:
            self._pool.add(contribution, now)
            if self._pool_is_full(self._pool.waiting):
                self._merge_pool()
        return processed

    def unlearn(self, client: str, read_up_to: Positions) -> None:
        """Begin again from nothing, with a pool: the log, read once more without this client, gives
        the model."""
        super().unlearn(client, read_up_to)
        self._pool = _Pool()

    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Merge the pool when the time for more clients is over; report clients that were left out
        of it."""
        events: list[ModelEvent] = []
        if self._pool.is_over(now, self._settings.pool_s):
            self._merge_pool()
            events.append(PoolTimedOut(self.name, len(self.clients), self._pool.merged))
        events += self._incompatible
        self._incompatible = []
        return events

    def snapshot_due(self, now: float) -> bool:
        """Whether the pool has been merged, and a snapshot is due by the updates or the time since
        the newest one."""
        return (
            self._pool.waiting is None or self._publisher.counts.rebuilt
        ) and super().snapshot_due(now)

    def snapshot_wait_s(self, now: float) -> float:
        """Seconds as `StreamingBase` has them, and without end until the pool has been merged."""
        if self._pool.waiting is None:
            return super().snapshot_wait_s(now)
        return math.inf

    def rebuild(self, published: Snapshot) -> None:
        """Pool as many updates as the server that published this had pooled, whatever the clock
        says."""
        super().rebuild(published)
        # A snapshot that shows no update yet, after all have been unlearned, does not show whether
        # the pool is full.
        self._pool.wanted = published.pooled or None

    def _parts(self) -> dict[str, SavedPart]:
        return super()._parts() | {"pool": self._pool}

    def _empty_half(self) -> ServerHalf:
        return self._algorithm.server(self._model.options, self._contract.width)

    def _absorb(self, contributions: list[Contribution]) -> None:
        self._half.absorb(contributions, self._key(contributions))

    def _pool_is_full(self, pool: list[Contribution]) -> bool:
        if self._pool.wanted is not None:
            return len(pool) >= self._pool.wanted
        return len(self.clients) >= self._settings.pool_clients or self._pool.size >= POOL_BYTES_MAX

    def _merge_pool(self) -> None:
        pool = self._pool.take()
        try:
            self._absorb(pool)
        except COMPUTING_ERRORS as refused:
            left_out = self._incompatible_clients(pool)
            if not left_out:
                raise
            detail = f"merging the first updates raised {type(refused).__name__}"
            self._incompatible = [
                IncompatibleClient(self.name, client, detail) for client in left_out
            ]
            # What failed half-way may have changed the half: it must not be merged into.
            self._half = self._empty_half()
            self._absorb(
                [contribution for contribution in pool if contribution.client not in left_out]
            )

    def _incompatible_clients(self, pool: list[Contribution]) -> list[str]:
        """The clients whose first updates keep those of the others from being merged."""

        def merges(clients: Collection[str]) -> bool:
            some = [contribution for contribution in pool if contribution.client in clients]
            try:
                self._empty_half().absorb(some, self._key(some))
            except COMPUTING_ERRORS:
                return False
            return True

        return incompatible_clients(
            {contribution.client: contribution.arrays for contribution in pool}, merges
        )

    def _key(self, contributions: list[Contribution]) -> bytes:
        """Bytes that seed any shuffling: they depend on which updates are merged, never on when."""
        names = "\n".join(
            f"{contribution.client} {contribution.sequence}" for contribution in contributions
        )
        return hashlib.sha256(
            f"{self._contract.federation}\n{self._model.name}\n{names}".encode()
        ).digest()

    def _waiting_for(self) -> str:
        if self._pool.waiting is None or self.lineage.known:
            return super()._waiting_for()
        # Of those in the pool: a model that begins anew knows the clients of before, too.
        clients = len({contribution.client for contribution in self._pool.waiting})
        wanted = self._settings.pool_clients
        if not len(self.clients):
            return (
                "No client has sent an update yet. Start a producer and a client; the first updates"
                " show here."
            )
        return (
            f"{clients} of {wanted} clients have sent updates; clustering begins once all have, or "
            f"{self._settings.pool_s:g} s after the first."
        )


class MaskedModel(StreamingModel):
    """A model that learns from sums of masked counts. A `ServedModel`, whose updates are those of
    whole batches."""

    def snapshot_due(self, now: float) -> bool:
        """Publish at once after every batch: clients count the next round under its plan."""
        return self._news.updates > 0 or super().snapshot_due(now)

    def _pool_is_full(self, pool: list[Contribution]) -> bool:
        return True

    def _waiting_for(self) -> str:
        if not self._publisher.counts.updates:
            return (
                "The first round of masked counts is open. It ends once enough clients have "
                "answered and all helpers."
            )
        return super()._waiting_for()


def _bytes(contribution: Contribution) -> int:
    return sum(array.nbytes for array in contribution.arrays.values())
