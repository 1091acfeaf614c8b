"""A streaming model on the server: it pools the first updates of several clients, then absorbs each as it comes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from server_node.clusters.history.recorder import NOTHING_PUBLISHED, PublishedHistory
from server_node.clusters.lineage import Lineage
from server_node.models.base import ModelEvent, OddClient, PoolTimedOut, Processed, PublishedSnapshot
from server_node.models.clients import NO_CONTENT, Clients, Content
from server_node.models.odd_answers import COMPUTING_ERRORS, odd_clients
from server_node.models.publisher import ModelPublisher
from server_node.status import ModelStatus
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution, ServerHalf
from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Contract, Model
from shoal.config.privacy import model_options
from shoal.config.sections import ServerSettings
from shoal.errors import InvalidData, InvalidState, MessageRejected
from shoal.protocol.messages import Snapshot, Update
from shoal.transports.base import Positions

POOL_BYTES_MAX = 64 * 1024 * 1024
"""of arrays in the pool, which is kept in memory and in every checkpoint"""
SNAPSHOTS_SHARE: Final = 0.05
"""of a server's time that snapshots of one model may take: one that takes long is published less often"""
SNAPSHOT_WAIT_MAX_S: Final = 2.0
"""longest wait for that reason"""
SNAPSHOT_WEIGHT: Final = 0.1
"""of the newest snapshot, in the mean time that one takes"""
STATE_VERSION = 7


