"""Who is who among clusters: an identity that stays with a cluster however the algorithm numbers it.

Algorithms number clusters anew in each snapshot. What stays is their nodes, so a cluster of the new snapshot is the
one before with which it shares most of them. Each identity goes on in one cluster at most, and none is given twice:

- a cluster without any node known before is *born*;
- one whose nodes were known, in clusters that go on elsewhere, has *split* off;
- an identity that goes on nowhere though nodes of it live has *merged* into where they are;
- one without any node left is *dead*.

So births + splits - merges - deaths is the change in the number of clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Arrays

NO_CLUSTER = -1


class Turnover(NamedTuple):
    """What became of clusters from one snapshot to the next."""

    births: int = 0
    splits: int = 0
    merges: int = 0
    deaths: int = 0


@dataclass(frozen=True)
class Lineage:
    """The clusters of one snapshot by identity."""

    born: int = 0
    """identities given so far; they count from 0"""
    of_node: Mapping[int, int] = field(default_factory=dict)
    """node -> identity of its cluster; nodes of no cluster are not in it"""
    of_cluster: Mapping[int, int] = field(default_factory=dict)
    """number in the snapshot -> identity"""
    slots: Mapping[int, int] = field(default_factory=dict)
    """identity -> the smallest number that no other living cluster had when it came: what it is drawn in"""

    def state(self) -> dict[str, Any]:
        """Plain values for `restored`."""
        return {
            "born": self.born,
            "nodes": _columns(self.of_node),
            "clusters": _columns(self.of_cluster),
            "slots": _columns(self.slots),
        }


def restored(state: Mapping[str, Any]) -> Lineage:
    """Raises `KeyError`, `TypeError` or `ValueError` for a damaged state."""
    return Lineage(int(state["born"]), *(_mapping(state[name]) for name in ("nodes", "clusters", "slots")))


def next_lineage(before: Lineage, node: Sequence[int], cluster: Sequence[int]) -> tuple[Lineage, Turnover]:
    """Go on with the next snapshot: its nodes, by what stays with each while it lives, and the cluster of each.

    A cluster takes the identity that most of its nodes had; one wanted twice goes to the cluster with more of them,
    and where that is undecided, the older identity and the older node decide. What numbers the clusters have and in
    which order the nodes come changes nothing. The time taken grows with the nodes.
    """
    oldest: dict[int, int] = {}
    shared: Counter[tuple[int, int]] = Counter()
    for one, number in zip(node, cluster, strict=True):
        if number == NO_CLUSTER:
            continue
        oldest[number] = min(one, oldest.get(number, one))
        if one in before.of_node:
            shared[number, before.of_node[one]] += 1
    given = _claimed(shared, oldest)
    new = sorted(oldest.keys() - given.keys(), key=oldest.__getitem__)
    of_cluster = given | {number: before.born + place for place, number in enumerate(new)}
    after = Lineage(
        before.born + len(new),
        {one: of_cluster[number] for one, number in zip(node, cluster, strict=True) if number != NO_CLUSTER},
        of_cluster,
        _slots(before.slots, of_cluster.values()),
    )
    related = {number for number, _ in shared}
    alive = {identity for _, identity in shared}
    gone = before.slots.keys() - after.slots.keys()
    splits, merges = len(related.intersection(new)), len(alive & gone)
    return after, Turnover(len(new) - splits, splits, merges, len(gone) - merges)


def nodes_and_clusters(arrays: Arrays) -> tuple[list[int], list[int]]:
    """What stays with each node of a snapshot while it lives, and its cluster.

    An algorithm that has centres and no nodes keeps their order, so there a node is the place of a centre; a centre
    with no mass behind it is no cluster.
    """
    if "cluster" in arrays:
        return arrays["node_id"].tolist(), arrays["cluster"].tolist()
    places = np.arange(len(arrays["centre"]))
    mass = arrays.get("weight", np.ones(len(places)))
    return places.tolist(), np.where(mass > 0, places, NO_CLUSTER).tolist()


def _claimed(shared: Mapping[tuple[int, int], int], oldest: Mapping[int, int]) -> dict[int, int]:
    """(cluster, identity) -> nodes shared, cluster -> its oldest node -> which cluster goes on as which identity."""
    given: dict[int, int] = {}
    taken: set[int] = set()
    for (number, identity), _ in sorted(shared.items(), key=lambda at: (-at[1], at[0][1], oldest[at[0][0]])):
        if number not in given and identity not in taken:
            given[number] = identity
            taken.add(identity)
    return given


def _slots(before: Mapping[int, int], identities: Iterable[int]) -> dict[int, int]:
    living = sorted(identities)
    kept = {identity: before[identity] for identity in living if identity in before}
    taken = set(kept.values())
    free = (slot for slot in count() if slot not in taken)
    return {identity: kept[identity] if identity in kept else next(free) for identity in living}


def _columns(mapping: Mapping[int, int]) -> list[Any]:
    return [np.array(list(side), dtype=np.int64) for side in (mapping.keys(), mapping.values())]


def _mapping(columns: Sequence[Any]) -> dict[int, int]:
    keys, values = columns
    return dict(zip(keys.tolist(), values.tolist(), strict=True))
