"""Cluster identities: which cluster of one snapshot is which of the next, and what has become of
each.

Algorithms number their clusters anew in every snapshot. A lineage follows them by the mass of the
nodes that two snapshots share and gives each an identity that lasts. A cluster is *known* once it
holds a stated share of the readings or has lasted for a stated number of them, and it stops being
known only when it has been away that long: so the number of known clusters does not move with every
group of nodes that comes and goes. A known cluster is *active* while readings fall to it, else
*quiet*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from shoal.algorithms.former_clusters import Place
from shoal.algorithms.view import StatesView
from shoal.errors import InvalidState
from shoal.protocol.events import duration
from shoal.server_node.report.lineage.events import ClusterChange

# Candidates count down from below it, so that one number tells a known cluster, none and a
# candidate apart.
NO_CLUSTER = -1


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
    mass_share: float = 0.0
    """share of all mass; no share of readings, as an algorithm may cap or fade mass"""
    recent: float = 0.0
    """readings that fell to it, older ones faded"""
    recent_slow: float = 0.0
    """the same, fading more slowly: the recent share is made of these"""
    recent_share: float = 0.0
    """share of the recent readings of all clusters; see `types.Cluster`"""
    active: bool = True
    reported_share: float = 0.0
    """the recent share that an event last reported, or that it began with"""
    reported_dwell: float = 0.0
    """mean dwell in it that was last reported, if it is a state, in readings; 0 before it was
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
        # `__init__` of a frozen dataclass sets each field through `object.__setattr__`.
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

    places: Mapping[int, Place] = field(default_factory=dict)
    """known identity -> where its nodes lay when they last formed a cluster; empty for algorithms
    that keep identities themselves"""
    former: Mapping[int, Cluster] = field(default_factory=dict)
    """identity -> known cluster that has ended, the one that ended last at the end; at most
    `FORMER_MAX`"""
    former_places: Mapping[int, Place] = field(default_factory=dict)
    """identity -> where it lay; of the former clusters whose places are known"""
    begun_anew: bool = False
    """whether a model in rounds has begun from new start values since the newest clusters, so that
    the ids of its nodes say nothing"""

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
        changed = {}
        for identity, words in times.items():
            cluster = self.clusters[identity]
            if cluster.time != words:
                changed[identity] = cluster.having(time=words)
        if changed:
            return replace(self, clusters={**self.clusters, **changed})
        return self

    @cached_property
    def known(self) -> list[Cluster]:
        """The known clusters by identity. One list for all who ask, as each snapshot asks often."""
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
            "places": _place_rows(self.places),
            "former": [_without_defaults(cluster) for cluster in self.former.values()],
            "former_places": _place_rows(self.former_places),
            "begun_anew": self.begun_anew,
        }


_DEFAULTS = {cluster_field.name: cluster_field.default for cluster_field in fields(Cluster)}


def _without_defaults(cluster: Cluster) -> dict[str, Any]:
    """What `Cluster(**values)` needs: with hundreds of clusters, most of a checkpoint would be
    names of fields."""
    return {name: value for name, value in vars(cluster).items() if value != _DEFAULTS[name]}


def restore_lineage(state: Mapping[str, Any]) -> Lineage:
    """Raises `InvalidState` for a damaged state."""
    try:
        clusters = [Cluster(**entry) for entry in state["clusters"]]
        former = [Cluster(**entry) for entry in state["former"]]
        return Lineage(
            int(state["next_identity"]),
            int(state["next_candidate"]),
            int(state["readings"]),
            {cluster.identity: cluster for cluster in clusters},
            _mapping(state["of_node"]),
            _mapping(state["node_mass"]),
            _mapping(state["of_number"]),
            _places(state["places"]),
            {cluster.identity: cluster for cluster in former},
            _places(state["former_places"]),
            bool(state["begun_anew"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as broken:
        raise InvalidState(f"the lineage of clusters is damaged: {broken}") from None


def _columns(mapping: Mapping[int, Any], kind: type[np.generic] = np.int64) -> list[Any]:
    # Two arrays and no list of pairs: a checkpoint has thousands of nodes, and an array is one
    # object.
    return [np.array(list(mapping), dtype=np.int64), np.array(list(mapping.values()), dtype=kind)]


def _mapping(columns: Any) -> dict[int, Any]:
    keys, values = columns
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def _place_rows(places: Mapping[int, Place]) -> list[Any]:
    """Identities (k,), means (k, d) and variances (k, d) of places, which follow each other over
    the same features.

    After a change of the contract there are places over other features for a while: then there are
    several such rows.
    """
    rows = []
    for _, group in groupby(places.items(), key=lambda item: len(item[1].mean)):
        together = list(group)
        identities = np.array([identity for identity, _ in together], dtype=np.int64)
        means = np.array([place.mean for _, place in together])
        variances = np.array([place.variance for _, place in together])
        rows.append([identities, means, variances])
    return rows


def _places(rows: Any) -> dict[int, Place]:
    places = {}
    for identities, means, variances in rows:
        if means.ndim != 2 or means.shape != variances.shape:
            raise ValueError("means and variances of places are of different features")
        # A width of 0 would divide by zero where places are compared in widths.
        if not (np.isfinite(means).all() and (variances > 0.0).all()):
            raise ValueError("a place is not finite, or has no width")
        for identity, mean, variance in zip(identities.tolist(), means, variances, strict=True):
            places[int(identity)] = Place(mean.copy(), variance.copy())
    return places


def dwells_of(states: StatesView | None, lineage: Lineage) -> dict[int, float]:
    """identity -> mean dwell in readings, two digits of it; none while there is one state."""
    if states is None or not states.block:
        return {}
    # Rounded before it is compared: what people are shown as the same number is no change.
    dwell = {number: float(f"{mean:.2g}") for number, mean in enumerate(states.dwell.tolist())}
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
