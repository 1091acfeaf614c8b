"""The clusters of one snapshot as labels need them: for each reading its cluster, lasting identity and distance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.streaming import Rows
from shoal.kernels.distance import block_rows, nearest
from shoal.protocol.messages import Snapshot

Ints = NDArray[np.int64]

NO_IDENTITY = -1
UNIT_MAX = 1e3
"""largest unit coordinate that distances are computed from"""


class Assigned(NamedTuple):
    """Where the clustering of a snapshot puts n readings."""

    cluster: Ints
    """(n,) number in the arrays of the snapshot; -1: none"""
    identity: Ints
    """(n,) lasting identity; `NO_IDENTITY` for a cluster that is not known, such as a single node"""
    reference: Ints
    """(n,) the known cluster whose spread the distance is compared with: its own one, or else the nearest"""
    distance: NDArray[np.float64]
    """(n,) to the nearest node of that cluster, in unit coordinates"""


class SnapshotClusters:
    """What a snapshot knows about clusters. It has at least one known cluster if `known` is true."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.version = snapshot.version
        self._arrays = snapshot.arrays
        self._algorithm = load_algorithm(snapshot.algorithm)
        view = self._algorithm.view(snapshot.arrays)
        self._identity_of = {one.number: one.identity for one in snapshot.cluster_identities}
        self.names = {one.identity: one.name for one in snapshot.cluster_identities}
        """identity -> name, empty if it has none"""
        identities = [self._identity_of.get(number, NO_IDENTITY) for number in view.cluster.tolist()]
        of_node = np.array(identities, dtype=np.int64)
        known = of_node != NO_IDENTITY
        self._nodes, self._of_node = view.nodes[known], of_node[known]
        self._nodes_of = {one: self._nodes[self._of_node == one] for one in np.unique(self._of_node).tolist()}

    @property
    def known(self) -> bool:
        """Whether it has any known cluster."""
        return len(self._nodes) > 0

    def assign(self, clipped: Rows, unclipped: Rows) -> Assigned:
        """Rows (n, d) in unit coordinates, without noise: those within the bounds decide the cluster, and those as
        they were measured the distance, as a value outside the bounds is strange. Only if any cluster is known."""
        cluster = self._algorithm.predict(self._arrays, clipped)
        numbers, place = np.unique(cluster, return_inverse=True)
        identity = np.array([self._known_identity(number) for number in numbers.tolist()], dtype=np.int64)[place]
        rows = np.clip(unclipped, -UNIT_MAX, UNIT_MAX)
        reference, squared = identity.copy(), np.empty(len(rows))
        for one in np.unique(identity).tolist():
            own = np.flatnonzero(identity == one)
            if one == NO_IDENTITY:
                node, squared[own] = _nearest(rows[own], self._nodes)
                reference[own] = self._of_node[node]
            else:
                _, squared[own] = _nearest(rows[own], self._nodes_of[one])
        return Assigned(cluster, identity, reference, np.sqrt(squared))

    def _known_identity(self, number: int) -> int:
        identity = self._identity_of.get(number, NO_IDENTITY)
        return identity if identity in self._nodes_of else NO_IDENTITY


def _nearest(rows: Rows, nodes: Rows) -> tuple[Ints, NDArray[np.float64]]:
    """rows (n, d), nodes (k, d) -> (n,) the nearest node and (n,) its distance², in memory that n does not decide."""
    node, squared = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
    size = block_rows(len(nodes), rows.shape[1])
    for start in range(0, len(rows), size):
        block = slice(start, start + size)
        node[block], squared[block] = nearest(rows[block], nodes)
    return node, squared
