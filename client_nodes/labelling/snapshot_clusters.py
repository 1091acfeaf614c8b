"""The clusters of a snapshot, and which of them readings belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from shoal.algorithms.registry import Algorithm, predict_rows
from shoal.algorithms.streaming import Rows, SequenceLabels
from shoal.client_nodes.labelling.dwells import States
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import block_rows, nearest, nearest_over_present
from shoal.protocol.messages import Snapshot

NO_IDENTITY = -1


UNIT_MAX = 1e3
"""largest unit coordinate that distances are computed from"""


class Assigned(NamedTuple):
    """Labels that the clustering of a snapshot gives n readings."""

    cluster: Ints
    """(n,) number in the arrays of the snapshot; -1: none"""
    identity: Ints
    """(n,) lasting identity; `NO_IDENTITY` for a cluster that is not known, as of a single node"""
    reference: Ints
    """(n,) the known cluster whose spread the distance is compared with: the own or the nearest"""
    distance: Floats
    """(n,) to the nearest node of that cluster, in unit coordinates"""


class SnapshotClusters:
    """Clusters that a snapshot knows. It has at least one known cluster if `known` is true."""

    def __init__(
        self, snapshot: Snapshot, algorithm: Algorithm, sequence: SequenceLabels | None = None
    ) -> None:
        """`sequence`: labels successive readings, where a single one does not show its cluster."""
        self.sequence = sequence
        self.version = snapshot.version
        self._arrays = snapshot.arrays
        self._algorithm = algorithm
        view = self._algorithm.view(snapshot.arrays)
        self._identity_of: dict[int, int] = {}
        """number of a cluster in the arrays -> its lasting identity"""
        self.names: dict[int, str] = {}
        """identity -> name, empty if it has none"""
        for cluster in snapshot.cluster_identities:
            self._identity_of[cluster.number] = cluster.identity
            self.names[cluster.identity] = cluster.name
        self.parts = snapshot.cluster_parts
        """those of the only known cluster; else none"""
        self.states: States | None = None
        """states as events need them, of a model that labels sequences"""
        if sequence is not None and view.states is not None:
            lasting = self._identities(range(len(view.centres)))
            self.states = States.of(view.states, lasting, sequence.digest, sequence.window)
        of_node = np.array(self._identities(view.cluster.tolist()), dtype=np.int64)
        known = of_node != NO_IDENTITY
        self._nodes = view.nodes[known]
        self._of_node = of_node[known]
        self._nodes_of: dict[int, Rows] = {}
        for identity in np.unique(self._of_node).tolist():
            self._nodes_of[identity] = self._nodes[self._of_node == identity]

    def _identities(self, numbers: Iterable[int]) -> list[int]:
        return [self._identity_of.get(number, NO_IDENTITY) for number in numbers]

    @property
    def known(self) -> bool:
        """Whether it has any known cluster."""
        return len(self._nodes) > 0

    def assign(self, clipped: Rows, unclipped: Rows) -> Assigned:
        """Rows (n, d) in unit coordinates, without noise, by their clusters.

        Those within the bounds decide the cluster, and those as they were measured the distance, as
        a value outside the bounds is strange. NaN is a missing value: what is there decides. Only
        if any cluster is known.
        """
        return self.compare(predict_rows(self._algorithm, self._arrays, clipped), unclipped)

    def compare(self, cluster: Ints, unclipped: Rows) -> Assigned:
        """The same for rows whose clusters are known: (n,) their numbers in the arrays."""
        numbers, place = np.unique(cluster, return_inverse=True)
        of_number = [self._known_identity(number) for number in numbers.tolist()]
        identity = np.array(of_number, dtype=np.int64)[place]
        # The square of a larger coordinate would overflow into a distance that is no number.
        rows = np.clip(unclipped, -UNIT_MAX, UNIT_MAX)
        reference = identity.copy()
        squared = np.empty(len(rows))
        for known in np.unique(identity).tolist():
            own = np.flatnonzero(identity == known)
            if known == NO_IDENTITY:
                node, squared[own] = _nearest(rows[own], self._nodes)
                reference[own] = self._of_node[node]
            else:
                _, squared[own] = _nearest(rows[own], self._nodes_of[known])
        return Assigned(cluster, identity, reference, np.sqrt(squared))

    def identities_of(self, rows: Rows) -> Ints:
        """Rows (n, d) in unit coordinates within the bounds -> (n,) lasting identities."""
        return self.assign(rows, rows).identity

    def compared_with_usual(
        self, assigned: Assigned, unclipped: Rows, is_usual: Callable[[int], bool]
    ) -> Assigned:
        """The same labels with distances to clusters that are usual: for a reading (n, d) of any
        other one to the nearest of these, as its own shows nothing of what is usual yet.

        Where no cluster is usual, as after all were replaced, nothing changes.
        """
        unusual = [
            identity
            for identity in np.unique(assigned.reference).tolist()
            if not is_usual(identity)
        ]
        if not unusual:
            return assigned
        usual = [identity for identity in self._nodes_of if is_usual(identity)]
        if not usual:
            return assigned
        of_usual = np.isin(self._of_node, usual)
        identity_of_node = self._of_node[of_usual]
        own = np.flatnonzero(np.isin(assigned.reference, unusual))
        rows = np.clip(unclipped[own], -UNIT_MAX, UNIT_MAX)
        node, squared = _nearest(rows, self._nodes[of_usual])
        reference = assigned.reference.copy()
        distance = assigned.distance.copy()
        reference[own] = identity_of_node[node]
        distance[own] = np.sqrt(squared)
        return assigned._replace(reference=reference, distance=distance)

    def _known_identity(self, number: int) -> int:
        identity = self._identity_of.get(number, NO_IDENTITY)
        return identity if identity in self._nodes_of else NO_IDENTITY


def _nearest(rows: Rows, nodes: Rows) -> tuple[Ints, Floats]:
    """rows (n, d), nodes (k, d) -> (n,) the nearest node and (n,) its distance².

    Of a row that lacks values (NaN) both are over those that it has.
    """
    node = np.empty(len(rows), dtype=np.int64)
    squared = np.empty(len(rows))
    has_gap = np.isnan(rows).any(axis=1)
    if has_gap.any():
        node[~has_gap], squared[~has_gap] = _nearest(rows[~has_gap], nodes)
        node[has_gap], squared[has_gap] = nearest_over_present(rows[has_gap], nodes)
        return node, squared
    # In blocks: the memory for distances must not grow with n.
    size = block_rows(len(nodes), rows.shape[1])
    for start in range(0, len(rows), size):
        block = slice(start, start + size)
        node[block], squared[block] = nearest(rows[block], nodes)
    return node, squared
