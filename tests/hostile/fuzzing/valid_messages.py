"""A federation with every algorithm, and valid messages of each kind: what the cases are changed
from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.registry import (
    counting_names,
    load_algorithm,
    rounds_algorithm,
    rounds_names,
    streaming_algorithm,
    streaming_names,
)
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.protocol.masked import CloseRound, HelperSum, MaskedCounts, RoundPlan, packed_offsets
from shoal.protocol.messages import ClusterAlerts, ClusterName, Snapshot, Update, Wake
from shoal.protocol.quarantine import QuarantineRequest
from shoal.protocol.regions import Contribute
from shoal.transports.base import Headers
from tests.server_node.rounds_harness import FEATURES, rows_of
from tests.server_node.server_fixture import ServerFixture

CLIENTS = ("attic", "cellar", "garden")
STRANGER = "stranger"


class Message(NamedTuple):
    """A record of the topic of updates or of snapshots."""

    key: str
    value: bytes
    headers: Headers


def contract_with_every_algorithm() -> Contract:
    """One model of each algorithm that learns rows; models in rounds start without waiting for
    another."""
    in_rounds = [
        {
            "name": name,
            "algorithm": name,
            "options": {"clusters": 3} if rounds_algorithm(name).takes("clusters") else {},
            "rounds": {"rows_min": 5, "deadline_s": 60, "quorum": 1},
        }
        for name in rounds_names()
    ]
    streaming = [
        {"name": name.replace("_", "-"), "algorithm": name}
        for name in streaming_names()
        if name not in counting_names()
    ]
    tables = {"federation": {"name": "plant"}, "features": FEATURES, "privacy": {"mode": "off"}}
    contract = parse_contract({**tables, "models": streaming + in_rounds})
    resolve(contract)
    return contract


class EveryAlgorithm(ServerFixture):
    """A folder with a server of that federation, and its honest clients."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(
            folder,
            contract_with_every_algorithm(),
            **{"pool_clients": 1, "step_s": 60.0, **settings},
        )
        self._sequence: Counter[tuple[str, str]] = Counter()

    def update(self, model: str, client: str, seed: int, to: Snapshot | None = None) -> Update:
        """An honest update of a streaming model, or an honest answer to the round request in
        `to`."""
        self._sequence[model, client] += 1
        agreed = self.contract.model(model)
        assert agreed is not None
        rows = rows_of(seed)
        if to is None:
            half = streaming_algorithm(agreed.algorithm).client(agreed.options, self.contract.width)
            half.learn(rows)
            arrays = half.contribute()
        else:
            arrays = rounds_algorithm(agreed.algorithm).answer(to.arrays, rows)
        return Update(
            federation=self.contract.federation,
            contract=self.contract.digest,
            model=model,
            algorithm=agreed.algorithm,
            client=client,
            sequence=self._sequence[model, client],
            readings=len(rows),
            privacy=resolve(self.contract).statement,
            arrays=arrays,
            made_at=self.clock.now,
            round=None if to is None else to.round,
        )

    def newest_snapshots(self) -> dict[str, Snapshot]:
        """model -> its newest snapshot."""
        return {snapshot.model: snapshot for snapshot in self.snapshots()}

    def honest_updates(self, seed: int) -> list[Update]:
        """One update of each client for each model that takes one now."""
        newest = self.newest_snapshots()
        updates = []
        for model in self.contract.models:
            to = newest.get(model.name)
            if load_algorithm(model.algorithm).family.in_rounds and (
                to is None or to.round_request is None
            ):
                continue
            asked = to if load_algorithm(model.algorithm).family.in_rounds else None
            updates += [
                self.update(model.name, client, seed + n, asked) for n, client in enumerate(CLIENTS)
            ]
        return updates

    def requests(self) -> list[Message]:
        """A valid message of each kind that is not an update."""
        agreed = (self.contract.federation, self.contract.digest)
        kmeans = (*agreed, "kmeans")
        fcac = (*agreed, "fcac")
        made = [
            Wake(*kmeans, made_at=1e9),
            ClusterName(*fcac, 0, "north hall", made_at=1e9),
            ClusterAlerts(*fcac, 0, "mute", 2e9, made_at=1e9),
            QuarantineRequest(*fcac, STRANGER, "quarantine", "odd", made_at=1e9),
            QuarantineRequest(*kmeans, STRANGER, "release", "", made_at=1e9),
            QuarantineRequest(*fcac, STRANGER, "forget", "", made_at=1e9),
            Contribute(*fcac),
            RoundPlan(*fcac, 2, b""),
            CloseRound(*fcac, 2, b"p" * 16, 3, 0, packed_offsets([4, 5]), b"b" * 32),
            MaskedCounts(
                *fcac, STRANGER, b"k" * 32, 2, 0, 5, b"p" * 16, b"n" * 16, b"\1\0\0\0" * 3
            ),
            HelperSum(*fcac, "helper", 2, b"b" * 32, b"\1\0\0\0" * 3, b"s" * 64),
        ]
        return [Message(message.model, message.encode(), message.headers()) for message in made]


def as_messages(updates: list[Update]) -> list[Message]:
    """Updates as they travel."""
    return [Message(update.model, update.encode(), Update.headers()) for update in updates]


def is_far(centres: Any) -> bool:
    """Whether a centre lies outside of the box."""
    return bool(np.any(centres < -1e-6) or np.any(centres > 1 + 1e-6))
