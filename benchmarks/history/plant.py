"""A model with 60 clusters and 1000 nodes that 200 clients feed, as the server keeps it, with its
history on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from shoal.config.resolved import resolve
from shoal.protocol.messages import Update
from shoal.runtime.checkpoint import Checkpoint
from shoal.server_node.history.sources import NOTHING_PUBLISHED
from shoal.server_node.history.store import HISTORY_FILE, HistoryStore
from shoal.server_node.ingest.outcome import history_records, snapshot_records
from shoal.server_node.models.base import PublishedSnapshot
from shoal.server_node.models.publisher import ModelPublisher
from shoal.server_node.report.status import ModelStatus
from tests.server_node.web_statuses import a_contract, some_nodes

CLUSTERS = 60
CLIENTS = 200
NODES = 1000
FEATURES = 4
CLIENT_NAMES: Final = [f"client-{i:03}" for i in range(CLIENTS)]
READINGS = 600
"""behind each update"""
SPREAD = 0.01
UPDATE_EVERY_S = 10.0
"""seconds between two updates of a client"""
START = 1_700_001_000.0
"""a time at which bins of both widths begin"""
CONTRACT = a_contract(FEATURES)
MODEL = CONTRACT.models[0].name
RESOLVED = resolve(CONTRACT)


class Plant:
    """The clients and the server's half of their model. Each update has a point in every
    cluster."""

    def __init__(self, folder: Path, with_history: bool = True) -> None:
        """`folder` of its checkpoint, and of its history if there is one."""
        self._rng = np.random.default_rng(7)
        self._arrays = some_nodes(FEATURES, CLUSTERS, NODES)
        self._statement = RESOLVED.statement
        self.store = (
            HistoryStore(resolve(CONTRACT), folder / HISTORY_FILE) if with_history else None
        )
        self._checkpoint = Checkpoint(folder / "checkpoint.db", "plant")
        self._publisher = ModelPublisher(
            RESOLVED, RESOLVED.models[MODEL], self.store or NOTHING_PUBLISHED
        )
        self.now = START
        self._turn = 0
        self._published_up_to = 0
        for _ in range(2):  # a cluster is known once it has lasted
            self._publisher.count_readings(10_000)
            self._publish()

    @property
    def status(self) -> ModelStatus:
        """What people may see of the model."""
        return self._publisher.status("")

    def updates(self, number: int) -> list[Update]:
        """The next updates, of the clients in turn."""
        made = []
        for _ in range(number):
            self._turn += 1
            self.now = START + self._turn * UPDATE_EVERY_S / CLIENTS
            made.append(self._update(CLIENT_NAMES[self._turn % CLIENTS], 1 + self._turn // CLIENTS))
        return made

    def step(self, updates: Sequence[Update]) -> None:
        """What a step of the server does with updates that are absorbed already."""
        for update in updates:
            self._publisher.count_update(update)
            self._publisher.count_readings(update.readings)
            if self.store is not None:
                self._publisher.record(
                    update, update.arrays["weight"], update.arrays["count"].astype(float), self.now
                )
        published = self._publish()
        records = [] if self.store is None else history_records(self.store, [published.history])
        outbox = [
            *snapshot_records(CONTRACT, published),
            *(record.outbox_record(CONTRACT.history_topic) for record in records),
        ]
        last = self._checkpoint.save(self._publisher.state(), outbox, self._published_up_to)
        self._published_up_to = last or self._published_up_to
        if self.store is not None:
            self.store.apply(records)

    def _publish(self) -> PublishedSnapshot:
        return self._publisher.publish(self._arrays, {0: 0}, self._statement, self.now)

    def _update(self, client: str, sequence: int) -> Update:
        places = self._arrays["centre"] + self._rng.normal(0, SPREAD, (CLUSTERS, FEATURES))
        counts = 1 + self._rng.multinomial(READINGS - CLUSTERS, np.full(CLUSTERS, 1 / CLUSTERS))
        return Update(
            federation=CONTRACT.federation,
            contract=CONTRACT.digest,
            model=CONTRACT.models[0].name,
            algorithm="fcac",
            client=client,
            sequence=sequence,
            readings=READINGS,
            privacy=self._statement,
            arrays={
                "weight": places,
                "count": counts.astype(np.int32),
                "won": counts.astype(np.int32),
            },
            made_at=self.now,
            newest_reading_at=self.now,
        )
