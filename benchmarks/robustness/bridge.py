"""FCAC under a client that sends nodes between two clusters, with and without a bound on one
client's share."""

from __future__ import annotations

from typing import Any

import numpy as np

from reproduction.experiment import scores
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.streaming import Contribution

CLUSTERS = np.array(
    [[0.15, 0.2], [0.5, 0.15], [0.85, 0.25], [0.2, 0.75], [0.55, 0.6], [0.85, 0.85]]
)
SPREAD = 0.035
CLIENTS = 6
ROWS = 150
"""rows that a client learns before each update"""
BRIDGE_NODES = 200
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6)


def measured_bridges(quick: bool) -> list[dict[str, Any]]:
    """Agreement with the true clusters by `client_share_max`; the worst of the seeds."""
    found = []
    for share in SHARES[:2] if quick else SHARES:
        seeds = range(1 if quick else 5)
        updates = 6 if quick else 20
        clean = [run(share, seed, updates, attacked=False) for seed in seeds]
        attacked = [run(share, seed, updates, attacked=True) for seed in seeds]
        found.append(
            {
                "share_max": share,
                "clean": min(ari for ari, _ in clean),
                "attacked": min(ari for ari, _ in attacked),
                "clusters": max(clusters for _, clusters in attacked),
                "clean_clusters": max(clusters for _, clusters in clean),
            }
        )
    return found


def run(share_max: float, seed: int, updates: int, attacked: bool) -> tuple[float, int]:
    """-> the adjusted Rand index of new rows, and the clusters of more than one node."""
    rng = np.random.default_rng(seed)
    algorithm = streaming_algorithm("fcac")
    options = {"client_share_max": share_max}
    halves = [algorithm.client({}, 2) for _ in range(CLIENTS)]
    server = algorithm.server(options, 2)
    # Each client has rows of four of the six clusters.
    holds = [[(client + step) % len(CLUSTERS) for step in range(4)] for client in range(CLIENTS)]
    for number in range(updates):
        for client, half in enumerate(halves):
            label = rng.choice(holds[client], ROWS)
            half.learn(np.clip(CLUSTERS[label] + rng.normal(0, SPREAD, (ROWS, 2)), 0, 1))
            sent = Contribution(f"client-{client}", number + 1, half.contribute())
            server.absorb([sent], f"{number} {client}".encode())
        if attacked and number >= updates // 2:
            ends = CLUSTERS[[number % 5, number % 5 + 1]]
            place = rng.uniform(0, 1, (BRIDGE_NODES, 1))
            bridge = ends[0] + place * (ends[1] - ends[0]) + rng.normal(0, 0.005, (BRIDGE_NODES, 2))
            count = np.full(BRIDGE_NODES, 5)
            nodes = {"weight": bridge, "count": count, "won": count}
            server.absorb(
                [Contribution("stranger", number + 1, nodes)], f"{number} stranger".encode()
            )
    label = rng.integers(0, len(CLUSTERS), 3000)
    rows = CLUSTERS[label] + rng.normal(0, SPREAD, (len(label), 2))
    found = server.predict(rows)
    nodes_of = np.bincount(np.asarray(server.snapshot()["cluster"]))
    return scores(label, found)["ari"], int((nodes_of > 1).sum())
