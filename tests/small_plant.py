"""A contract with two features, and valid messages under it, for tests of the library."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.algorithms.view import Summary
from shoal.config.contract import Contract, Model, parse_contract
from shoal.config.resolved import resolve
from shoal.protocol.codec import pack
from shoal.protocol.messages import Envelope, Snapshot, Update

OFF = {"mode": "off"}
FORMAL = {"mode": "formal", "epsilon_per_reading": 100}
PAPER = {"mode": "paper", "epsilon_nominal_per_feature": 20}


def plant(
    privacy: dict[str, Any] | None = None,
    models: tuple[str, ...] = ("clusters",),
    **declared: Any,
) -> Contract:
    """A contract with the features warm and damp, and a model of each name, which is of fcac unless
    something else is declared."""
    features = [{"name": "warm", "low": -10, "high": 50}, {"name": "damp", "low": 0, "high": 100}]
    return parse_contract(
        {
            "federation": {"name": "plant"},
            "features": features,
            "privacy": privacy or OFF,
            "models": [{"name": name, "algorithm": "fcac"} | declared for name in models],
        }
    )


def unit_rows(n: int, seed: int = 0) -> NDArray[np.float64]:
    """(n, 2) rows in three clusters inside the unit square."""
    rng = np.random.default_rng(seed)
    heaps = np.array([[0.2, 0.8], [0.5, 0.3], [0.8, 0.7]])
    return np.clip(heaps[rng.integers(0, 3, n)] + rng.normal(0, 0.04, (n, 2)), 0.0, 1.0)


def nodes_at(weight: NDArray[np.float64], count: NDArray[np.int64] | None = None) -> Arrays:
    """An fcac update of new nodes at `weight` (n, d), each of which has won `count` (n,) readings,
    or one."""
    won = np.ones(len(weight), dtype=np.int32)
    if count is not None:
        won = count.astype(np.int32)
    return {"weight": weight, "count": won, "won": won}


def an_update(
    contract: Contract, client: str = "attic", sequence: int = 1, rows: int = 40, **other: Any
) -> Update:
    """A valid update learnt from `rows` rows, which differ for every client and sequence number."""
    half = streaming_algorithm("fcac").client({}, contract.width)
    half.learn(unit_rows(rows, seed=sum(client.encode()) * 1000 + sequence))
    update = Update(
        federation=contract.federation,
        contract=contract.digest,
        model=contract.models[0].name,
        algorithm="fcac",
        client=client,
        sequence=sequence,
        readings=rows,
        privacy=resolve(contract).statement,
        arrays=half.contribute(),
        made_at=1e9,
        newest_reading_at=1e9 - 1,
    )
    return replace(update, **other)


def a_snapshot(contract: Contract, version: int = 1, **other: Any) -> Snapshot:
    """A valid snapshot of a model that absorbed a few updates; its nodes have edges."""
    half = streaming_algorithm("fcac").server({}, contract.width)
    for sequence in range(1, 6):
        half.absorb(
            [Contribution("attic", sequence, an_update(contract, sequence=sequence).arrays)], b"key"
        )
    arrays = half.snapshot()
    sizes = streaming_algorithm("fcac").summary(arrays)
    merged: dict[str, Any] = {
        "version": version,
        "positions": [[0, 1]],
        "updates": 1,
        "readings": 40,
        "clients": 1,
        "pooled": 1,
    }
    snapshot = snapshot_with(contract, contract.models[0], arrays, sizes)
    return replace(snapshot, **merged | other)


def snapshot_with(
    contract: Contract, model: Model, arrays: Arrays, sizes: Summary, **other: Any
) -> Snapshot:
    """The snapshot of a model in which these arrays are, whether they are valid or not; of no
    updates."""
    snapshot = Snapshot(
        federation=contract.federation,
        contract=contract.digest,
        model=model.name,
        algorithm=model.algorithm,
        version=1,
        positions=[[0, 0]],
        updates=0,
        readings=0,
        clients=0,
        clusters=sizes.clusters,
        nodes=sizes.nodes,
        pooled=0,
        privacy=resolve(contract).models[model.name].statement,
        arrays=arrays,
        made_at=1e9,
    )
    return replace(snapshot, **other)


def parts_of(message: Envelope) -> dict[str, Any]:
    """The fields of a message as they are encoded."""
    return {part.name: getattr(message, part.name) for part in fields(message)}


def forged(message: Envelope, **changes: Any) -> bytes:
    """The bytes of a message with fields that the class would refuse; a field changed to `...` is
    left out."""
    parts = parts_of(message) | changes
    return pack({name: value for name, value in parts.items() if value is not ...})


class Clock:
    """A clock that shows `now`, which tests set."""

    def __init__(self, now: float = 1e9) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
