"""Clusters of the leaves, and their lasting identities.

Leaves are joined where the valley between them has filled up. An identity says which cluster
continues which, and whether it receives readings at present.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.extents import Extents, extents
from shoal.algorithms.density_tree.leaf import Leaf
from shoal.algorithms.density_tree.plan import LEAST_EXTENT, MIDDLE_80
from shoal.algorithms.density_tree.tree import (
    Cut,
    Node,
    axis_in,
    cuts_of,
    ends_meet,
    is_filled,
    leaves_of,
)
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.kernels.arrays import Bools, Floats, Ints

MASS_SIGNIFICANCE = 2.5
"""standard deviations above zero from which a leaf has mass"""
REACHING_SHARE = 0.1
"""share of its readings that a leaf has where it touches a neighbour of the same cluster"""
NEAR_WIDTHS = 3.0
"""standard deviations between the means of two leaves on a feature up to which they are at one
place there"""


def masses(leaves: list[Leaf]) -> Floats:
    """(l,) share of the readings in each leaf; 0 where it is not significant, equal shares as long
    as none is."""
    found = np.zeros(len(leaves))
    for i, leaf in enumerate(leaves):
        held = float(leaf.coarse[: leaf.d].sum())
        noise = float(leaf.coarse_noise[: leaf.d].sum())
        if held > MASS_SIGNIFICANCE * np.sqrt(noise + max(held, 0.0) + 1.0):
            # By exposure: leaves differ in how many of their axes windows sample.
            found[i] = held / max(float(leaf.exposure[: leaf.d].sum()), 1e-9)
    total = float(found.sum())
    return found / total if total > 0.0 else np.full(len(leaves), 1.0 / len(leaves))


def cluster_leaves(root: Node, mass: Floats, filled: float, circular: Sequence[int] = ()) -> Ints:
    """(l,) the cluster of each leaf, numbered from 0 in the order of their first leaves.

    Leaves on either side of a cut whose valley has filled up are joined where they touch, and so
    are those at both ends of a `circular` feature, which is one place. A cut may keep its valley
    between other leaves: two that have none between them and are at one place in all other features
    are joined all the same. What holds no significant mass is no cluster and goes with the heaviest
    leaf on the other side of its cut.
    """
    leaves = leaves_of(root)
    place = {leaf.leaf_id: i for i, leaf in enumerate(leaves)}
    groups = _Groups(len(leaves))
    cuts = list(cuts_of(root))
    _join_across(root, cuts, groups, mass, filled, circular)
    for feature in circular:
        sides = (
            [leaf for leaf in leaves if leaf.high[feature] >= 1.0],
            [leaf for leaf in leaves if leaf.low[feature] <= 0.0],
        )
        for last, first in product(*(_with_mass(side, mass, place) for side in sides)):
            if (
                last is not first
                and _overlap(last, first, feature)
                and ends_meet(feature, last, first, filled)
            ):
                groups.join(place[last.leaf_id], place[first.leaf_id])
    # From the leaves up: the groups within a part are known before the part is joined.
    for cut in reversed(cuts):
        below, above = ([place[leaf.leaf_id] for leaf in leaves_of(part)] for part in cut.parts)
        for empty, others in ((below, above), (above, below)):
            if mass[empty].sum() == 0.0 < mass[others].sum():
                # Of equally heavy leaves the first.
                heaviest = max(others, key=lambda i: float(mass[i]))
                for i in empty:
                    groups.join(i, heaviest)
    return groups.numbers()


def _join_across(
    root: Node,
    cuts: Sequence[Cut],
    groups: _Groups,
    mass: Floats,
    filled: float,
    circular: Sequence[int],
) -> None:
    """Join leaves that touch across a cut where no valley is left."""
    if not cuts:
        return
    place = {leaf.leaf_id: i for i, leaf in enumerate(leaves_of(root))}
    near = _near(extents(root), circular)
    for cut in cuts:
        left, right = (leaves_of(part) for part in cut.parts)
        no_valley = is_filled(cut, left, right, filled)
        # On an oblique cut all features are others.
        at_one_place = np.asarray(near[..., np.arange(near.shape[-1]) != cut.axis].all(axis=-1))
        for one, other in product(_with_mass(left, mass, place), _with_mass(right, mass, place)):
            pair = place[one.leaf_id], place[other.leaf_id]
            if not (no_valley or at_one_place[pair]) or not _touch(cut, one, other):
                continue
            # Of leaves at one place it is enough that there is more likely none than one.
            if is_filled(cut, [one], [other], filled, sure=0.0 if at_one_place[pair] else 1.0):
                groups.join(*pair)


def _with_mass(side: list[Leaf], mass: Floats, place: dict[int, int]) -> list[Leaf]:
    """Leaves of a side that hold significant mass: others would join the clusters between which
    they lie."""
    return [leaf for leaf in side if mass[place[leaf.leaf_id]] > 0.0]


def _touch(cut: Cut, left: Leaf, right: Leaf) -> bool:
    """Whether two leaves lie on either side of the cut and meet there, both with readings."""
    # Exactly: both ends were set to the same number when the leaf was cut.
    if left.end[axis_in(left, cut)] != cut.at or right.start[axis_in(right, cut)] != cut.at:
        return False
    return _overlap(left, right, cut.axis)


def _overlap(left: Leaf, right: Leaf, axis: int) -> bool:
    """Whether two leaves have readings at the same places of all features but the one that is
    `axis`."""
    low = np.maximum(left.low, right.low)
    high = np.minimum(left.high, right.high)
    features = [feature for feature in range(left.d) if feature != axis]
    if not all(low[feature] < high[feature] for feature in features):
        return False
    return all(_reaches(leaf, feature, low, high) for leaf in (left, right) for feature in features)


def _reaches(leaf: Leaf, feature: int, low: Floats, high: Floats) -> bool:
    """Whether a leaf has some of its readings within low .. high (d,) of a feature, as far as noise
    can tell.

    What it has near a cut says nothing of a neighbour that it meets where it has no readings.
    """
    if low[feature] <= leaf.low[feature] and leaf.high[feature] <= high[feature]:
        return True
    ends = (
        np.array([low[feature], leaf.low[feature]]),
        np.array([high[feature], leaf.high[feature]]),
    )
    (within, every), (variance, _) = leaf.density(feature, *ends)
    return bool(within + np.sqrt(variance) >= REACHING_SHARE * every)


def _near(extent: Extents, circular: Sequence[int]) -> Bools:
    """(l, l, d) whether the means of two leaves differ little on a feature, by the widths of their
    readings.

    Extents are made from released counts, as all else that is looked at here.
    """
    distance = np.abs(extent.mean[:, None] - extent.mean)
    for feature in circular:
        distance[..., feature] = np.minimum(distance[..., feature], 1.0 - distance[..., feature])
    variance = np.square(np.maximum(extent.high - extent.low, LEAST_EXTENT) / MIDDLE_80)
    return np.asarray(distance <= NEAR_WIDTHS * np.sqrt((variance[:, None] + variance) / 2.0))


class _Groups:
    """Disjoint sets of leaves."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def join(self, a: int, b: int) -> None:
        self._parent[self._root(a)] = self._root(b)

    def numbers(self) -> Ints:
        roots = [self._root(i) for i in range(len(self._parent))]
        number: dict[int, int] = {}
        return np.array([number.setdefault(root, len(number)) for root in roots], dtype=np.int64)

    def _root(self, i: int) -> int:
        while self._parent[i] != i:
            self._parent[i] = i = self._parent[self._parent[i]]
        return i


