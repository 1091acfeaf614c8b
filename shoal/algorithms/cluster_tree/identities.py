"""Lasting identities of clusters: which group continues which cluster, which are shown, and which
are active.

A group is what the tree of one rebuild has kept apart; a cluster has an identity, and lasts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import numpy as np

from shoal.algorithms.cluster_tree.cells import Cells
from shoal.algorithms.cluster_tree.joining import INDEPENDENT, Pair
from shoal.algorithms.cluster_tree.partition import Partition
from shoal.algorithms.former_clusters import (
    FormerCluster,
    FormerClusters,
    FormerClustersState,
    Place,
)
from shoal.kernels.arrays import AnyArray, Bools, Floats, Ints, different
from shoal.kernels.distance import nearest
from shoal.saved_state import (
    BoolArray,
    FloatArray,
    IntArray,
    Number,
    SavedState,
    require,
    state_type,
)

RECENT_READINGS: Final = 500.0
"""readings of all clusters in which the recent readings of a cluster fade to 1/e"""
ACTIVE_FROM: Final = 3.0
ACTIVE_UNTIL: Final = 1.0
"""recent readings above which a cluster becomes active, and down to which it remains active"""
CERTAIN: Final = 2.0
"""a split is shown at once from this multiple of the significance of a split; a less certain one
after a while, the sooner, the more certain it is. A cluster where no readings were before is shown
at once"""
EARLY_SHARE: Final = 0.25
"""a split is shown after at most this share of the readings before it"""
NO_PARENT: Final = -1
EARLY_READINGS: Final = 2000.0
"""readings of a stream up to which a group in known ground does not wait: there is little to have
parted from"""
REVIEW_READINGS_MAX: Final = 8000.0
"""readings between two reviews at most. The first is after `EARLY_READINGS`, each later one when
the readings have doubled: with more of them ever finer structure is found, and what has been shown
for long should not change for it every day"""
KNOWN_GROUND: Final = 2.0
NEAR_GROUND: Final = 5.0
"""median core distances of a cluster from its nearest cell: a group within the former has parted
from it in known ground, one beyond the latter lies where none were before, however it was found"""
NEWER_RATE: Final = 0.4
NEWER_SIGNIFICANCE: Final = 3.0
"""share of a group's readings that is recent, and standard deviations by which it is more than in
the rest of the cluster that the group parted from, from which the group is a birth within its
ground"""
MOVED_SHARE: Final = 0.2
"""share of a cluster's readings in places that it has left, from which it has moved"""
BIN_READINGS: Final = 125.0
"""readings that are counted together for a group in known ground: a burst of more than its share
counts as its share"""
SHARE_RECEIVED: Final = 0.7
"""part of its share that a group in known ground must have received since it was found: chance
alone takes a fifth"""
EXPECTED_MIN: Final = 10.0
"""readings that both it and the cluster it parted from are expected to have received by then"""
LEAST_WIDTH: Final = 1e-3
"""least standard deviation of a place, as a share of the largest value of a feature"""
FLAGS: Final = ("confirmed", "appeared", "active", "waits", "reviewed")
"""fields of a cluster that are true or false"""
NUMBERS: Final = (
    "since",
    "recent",
    "excess",
    "compared",
    "slow_excess",
    "slow_compared",
    "expected",
    "received",
    "parent_expected",
    "parent_received",
)
"""fields of a cluster that are numbers"""


@dataclass
class Cluster:
    """The state of one identity."""

    since: float
    """readings absorbed when it was found"""
    parent: int
    """the identity that it parted from, or `NO_PARENT`"""
    confirmed: bool
    """whether it is shown under its own identity from the beginning"""
    appeared: bool
    """whether its readings lay where none were before: a birth, even if its cells were counted to
    `parent` at first"""
    recent: float = 0.0
    active: bool = False
    excess: float = 0.0
    """readings of a block near a reading, beyond those expected of independent readings"""
    compared: float = 0.0
    """readings from which `excess` was found"""
    slow_excess: float = 0.0
    """excess over the last `SLOW_READINGS` readings"""
    slow_compared: float = 0.0
    waits: bool = False
    """whether it was found in known ground, and has not received its share of readings since"""
    reviewed: bool = True
    """whether it may be shown: a finer part of what is known, at a review only"""
    expected: float = 0.0
    """its share of the readings of it and of the cluster that it parted from, since it was found"""
    received: float = 0.0
    """its readings since, those of each bin up to its share"""
    parent_expected: float = 0.0
    parent_received: float = 0.0
    """the same of the cluster that it parted from"""

    @property
    def dependence(self) -> float:
        """Number of its readings that count as one."""
        return max(1.0, 1.0 + self.excess)

    @property
    def slow_dependence(self) -> float:
        """The same, also of readings that came one or two thousand readings apart."""
        return max(self.dependence, 1.0 + self.slow_excess)

    def has_received_its_share(self) -> bool:
        """Whether both it and the cluster it parted from have received about what their masses let
        expect, and enough was expected to say so."""
        if min(self.expected, self.parent_expected) < EXPECTED_MIN:
            return False
        own_share = SHARE_RECEIVED * self.expected
        parent_share = SHARE_RECEIVED * self.parent_expected
        return self.received >= own_share and self.parent_received >= parent_share


