"""Matching of the clusters of two snapshots, by the mass of the nodes that both have."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shoal.algorithms.view import ClusteringView
from shoal.server_node.report.lineage.clusters import NO_CLUSTER

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Groups:
    """The clusters of one snapshot that can be followed: those of two nodes or more where nodes are
    joined by edges (a single node of such an algorithm is not a cluster), else every centre with
    mass."""

    mass: Mapping[int, float]
    """number in the snapshot -> mass of its nodes"""
    first_node: Mapping[int, int]
    """number -> its oldest node id: decides between equals"""
    of_node: Mapping[int, int]
    """node id -> number, for nodes of these groups"""
    node_mass: Mapping[int, float]
    """node id -> mass, for all nodes of the snapshot"""
    nodes: Mapping[int, list[int]]
    """number -> ids of its nodes"""


def groups_of(view: ClusteringView) -> Groups:
    """The followable clusters of a view. O(nodes)."""
    ids = view.node_id.tolist()
    numbers = view.cluster.tolist()
    masses = view.mass.tolist()
    node_mass = dict(zip(ids, masses, strict=True))
    nodes: defaultdict[int, list[int]] = defaultdict(list)
    for node, number in zip(ids, numbers, strict=True):
        if number != NO_CLUSTER:
            nodes[number].append(node)
    mass = {
        # Rounded once: masses that a plain sum rounds differently in another order of nodes would
        # match other clusters after a restart.
        number: math.fsum(node_mass[node] for node in nodes[number])
        for number in sorted(nodes)
    }
    kept = {
        number: nodes[number]
        for number in mass
        if len(nodes[number]) >= view.nodes_min and mass[number] > 0
    }
    return Groups(
        {number: mass[number] for number in kept},
        {number: min(members) for number, members in kept.items()},
        {node: number for number, members in kept.items() for node in members},
        node_mass,
        kept,
    )


@dataclass(frozen=True)
class Match:
    """Matching of the clusters before and the groups now."""

    group_of: Mapping[int, int]
    """identity -> the group it goes on as"""
    origin_of: Mapping[int, int]
    """group that no identity goes on as -> the identity that most of its known mass had; absent:
    its nodes are new"""
    now_in: Mapping[int, int]
    """identity that goes on as no group -> the group that most of its nodes are part of; absent:
    none of them are"""


def summed_masses(masses: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """The sum of each list, rounded once: the order of nodes changes no bit."""
    return {key: math.fsum(mass) for key, mass in masses.items()}


def match_groups(groups: Groups, before: Mapping[int, int]) -> Match:
    """Match groups with identities; `before`: node id -> identity. Each identity goes on as one
    group at most, the one with which it shares most mass. Ties go to the older identity, then to
    the older node, so the order of nodes and numbers changes nothing."""
    # By the mass of now, of the nodes that both snapshots have: what has joined since then is of no
    # cluster before, and decides nothing.
    masses: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for node, number in groups.of_node.items():
        if node in before:
            masses[number, before[node]].append(groups.node_mass[node])
    shared = summed_masses(masses)
    # The largest share claims first; of equal ones the older cluster, then the group with the older
    # node.
    pairs = sorted(
        shared.items(),
        key=lambda pair: (-pair[1], age_of(pair[0][1]), groups.first_node[pair[0][0]]),
    )
    group_of: dict[int, int] = {}
    claimed: set[int] = set()
    for (number, identity), _ in pairs:
        if identity not in group_of and number not in claimed:
            group_of[identity] = number
            claimed.add(number)
    origin_of: dict[int, int] = {}
    now_in: dict[int, int] = {}
    for (number, identity), _ in pairs:
        # In the order of `pairs`: the first one found has the most mass, so `setdefault` keeps
        # that.
        if number not in claimed:
            origin_of.setdefault(number, identity)
        if identity not in group_of:
            now_in.setdefault(identity, number)
    return Match(group_of, origin_of, now_in)


def match_identities(view: ClusteringView, groups: Groups, by_mass: Match) -> Match:
    """The match of an algorithm that keeps identities itself: a group goes on as the one that the
    view gives it."""
    given = [] if view.identity is None else view.identity.tolist()
    group_of = {given[number]: number for number in groups.mass}
    if view.parent is None:
        origin = {number: identity for identity, number in by_mass.group_of.items()} | dict(
            by_mass.origin_of
        )
    else:
        parents = view.parent.tolist()
        origin = {number: parents[number] for number in groups.mass if parents[number] >= 0}
    lost = [*by_mass.group_of.items(), *by_mass.now_in.items()]
    # A group that goes on as itself has parted from nothing.
    return Match(
        group_of,
        {number: identity for number, identity in origin.items() if identity != given[number]},
        {identity: number for identity, number in lost if identity not in group_of},
    )


def age_of(identity: int) -> tuple[bool, int]:
    """Known clusters before candidates, older ones first (candidates count downwards)."""
    return identity < 0, abs(identity)
