"""The arrays that travel between CA+ on a client and CAEFC on the server."""

from __future__ import annotations

from shoal.algorithms.streaming import ArraySpec

UPDATE = {
    "weight": ArraySpec("<f8", ("n", "d"), rowlike=True, per_node=True),
    "count": ArraySpec("<i8", ("n",), at_least_one=True, per_node=True),
}
"""nodes of one client, by winning count from the highest, ties by node id"""

REGION_UPDATE = {**UPDATE, "part": ArraySpec("<i8", ("b",), at_least_one=True)}
"""nodes of several updates of a region's clients, one update after the other, and how many nodes each has"""

SNAPSHOT = {
    "node_id": ArraySpec("<i8", ("k",)),
    "weight": ArraySpec("<f8", ("k", "d"), rowlike=True),
    "count": ArraySpec("<i8", ("k",), at_least_one=True),
    "sigma": ArraySpec("<f8", ("k",), positive=True, squared_divisor=True),
    "cluster": ArraySpec("<i8", ("k",), points_into="c"),
    "edge": ArraySpec("<i8", ("e", 2), points_into="k"),
    "edge_age": ArraySpec("<i8", ("e",), at_least_one=True),
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "centre_weight": ArraySpec("<f8", ("c",), at_least_one=True),
}
"""the server's nodes; the edges between them, as positions with the smaller one first; per cluster the mean of its
nodes weighted by winning count, and the sum of these counts"""
