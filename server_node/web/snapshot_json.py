"""A snapshot as JSON for people and programs: points in the units of the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_node.clusters.lineage import Lineage
from shoal.algorithms.view import ClusteringView
from shoal.config.resolved import ResolvedContract
from shoal.protocol.messages import Snapshot

NO_SNAPSHOT = "No snapshot has been published yet."


def view_of(snapshot: Snapshot, contract: ResolvedContract) -> ClusteringView:
    """The clustering in `snapshot`, as its algorithm reads it."""
    return contract.models[snapshot.model].algorithm.view(snapshot.arrays)


def snapshot_json(snapshot: Snapshot, lineage: Lineage, contract: ResolvedContract) -> dict[str, Any]:
    """All of a snapshot as JSON values. `bandwidth` is None for algorithms that have none."""
    bounds, view = contract.bounds, view_of(snapshot, contract)
    bandwidths = [None] * len(view.nodes) if view.bandwidth is None else as_lists(view.bandwidth)
    nodes = zip(
        view.node_id.tolist(),
        as_lists(bounds.from_unit(view.nodes)),
        as_lists(view.mass),
        bandwidths,
        view.cluster.tolist(),
        strict=True,
    )
    clusters = zip(as_lists(bounds.from_unit(view.centres)), as_lists(view.centre_mass), strict=True)
    return {
        "federation": snapshot.federation,
        "model": snapshot.model,
        "algorithm": snapshot.algorithm,
        "version": snapshot.version,
        "contract": snapshot.contract,
        "positions": snapshot.positions,
        "privacy": snapshot.privacy,
        "updates": snapshot.updates,
        "readings": snapshot.readings,
        "made_at": snapshot.made_at,
        "features": [{"name": feature.name, "unit": feature.unit} for feature in contract.features],
        "nodes": [
            {"id": node_id, "position": position, "mass": mass, "bandwidth": bandwidth, "cluster": cluster}
            for node_id, position, mass, bandwidth, cluster in nodes
        ],
        "edges": view.edges.tolist(),
        "clusters": [
            {"cluster": number, "identity": lineage.of_number.get(number), "centre": centre, "mass": mass}
            for number, (centre, mass) in enumerate(clusters)
        ],
    }


def as_lists(array: NDArray[Any]) -> list[Any]:
    """`array` as nested lists for JSON; numbers that are not finite become None."""
    plain = array.astype(object)
    if np.issubdtype(array.dtype, np.floating):
        plain[~np.isfinite(array)] = None
    nested: list[Any] = plain.tolist()
    return nested