@state_type
class IdentitiesState(SavedState):
    """Saved identities: the fields of c clusters as arrays, and p doubted pairs."""

    identity: Annotated[Ints, IntArray("c")]
    created: int
    next_review: Annotated[float, Number(above=0.0)]
    parent: Annotated[Ints, IntArray("c", least=NO_PARENT)]
    since: Annotated[Floats, FloatArray("c")]
    recent: Annotated[Floats, FloatArray("c")]
    excess: Annotated[Floats, FloatArray("c")]
    compared: Annotated[Floats, FloatArray("c")]
    slow_excess: Annotated[Floats, FloatArray("c")]
    slow_compared: Annotated[Floats, FloatArray("c")]
    expected: Annotated[Floats, FloatArray("c")]
    received: Annotated[Floats, FloatArray("c")]
    parent_expected: Annotated[Floats, FloatArray("c")]
    parent_received: Annotated[Floats, FloatArray("c")]
    confirmed: Annotated[Bools, BoolArray("c")]
    appeared: Annotated[Bools, BoolArray("c")]
    active: Annotated[Bools, BoolArray("c")]
    waits: Annotated[Bools, BoolArray("c")]
    reviewed: Annotated[Bools, BoolArray("c")]
    shown: Annotated[Ints, IntArray("c")]
    """the identity as which each one is shown"""
    doubted: Annotated[Ints, IntArray("p", 2)]
    doubted_since: Annotated[Floats, FloatArray("p")]
    former: FormerClustersState

    def check(self) -> None:
        is_different = len(np.unique(self.identity)) == len(self.identity)
        require(is_different, "two clusters have the same identity")
        for given in (self.identity, self.former.former):
            require(int(given.max(initial=-1)) < self.created, "an identity is not yet given")
        require(
            bool(np.isin(self.shown, self.identity).all()),
            "a cluster is shown as an identity that does not exist",
        )


class _Found(NamedTuple):
    """Facts about a group that continues no cluster, as it is found."""

    parent: int
    confirmed: bool
    appeared: bool
    waits: bool
    reviewed: bool


