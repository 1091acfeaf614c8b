"""A model in rounds without a server around it: its clients are tables of rows, and time is handed in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_node.models.rounds import RoundsModel
from shoal.algorithms.registry import rounds_algorithm
from shoal.config.contract import Contract, contract_of
from shoal.config.privacy_terms import privacy_terms_of
from shoal.config.settings import ServerSettings
from shoal.privacy import expected_statement
from shoal.protocol.codec import pack, unpack
from shoal.protocol.messages import Snapshot, Update
from shoal.protocol.round_request import round_request_of
from shoal.protocol.validation import Validator
from shoal.telemetry.metrics import ServerMetrics

FEATURES = [{"name": "warm", "low": 0, "high": 1}, {"name": "damp", "low": 0, "high": 1}]
HEAPS = np.array([[0.2, 0.2], [0.8, 0.3], [0.5, 0.8]])


def contract_with(algorithm: str = "kmeans", options: dict[str, Any] | None = None, **rounds: Any) -> Contract:
    """A federation with one model in rounds."""
    model = {"name": "heaps", "algorithm": algorithm, "options": options or {"clusters": 3}}
    model["rounds"] = {"rows_min": 5, "quorum": 1, "between": "fresh", **rounds}
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}, "models": [model]}
    return contract_of(tables)


def rows_of(seed: int, n: int = 60, heaps: NDArray[np.float64] = HEAPS) -> NDArray[np.float64]:
    """(n, 2) rows in heaps inside the unit square."""
    rng = np.random.default_rng(seed)
    return np.clip(heaps[rng.integers(0, len(heaps), n)] + rng.normal(0, 0.03, (n, 2)), 0, 1)


class Driven:
    """A model, and the words it has said."""

    def __init__(self, contract: Contract, pool_clients: int = 1, finders: Any = ()) -> None:
        self.contract = contract
        self.border = Validator(contract)
        self.metrics = ServerMetrics()
        settings = ServerSettings(pool_clients=pool_clients)
        agreed = contract.models[0] if not finders else contract.models[-1]
        self.agreed = agreed
        self._parts = (contract, agreed, settings, self.border, self.metrics, finders)
        self.model = RoundsModel(*self._parts)
        self.statement = expected_statement(privacy_terms_of(contract))
        self.said: list[Snapshot] = []
        self._sequence: Counter[str] = Counter()
        self.now = 0.0

    def look(self, now: float | None = None) -> Snapshot | None:
        """Let the model look at the clock; what it says, if it says anything."""
        self.now = self.now if now is None else now
        self.model.on_timer(self.now)
        if not self.model.snapshot_due(self.now):
            return None
        snapshot = self.model.take_snapshot([[0, 0]], self.statement, self.now)
        self.border.check_snapshot(snapshot)
        self.said.append(snapshot)
        return snapshot

    @property
    def newest(self) -> Snapshot:
        return self.said[-1]

    def reply(self, client: str, rows: NDArray[np.float64], to: Snapshot | None = None, **other: Any) -> Update:
        """What an honest client says to a call, the newest one if none is named."""
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

    def hear(self, client: str, rows: NDArray[np.float64], to: Snapshot | None = None, **other: Any) -> bool:
        """The client answers; whether it was news."""
        update = self.reply(client, rows, to, **other)
        self.border.check_update(update)
        return self.model.hear(update, self.now)

    def asks(self, client: str) -> bool:
        """Whether the newest word calls this client."""
        call = round_request_of(self.newest)
        return call is not None and call.selects(self.contract, client)

    def restart(self) -> None:
        """The model anew, from what it remembers."""
        state = unpack(pack(self.model.state()), 10**8)
        self.model = RoundsModel(*self._parts)
        self.model.restore(state)
