"""What anybody can read off a published snapshot, without the server that made it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.streaming import Arrays, Rows, Summary
from shoal.kernels.correntropy import far_is_zero, nearest


def predict(snapshot: Arrays, rows: Rows) -> NDArray[np.int64]:
    """rows (n, d) -> (n,) cluster of the node nearest by CIM; -1 when the snapshot has no node."""
    if not len(snapshot["weight"]):
        return np.full(len(rows), -1, dtype=np.int64)
    clusters: NDArray[np.int64] = snapshot["cluster"]
    with far_is_zero():
        return clusters[nearest(rows, snapshot["weight"], float(np.mean(snapshot["sigma"])))]


def summary(snapshot: Arrays) -> Summary:
    """Its sizes."""
    return Summary(clusters=len(snapshot["centre"]), nodes=len(snapshot["weight"]), edges=len(snapshot["edge"]))