class Identities:
    """The clusters by identity. An identity is never given to a cluster elsewhere: one that has
    ended is given again to a new cluster at the same place (`FormerClusters`).

    A rebuild asks for each join of two known clusters whether they remain two (`remain_apart`),
    gives the groups their identities (`assign`) and decides which are shown as themselves
    (`settle`). A cluster that is not confirmed yet is shown as the one that it parted from.
    """

    def __init__(
        self, confirm_readings: float, split_significance: float, keep_significance: float
    ) -> None:
        self._confirm = confirm_readings
        self._split = split_significance
        self._keep = keep_significance
        self.clusters: dict[int, Cluster] = {}
        self.n_created = 0
        self._doubted: dict[Pair, float] = {}
        """readings absorbed when two clusters were first not significantly apart, while they are"""
        self._shown: dict[int, int] = {}
        """the identity as which each one is shown"""
        self.next_review = EARLY_READINGS
        """readings by which the next review is due"""
        self._former = FormerClusters()
        """clusters that were shown and have ended; one that is there again, until it is shown"""

    def remain_apart(self, pair: Pair, significance: float, readings: float) -> bool:
        """Whether two known clusters remain two. They become one after `confirm_readings` readings
        of doubt.

        One that is not yet shown must be found again on newer readings, as significant as when it
        was found: of the splits tried at every rebuild, the highest significance is by chance too
        high.
        """
        if not self._are_confirmed(pair, readings):
            return significance >= self._split
        if significance >= self._keep:
            self._doubted.pop(pair, None)
            return True
        return readings - self._doubted.setdefault(pair, readings) < self._confirm

    def may_remain_apart(self, pair: Pair, significance: float, readings: float) -> bool:
        """The same between two rebuilds, when nothing is known against two known clusters."""
        return self._are_confirmed(pair, readings) or significance >= self._split

    def _are_confirmed(self, pair: Pair, readings: float) -> bool:
        return all(self._is_confirmed(self.clusters[identity], readings) for identity in pair)

    def assign(
        self, cells: Cells, found: Partition, readings: float, by_review: bool = False
    ) -> None:
        """Give every group the identity that most of its mass had, or a new one. Sets the clusters
        of the cells.

        With `by_review`, parts of clusters that have not moved are not shown before the next
        review.
        """
        shared = _shared(found.group, cells)
        identity_of = self._continued(shared)
        for group, identity in identity_of.items():
            cluster = self.clusters[identity]
            if readings - cluster.since >= self._wait(found.significance.get(group, 0.0)):
                cluster.confirmed = True
        oldest = {
            group: int(cells.ids[found.group == group].min())
            for group in np.unique(found.group).tolist()
        }
        # New numbers go by the age of the oldest cell, which no order of a set changes.
        for group in sorted(oldest.keys() - identity_of.keys(), key=oldest.__getitem__):
            former = {cluster: mass for (owner, cluster), mass in shared.items() if owner == group}
            facts = self._facts_of_new(cells, found, group, former, readings, by_review)
            place = _place(cells, found.group == group)
            identity_of[group] = self._add(facts, place, readings)
        self._remember_ended(cells, set(identity_of.values()))
        cells.cluster = _mapped(found.group, identity_of.__getitem__).astype(np.int64)
        self._prune(set(cells.cluster.tolist()))

    def _continued(self, shared: dict[Pair, float]) -> dict[int, int]:
        """(group, known cluster) -> the mass they share -> group -> the identity that it
        continues."""
        identity_of: dict[int, int] = {}
        claims = self._claims(shared)
        # The largest share first; of equal ones the older cluster, which people know longer.
        for (group, cluster), _ in sorted(claims.items(), key=lambda item: (-item[1], item[0][1])):
            if group not in identity_of and cluster not in identity_of.values():
                identity_of[group] = cluster
        return identity_of

    def _facts_of_new(
        self,
        cells: Cells,
        found: Partition,
        group: int,
        former: dict[int, float],
        readings: float,
        by_review: bool,
    ) -> _Found:
        """Facts about a group that continues no cluster; `former`: known cluster -> mass of the
        group that was part of it."""
        parent = _parent(former)
        appeared = not former or self._was_born(cells, found, group, parent)
        certain = (1.0 if appeared else CERTAIN) * self._split
        cores_away = _cores_away(cells, found, group, former)
        return _Found(
            parent=parent,
            confirmed=not former or found.significance.get(group, 0.0) >= certain,
            appeared=appeared,
            waits=readings > EARLY_READINGS and cores_away <= KNOWN_GROUND,
            reviewed=(
                not by_review
                or appeared
                or cores_away >= NEAR_GROUND
                or _has_moved(cells, found, former)
            ),
        )

    def _was_born(self, cells: Cells, found: Partition, group: int, parent: int) -> bool:
        """Whether a new group is a birth, not a part of `parent`, which most of its mass was
        counted to.

        Its readings are recent while most others are old; or, if it was found late, significantly
        more of them are recent than of the rest of `parent`. What the parent has left does not
        count: when it splits by movement, both of its parts are new where they are.
        """
        own = found.group == group
        rest = (cells.cluster == parent) & ~own
        if float(cells.recent[own].sum() / cells.mass[own].sum()) >= cells.new_rate:
            return True
        present = cells.mass if found.present is None else cells.mass * found.present
        mass = float(present[own].sum())
        recent = float(cells.recent[own].sum())
        around = float(present[rest].sum())
        if around <= 0.0 or recent < NEWER_RATE * mass:
            return False
        expected = float(cells.recent[rest].sum()) * mass / around
        spread = math.sqrt(expected * self.clusters[parent].slow_dependence)
        return recent - expected >= NEWER_SIGNIFICANCE * spread

    def _claims(self, shared: dict[Pair, float]) -> dict[Pair, float]:
        """(group, known cluster) -> the mass with which the cluster may go on as the group.

        A cluster that is shown as another one, and is part of it again, was never shown: its mass
        is that of the other.
        """
        most: dict[int, tuple[float, int]] = {}
        for (group, cluster), mass in shared.items():
            most[cluster] = max(most.get(cluster, (0.0, group)), (mass, group))
        claims = dict(shared)
        for (group, cluster), mass in shared.items():
            shown = self._shown.get(cluster, cluster)
            if shown != cluster and (group, shown) in shared and most[shown][1] == group:
                claims[group, shown] += mass
                claims[group, cluster] = 0.0
        return claims

    def _wait(self, significance: float) -> float:
        """The readings for which a split of this significance must last before it is shown."""
        certainty = significance / self._split
        if certainty < 1.0:
            return math.inf
        return self._confirm * (CERTAIN - certainty) / (CERTAIN - 1.0)

    def _add(self, facts: _Found, place: Place | None, readings: float) -> int:
        """A new cluster -> its identity."""
        cluster = Cluster(
            readings,
            facts.parent,
            facts.confirmed,
            facts.appeared,
            waits=facts.waits,
            reviewed=facts.reviewed,
        )
        if facts.parent != NO_PARENT:
            # The parent's measurement holds for its readings until they have been measured. Half of
            # its weight, so that the new cluster's own measurements soon prevail.
            parent = self.clusters[facts.parent]
            cluster.excess = parent.excess
            cluster.compared = parent.compared / 2
            cluster.slow_excess = parent.slow_excess
            cluster.slow_compared = parent.slow_compared / 2
        back = None if place is None else self._former.nearest(place, self.clusters)
        if back is not None:
            self.clusters[back] = cluster
            return back
        identity = self.n_created
        self.clusters[identity] = cluster
        self.n_created += 1
        return identity

    def _remember_ended(self, cells: Cells, remaining: set[int]) -> None:
        """Remember the places of the clusters that were shown as themselves and are none of the
        `remaining` ones. The cells still have the clusters of before."""
        for identity, cluster in self.clusters.items():
            if identity in remaining or self._shown.get(identity) != identity:
                continue
            place = _place(cells, cells.cluster == identity)
            if place is not None:
                former = FormerCluster(place, cluster.since, cluster.parent)
                self._former.add(identity, former)

    def _prune(self, alive: set[int]) -> None:
        """Forget all clusters but those `alive`, and doubts about others."""
        clusters = self.clusters.items()
        self.clusters = {identity: cluster for identity, cluster in clusters if identity in alive}
        doubted = self._doubted.items()
        self._doubted = {pair: since for pair, since in doubted if alive.issuperset(pair)}

    def review(self, readings: float) -> None:
        """Let all be shown that have been found by now.

        It is one decision on all of them: those whose readings are independent need not have lasted
        for it, while one that has not received its share goes on waiting until the next one.
        """
        while self.next_review <= readings:
            self.next_review += min(self.next_review, REVIEW_READINGS_MAX)
        for cluster in self.clusters.values():
            cluster.reviewed = True
            cluster.confirmed |= cluster.slow_dependence < INDEPENDENT
            cluster.reviewed = self._is_confirmed(cluster, readings)

    def settle(self, readings: float) -> None:
        """Decide what is shown until the next rebuild: a cluster that is not confirmed is shown as
        its parent."""
        self._shown = {identity: self._shown_as(identity, readings) for identity in self.clusters}
        for identity, shown in self._shown.items():
            if identity == shown:
                self._former.forget(identity)

    def _shown_as(self, identity: int, readings: float) -> int:
        cluster = self.clusters[identity]
        # Up to the first that is shown itself: a parent may wait as well.
        while not self._is_confirmed(cluster, readings) and cluster.parent in self.clusters:
            identity = cluster.parent
            cluster = self.clusters[identity]
        return identity

    def _is_confirmed(self, cluster: Cluster, readings: float) -> bool:
        if cluster.waits or not cluster.reviewed:
            return False
        # Early in a stream nothing has been shown for long, so there is no number to keep steady by
        # waiting.
        age_min = min(self._confirm, EARLY_SHARE * cluster.since)
        return cluster.confirmed or readings - cluster.since >= age_min

    def shown(self, cluster: Ints) -> Ints:
        """identities (n,) -> (n,) the identities as which they are shown."""
        table = np.arange(self._span(cluster) + 1)
        table[-1] = NO_PARENT
        for identity, shown in self._shown.items():
            table[identity] = shown
        return table[cluster]

    def settled(self, cluster: Ints) -> Bools:
        """identities (k,) -> (k,) whether each is shown as itself, and no other one as it."""
        times = Counter(self._shown.values())
        shown = self._shown.items()
        table = np.zeros(self._span(cluster) + 1, dtype=np.bool_)
        for identity, at in shown:
            table[identity] = identity == at and times[at] == 1
        return table[cluster]

    def count_recent(self, shown: Ints, mass: Floats) -> None:
        """shown identities (n,), masses (n,), in the order absorbed: update recent readings and
        activity."""
        # As if they had come one by one: how they are grouped into updates must not matter.
        after = np.exp((np.cumsum(mass) - mass.sum()) / RECENT_READINGS) * mass
        fade = math.exp(-float(mass.sum()) / RECENT_READINGS)
        for identity, cluster in self.clusters.items():
            cluster.recent = cluster.recent * fade + float(after[shown == identity].sum())
            # Two limits, so that chance around one of them does not turn a cluster on and off.
            cluster.active = cluster.recent > (ACTIVE_UNTIL if cluster.active else ACTIVE_FROM)

    def count_received(self, cells: Cells, cluster: Ints, mass: Floats, before: float) -> None:
        """identities (n,), masses (n,), in the order absorbed: readings of groups in known ground
        that were found `before` these. One that has received its share is as any other from then
        on.

        A burst of equal readings is as dense as a cluster, and receives nothing once it is over.
        """
        waiting = [
            (identity, known)
            for identity, known in self.clusters.items()
            if known.waits and known.since <= before
        ]
        if not waiting:
            return
        reached = mass.cumsum()
        # The last bin takes what is left over: a shorter one would expect too little to say much.
        last_bin = max(0, int(reached[-1] / BIN_READINGS) - 1)
        bins = np.minimum(((reached - mass) / BIN_READINGS).astype(np.int64), last_bin)
        for identity, known in waiting:
            own = np.bincount(bins, weights=mass * (cluster == identity))
            parents = np.bincount(bins, weights=mass * (cluster == known.parent))
            own_mass = float(cells.mass[cells.cluster == identity].sum())
            parent_mass = float(cells.mass[cells.cluster == known.parent].sum())
            # The floor divides by no zero where both have faded.
            share = own_mass / max(own_mass + parent_mass, 1e-300) * (own + parents)
            known.expected += float(share.sum())
            known.received += float(np.minimum(own, share).sum())
            known.parent_expected += float((own + parents - share).sum())
            known.parent_received += float(np.minimum(parents, own + parents - share).sum())
            # Without the parent there is nothing left that its readings could be a burst of.
            known.waits = known.parent in self.clusters and not known.has_received_its_share()

    def active(self, cluster: Ints) -> Bools:
        """identities (k,) -> (k,) whether the cluster as which each is shown is active."""
        table = np.zeros(self._span(cluster) + 1, dtype=np.bool_)
        for identity, known in self.clusters.items():
            table[identity] = known.active
        return table[self.shown(cluster)]

    def dependence(self, cluster: Ints) -> Floats:
        """identities (k,) -> (k,) how many readings of each count as one; 1 for unknown ones."""
        table = np.ones(self._span(cluster) + 1)
        for identity, known in self.clusters.items():
            table[identity] = known.dependence
        return table[cluster]

    def slow_dependence(self, cluster: Ints) -> Floats:
        """identities (k,) -> (k,) the same over thousands of readings; 1 for unknown ones."""
        table = np.ones(self._span(cluster) + 1)
        for identity, known in self.clusters.items():
            table[identity] = known.slow_dependence
        return table[cluster]

    def _span(self, cluster: Ints) -> int:
        """Entries of a table by identity, without the one for no identity, -1, which is its
        last."""
        return max(self.n_created, int(cluster.max(initial=NO_PARENT)) + 1)

    def state(self, width: int) -> IdentitiesState:
        """Everything, of clusters over `width` features."""
        clusters = list(self.clusters.values())
        columns: dict[str, AnyArray] = {}
        for name in NUMBERS:
            values = [getattr(cluster, name) for cluster in clusters]
            columns[name] = np.array(values, dtype=np.float64)
        for name in FLAGS:
            values = [getattr(cluster, name) for cluster in clusters]
            columns[name] = np.array(values, dtype=np.bool_)
        return IdentitiesState(
            identity=np.array(list(self.clusters), dtype=np.int64),
            created=self.n_created,
            next_review=self.next_review,
            parent=np.array([cluster.parent for cluster in clusters], dtype=np.int64),
            shown=np.array([self._shown[identity] for identity in self.clusters], dtype=np.int64),
            doubted=np.array(list(self._doubted), dtype=np.int64).reshape(-1, 2),
            doubted_since=np.array(list(self._doubted.values()), dtype=np.float64),
            former=self._former.state(width),
            **columns,
        )

    def restore_from(self, saved: IdentitiesState) -> None:
        """Fill these empty identities from a saved state."""
        self.n_created = saved.created
        self.next_review = saved.next_review
        names = ("parent", *NUMBERS, *FLAGS)
        columns = [getattr(saved, name).tolist() for name in names]
        identities = saved.identity.tolist()
        for identity, *values in zip(identities, *columns, strict=True):
            self.clusters[identity] = Cluster(**dict(zip(names, values, strict=True)))
        self._shown = dict(zip(identities, saved.shown.tolist(), strict=True))
        pairs = [(a, b) for a, b in saved.doubted.tolist()]
        self._doubted = dict(zip(pairs, saved.doubted_since.tolist(), strict=True))
        self._former = FormerClusters.restored(saved.former)


