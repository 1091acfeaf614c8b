"""Cluster identities: which cluster of one snapshot is which of the next, and what has become of each.

Algorithms number their clusters anew in every snapshot. A lineage follows them by the mass of the nodes that two
snapshots share and gives each an identity that lasts. A cluster is *known* once it holds a stated share of the readings
or has lasted for a stated number of them, and it stops being known only when it has been away that long: so the number
of known clusters does not move with every group of nodes that comes and goes. A known cluster is *active* while
readings fall to it, else *quiet*.
"""

from server_node.lineage.advance import advance
from server_node.lineage.by_place import carried_by_place
from server_node.lineage.published import lineage_of, published_identities
from server_node.lineage.state import Cluster, ClusterEvent, EventKind, Lineage, LineagePolicy, restore_lineage

__all__ = [
    "Cluster",
    "ClusterEvent",
    "EventKind",
    "Lineage",
    "LineagePolicy",
    "advance",
    "carried_by_place",
    "lineage_of",
    "published_identities",
    "restore_lineage",
]
