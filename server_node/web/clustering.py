"""A snapshot's arrays as the web pages need them: nodes, edges and clusters, whatever the algorithm calls home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_node.lineage import Lineage
from shoal.config.contract import Contract
from shoal.config.privacy_terms import bounds_of
from shoal.protocol.messages import Snapshot

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Clustering:
    """Nodes, edges and clusters of one snapshot; points are in unit coordinates."""

    node_id: Whole
    """(n,) what stays with a node as long as it lives"""
    weight: Floats
    """(n, d)"""
    count: Floats
    """(n,) how often each node won"""
    sigma: Floats
    """(n,) bandwidth"""
    cluster: Whole
    """(n,) cluster of each node, -1 for none"""
    edge: Whole
    """(e, 2) positions into the nodes"""
    centre: Floats
    """(c, d)"""
    centre_weight: Floats
    """(c,)"""


def clustering_of(snapshot: Snapshot, width: int) -> Clustering:
    """The clustering in `snapshot` over `width` features.

    An algorithm that has centres and no nodes is shown as one node for each centre, without edges.
    """
    arrays = snapshot.arrays
    centre = np.asarray(arrays.get("centre", np.empty((0, width))), dtype=np.float64).reshape(-1, width)
    given = arrays.get("weight")
    if given is None or given.ndim == 1:
        # In the family in rounds a weight is the mass behind a centre, in the streaming one the place of a node.
        mass = given if given is not None else arrays.get("centre_weight")
        centre_weight = _column(mass, len(centre), np.ones(len(centre)))
        numbers = np.arange(len(centre), dtype=np.int64)
        nothing = np.zeros(len(centre))
        no_edge = np.empty((0, 2), dtype=np.int64)
        return Clustering(numbers, centre, centre_weight, nothing, numbers, no_edge, centre, centre_weight)
    centre_weight = _column(arrays.get("centre_weight"), len(centre), np.ones(len(centre)))
    weight = np.asarray(given, dtype=np.float64).reshape(-1, width)
    n = len(weight)
    return Clustering(
        node_id=_column(arrays.get("node_id"), n, np.arange(n)).astype(np.int64),
        weight=weight,
        count=_column(arrays.get("count"), n, np.ones(n)),
        sigma=_column(arrays.get("sigma"), n, np.zeros(n)),
        cluster=_column(arrays.get("cluster"), n, np.full(n, -1)).astype(np.int64),
        edge=np.asarray(arrays.get("edge", np.empty((0, 2))), dtype=np.int64).reshape(-1, 2),
        centre=centre,
        centre_weight=centre_weight,
    )


def listed(array: NDArray[Any]) -> list[Any]:
    """`array` as nested lists fit for JSON: what is not finite becomes None."""
    plain = array.astype(object)
    if np.issubdtype(array.dtype, np.floating):
        plain[~np.isfinite(array)] = None
    nested: list[Any] = plain.tolist()
    return nested


def snapshot_in_units(snapshot: Snapshot, lineage: Lineage, contract: Contract) -> dict[str, Any]:
    """All of a snapshot for people and programs: points in the units of the contract."""
    bounds, shown = bounds_of(contract), clustering_of(snapshot, contract.width)
    positions, counts, sigmas = listed(bounds.from_unit(shown.weight)), listed(shown.count), listed(shown.sigma)
    centres, weights = listed(bounds.from_unit(shown.centre)), listed(shown.centre_weight)
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
            {"id": node, "position": position, "count": count, "sigma": sigma, "cluster": cluster}
            for node, position, count, sigma, cluster in zip(
                shown.node_id.tolist(), positions, counts, sigmas, shown.cluster.tolist(), strict=True
            )
        ],
        "edges": shown.edge.tolist(),
        "clusters": [
            {"cluster": number, "identity": lineage.of_cluster.get(number), "centre": centre, "weight": weight}
            for number, (centre, weight) in enumerate(zip(centres, weights, strict=True))
        ],
    }


def _column(array: NDArray[Any] | None, length: int, otherwise: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(otherwise if array is None else array, dtype=np.float64).reshape(length)