def _mapped(numbers: Ints, of: Callable[[int], float]) -> AnyArray:
    """numbers (k,), many equal -> (k,) what `of` gives for each; equal ones are one call."""
    found, place = different(numbers)
    return np.array([of(number) for number in found.tolist()])[place]


def _place(cells: Cells, own: Bools) -> Place | None:
    """The place of the cells that are `own` (k,); None where they are none, or numbers so large
    that their squares are none.

    Rows are in any units, so the least width is relative.
    """
    mass = cells.mass[own]
    if not len(mass):
        return None
    centres = cells.centres[own]
    share = mass / mass.sum()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        mean = share @ centres
        variance = share @ np.square(centres - mean)
        least = np.square(LEAST_WIDTH * np.abs(cells.centres).max(axis=0))
        variance = np.maximum(variance, np.maximum(least, np.finfo(np.float64).tiny))
    return Place(mean, variance) if np.isfinite(variance).all() else None


def _parent(former: dict[int, float]) -> int:
    """known cluster -> mass of a group that was part of it -> the one with most of it, or
    `NO_PARENT`."""
    return max(former, key=former.__getitem__) if former else NO_PARENT


def _cores_away(cells: Cells, found: Partition, group: int, former: dict[int, float]) -> float:
    """How far a new group lies from the rest of the cluster that most of its mass was part of, in
    median core distances; infinite where nothing is left of it."""
    if not former:
        return math.inf
    own = found.group == group
    rest = (cells.cluster == _parent(former)) & ~own
    if not rest.any():
        return math.inf
    densest = np.flatnonzero(own)[found.cores[own].argmin()]
    _, squared = nearest(cells.centres[[densest]], cells.centres[rest])
    # Either may be the burst: the denser one keeps the identity where it has most of the readings.
    core = max(float(np.median(found.cores[part])) for part in (own, rest))
    return math.sqrt(squared[0]) / max(core, 1e-300)


def _has_moved(cells: Cells, found: Partition, former: dict[int, float]) -> bool:
    """Whether the cluster that most of a new group was part of has left many of its places."""
    if found.present is None:
        return False
    own = cells.cluster == _parent(former)
    mass_left = float(cells.mass[own & (found.present < 1.0)].sum())
    return mass_left >= MOVED_SHARE * max(float(cells.mass[own].sum()), 1e-300)


def _shared(group: Ints, cells: Cells) -> dict[Pair, float]:
    """(group, known cluster), in the order of their first cells -> the mass they share."""
    known = np.flatnonzero(cells.cluster >= 0)
    owner = group[known]
    cluster = cells.cluster[known]
    pair = owner * (int(cluster.max(initial=0)) + 1) + cluster
    _, first, place = np.unique(pair, return_index=True, return_inverse=True)
    mass = np.bincount(place, weights=cells.mass[known])
    # In the order in which cells bring the pairs, as a dict that is filled cell by cell has them.
    order = np.argsort(first)
    pairs = zip(owner[first[order]].tolist(), cluster[first[order]].tolist(), strict=True)
    return dict(zip(pairs, mass[order].tolist(), strict=True))
