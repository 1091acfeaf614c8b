"""Snapshots whose clusters have lasting identities, as a server with a lineage publishes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import load_algorithm
from shoal.config.contract import Contract
from shoal.protocol.messages import ClusterIdentity, Snapshot
from shoal.server_node.report.lineage.matching import groups_of
from tests.client_nodes.site import Site
from tests.small_plant import a_snapshot

FIRST_IDENTITY = 10


def known_snapshot(
    contract: Contract, version: int = 1, first: int = FIRST_IDENTITY, **other: Any
) -> Snapshot:
    """Every cluster of two nodes or more is known: the identities begin at `first`; the first is
    named "cellar"."""
    plain = a_snapshot(contract)
    groups = groups_of(load_algorithm(plain.algorithm).view(plain.arrays))
    identities = [
        list(
            ClusterIdentity(
                number, first + place, "" if place else "cellar", True, place, 0, 1e9, 0.5
            )
        )
        for place, number in enumerate(sorted(groups.mass))
    ]
    return a_snapshot(
        contract, version=version, **{"identities": identities, "known": len(identities), **other}
    )


def publish(site: Site, *snapshots: Snapshot, key: bytes = b"clusters") -> None:
    """Publish snapshots to the federation's log of the site."""
    with site.federation() as log:
        for snapshot in snapshots:
            log.publish(site.contract.snapshots_topic, snapshot.encode(), key, Snapshot.headers())
        log.flush()


def near_nodes(
    snapshot: Snapshot, contract: Contract, n: int, seed: int = 0
) -> NDArray[np.float64]:
    """(n, d) readings, in the features' units, near nodes of a snapshot's known clusters."""
    view = load_algorithm(snapshot.algorithm).view(snapshot.arrays)
    known = np.isin(view.cluster, [cluster.number for cluster in snapshot.cluster_identities])
    rng = np.random.default_rng(seed)
    nodes = view.nodes[known][rng.integers(0, known.sum(), n)]
    unit = nodes + rng.normal(0, 0.01, nodes.shape)
    return contract.bounds.from_unit(np.clip(unit, 0.01, 0.99))
