"""One model on the server: its clients, its first pool, its algorithm, its snapshots."""

from __future__ import annotations

import hashlib
from typing import Any

from server_node.lineage import Turnover
from server_node.models.publisher import ModelPublisher
from server_node.status import ModelStatus
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution
from shoal.config.contract import Contract, Model
from shoal.config.settings import ServerSettings
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.messages import Snapshot, Update

POOL_BYTES_MAX = 64 * 1024 * 1024
"""of arrays that wait for the first clustering: the pool is kept in memory and in every checkpoint"""
STATE_VERSION = 2


class StreamingModel:
    """Absorbs the updates of one model. Everything it decides by the clock is kept in its state."""

    def __init__(self, contract: Contract, model: Model, settings: ServerSettings) -> None:
        self._contract = contract
        self._model = model
        self._settings = settings
        self._algorithm = streaming_algorithm(model.algorithm)
        self._half = self._algorithm.server(model.options, contract.width)
        self._standing = ModelPublisher(contract, model)
        self.clients = self._standing.clients
        self._pool: list[Contribution] | None = []
        self._pool_bytes = 0
        self._pool_since: float | None = None
        self._pooled_updates = 0
        self._pool_exactly: int | None = None
        self._since_snapshot = 0

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest one published."""
        return self._standing.snapshot

    @property
    def said(self) -> bytes | None:
        """The newest one published, as it travels."""
        return self._standing.said

    @property
    def turnover(self) -> Turnover:
        """What became of clusters when it was published."""
        return self._standing.turnover

    @property
    def changed(self) -> bool:
        """Whether updates came after the newest snapshot."""
        return self._since_snapshot > 0

    def hear(self, update: Update, now: float) -> bool:
        """Take one checked update in; False if it was heard before. Raises `MessageRejected` ("sequence")."""
        if not self.clients.take(update.client, update.sequence, update.readings, now):
            return False
        self._since_snapshot += 1
        self._standing.count(update)
        self._standing.add_readings(update.readings)
        contribution = Contribution(update.client, update.sequence, update.arrays)
        if self._pool is None:
            self._absorb([contribution])
        else:
            self._pool.append(contribution)
            self._pool_bytes += _bytes(contribution)
            self._pool_since = now if self._pool_since is None else self._pool_since
            if self._pool_is_full(self._pool):
                self._absorb_pool()
        return True

    def rebuild(self, published: Snapshot) -> None:
        """Begin again from the start of the log as the server that published this began, whatever the clock says."""
        self._pool_exactly = published.pooled
        self._standing.version = published.version

    def on_timer(self, now: float) -> bool:
        """Begin with the clients heard so far when the time for more has run out; True if that was now."""
        if self._pool is None or self._pool_since is None or self._pool_exactly is not None:
            return False
        # A clock that was set back must not make the wait longer than it ever was.
        self._pool_since = min(self._pool_since, now)
        if now < self._pool_since + self._settings.pool_s:
            return False
        self._absorb_pool()
        return True

    def snapshot_due(self, now: float) -> bool:
        """Whether enough has come, or enough time has passed, since the last snapshot."""
        if self._pool is not None or self._since_snapshot == 0:
            return False
        self._standing.snapshot_at = min(self._standing.snapshot_at, now)
        by_number = self._since_snapshot >= self._settings.snapshot_updates
        return by_number or now >= self._standing.snapshot_at + self._settings.snapshot_s

    def take_snapshot(self, positions: list[list[int]], statement: dict[str, Any], now: float) -> Snapshot:
        """The model as it stands; `positions` is how far the updates have been read."""
        arrays = self._half.snapshot()
        summary = self._algorithm.summary(arrays)
        self._since_snapshot = 0
        return self._standing.publish(arrays, summary, positions, statement, now, pooled=self._pooled_updates)

    def status(self) -> ModelStatus:
        """What people may see of it."""
        return self._standing.status(self._waiting_for())

    def state(self) -> dict[str, Any]:
        """Everything a restart needs, the open pool and the newest snapshot included."""
        pool = None if self._pool is None else [[c.client, c.sequence, dict(c.arrays)] for c in self._pool]
        return {
            "version": STATE_VERSION,
            **self._standing.state(),
            "half": self._half.state(),
            "pool": pool,
            "pool_since": self._pool_since,
            "pooled_updates": self._pooled_updates,
            "pool_exactly": self._pool_exactly,
            "since_snapshot": self._since_snapshot,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        if state.get("version") != STATE_VERSION:
            raise InvalidState(f"the checkpoint of model {self._model.name} is of another version of shoal")
        try:
            self._standing.restore(state)
            self._half.restore(state["half"])
            pool = state["pool"]
            self._pool = None if pool is None else [Contribution(*contribution) for contribution in pool]
            self._pool_bytes = sum(map(_bytes, self._pool or ()))
            self._pool_since = state["pool_since"]
            self._pooled_updates = state["pooled_updates"]
            self._pool_exactly = state["pool_exactly"]
            self._since_snapshot = state["since_snapshot"]
        except (AttributeError, KeyError, TypeError, ValueError, MessageRejected) as broken:
            raise InvalidState(f"the checkpoint of model {self._model.name} is damaged: {broken}") from None

    def _absorb(self, contributions: list[Contribution]) -> None:
        self._half.absorb(contributions, self._key(contributions))

    def _pool_is_full(self, pool: list[Contribution]) -> bool:
        if self._pool_exactly is not None:
            return len(pool) >= self._pool_exactly
        return len(self.clients) >= self._settings.pool_clients or self._pool_bytes >= POOL_BYTES_MAX

    def _absorb_pool(self) -> None:
        assert self._pool is not None
        # In the order of names, so that who happened to speak first among the first changes nothing.
        pool = sorted(self._pool, key=lambda said: (said.client, said.sequence))
        self._pooled_updates = len(pool)
        self._pool, self._pool_bytes = None, 0
        self._absorb(pool)

    def _key(self, contributions: list[Contribution]) -> bytes:
        """What any shuffling inside depends on: who says what, never when."""
        said = "\n".join(f"{said.client} {said.sequence}" for said in contributions)
        return hashlib.sha256(f"{self._contract.federation}\n{self._model.name}\n{said}".encode()).digest()

    def _waiting_for(self) -> str:
        if self._pool is not None:
            heard, wanted = len(self.clients), self._settings.pool_clients
            if not heard:
                return "No client has spoken yet. Start a producer and a client, and the first updates will show here."
            return f"{heard} of {wanted} clients have spoken; clustering begins with all of them, or when time is up."
        if self.snapshot is None or self.snapshot.nodes == 0:
            return "The first updates are here, but too few nodes to begin a clustering with."
        return ""


def _bytes(contribution: Contribution) -> int:
    return sum(array.nbytes for array in contribution.arrays.values())
