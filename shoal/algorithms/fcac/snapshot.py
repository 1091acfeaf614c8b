"""What can be computed from a published snapshot of FCAC alone: the cluster of a row, and the clustering view."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.streaming import Arrays, Rows
from shoal.algorithms.view import ClusteringView
from shoal.kernels.correntropy import ignore_underflow, nearest


def predict(snapshot: Arrays, rows: Rows) -> NDArray[np.int64]:
    """rows (n, d) -> (n,) cluster of the node nearest by CIM, -1 if the snapshot has no node."""
    if not len(snapshot["weight"]):
        return np.full(len(rows), -1, dtype=np.int64)
    clusters: NDArray[np.int64] = snapshot["cluster"]
    with ignore_underflow():
        return clusters[nearest(rows, snapshot["weight"], float(np.mean(snapshot["sigma"])))]


def view(snapshot: Arrays) -> ClusteringView:
    """Its nodes, the edges between them, and its clusters, which are the connected components."""
    return ClusteringView.from_nodes(
        snapshot["weight"],
        snapshot["count"],
        snapshot["cluster"],
        node_id=snapshot["node_id"],
        edges=snapshot["edge"],
        centres=snapshot["centre"],
        centre_mass=snapshot["centre_weight"],
        bandwidth=snapshot["sigma"],
        joins_nodes=True,
    )
