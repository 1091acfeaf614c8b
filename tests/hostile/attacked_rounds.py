"""A server with a model in rounds on a real log, for tests that send it answers, honest and
forged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import rounds_algorithm
from shoal.config.resolved import resolve
from shoal.protocol.messages import Snapshot, Update
from shoal.server_node.node import ServerNode
from tests.server_node.rounds_harness import SITES, contract_with
from tests.server_node.server_fixture import ServerFixture


class AttackedRounds(ServerFixture):
    """A folder with a log; its honest clients are those of `SITES`."""

    def __init__(
        self,
        folder: Path,
        algorithm: str = "kmeans",
        options: dict[str, Any] | None = None,
        between: str = "fresh",
        **settings: Any,
    ) -> None:
        contract = contract_with(algorithm, options, tolerance=0, deadline_s=10, between=between)
        super().__init__(folder, contract, **{"pool_clients": 3, **settings})
        self._sequence: Counter[str] = Counter()

    def make_answer(
        self, to: Snapshot, client: str, arrays: dict[str, NDArray[Any]] | None = None, **other: Any
    ) -> Update:
        """The honest answer of a client, or one with forged arrays or fields."""
        model = self.contract.models[0]
        rows = SITES.get(client, SITES["attic"])
        self._sequence[client] += 1
        fields: dict[str, Any] = {
            "federation": self.contract.federation,
            "contract": self.contract.digest,
            "model": model.name,
            "algorithm": model.algorithm,
            "client": client,
            "sequence": self._sequence[client],
            "readings": len(rows),
            "privacy": resolve(self.contract).statement,
            "arrays": arrays or dict(rounds_algorithm(model.algorithm).answer(to.arrays, rows)),
            "made_at": self.clock.now,
            "round": to.round,
        }
        return Update(**{**fields, **other})

    def honest_arrays(self, to: Snapshot, client: str = "attic") -> dict[str, NDArray[Any]]:
        """The arrays of an honest answer, to forge others from."""
        answered = rounds_algorithm(self.contract.models[0].algorithm).answer(
            to.arrays, SITES[client]
        )
        return {name: array.copy() for name, array in answered.items()}

    def newest(self) -> Snapshot:
        """The newest snapshot in the log."""
        return self.snapshots()[-1]

    def run_round(self, node: ServerNode) -> Snapshot:
        """All honest clients answer the newest request; the snapshot after it. A model that sleeps
        is woken first."""
        if self.newest().round_request is None:
            self.clock.now += self.contract.models[0].rounds.wake_s
            step_all(node)
        to = self.newest()
        self.send(*(self.make_answer(to, client) for client in SITES))
        step_all(node)
        return self.newest()

    def reasons(self) -> list[str]:
        """The reasons of all rejected messages, in their order."""
        return [dict(record.headers)["reason"].decode() for record in self.rejected().values()]


def step_all(node: ServerNode) -> None:
    """Step until nothing is left to do."""
    while node.step():
        pass


def within_the_box(snapshot: Snapshot) -> bool:
    """Whether all centres lie where readings can, away from its corners."""
    return bool(
        (snapshot.arrays["centre"] > 0.05).all() and (snapshot.arrays["centre"] < 0.95).all()
    )


def filled(arrays: dict[str, NDArray[Any]], **values: float) -> dict[str, NDArray[Any]]:
    """The arrays with every element of some of them replaced."""
    return {**arrays, **{name: np.full_like(arrays[name], value) for name, value in values.items()}}