class StreamingModel:
    """Absorbs the updates of one model. A `ServedModel`.

    The pool holds the updates that came before enough clients had sent one, or before the configured time was over:
    they are merged together, in an order that does not depend on who was first.
    """

    needs_caught_up_log = False
    needs_whole_log = True
    idle = True

    def __init__(
        self,
        contract: Contract,
        model: Model,
        settings: ServerSettings,
        history: PublishedHistory = NOTHING_PUBLISHED,
        paced: bool = True,
    ) -> None:
        """`paced`: snapshots that take long on this machine come less often; else the log decides alone."""
        self._contract = contract
        self._paced = paced
        self._model = model
        self._settings = settings
        self._algorithm = streaming_algorithm(model.algorithm)
        self._half = self._empty_half()
        self._publisher = ModelPublisher(contract, model, history)
        self._pool: list[Contribution] | None = []
        """None once it has been merged"""
        self._pool_bytes = 0
        self._pool_since: float | None = None
        """when its first update came, seconds since 1970"""
        self._pooled_updates = 0
        self._pool_size: int | None = None
        """while rebuilding: the updates that were pooled when the model began"""
        self._odd: list[str] = []
        """clients whose first updates were left out of the pool, until the next look at timers"""
        self._odd_detail = ""
        self._updates_since_snapshot = 0
        self._snapshot_takes_s = 0.0
        """of the processor: moving mean of what it takes to make one"""
        self._has_news = False
        """whether something besides updates has come since the newest snapshot: the name of a cluster"""

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def clients(self) -> Clients:
        return self._publisher.clients

    @property
    def snapshot(self) -> Snapshot | None:
        return self._publisher.snapshot

    @property
    def view(self) -> ClusteringView | None:
        return self._publisher.view

    @property
    def lineage(self) -> Lineage:
        return self._publisher.lineage

    @property
    def pending(self) -> bool:
        """Whether updates came after the newest snapshot."""
        return self._updates_since_snapshot > 0

    def process(self, update: Update, now: float, content: Content = NO_CONTENT) -> Processed:
        """Take in one validated update. Raises `MessageRejected` ("sequence", "conflict")."""
        if not self.clients.take(update.client, update.sequence, update.readings, now, content):
            return Processed(False)
        self._updates_since_snapshot += 1
        self._publisher.count_update(update)
        self._publisher.count_readings(update.readings)
        newest = self._publisher.snapshot
        points = self._algorithm.points(update.arrays, None if newest is None else newest.arrays)
        self._publisher.record(update, *points, now)
        contribution = Contribution(update.client, update.sequence, update.arrays)
        if self._pool is None:
            self._absorb([contribution])
        else:
            self._pool.append(contribution)
            self._pool_bytes += _bytes(contribution)
            self._pool_since = now if self._pool_since is None else self._pool_since
            if self._pool_is_full(self._pool):
                self._merge_pool(self._pool)
        return Processed(True)

    def name_cluster(self, identity: int, name: str, place: tuple[int, int]) -> None:
        """Name a known cluster, in all snapshots to come. Raises `MessageRejected` ("cluster")."""
        self._has_news |= self._publisher.name_cluster(identity, name, place)

    def quarantine(self, client: str) -> None:
        """Nothing: it waits for no client, and what it has absorbed stays until it is unlearned."""

    def release(self, client: str) -> None:
        """The next update of this client may have any sequence number."""
        self.clients.allow_jump(client)

    def unlearn(self, client: str, read_up_to: Positions) -> None:
        """Begin again from nothing: the log, read once more without this client, is what the model is made of."""
        self._half = self._empty_half()
        self._publisher.begin_again(read_up_to)
        self._pool, self._pool_bytes, self._pool_since, self._pool_size = [], 0, None, None
        self._pooled_updates, self._updates_since_snapshot = 0, 0

    def wake(self) -> None:
        """Nothing: it never sleeps."""

    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Merge the pool when the time for more clients is over; name clients that were left out of it."""
        events: list[ModelEvent] = []
        if self._pool_timed_out(now):
            assert self._pool is not None
            self._merge_pool(self._pool)
            events.append(PoolTimedOut(self.name, len(self.clients), self._pooled_updates))
        events += [OddClient(self.name, client, self._odd_detail) for client in self._odd]
        self._odd = []
        return events

    def _pool_timed_out(self, now: float) -> bool:
        if self._pool is None or self._pool_since is None or self._pool_size is not None:
            return False
        # A clock that was set back must not lengthen the wait.
        self._pool_since = min(self._pool_since, now)
        return now >= self._pool_since + self._settings.pool_s

    def snapshot_due(self, now: float) -> bool:
        """Whether enough updates have come, or enough time has passed, since the newest snapshot."""
        if self._publisher.rebuilt:
            return True
        if self._pool is not None or not (self._updates_since_snapshot or self._has_news):
            return False
        self._publisher.snapshot_at = min(self._publisher.snapshot_at, now)
        by_number = self._updates_since_snapshot >= self._settings.snapshot_updates
        wait_s = max(self._settings.snapshot_s, min(self._snapshot_takes_s / SNAPSHOTS_SHARE, SNAPSHOT_WAIT_MAX_S))
        return by_number or self._has_news or now >= self._publisher.snapshot_at + wait_s

    def take_snapshot(self, positions: list[list[int]], statement: Mapping[str, Any], now: float) -> PublishedSnapshot:
        """The next snapshot of everything absorbed so far."""
        began, pooled, clustered = time.thread_time(), self._pooled_updates, self._clustered_readings
        published = self._publisher.publish(
            self._half.snapshot(), positions, statement, now, pooled=pooled, clustered_readings=clustered
        )
        self._updates_since_snapshot, self._has_news = 0, False
        if self._paced:
            # One that tells of new clusters takes many times as long as the others.
            self._snapshot_takes_s += SNAPSHOT_WEIGHT * (time.thread_time() - began - self._snapshot_takes_s)
        return published

    def status(self) -> ModelStatus:
        """What people may see of it."""
        return self._publisher.status(self._waiting_for())

    def state(self) -> dict[str, Any]:
        """Everything a restart needs, the pool and the newest snapshot included."""
        pool = None if self._pool is None else [[c.client, c.sequence, dict(c.arrays)] for c in self._pool]
        return {
            "version": STATE_VERSION,
            "publisher": self._publisher.state(),
            "half": self._half.state(),
            "pool": pool,
            "pool_since": self._pool_since,
            "pooled_updates": self._pooled_updates,
            "pool_size": self._pool_size,
            "updates_since_snapshot": self._updates_since_snapshot,
            "has_news": self._has_news,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        if state.get("version") != STATE_VERSION:
            raise InvalidState(f"the checkpoint of model {self.name} is of another version of shoal")
        try:
            self._publisher.restore(state["publisher"])
            self._half.restore(state["half"])
            pool = state["pool"]
            self._pool = None if pool is None else [Contribution(*contribution) for contribution in pool]
            self._pool_bytes = sum(map(_bytes, self._pool or ()))
            self._pool_since = state["pool_since"]
            self._pooled_updates = state["pooled_updates"]
            self._pool_size = state["pool_size"]
            self._updates_since_snapshot = state["updates_since_snapshot"]
            self._has_news = state["has_news"]
        except (AttributeError, KeyError, TypeError, ValueError, InvalidData, MessageRejected) as broken:
            raise InvalidState(f"the checkpoint of model {self.name} is damaged: {broken}") from None

    def rebuild(self, published: Snapshot) -> None:
        """Pool as many updates as the server that published this had pooled, whatever the clock says."""
        # One that shows no update yet, after all have been unlearned, says nothing of the pool.
        self._pool_size = published.pooled or None
        self._publisher.version = published.version
        self._publisher.adopt_identities(published)

    @property
    def _clustered_readings(self) -> int | None:
        """Readings that the clusters were learnt from; None: those of the federation's own clients."""
        return None

    def _empty_half(self) -> ServerHalf:
        return self._algorithm.server(model_options(self._contract, self._model), self._contract.width)

    def _absorb(self, contributions: list[Contribution]) -> None:
        self._half.absorb(contributions, self._key(contributions))

    def _pool_is_full(self, pool: list[Contribution]) -> bool:
        if self._pool_size is not None:
            return len(pool) >= self._pool_size
        return len(self.clients) >= self._settings.pool_clients or self._pool_bytes >= POOL_BYTES_MAX

    def _merge_pool(self, pool: list[Contribution]) -> None:
        # Sorted by client, so that it does not matter whose update happened to be first in the log.
        pool = sorted(pool, key=lambda contribution: (contribution.client, contribution.sequence))
        self._pooled_updates = len(pool)
        self._pool, self._pool_bytes = None, 0
        try:
            self._absorb(pool)
        except COMPUTING_ERRORS as refused:
            self._odd = self._odd_clients(pool)
            if not self._odd:
                raise
            self._odd_detail = f"merging the first updates raised {type(refused).__name__}"
            self._half = self._empty_half()
            self._absorb([one for one in pool if one.client not in self._odd])

    def _odd_clients(self, pool: list[Contribution]) -> list[str]:
        """Those whose first updates keep the others from being merged."""

        def merges(clients: Collection[str]) -> bool:
            some = [one for one in pool if one.client in clients]
            try:
                self._empty_half().absorb(some, self._key(some))
            except COMPUTING_ERRORS:
                return False
            return True

        return odd_clients({one.client: one.arrays for one in pool}, merges)

    def _key(self, contributions: list[Contribution]) -> bytes:
        """What any shuffling inside depends on: which updates are merged, never when."""
        names = "\n".join(f"{contribution.client} {contribution.sequence}" for contribution in contributions)
        return hashlib.sha256(f"{self._contract.federation}\n{self._model.name}\n{names}".encode()).digest()

    def _waiting_for(self) -> str:
        if self._pool is not None:
            clients, wanted = len(self.clients), self._settings.pool_clients
            if not clients:
                return "No client has sent an update yet. Start a producer and a client; the first updates show here."
            return (
                f"{clients} of {wanted} clients have sent updates; clustering begins once all have, or "
                f"{self._settings.pool_s:g} s after the first."
            )
        if self.snapshot is None or self.snapshot.nodes == 0:
            return "The first updates have arrived, but they have too few nodes for a clustering."
        return ""


def _bytes(contribution: Contribution) -> int:
    return sum(array.nbytes for array in contribution.arrays.values())
