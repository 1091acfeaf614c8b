"""What can be computed from a published snapshot of cluster_tree alone: the cluster of a row, and the clustering view.

In a snapshot clusters are numbered by position, as in every algorithm; `identity` has the lasting identity of each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.streaming import Arrays, Rows
from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.kernels.distance import nearest


def predict(snapshot: Arrays, rows: Rows) -> NDArray[np.int64]:
    """rows (n, d) -> (n,) cluster of the nearest cell, -1 if the snapshot has no cell."""
    return cluster_of_nearest(rows, snapshot["cell"], snapshot["cluster"])


def cluster_of_nearest(rows: Rows, cells: NDArray[np.float64], cluster: NDArray[np.int64]) -> NDArray[np.int64]:
    """rows (n, d), cells (k, d) and their clusters (k,) -> (n,) cluster of the nearest cell, -1 without cells."""
    if not len(cells) or not len(rows):
        return np.full(len(rows), NO_CLUSTER, dtype=np.int64)
    return np.asarray(cluster[nearest(rows, cells)[0]])


def view(snapshot: Arrays) -> ClusteringView:
    """Its cells as nodes without edges, and its clusters with the identities and activity that the server gives.

    The mass of a cell is bounded and fades, so it is not a count of all rows since the start.
    """
    return ClusteringView.from_nodes(
        snapshot["cell"],
        snapshot["mass"],
        snapshot["cluster"],
        node_id=snapshot["cell_id"],
        centres=snapshot["centre"],
        centre_mass=snapshot["centre_mass"],
        active=snapshot["active"],
        identity=snapshot["identity"],
        parent=snapshot["parent"],
        recent=snapshot["recent"],
        accumulates=False,
    )
