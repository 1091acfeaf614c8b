"""Lasting identities of the clusters of density_tree: which cluster continues which, which are
shown, and which receive readings at present."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, Self

import numpy as np

from shoal.algorithms.density_tree.extents import Extents
from shoal.algorithms.density_tree.gaps import LEAST_EXTENT, MIDDLE_80
from shoal.algorithms.density_tree.leaf import NO_IDENTITY, Leaf
from shoal.algorithms.density_tree.merging import Merging, MergingState
from shoal.algorithms.former_clusters import (
    FormerCluster,
    FormerClusters,
    FormerClustersState,
    Place,
    place_of,
)
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.saved_state import BoolArray, IntArray, SavedState, require, state_type

ACTIVE_FROM: Final = 3.0
ACTIVE_UNTIL: Final = 1.0
"""standard deviations above zero of its recent readings from which a cluster becomes active, and
remains it"""
# These four were chosen on some streams in which states go and come back, and measured on others:
# groups below 3 % that came and went fell from 56 to 15 in 240 runs. Without the recent share a
# state that is new today came 2 000 to 4 000 readings later, as it has few of all readings.
SHOWN_SHARE: Final = 0.02
"""share of the readings from which a new group is shown at once"""
SHOWN_RECENT_SHARE: Final = 0.05
"""share of the recent readings from which it is, too, if noise alone cannot be that much"""
CONFIRM_READINGS: Final = 4000.0
"""readings for which a smaller group must last to be shown"""
EARLY_SHARE: Final = 0.25
"""it is shown after at most this share of the readings before it: a young stream has little to
confuse it with"""
NO_PARENT: Final = NO_IDENTITY


@dataclass
class Cluster:
    """One identity, and what is known of it."""

    since: int
    """readings absorbed when it was found"""
    parent: int
    """the identity that it parted from, or `NO_PARENT`"""
    active: bool = True


class Candidate(NamedTuple):
    """A group that is not shown yet."""

    since: int
    """readings absorbed when it was found"""
    parent: int
    """the known cluster that it is shown as part of"""


class Shown(NamedTuple):
    """The clusters as they are shown."""

    cluster: Ints
    """(l,) of each leaf, numbered from 0 in the order of their first leaves"""
    identity: Ints
    """(c,) of each cluster"""


@state_type
class IdentitiesState(SavedState):
    """Saved identities: the fields of c clusters, and of w candidates, as arrays."""

    identity: Annotated[Ints, IntArray("c")]
    created: int
    since: Annotated[Ints, IntArray("c")]
    parent: Annotated[Ints, IntArray("c", least=NO_PARENT)]
    active: Annotated[Bools, BoolArray("c")]
    candidate_since: Annotated[Ints, IntArray("w")]
    candidate_parent: Annotated[Ints, IntArray("w")]
    merging: MergingState
    former: FormerClustersState

    def check(self) -> None:
        is_different = len(np.unique(self.identity)) == len(self.identity)
        require(is_different, "two clusters have the same identity")
        given = (self.identity, self.former.former, self.candidate_parent)
        highest = max(int(identities.max(initial=-1)) for identities in given)
        require(highest < self.created, "an identity is not yet given")
        has_not_ended = not np.isin(self.identity, self.former.former).any()
        require(bool(has_not_ended), "a cluster has ended that is there")
        is_known = np.isin(self.merging.pair, self.identity).all()
        require(bool(is_known), "a cluster is merging that does not exist")


class Identities:
    """The clusters by identity. An identity is never given to a cluster elsewhere.

    A look at the leaves (`assign`) finds groups of them. A group continues the known cluster that
    most of its mass was part of. Two known clusters in one group remain two until their merge has
    lasted (`Merging`). A group that continues no cluster is a *candidate*, shown as part of the
    cluster that it parted from, until it is large or has lasted. Then it gets the identity of a
    former cluster whose place it has (`FormerClusters`), or a new one.

    The identity of a leaf of a candidate is below `NO_PARENT`: candidate i has -2 - i.
    """

    def __init__(self, dimensions: int, circular: tuple[int, ...] = ()) -> None:
        self._d = dimensions
        self._circular = circular
        self.clusters: dict[int, Cluster] = {}
        self._next = 0
        self._candidates: dict[int, Candidate] = {}
        self._merging = Merging()
        self._former = FormerClusters(circular)

    def assign(
        self,
        leaves: list[Leaf],
        mass: Floats,
        group: Ints,
        extent: Extents,
        readings: int,
        show_all: bool = False,
    ) -> Shown:
        """Name the groups (l,) of leaves with masses (l,) and extents, after `readings` in all.

        Each identity goes to one group. Every leaf carries the identity of its group on to its
        parts. `show_all`: nothing follows that could confirm a candidate, so each is shown.
        """
        before = np.array([leaf.identity for leaf in leaves], dtype=np.int64)
        group = self._merging.held_apart(before, mass, group, readings, self._since)
        shared = _shared(before, mass, group)
        identity_of = _continued(shared)
        is_shown = _are_large(leaves, mass, group) | show_all
        candidates: dict[int, Candidate] = {}
        for number in range(int(group.max()) + 1):
            identity = identity_of.get(number, NO_IDENTITY)
            if identity >= 0:
                continue
            candidate = self._candidate(identity, _origin(shared, number), readings)
            lasts = readings - candidate.since
            waits = min(CONFIRM_READINGS, EARLY_SHARE * candidate.since)
            # Without a parent there is no cluster as part of which it could be shown.
            if candidate.parent == NO_PARENT or is_shown[number] or lasts >= waits:
                place = _place(extent, mass, group == number, self._circular)
                taken = set(identity_of.values())
                identity_of[number] = self._add(place, taken, candidate.parent, readings)
            else:
                identity_of[number] = NO_IDENTITY - 1 - len(candidates)
                candidates[identity_of[number]] = candidate
        self._end_missing(before, mass, extent, set(identity_of.values()))
        self._candidates = candidates
        for leaf, number in zip(leaves, group.tolist(), strict=True):
            leaf.identity = identity_of[number]
        return self._shown(mass, group, identity_of)

    @property
    def has_candidates(self) -> bool:
        """Whether a group is not shown yet."""
        return bool(self._candidates)

    def _since(self, identity: int) -> int:
        return self.clusters[identity].since

    def _candidate(self, identity: int, origin: int, readings: int) -> Candidate:
        """A group that continues a candidate, or none, as a candidate; `origin` is the identity
        that most of its mass had."""
        if identity < NO_IDENTITY:
            return self._candidates[identity]
        # What parts from a candidate was shown as part of that one's parent.
        if origin < NO_IDENTITY:
            origin = self._candidates[origin].parent
        return Candidate(readings, origin)

    def _add(self, place: Place, taken: set[int], parent: int, readings: int) -> int:
        """A cluster that is shown from here on -> its identity."""
        back = self._former.nearest(place, taken)
        if back is not None:
            former = self._former.take(back)
            self.clusters[back] = Cluster(int(former.since), former.parent)
            return back
        identity = self._next
        self.clusters[identity] = Cluster(readings, parent)
        self._next += 1
        return identity

    def _end_missing(
        self, before: Ints, mass: Floats, extent: Extents, remaining: set[int]
    ) -> None:
        """End the known clusters without a group, and remember where they were: `before` (l,) are
        the identities that the leaves had."""
        # In the order of identities, as the memory of clusters that have ended drops the first.
        for identity, cluster in sorted(self.clusters.items()):
            if identity in remaining:
                continue
            place = _place(extent, mass, before == identity, self._circular)
            self._former.add(identity, FormerCluster(place, cluster.since, cluster.parent))
            del self.clusters[identity]

    def _shown(self, mass: Floats, group: Ints, identity_of: dict[int, int]) -> Shown:
        """The groups (l,) as they are shown: a candidate as part of its parent."""
        known = [number for number, identity in identity_of.items() if identity >= 0]
        held = np.bincount(group, weights=mass)
        # The parent may have ended since, or merged: then the heaviest stands for it.
        heaviest = max(known, key=lambda number: (float(held[number]), -number))
        group_of = {identity: number for number, identity in identity_of.items()}
        shown_as = np.arange(int(group.max()) + 1)
        for identity, candidate in self._candidates.items():
            shown_as[group_of[identity]] = group_of.get(candidate.parent, heaviest)
        shown, first, cluster = np.unique(shown_as[group], return_index=True, return_inverse=True)
        # By their first leaves, as they come from the tree.
        order = np.argsort(first)
        identities = [identity_of[number] for number in shown[order].tolist()]
        return Shown(np.argsort(order)[cluster], np.array(identities, dtype=np.int64))

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
        candidates = self._candidates.values()
        candidate_parents = [candidate.parent for candidate in candidates]
        return IdentitiesState(
            identity=np.array(list(self.clusters), dtype=np.int64),
            created=self._next,
            since=np.array([cluster.since for cluster in clusters], dtype=np.int64),
            parent=np.array([cluster.parent for cluster in clusters], dtype=np.int64),
            active=np.array([cluster.active for cluster in clusters], dtype=np.bool_),
            candidate_since=np.array([candidate.since for candidate in candidates], dtype=np.int64),
            candidate_parent=np.array(candidate_parents, dtype=np.int64),
            merging=self._merging.state(),
            former=self._former.state(self._d),
        )

    @classmethod
    def restored(
        cls, saved: IdentitiesState, dimensions: int, circular: tuple[int, ...] = ()
    ) -> Self:
        """The identities of a saved state."""
        identities = cls(dimensions, circular)
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
        waiting = zip(saved.candidate_since.tolist(), saved.candidate_parent.tolist(), strict=True)
        for since, parent in waiting:
            number = NO_IDENTITY - 1 - len(identities._candidates)
            identities._candidates[number] = Candidate(since, parent)
        identities._merging = Merging.restored(saved.merging)
        identities._former = FormerClusters.restored(saved.former, circular)
        return identities


def _shared(identity: Ints, mass: Floats, group: Ints) -> dict[tuple[int, int], float]:
    """Identities (l,) that leaves had, masses (l,) and groups (l,) -> (group, identity) -> the mass
    that they share."""
    shared: dict[tuple[int, int], float] = {}
    columns = zip(group.tolist(), identity.tolist(), mass.tolist(), strict=True)
    for number, known, share in columns:
        if known != NO_IDENTITY:
            shared[number, known] = shared.get((number, known), 0.0) + share
    return shared


def _continued(shared: dict[tuple[int, int], float]) -> dict[int, int]:
    """(group, identity) -> the mass they share -> group -> the identity that it continues."""
    identity_of: dict[int, int] = {}
    # Known clusters before candidates; then the largest share first; of equal ones the first group,
    # so that a rebuild names clusters as before.
    claims = sorted(shared.items(), key=lambda item: (item[0][1] < 0, -item[1], item[0]))
    for (group, identity), _ in claims:
        if group not in identity_of and identity not in identity_of.values():
            identity_of[group] = identity
    return identity_of


def _origin(shared: dict[tuple[int, int], float], group: int) -> int:
    """The identity that most of a group's mass had, or `NO_PARENT`."""
    # Of equal masses the first, in the order of the leaves, so that a rebuild finds the same
    # parent.
    former = {identity: mass for (owner, identity), mass in shared.items() if owner == group}
    return max(former, key=former.__getitem__) if former else NO_PARENT


def _are_large(leaves: list[Leaf], mass: Floats, group: Ints) -> Bools:
    """(g,) whether each group is large enough to be shown at once, of all readings or of the recent
    ones."""
    held = np.bincount(group, weights=mass)
    recent = np.bincount(group, weights=[leaf.recent for leaf in leaves])
    noise = np.bincount(group, weights=[leaf.recent_noise for leaf in leaves])
    # Less what noise alone could be.
    sure = recent - ACTIVE_FROM * np.sqrt(noise)
    is_recent = sure >= SHOWN_RECENT_SHARE * max(float(recent.sum()), 1.0)
    return np.asarray((held >= SHOWN_SHARE) | is_recent)


def _place(extent: Extents, mass: Floats, own: Bools, circular: tuple[int, ...]) -> Place:
    """The place of the leaves that are `own` (l,), from their extents and masses (l,)."""
    width = np.maximum(extent.high[own] - extent.low[own], LEAST_EXTENT)
    return place_of(extent.mean[own], np.square(width / MIDDLE_80), mass[own], circular)
