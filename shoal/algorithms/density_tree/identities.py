"""Lasting identities of the clusters of the leaves, and which clusters receive readings at present."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.axes import Ints
from shoal.algorithms.density_tree.leaf import Leaf
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.kernels.distance import Floats

ACTIVE_FROM, ACTIVE_UNTIL = 3.0, 1.0
"""standard deviations above zero of its recent readings from which a cluster becomes active, and remains it"""
NO_PARENT: Final = -1


@dataclass
class Cluster:
    """What is known of one identity."""

    since: int
    """readings absorbed when it was found"""
    parent: int
    """the identity that it parted from, or `NO_PARENT`"""
    active: bool = True


class Identities:
    """The clusters by identity. An identity is never given twice."""

    def __init__(self) -> None:
        self.clusters: dict[int, Cluster] = {}
        self._next = 0

    def assign(self, leaves: list[Leaf], mass: Floats, cluster: Ints, readings: int) -> Ints:
        """Leaves with their masses (l,) and clusters (l,) -> (c,) the identity of each cluster.

        A cluster keeps the identity that most of its mass had, and each identity goes to one cluster; others get new
        ones. Every leaf carries the identity of its cluster on to its parts.
        """
        shared: dict[tuple[int, int], float] = {}
        for leaf, share, group in zip(leaves, mass.tolist(), cluster.tolist(), strict=True):
            if leaf.identity != NO_PARENT:
                shared[group, leaf.identity] = shared.get((group, leaf.identity), 0.0) + share
        identity_of: dict[int, int] = {}
        for (group, identity), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
            if group not in identity_of and identity not in identity_of.values():
                identity_of[group] = identity
        for group in range(int(cluster.max()) + 1):
            if group not in identity_of:
                former = {identity: share for (owner, identity), share in shared.items() if owner == group}
                parent = max(former, key=former.__getitem__) if former else NO_PARENT
                identity_of[group] = self._next
                self.clusters[self._next] = Cluster(readings, parent)
                self._next += 1
        for leaf, group in zip(leaves, cluster.tolist(), strict=True):
            leaf.identity = identity_of[group]
        self.clusters = {identity: self.clusters[identity] for identity in sorted(identity_of.values())}
        return np.array([identity_of[group] for group in range(len(identity_of))], dtype=np.int64)

    def update_activity(self, identity: Ints, recent: Floats, variance: Floats) -> None:
        """Identities (c,), their recent readings and the variance of these (c,): decide which clusters are active."""
        for one, held, noise in zip(identity.tolist(), recent.tolist(), variance.tolist(), strict=True):
            cluster = self.clusters[one]
            least = ACTIVE_UNTIL if cluster.active else ACTIVE_FROM
            cluster.active = held > least * math.sqrt(noise + 1.0)

    def state(self) -> State:
        """As arrays, one entry for each identity."""
        every = list(self.clusters.values())
        return {
            "identity": np.array(list(self.clusters), dtype=np.int64),
            "identities_created": self._next,
            "since": np.array([one.since for one in every], dtype=np.int64),
            "parent": np.array([one.parent for one in every], dtype=np.int64),
            "active": np.array([one.active for one in every], dtype=np.int64),
        }

    def restore_from(self, saved: StateReader) -> None:
        """Fill these empty identities from a saved state. Raises `InvalidState`."""
        ids = saved.read_ints("identity", (None,))
        saved.check(len(np.unique(ids)) == len(ids), "two clusters have the same identity")
        self._next = saved.read_int("identities_created", least=int(ids.max(initial=-1)) + 1)
        since = saved.read_ints("since", (len(ids),)).tolist()
        parent = saved.read_ints("parent", (len(ids),), least=NO_PARENT).tolist()
        active = saved.read_ints("active", (len(ids),)).tolist()
        for identity, *facts in zip(ids.tolist(), since, parent, active, strict=True):
            self.clusters[identity] = Cluster(facts[0], facts[1], bool(facts[2]))
