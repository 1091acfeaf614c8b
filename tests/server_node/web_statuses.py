"""Statuses of servers that never ran: plain data for the tests of the web interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import load_algorithm
from shoal.config.contract import Contract, parse_contract
from shoal.config.resolved import resolve
from shoal.protocol.messages import Snapshot
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.lineage.policy import LineagePolicy
from shoal.server_node.report.lineage.step import advance
from shoal.server_node.report.status import ClientStatus, HistoryPoint, ModelStatus, ServerStatus

NOW = 1_800_000_000.0
FORMAL = {"mode": "formal", "epsilon_per_reading": 4.0}
FEATURES = (
    {"name": "temperature", "unit": "°C", "low": -20.0, "high": 60.0},
    {"name": "humidity", "unit": "%", "low": 0.0, "high": 100.0},
    {"name": "light", "unit": "lux", "low": 0.0, "high": 2000.0},
    {"name": "voltage", "unit": "V", "low": 2.0, "high": 3.0},
    {"name": "pressure", "unit": "hPa", "low": 900.0, "high": 1100.0},
)


def a_contract(
    width: int = 2,
    privacy: dict[str, Any] | None = None,
    models: Sequence[str] = ("fcac",),
    name: str = "greenhouse",
) -> Contract:
    """A federation of `width` features: the five above, then numbered ones."""
    numbered = (
        {"name": f"feature {j}", "low": 0.0, "high": 1.0} for j in range(len(FEATURES), width)
    )
    return parse_contract(
        {
            "federation": {"name": name},
            "features": [*FEATURES, *numbered][:width],
            "privacy": privacy or FORMAL,
            "models": [{"name": name, "algorithm": "fcac"} for name in models],
        }
    )


def some_nodes(width: int, clusters: int, nodes: int, seed: int = 7) -> dict[str, NDArray[Any]]:
    """Snapshot arrays of `nodes` nodes in `clusters` clusters far apart, in the layout of FCAC."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.15, 0.85, (clusters, width))
    cluster = np.sort(np.arange(nodes) % clusters)
    weight = centres[cluster] + rng.normal(0, 0.035, (nodes, width))
    count = np.maximum(1, rng.lognormal(4, 1, nodes)).astype(np.int64)
    edge = np.array(sorted(_pairs(weight, cluster)), dtype=np.int64).reshape(-1, 2)
    total = np.bincount(cluster, weights=count, minlength=clusters)
    centre = np.zeros((clusters, width))
    np.add.at(centre, cluster, weight * (count / total[cluster])[:, None])
    return {
        "node_id": np.arange(100, 100 + nodes, dtype=np.int64),
        "weight": weight,
        "count": count,
        "sigma": np.full(nodes, 0.1),
        "cluster": cluster.astype(np.int64),
        "edge": edge,
        "edge_age": np.ones(len(edge), dtype=np.int64),
        "centre": centre,
        "centre_weight": total.astype(np.float64),
        # Of no client: shares are those of a history, where there is one.
        "counted": np.zeros(clusters),
        "recent": np.zeros(clusters),
    }


def _pairs(weight: NDArray[np.float64], cluster: NDArray[np.int64]) -> set[tuple[int, int]]:
    """Each node and its two nearest of the same cluster."""
    found = set()
    for i, point in enumerate(weight):
        same = np.flatnonzero(cluster == cluster[i])
        near = same[np.argsort(np.square(weight[same] - point).sum(axis=1), kind="stable")][1:3]
        found |= {(min(i, j), max(i, j)) for j in near.tolist()}
    return found


def a_snapshot(
    contract: Contract,
    arrays: dict[str, NDArray[Any]],
    version: int = 1,
    model: str = "fcac",
    algorithm: str = "fcac",
) -> Snapshot:
    summary = load_algorithm(algorithm).summary(arrays)
    return Snapshot(
        federation=contract.federation,
        contract=contract.digest,
        model=model,
        algorithm=algorithm,
        version=version,
        positions=[[0, 120 * version]],
        updates=120 * version,
        readings=48_000 * version,
        clients=3,
        clusters=summary.clusters,
        nodes=summary.nodes,
        privacy=resolve(contract).statement,
        arrays=arrays,
        pooled=3,
        made_at=NOW - 1,
        known=summary.clusters,
        active=summary.clusters,
    )


def a_lineage(snapshot: Snapshot, before: Lineage | None = None) -> Lineage:
    """The lineage after a snapshot, in which every cluster is known at once; each appeared a minute
    before the next."""
    view = load_algorithm(snapshot.algorithm).view(snapshot.arrays)
    lineage, _ = advance(
        before or Lineage(), view, snapshot.readings, NOW, LineagePolicy(known_share=1e-12)
    )
    aged = {
        number: replace(cluster, since=NOW - 60 * number)
        for number, cluster in lineage.clusters.items()
    }
    return replace(lineage, clusters=aged)


def a_status(
    contract: Contract, snapshots: Sequence[Snapshot] = (), ready: bool = True, **parts: Any
) -> ServerStatus:
    """The status with `snapshots` of some models, a history, and three clients, one of them
    inactive."""
    history = [HistoryPoint(NOW - 600 + 60 * i, min(i, 6), 12 * i, 5000 * i) for i in range(10)]
    models = {
        snapshot.model: ModelStatus(
            snapshot.model,
            snapshot.algorithm,
            snapshot,
            history=history,
            lineage=a_lineage(snapshot),
        )
        for snapshot in snapshots
    }
    for configured in contract.models:
        waiting_for = "1 of 2 clients have sent updates."
        models.setdefault(
            configured.name,
            ModelStatus(configured.name, configured.algorithm, waiting_for=waiting_for),
        )
    clients = (
        ClientStatus("north-wing", NOW - 2, 410, 164_000, 131.4),
        ClientStatus("roof", NOW - 340, 122, 48_800, 0.0),
        ClientStatus("south-wing", NOW - 5, 396, 158_400, 9.26),
    )
    given = {"clients": clients if snapshots else (), **parts}
    return ServerStatus(
        contract=resolve(contract),
        started_at=NOW - 600,
        now=NOW,
        ready=ready,
        models=models,
        **given,
    )
