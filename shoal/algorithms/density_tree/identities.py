"""Lasting identities of the clusters of density_tree: which cluster continues which, and which
receive readings at present."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, Self

import numpy as np

from shoal.algorithms.density_tree.leaf import Leaf
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.saved_state import BoolArray, IntArray, SavedState, require

ACTIVE_FROM: Final = 3.0
ACTIVE_UNTIL: Final = 1.0
"""standard deviations above zero of its recent readings from which a cluster becomes active, and
remains it"""
NO_PARENT: Final = -1


@dataclass
class Cluster:
    """One identity, and what is known of it."""

    since: int
    """readings absorbed when it was found"""
    parent: int
    """the identity that it parted from, or `NO_PARENT`"""
    active: bool = True


@dataclass(frozen=True, kw_only=True)
class IdentitiesState(SavedState):
    """Saved identities: the fields of c clusters as arrays."""

    identity: Annotated[Ints, IntArray("c")]
    created: int
    since: Annotated[Ints, IntArray("c")]
    parent: Annotated[Ints, IntArray("c", least=NO_PARENT)]
    active: Annotated[Bools, BoolArray("c")]

    def check(self) -> None:
        is_different = len(np.unique(self.identity)) == len(self.identity)
        require(is_different, "two clusters have the same identity")
        require(int(self.identity.max(initial=-1)) < self.created, "an identity is not yet given")


class Identities:
    """The clusters by identity. An identity is never given twice."""

    def __init__(self) -> None:
        self.clusters: dict[int, Cluster] = {}
        self._next = 0

    def assign(self, leaves: list[Leaf], mass: Floats, cluster: Ints, readings: int) -> Ints:
        """Leaves with their masses (l,) and clusters (l,) -> (c,) the identity of each cluster.

        A cluster keeps the identity that most of its mass had, and each identity goes to one
        cluster; others get new ones. Every leaf carries the identity of its cluster on to its
        parts.
        """
        shared: dict[tuple[int, int], float] = {}
        for leaf, share, group in zip(leaves, mass.tolist(), cluster.tolist(), strict=True):
            if leaf.identity != NO_PARENT:
                shared[group, leaf.identity] = shared.get((group, leaf.identity), 0.0) + share
        identity_of = _continued(shared)
        for group in range(int(cluster.max()) + 1):
            if group not in identity_of:
                identity_of[group] = self._add(_former(shared, group), readings)
        for leaf, group in zip(leaves, cluster.tolist(), strict=True):
            leaf.identity = identity_of[group]
        alive = sorted(identity_of.values())
        self.clusters = {identity: self.clusters[identity] for identity in alive}
        return np.array([identity_of[group] for group in range(len(identity_of))], dtype=np.int64)

    def _add(self, parent: int, readings: int) -> int:
        """A new cluster -> its identity."""
        identity = self._next
        self.clusters[identity] = Cluster(readings, parent)
        self._next += 1
        return identity

    def update_activity(self, identity: Ints, recent: Floats, variance: Floats) -> None:
        """Identities (c,), their recent readings and the variance of these (c,): decide which
        clusters are active."""
        columns = zip(identity.tolist(), recent.tolist(), variance.tolist(), strict=True)
        for number, readings, noise in columns:
            cluster = self.clusters[number]
            # Two limits, so that noise around one of them does not turn a cluster on and off.
            least = ACTIVE_UNTIL if cluster.active else ACTIVE_FROM
            cluster.active = readings > least * math.sqrt(noise + 1.0)

    def state(self) -> IdentitiesState:
        clusters = self.clusters.values()
        return IdentitiesState(
            identity=np.array(list(self.clusters), dtype=np.int64),
            created=self._next,
            since=np.array([cluster.since for cluster in clusters], dtype=np.int64),
            parent=np.array([cluster.parent for cluster in clusters], dtype=np.int64),
            active=np.array([cluster.active for cluster in clusters], dtype=np.bool_),
        )

    @classmethod
    def restored(cls, saved: IdentitiesState) -> Self:
        """The identities of a saved state."""
        identities = cls()
        identities._next = saved.created
        columns = zip(
            saved.identity.tolist(),
            saved.since.tolist(),
            saved.parent.tolist(),
            saved.active.tolist(),
            strict=True,
        )
        for identity, since, parent, active in columns:
            identities.clusters[identity] = Cluster(since, parent, active)
        return identities


def _continued(shared: dict[tuple[int, int], float]) -> dict[int, int]:
    """(group, identity) -> the mass they share -> group -> the identity that it continues."""
    identity_of: dict[int, int] = {}
    # The largest share first; of equal ones the first group, so that a rebuild names clusters as
    # before.
    for (group, identity), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if group not in identity_of and identity not in identity_of.values():
            identity_of[group] = identity
    return identity_of


def _former(shared: dict[tuple[int, int], float], group: int) -> int:
    """The identity that most of a group's mass had, or `NO_PARENT`."""
    former = {identity: mass for (owner, identity), mass in shared.items() if owner == group}
    return max(former, key=former.__getitem__) if former else NO_PARENT