ACTIVE_FROM = 3.0
ACTIVE_UNTIL = 1.0
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
        identity_of: dict[int, int] = {}
        # The largest share first; of equal ones the first group, so that a rebuild names clusters
        # as before.
        for (group, identity), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
            if group not in identity_of and identity not in identity_of.values():
                identity_of[group] = identity
        for group in range(int(cluster.max()) + 1):
            if group not in identity_of:
                former = {
                    identity: share for (owner, identity), share in shared.items() if owner == group
                }
                parent = max(former, key=former.__getitem__) if former else NO_PARENT
                identity_of[group] = self._next
                self.clusters[self._next] = Cluster(readings, parent)
                self._next += 1
        for leaf, group in zip(leaves, cluster.tolist(), strict=True):
            leaf.identity = identity_of[group]
        self.clusters = {
            identity: self.clusters[identity] for identity in sorted(identity_of.values())
        }
        return np.array([identity_of[group] for group in range(len(identity_of))], dtype=np.int64)

    def update_activity(self, identity: Ints, recent: Floats, variance: Floats) -> None:
        """Identities (c,), their recent readings and the variance of these (c,): decide which
        clusters are active."""
        for one, held, noise in zip(
            identity.tolist(), recent.tolist(), variance.tolist(), strict=True
        ):
            cluster = self.clusters[one]
            # Two limits, so that noise around one of them does not turn a cluster on and off.
            least = ACTIVE_UNTIL if cluster.active else ACTIVE_FROM
            cluster.active = held > least * math.sqrt(noise + 1.0)

    def state(self) -> State:
        """Everything as arrays, one entry for each identity."""
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
