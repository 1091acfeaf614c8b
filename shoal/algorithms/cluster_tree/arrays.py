"""The arrays that travel between the clients of cluster_tree and its server."""

from __future__ import annotations

from shoal.algorithms.streaming import ArraySpec

UPDATE = {
    "point": ArraySpec("<f8", ("n", "d"), rowlike=True, per_node=True),
    "count": ArraySpec("<i8", ("n",), at_least_one=True, per_node=True),
}
"""the readings of one client since its last update as weighted points: the mean of the readings
that each point stands for, and their number; in the order in which the first reading of each point
came. A point of count 1 is a single noisy row"""

SNAPSHOT = {
    "cell_id": ArraySpec("<i8", ("k",)),
    "cell": ArraySpec("<f8", ("k", "d"), rowlike=True),
    "mass": ArraySpec("<f8", ("k",), positive=True),
    "cluster": ArraySpec("<i8", ("k",), points_into="c"),
    "reach": ArraySpec("<f8", ("k",)),
    "identity": ArraySpec("<i8", ("c",)),
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "centre_mass": ArraySpec("<f8", ("c",), positive=True),
    "spread": ArraySpec("<f8", ("c", "d")),
    "recent": ArraySpec("<f8", ("c",)),
    "active": ArraySpec("|b1", ("c",)),
    "parent": ArraySpec("<i8", ("c",)),
    "since": ArraySpec("<i8", ("c",)),
    "unresolved": ArraySpec("<i8", ("s",), at_least_one=True),
}
"""the server's cells: centres, masses in readings that still count, the position of each one's
cluster, and the distance from which on a row belongs to no cluster (option `noise`; without it
larger than any); per cluster its identity, which is never given again; its centre; the standard
deviation of its cells per feature, by mass (that of its readings is somewhat larger); its mass; its
recent readings (each fades to 1/e in 500 readings of all clusters); whether it is active; the
identity that it parted from (-1: it appeared where no readings were before); and how many readings
had been absorbed when it was first found; where the memory is at its limit (option `growth_max`)
and has fewer clusters than places with gaps between them, the number of these places, else nothing
"""
