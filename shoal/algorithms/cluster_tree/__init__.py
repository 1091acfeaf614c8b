"""cluster_tree: streaming clustering with a steady number of clusters, and identities that last.

Each client sketches its readings as a few weighted points. The server keeps a bounded number of
weighted points, called cells, and joins them along HDBSCAN's tree of mutual reachability. It
refuses the joins whose two sides are significantly denser than the place where they meet: these
sides are clusters of their own. `CLUSTER_TREE` declares both halves as an algorithm of a
federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.claims import Claims, check_at_most, check_masses
from shoal.algorithms.cluster_tree.arrays import SNAPSHOT, UPDATE
from shoal.algorithms.cluster_tree.client import HISTORY_READINGS, ClusterTreeClient
from shoal.algorithms.cluster_tree.options import ClusterTreeOptions
from shoal.algorithms.cluster_tree.region import ClusterTreeAggregator
from shoal.algorithms.cluster_tree.server import ClusterTreeServer, predict, predictor, view
from shoal.algorithms.cluster_tree.sketches import READINGS_PER_POINT
from shoal.algorithms.streaming import Aggregation, Arrays, StreamingAlgorithm

__all__ = ["ClusterTreeClient", "ClusterTreeOptions", "ClusterTreeServer"]


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for more points than an update has, or points that stand for more than
    its readings.

    An update to a server that has lost the earlier ones has the history too, which doubles its
    points.
    """
    # Once for each update: the options are those of the contract, which has checked them.
    points_max = ClusterTreeOptions.parse(options).points_max
    check_at_most("point", len(arrays["point"]), 2 * points_max)
    check_masses("count", arrays["count"], claims, spare=HISTORY_READINGS + points_max)


def update_readings_max(options: Mapping[str, Any]) -> int:
    """Readings of an update at most. Raises `SettingsError`."""
    return READINGS_PER_POINT * ClusterTreeOptions.parse(options).points_max


CLUSTER_TREE: Final = StreamingAlgorithm(
    name="cluster_tree",
    client=lambda options, dimensions: ClusterTreeClient(dimensions, **options),
    server=lambda options, dimensions: ClusterTreeServer(dimensions, **options),
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    predictor=predictor,
    view=view,
    check_claims=check_claims,
    update_readings_max=update_readings_max,
    new_readings="count",
    aggregation=Aggregation(ClusterTreeAggregator),
)
