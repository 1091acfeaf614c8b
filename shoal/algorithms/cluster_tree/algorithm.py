"""The declaration of cluster_tree as an algorithm of a federation."""

from __future__ import annotations

from typing import Final

from shoal.algorithms.cluster_tree.arrays import SNAPSHOT, UPDATE
from shoal.algorithms.cluster_tree.client import ClusterTreeClient
from shoal.algorithms.cluster_tree.server import ClusterTreeServer
from shoal.algorithms.cluster_tree.snapshot import predict, view
from shoal.algorithms.streaming import StreamingAlgorithm

CLUSTER_TREE: Final = StreamingAlgorithm(
    name="cluster_tree",
    client=lambda options, dimensions: ClusterTreeClient(dimensions, **options),
    server=lambda options, dimensions: ClusterTreeServer(dimensions, **options),
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    view=view,
)
