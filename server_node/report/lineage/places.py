"""Identities that are found again by where clusters lie, where nodes have no identity any more.

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
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np

from shoal.algorithms.view import ClusteringView
from shoal.config.changes import CommonPlaces
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest
from shoal.protocol.messages import Snapshot
from shoal.server_node.report.lineage.clusters import Lineage


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


def without_nodes(lineage: Lineage, kept_for: int) -> Lineage:
    """The lineage of a model that begins anew: nodes and candidates are gone, known clusters are
    kept for this many readings at least."""
    until = lineage.readings + kept_for if kept_for else 0
    kept = {
        identity: replace(cluster, kept_until=until, merging_into=None, parent=None)
        for identity, cluster in lineage.clusters.items()
        if cluster.known
    }
    # Places are in the coordinates of the contract before.
    return replace(
        lineage,
        clusters=kept,
        of_node={},
        node_mass={},
        of_number={},
        places={},
        former_places={},
        begun_anew=False,
    )


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
            own[cluster.number]: cluster.identity
            for cluster in snapshot.cluster_identities
            if cluster.number < len(own)
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
        own = view.identity.tolist()
        identity = np.array([known.lasting[number] for number in own], dtype=np.int64)
        parent = None
        if view.parent is not None:
            parents = [known.lasting.get(number, -1) for number in view.parent.tolist()]
            parent = np.array(parents, dtype=np.int64)
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
        named = {node: owner for node, owner in found if owner in lineage.clusters}
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
                    highest = max([*taken, *self.lasting.values()], default=-1)
                    found = max(lineage.next_identity, highest + 1)
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
            {int(own): int(identity) for own, identity in pairs},
        )
