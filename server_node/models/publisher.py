"""What every model on the server has, whatever its family: its clients, its totals, its newest snapshot."""

from __future__ import annotations

from typing import Any

from server_node.lineage import Lineage, Turnover, next_lineage, nodes_and_clusters, restored
from server_node.models.clients import Clients
from server_node.status import HistoryPoint, ModelStatus, RoundStatus
from shoal.algorithms.streaming import Arrays
from shoal.algorithms.view import Summary
from shoal.config.contract import Contract, Model
from shoal.protocol.checks import COUNT_MAX
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.round_request import RoundRequest

HISTORY_MAX = 600


class ModelPublisher:
    """One model as it stands before the federation."""

    def __init__(self, contract: Contract, model: Model) -> None:
        self._contract = contract
        self._model = model
        self.clients = Clients()
        self.updates = 0
        self.readings = 0
        self.newest_reading_at: float | None = None
        self.version = 0
        self.snapshot: Snapshot | None = None
        """the newest one published"""
        self.said: bytes | None = None
        """the same as it travels"""
        self.lineage = Lineage()
        """who is who among its clusters"""
        self.since: dict[int, float] = {}
        """identity -> when it came"""
        self.turnover = Turnover()
        """what became of clusters when it was published"""
        self.snapshot_at = 0.0
        self.history: list[HistoryPoint] = []
        """from the first snapshot to the newest, thinner the further back"""

    def count(self, update: Update) -> None:
        """One more update."""
        self.updates += 1
        if update.newest_reading_at is not None:
            self.newest_reading_at = max(self.newest_reading_at or update.newest_reading_at, update.newest_reading_at)

    def add_readings(self, readings: int) -> None:
        """A sum of what others claim: it must stay a number that a snapshot can carry."""
        self.readings = min(COUNT_MAX, self.readings + readings)

    def adopt(self, published: Snapshot) -> None:
        """Go on from a snapshot that was published before the memory was lost."""
        self.version, self.snapshot, self.said = published.version, published, published.encode()
        self.lineage, _ = next_lineage(Lineage(), *nodes_and_clusters(published.arrays))

    def publish(
        self,
        arrays: Arrays,
        summary: Summary,
        positions: list[list[int]],
        statement: dict[str, Any],
        now: float,
        *,
        pooled: int = 0,
        number: int | None = None,
        call: RoundRequest | None = None,
    ) -> Snapshot:
        """The next snapshot; `positions` is how far the updates have been read, `number` the round if it has rounds."""
        self.version = self.version + 1 if call is None else call.version
        self.snapshot_at = now
        self.snapshot = Snapshot(
            federation=self._contract.federation,
            contract=self._contract.digest,
            model=self._model.name,
            algorithm=self._model.algorithm,
            version=self.version,
            positions=positions,
            updates=self.updates,
            readings=self.readings,
            clients=len(self.clients),
            clusters=summary.clusters,
            nodes=summary.nodes,
            pooled=pooled,
            privacy=statement,
            arrays=arrays,
            made_at=now,
            newest_reading_at=self.newest_reading_at,
            round=number,
            round_request=None if call is None else call.table(),
        )
        self.said = self.snapshot.encode()
        self.lineage, self.turnover = next_lineage(self.lineage, *nodes_and_clusters(arrays))
        self.since = {identity: self.since.get(identity, now) for identity in self.lineage.slots}
        self.history = thinned([*self.history, HistoryPoint(now, summary.clusters, summary.nodes, self.readings)])
        return self.snapshot

    def status(self, waiting_for: str, rounds: RoundStatus | None = None) -> ModelStatus:
        """What people may see of it."""
        name, algorithm = self._model.name, self._model.algorithm
        return ModelStatus(name, algorithm, self.snapshot, waiting_for, self.history, rounds, self.lineage, self.since)

    def state(self) -> dict[str, Any]:
        """Everything a restart needs, the newest snapshot included."""
        return {
            "roster": self.clients.state(),
            "updates": self.updates,
            "readings": self.readings,
            "newest_reading_at": self.newest_reading_at,
            "snapshot_version": self.version,
            "snapshot": self.said,
            "lineage": self.lineage.state(),
            "since": [list(known) for known in self.since.items()],
            "snapshot_at": self.snapshot_at,
            "history": [list(moment) for moment in self.history],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`, or what a damaged state leads to: a wrong key, type or value, a refused message."""
        self.clients.restore(state["roster"])
        self.updates = state["updates"]
        self.readings = state["readings"]
        self.newest_reading_at = state["newest_reading_at"]
        self.version = state["snapshot_version"]
        self.said = state["snapshot"]
        self.snapshot = None if self.said is None else Snapshot.decode(self.said, Snapshot.headers())
        self.lineage = restored(state["lineage"])
        self.since = dict(state["since"])
        self.snapshot_at = state["snapshot_at"]
        self.history = thinned([HistoryPoint(*moment) for moment in state["history"]])


def thinned(history: list[HistoryPoint]) -> list[HistoryPoint]:
    """At most `HISTORY_MAX` moments: of too many every second one is left out, the first and the newest stay.

    So what happened last is known finely and what lies far back coarsely, and a page opened today sees the first day.
    """
    while len(history) > HISTORY_MAX:
        history = history[:-1:2] + history[-1:]
    return history
