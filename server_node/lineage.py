"""The lineage of clusters: identities that stay with clusters however the algorithm numbers them.

Algorithms number clusters anew in each snapshot. What lasts is their nodes, so a cluster of the new snapshot is the
one before with which it shares most of them. Each identity goes on in at most one cluster and is never given again:

- a cluster without any node known before is a *birth*;
- one whose nodes were known, in clusters that go on elsewhere, is a *split*;
- an identity that goes on nowhere although nodes of it live has *merged* into where they are;
- one without any node left is a *death*.

So births + splits - merges - deaths is the change in the number of clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.view import NO_CLUSTER, ClusteringView


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
    """node id -> identity of its cluster; nodes of no cluster are left out"""
    of_cluster: Mapping[int, int] = field(default_factory=dict)
    """number in the snapshot -> identity"""
    slots: Mapping[int, int] = field(default_factory=dict)
    """identity -> the smallest number that no other living cluster had when it appeared: it decides its colour"""

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore_lineage`."""
        return {
            "born": self.born,
            "of_node": _columns(self.of_node),
            "of_cluster": _columns(self.of_cluster),
            "slots": _columns(self.slots),
        }


def restore_lineage(state: Mapping[str, Any]) -> Lineage:
    """The lineage that `state` was made of. Raises `KeyError`, `TypeError` or `ValueError` for a damaged state."""
    return Lineage(int(state["born"]), *(_mapping(state[name]) for name in ("of_node", "of_cluster", "slots")))


def next_lineage(before: Lineage, view: ClusteringView) -> tuple[Lineage, Turnover]:
    """The lineage of the next snapshot, and what became of the clusters of the one before.

    A cluster takes the identity that most of its nodes had; one wanted twice goes to the cluster with more of them,
    and where that is undecided, the older identity and the older node decide. What numbers the clusters have and in
    which order the nodes come changes nothing. The time taken grows with the nodes.
    """
    placed = [
        (node, number)
        for node, number in zip(view.node_id.tolist(), view.cluster.tolist(), strict=True)
        if number != NO_CLUSTER
    ]
    oldest: dict[int, int] = {}
    shared: Counter[tuple[int, int]] = Counter()
    for node, number in placed:
        oldest[number] = min(node, oldest.get(number, node))
        if node in before.of_node:
            shared[number, before.of_node[node]] += 1
    matched = _matched(shared, oldest)
    new = sorted(oldest.keys() - matched.keys(), key=oldest.__getitem__)
    of_cluster = matched | {number: before.born + place for place, number in enumerate(new)}
    after = Lineage(
        before.born + len(new),
        {node: of_cluster[number] for node, number in placed},
        of_cluster,
        _slots(before.slots, of_cluster.values()),
    )
    related = {number for number, _ in shared}
    alive = {identity for _, identity in shared}
    gone = before.slots.keys() - after.slots.keys()
    splits, merges = len(related.intersection(new)), len(alive & gone)
    return after, Turnover(len(new) - splits, splits, merges, len(gone) - merges)


def _matched(shared: Mapping[tuple[int, int], int], oldest: Mapping[int, int]) -> dict[int, int]:
    """(cluster, identity) -> nodes shared, cluster -> its oldest node -> which cluster goes on as which identity."""
    matched: dict[int, int] = {}
    taken: set[int] = set()
    for (number, identity), _ in sorted(shared.items(), key=lambda at: (-at[1], at[0][1], oldest[at[0][0]])):
        if number not in matched and identity not in taken:
            matched[number] = identity
            taken.add(identity)
    return matched


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
