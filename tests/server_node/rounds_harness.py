"""A model in rounds without a server around it: its clients are tables of rows, and the time is an
argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import rounds_algorithm
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.config.sections import ServerSettings
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import Snapshot, Update, round_request_of
from shoal.protocol.validation import Validator
from shoal.server_node.ingest.outcome import IngestOutcome, StepOutcome
from shoal.server_node.models.base import ModelEvent, PublishedSnapshot, ServedModel
from shoal.server_node.models.rounds import RoundsModel
from shoal.server_node.monitoring import ServerMonitoring
from shoal.telemetry.metrics import ServerMetrics

FEATURES = [{"name": "warm", "low": 0, "high": 1}, {"name": "damp", "low": 0, "high": 1}]
HEAPS = np.array([[0.2, 0.2], [0.8, 0.3], [0.5, 0.8]])


def contract_with(
    algorithm: str = "kmeans", options: dict[str, Any] | None = None, **rounds: Any
) -> Contract:
    """A federation with one model in rounds."""
    model = {
        "name": "heaps",
        "algorithm": algorithm,
        "options": {"clusters": 3} if options is None else options,
    }
    model["rounds"] = {"rows_min": 5, "quorum": 1, "between": "fresh", **rounds}
    tables = {
        "federation": {"name": "plant"},
        "features": FEATURES,
        "privacy": {"mode": "off"},
        "models": [model],
    }
    return parse_contract(tables)


def rows_of(seed: int, n: int = 60, heaps: NDArray[np.float64] = HEAPS) -> NDArray[np.float64]:
    """(n, 2) rows in heaps inside the unit square."""
    rng = np.random.default_rng(seed)
    return np.clip(heaps[rng.integers(0, len(heaps), n)] + rng.normal(0, 0.03, (n, 2)), 0, 1)


SITES = {"attic": rows_of(1), "cellar": rows_of(2), "garden": rows_of(3)}
"""client -> its rows"""


class RoundsHarness:
    """A model in rounds, and the snapshots that it has published."""

    def __init__(
        self, contract: Contract, pool_clients: int = 1, source: ServedModel | None = None
    ) -> None:
        """The model is the last one of the contract."""
        self.contract = contract
        resolved = resolve(contract)
        self.validator = Validator(resolved)
        self.metrics = ServerMetrics()
        self.agreed = contract.models[-1]
        self._monitoring = ServerMonitoring(self.metrics, resolved)
        settings = ServerSettings(pool_clients=pool_clients)
        model = resolved.models[self.agreed.name]
        self._build = partial(RoundsModel, resolved, model, settings, self.validator, source)
        self.model = self._build()
        self.statement = resolved.statement
        self.published: list[Snapshot] = []
        self._sequence: Counter[str] = Counter()
        self._offset = count()
        self.now = 0.0

    def tick(self, now: float | None = None) -> Snapshot | None:
        """Let the model look at the clock; the snapshot it publishes, if it publishes one."""
        self.now = self.now if now is None else now
        events = self.model.on_timer(self.now)
        snapshots: list[PublishedSnapshot] = []
        if self.model.snapshot_due(self.now):
            snapshots.append(self.model.take_snapshot({0: 0}, self.statement, self.now))
        self._observe([], events, snapshots)
        for snapshot, *_ in snapshots:
            self.validator.check_snapshot(snapshot)
            self.published.append(snapshot)
        return snapshots[0].snapshot if snapshots else None

    @property
    def newest(self) -> Snapshot:
        return self.published[-1]

    def make_answer(
        self, client: str, rows: NDArray[np.float64], to: Snapshot | None = None, **other: Any
    ) -> Update:
        """An honest client's answer to a request, the newest one by default."""
        to = to or self.newest
        self._sequence[client] += 1
        update = Update(
            federation=self.contract.federation,
            contract=self.contract.digest,
            model=self.agreed.name,
            algorithm=self.agreed.algorithm,
            client=client,
            sequence=self._sequence[client],
            readings=len(rows),
            privacy=self.statement,
            arrays=rounds_algorithm(self.agreed.algorithm).answer(to.arrays, rows),
            made_at=self.now,
            round=to.round,
        )
        return replace(update, **other)

    def answer(
        self, client: str, rows: NDArray[np.float64], to: Snapshot | None = None, **other: Any
    ) -> bool:
        """The client answers; whether the answer was new."""
        update = self.make_answer(client, rows, to, **other)
        self.validator.check_update(update)
        processed = self.model.process(update, self.now)
        outcome = IngestOutcome(
            "", 0, next(self._offset), self.now, "absorbed" if processed.new else "repeated"
        )
        named = outcome._replace(model=update.model, client=client, answer=processed.answer)
        self._observe([named], (), [])
        return processed.new

    def is_asked(self, client: str) -> bool:
        """Whether the newest snapshot asks this client for an answer."""
        request = round_request_of(self.newest)
        return request is not None and request.selects(self.contract.federation, client)

    def restart(self) -> None:
        """Replace the model by a new one restored from its state."""
        state = unpack(pack(self.model.state()), 10**8)
        self.model = self._build()
        self.model.restore(state)

    def _observe(
        self,
        ingested: Sequence[IngestOutcome],
        events: Sequence[ModelEvent],
        published: Sequence[PublishedSnapshot],
    ) -> None:
        self._monitoring.observe(StepOutcome(ingested, 0.0, (), 0, events, published, (), None))


def run_rounds(
    harness: RoundsHarness, sites: dict[str, NDArray[np.float64]], most: int = 100
) -> int:
    """Every client asked answers until the model sleeps; how many rounds that took."""
    for number in range(most):
        if harness.model.sleeping:
            return number
        for client, rows in sites.items():
            if harness.is_asked(client):
                harness.answer(client, rows)
        harness.tick()
    raise AssertionError("it never came to rest")


def answer_all(harness: RoundsHarness, clients: list[str]) -> None:
    """These clients answer the newest request, and the model looks at the clock."""
    for client in clients:
        harness.answer(client, SITES[client])
    harness.tick()
