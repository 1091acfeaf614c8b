"""Cluster identities: which cluster of one snapshot is which of the next, and what has become of
each.

Algorithms number their clusters anew in every snapshot. A lineage follows them by the mass of the
nodes that two snapshots share and gives each an identity that lasts. A cluster is *known* once it
holds a stated share of the readings or has lasted for a stated number of them, and it stops being
known only when it has been away that long: so the number of known clusters does not move with every
group of nodes that comes and goes. A known cluster is *active* while readings fall to it, else
*quiet*.

A model that begins anew after a change of the contract gets the identities back by where clusters
lie. The places of the known clusters before the change are kept, over the features that both
contracts have. What the model finds is compared with them: a node, or a cluster of an algorithm
that keeps identities itself, gets the identity of the nearest place. While the model settles, an
algorithm may still cut the clusters that it has named, so that its own identities are compared
again with each snapshot. Later a further cluster gets the identity of an earlier one only if that
has not come back, and lies nearer than those that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

import numpy as np

from shoal.algorithms.view import ClusteringView, RegimeView
from shoal.config.changes import CommonPlaces
from shoal.errors import InvalidState
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest
from shoal.protocol.events import duration
from shoal.protocol.messages import Snapshot

# Candidates count down from below it, so that one number tells a known cluster, none and a
# candidate apart.
NO_CLUSTER = -1


@dataclass(frozen=True)
class LineagePolicy:
    """Conditions for a cluster to be known, active and gone.

    Counts are readings learnt by the model, so that a replay of the log gives the same lineage;
    nothing depends on the clock.
    """

    known_share: float = 0.05
    """share of all mass at which a cluster is known at once"""
    share_min: float = 0.002
    """share below which a cluster is never known, however long it lasts"""
    confirm_readings: int = 1_000
    """readings that a smaller cluster must last to be known, and that a known one must be away to
    be gone"""
    recent_readings: float = 500.0
    """readings by which what counts as recent has faded to 1/e"""
    active_above: float = 3.0
    """recent readings above which a quiet cluster is active"""
    quiet_below: float = 1.0
    """recent readings below which an active cluster is quiet"""
    share_readings: float = 2_000.0
    """the same for the recent share"""
    share_moved: float = 0.2
    """difference of the recent share from the one last reported at which an event reports it"""
    dwell_moved: float = 1.5
    """ratio of the mean dwell in a regime to the one last reported, or its inverse, from which on
    an event reports it"""
    dwell_errors: float = 4.0
    """standard errors by which the logarithms of both must differ as well; fewer are more false
    alarms"""
    dwells_min: float = 10.0
    """dwells that must have been seen of both"""


class EventKind(StrEnum):
    """Kinds of events of a known cluster."""

    BIRTH = "birth"
    """it is known, and none of its nodes were part of another cluster"""
    PARTED = "parted"
    """it is known, and its nodes were part of the cluster `other` before"""
    MERGED = "merged"
    """its nodes are part of the cluster `other` now; its identity ends"""
    QUIET = "quiet"
    """no readings fall to it any more"""
    RETURNED = "returned"
    """readings fall to it again"""
    GONE = "gone"
    """none of its nodes form a cluster any more; its identity ends"""
    NAMED = "named"
    """people have given it another name"""
    CONFIRMED = "confirmed"
    """an operator has confirmed it as normal: it raises no alerts"""
    MUTED = "muted"
    """an operator has muted it: it raises no alerts for a time"""
    UNMUTED = "unmuted"
    """it raises alerts again"""
    SHARE_MOVED = "share_moved"
    """its share of the recent readings has changed from `share_before` to `share`"""
    DWELL_MOVED = "dwell_moved"
    """the mean dwell in it, of a regime, has changed from `dwell_before` to `dwell`"""
    UNUSUAL = "unusual"
    """shares of clusters are unusual for the time of day, its own most: `share` where
    `share_before` is usual"""
    USUAL_AGAIN = "usual_again"
    """the shares are usual again"""


@dataclass(frozen=True)
class ClusterEvent:
    """One event of one known cluster with one snapshot."""

    kind: EventKind
    identity: int
    other: int | None = None
    """the cluster it parted from or merged into, if that one is known"""
    share: float = 0.0
    """share of the recent readings"""
    share_before: float | None = None
    dwell: float | None = None
    """mean dwell in readings, of an event that is of it"""
    dwell_before: float | None = None


@dataclass(frozen=True)
class Cluster:
    """One cluster that a lineage follows. Candidates, which are not known yet, have identities
    below 0."""

    identity: int
    slot: int | None = None
    """number of its colour, the smallest that no other known cluster had when it became known; None
    for a candidate"""
    name: str = ""
    """name that people have given it; empty for none"""
    parent: int | None = None
    """the cluster that its nodes were part of before"""
    since_reading: int = 0
    """readings that the model had learnt when it was first seen"""
    since: float = 0.0
    """time at which it was first seen, seconds since 1970"""
    present_reading: int = 0
    """readings that it had learnt when nodes of it last formed a cluster"""
    kept_until: int = 0
    """readings learnt up to which it is known though no nodes form it: the model began anew"""
    merging_into: int | None = None
    """the cluster that most of its nodes are part of at present"""
    mass: float = 0.0
    """mass of its nodes, in the measure of the algorithm"""
    share: float = 0.0
    """share of all mass"""
    recent: float = 0.0
    """readings that fell to it, older ones faded"""
    recent_slow: float = 0.0
    """the same, fading more slowly: the recent share is made of these"""
    recent_share: float = 0.0
    """share of the recent readings of all clusters"""
    active: bool = True
    reported_share: float = 0.0
    """the recent share that an event last reported, or that it began with"""
    reported_dwell: float = 0.0
    """mean dwell in it that was last reported, if it is a regime, in readings; 0 before it was
    known """
    reported_dwells: float = 0.0
    """dwells that this was seen in"""
    confirmed: bool = False
    """whether an operator has confirmed it as normal: it raises no alerts"""
    muted_until: float = 0.0
    """time until which it raises no alerts, seconds since 1970"""
    time: str = ""
    """time at which most of its readings fall, such as "at night"; empty where nothing shows that
    """

    def having(self, **values: Any) -> Cluster:
        """A copy with these values, as `dataclasses.replace` makes it.

        Each snapshot copies each cluster several times, and setting every field of a frozen class
        takes ten times as long as copying all of them.
        """
        copy = object.__new__(Cluster)
        vars(copy).update(vars(self), **values)
        return copy

    def muted(self, now: float) -> bool:
        """Whether it raises no alerts at this time, seconds since 1970."""
        return self.confirmed or now < self.muted_until

    @property
    def known(self) -> bool:
        """Whether it has been confirmed."""
        return self.identity >= 0


class ClusterChange(NamedTuple):
    """Change of a known cluster that an operator asks for."""

    identity: int
    kind: EventKind
    """event that reports it"""
    values: Mapping[str, Any]
    """field of `Cluster` -> its value from now on"""


@dataclass(frozen=True)
class Lineage:
    """All clusters of a model by identity, and which of its nodes is whose."""

    next_identity: int = 0
    next_candidate: int = NO_CLUSTER - 1
    readings: int = 0
    """learnt by the model at the newest snapshot"""
    clusters: Mapping[int, Cluster] = field(default_factory=dict)
    """identity -> cluster, in the order of identities"""
    of_node: Mapping[int, int] = field(default_factory=dict)
    """node id -> identity of its cluster, candidates included"""
    node_mass: Mapping[int, float] = field(default_factory=dict)
    """node id -> its mass in the newest snapshot"""
    of_number: Mapping[int, int] = field(default_factory=dict)
    """number of a cluster in the newest snapshot -> the known identity it is shown as; absent: none
    """

    def changed(self, change: ClusterChange) -> Lineage | None:
        """The lineage in which a known cluster is changed so; None if there is no such cluster."""
        cluster = self.clusters.get(change.identity)
        # An operator knows only what the page shows, and candidates are not shown.
        if cluster is None or not cluster.known:
            return None
        return replace(
            self, clusters={**self.clusters, change.identity: replace(cluster, **change.values)}
        )

    @property
    def times(self) -> dict[int, str]:
        """number of a cluster in the newest snapshot -> when most of its readings fall."""
        return {number: self.clusters[identity].time for number, identity in self.of_number.items()}

    def with_times(self, times: Mapping[int, str]) -> Lineage:
        """The lineage in which clusters have these times: identity -> words."""
        given = {
            one: self.clusters[one].having(time=words)
            for one, words in times.items()
            if self.clusters[one].time != words
        }
        return replace(self, clusters={**self.clusters, **given}) if given else self

    @property
    def known(self) -> list[Cluster]:
        """The known clusters by identity."""
        return [cluster for cluster in self.clusters.values() if cluster.known]

    @property
    def active(self) -> list[Cluster]:
        """The known clusters to which readings fall at present."""
        return [cluster for cluster in self.known if cluster.active]

    def state(self) -> dict[str, Any]:
        """Plain values for `restore_lineage`."""
        return {
            "next_identity": self.next_identity,
            "next_candidate": self.next_candidate,
            "readings": self.readings,
            "clusters": [_without_defaults(cluster) for cluster in self.clusters.values()],
            "of_node": _columns(self.of_node),
            "node_mass": _columns(self.node_mass, np.float64),
            "of_number": _columns(self.of_number),
        }


_DEFAULTS = {one.name: one.default for one in fields(Cluster)}


def _without_defaults(cluster: Cluster) -> dict[str, Any]:
    """What `Cluster(**values)` needs: with hundreds of clusters, most of a checkpoint would be
    names of fields."""
    return {name: value for name, value in vars(cluster).items() if value != _DEFAULTS[name]}


def restore_lineage(state: Mapping[str, Any]) -> Lineage:
    """Raises `InvalidState` for a damaged state."""
    try:
        clusters = [Cluster(**entry) for entry in state["clusters"]]
        return Lineage(
            int(state["next_identity"]),
            int(state["next_candidate"]),
            int(state["readings"]),
            {cluster.identity: cluster for cluster in clusters},
            _mapping(state["of_node"]),
            _mapping(state["node_mass"]),
            _mapping(state["of_number"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as broken:
        raise InvalidState(f"the lineage of clusters is damaged: {broken}") from None


def _columns(mapping: Mapping[int, Any], kind: type[np.generic] = np.int64) -> list[Any]:
    return [np.array(list(mapping), dtype=np.int64), np.array(list(mapping.values()), dtype=kind)]


def _mapping(columns: Any) -> dict[int, Any]:
    keys, values = columns
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def carried_by_place(
    lineage: Lineage, before: ClusteringView, after: ClusteringView, readings: int
) -> Lineage:
    """The lineage with each node of `after` given the identity of the nearest node of `before`.

    `readings` is how many the rebuilt model has learnt. Fewer than before: counts of readings in
    the lineage move down with it, so that what is confirmed stays so, and what has vanished is gone
    as soon as it would have been.
    """
    # A rebuild starts from what the log still has, which can be less than what had been learnt.
    less = lineage.readings - readings
    clusters = {
        identity: replace(
            cluster,
            since_reading=max(0, cluster.since_reading - less),
            present_reading=max(0, cluster.present_reading - less),
        )
        for identity, cluster in lineage.clusters.items()
    }
    of_node: dict[int, int] = {}
    if len(before.nodes) and len(after.nodes):
        places, _ = nearest(after.nodes, before.nodes)
        known = [lineage.of_node.get(number) for number in before.node_id.tolist()]
        named = zip(
            after.node_id.tolist(), (known[place] for place in places.tolist()), strict=True
        )
        of_node = {number: identity for number, identity in named if identity is not None}
    mass = dict(zip(after.node_id.tolist(), after.mass.tolist(), strict=True))
    return replace(lineage, readings=readings, clusters=clusters, of_node=of_node, node_mass=mass)


def dwells_of(regimes: RegimeView | None, lineage: Lineage) -> dict[int, float]:
    """identity -> mean dwell in readings, two digits of it; none while there is one regime."""
    if regimes is None or not regimes.block:
        return {}
    # Rounded before it is compared: what people are shown as the same number is no change.
    dwell = {number: float(f"{mean:.2g}") for number, mean in enumerate(regimes.dwell.tolist())}
    return {
        identity: dwell[number]
        for number, identity in lineage.of_number.items()
        if dwell.get(number, 0.0) > 0
    }


def dwell_text(dwell: float | None, reading_s: float | None) -> str:
    """A mean dwell in readings, in two digits, as it is not known better; in time where readings
    have it."""
    if reading_s:
        return duration((dwell or 0.0) * reading_s)
    return f"{float(f'{dwell or 0.0:.2g}'):,.0f} readings"


SETTLES_MIN: Final = 2_000
SETTLES_MAX: Final = 20_000
"""a model settles for as many readings as it had learnt, within these limits"""


@dataclass(frozen=True)
class CarriedIdentities:
    """The clusters known before a change: n places over k features."""

    features: Ints
    """(k,) positions of these features in the contract"""
    places: Floats
    """(n, k) in unit coordinates"""
    identity: Ints
    """(n,) of the cluster that each is of"""
    from_reading: int = 0
    """readings that the model had learnt at the change"""
    lasting: Mapping[int, int] = field(default_factory=dict)
    """identity that the algorithm itself gives a cluster -> its lasting one"""

    @classmethod
    def of(
        cls,
        lineage: Lineage,
        view: ClusteringView | None,
        common: CommonPlaces,
        earlier: Self | None,
    ) -> Self:
        """Those of the newest snapshot before a change; `earlier`: of the change before, for
        clusters still away."""
        places = np.empty((0, len(common.after)))
        identity = np.empty(0, dtype=np.int64)
        if view is not None:
            of_number = [lineage.of_number.get(number, -1) for number in view.cluster.tolist()]
            shown = np.array(of_number, dtype=np.int64)
            places = common.moved(view.nodes[shown >= 0])
            identity = shown[shown >= 0]
        # Two changes in a row: a cluster that has not come back since the first must not be
        # forgotten by the second.
        if earlier is not None and list(earlier.features) == list(common.before):
            away = ~np.isin(earlier.identity, identity)
            moved = earlier.places[away] * common.factor + common.shift
            places = np.concatenate([places, moved])
            identity = np.concatenate([identity, earlier.identity[away]])
        return cls(common.after, places, identity, lineage.readings)

    @classmethod
    def published(cls, snapshot: Snapshot, view: ClusteringView) -> Self | None:
        """What a published snapshot shows, for a rebuild; None of an algorithm that keeps no
        identities itself."""
        if view.identity is None:
            return None
        own = view.identity.tolist()
        lasting = {
            own[one.number]: one.identity
            for one in snapshot.cluster_identities
            if one.number < len(own)
        }
        none = np.empty(0, dtype=np.int64)
        return cls(none, np.empty((0, 0)), none, lasting=lasting)

    def _settles(self, lineage: Lineage) -> bool:
        span = min(max(self.from_reading, SETTLES_MIN), SETTLES_MAX)
        return lineage.readings <= self.from_reading + span

    def follow(
        self, lineage: Lineage, view: ClusteringView
    ) -> tuple[Self, Lineage, ClusteringView]:
        """Give what `view` shows its identities, before the lineage takes its next step."""
        if view.identity is None:
            return self, self._with_nodes(lineage, view), view
        known = self._with_clusters(lineage, view)
        identity = np.array([known.lasting[one] for one in view.identity.tolist()], dtype=np.int64)
        parents = (
            None
            if view.parent is None
            else [known.lasting.get(one, -1) for one in view.parent.tolist()]
        )
        parent = None if parents is None else np.array(parents, dtype=np.int64)
        return known, lineage, replace(view, identity=identity, parent=parent)

    def _with_nodes(self, lineage: Lineage, view: ClusteringView) -> Lineage:
        # Nodes with an identity keep it, or a cluster that moves would change its own; places are
        # for those without.
        new = np.array(
            [node not in lineage.of_node for node in view.node_id.tolist()], dtype=np.bool_
        )
        if not (new.any() and len(self.places)):
            return lineage
        there = [lineage.of_node.get(node, -1) for node in view.node_id.tolist()]
        places, identity = self._candidates(lineage, view, np.array(there, dtype=np.int64))
        if not len(places):
            return lineage
        at, _ = nearest(view.nodes[new][:, self.features], places)
        found = zip(view.node_id[new].tolist(), identity[at].tolist(), strict=True)
        named = {node: one for node, one in found if one in lineage.clusters}
        return replace(lineage, of_node={**lineage.of_node, **named})

    def _candidates(
        self, lineage: Lineage, view: ClusteringView, there: Ints
    ) -> tuple[Floats, Ints]:
        """The places that new nodes are compared with, and the cluster of each; -1: it gives
        none."""
        if self._settles(lineage):
            return self.places, self.identity
        away = ~np.isin(self.identity, there)
        known = there >= 0
        places = np.concatenate([self.places[away], view.nodes[known][:, self.features]])
        return places, np.concatenate(
            [self.identity[away], np.full(int(known.sum()), -1, dtype=np.int64)]
        )

    def _with_clusters(self, lineage: Lineage, view: ClusteringView) -> Self:
        assert view.identity is not None
        # While it settles all are compared anew, since the algorithm may still cut a cluster it has
        # named; afterwards what was given lasts.
        settles = bool(len(self.places)) and self._settles(lineage)
        own = view.identity.tolist()
        lasting = {} if settles else dict(self.lasting)
        near = np.full(len(own), -1, dtype=np.int64)
        order = np.arange(len(own))
        if len(self.places) and len(own):
            at, squared = nearest(view.centres[:, self.features], self.places)
            # The nearest claims its identity first; what lies farther takes what is left.
            near = self.identity[at]
            order = np.argsort(squared, kind="stable")
        for number in order.tolist():
            if own[number] in lasting:
                continue
            found = int(near[number])
            taken = set(lasting.values())
            if found not in lineage.clusters or found in taken:
                found = self.lasting.get(own[number], -1)
                # An identity of before the change belongs to its place, so a cluster elsewhere gets
                # a new one.
                if found < 0 or found in taken or found in self.identity:
                    # Above all that were ever given, as people may have named those.
                    found = max(
                        [
                            lineage.next_identity,
                            *(one + 1 for one in (*taken, *self.lasting.values())),
                        ]
                    )
            lasting[own[number]] = found
        return replace(self, lasting=lasting)

    def state(self) -> list[Any]:
        """Plain values and arrays for `restored`."""
        pairs = [list(pair) for pair in self.lasting.items()]
        return [self.features, self.places, self.identity, self.from_reading, pairs]

    @classmethod
    def restored(cls, state: Iterable[Any]) -> Self:
        """The saved ones. Raises `TypeError` or `ValueError` for a damaged state."""
        features, places, identity, from_reading, pairs = state
        return cls(
            features,
            places,
            identity,
            int(from_reading),
            {int(own): int(one) for own, one in pairs},
        )


def without_nodes(lineage: Lineage, kept_for: int) -> Lineage:
    """The lineage of a model that begins anew: nodes and candidates are gone, known clusters are
    kept for this many readings at least."""
    until = lineage.readings + kept_for if kept_for else 0
    kept = {
        identity: replace(cluster, kept_until=until, merging_into=None, parent=None)
        for identity, cluster in lineage.clusters.items()
        if cluster.known
    }
    return replace(lineage, clusters=kept, of_node={}, node_mass={}, of_number={})
