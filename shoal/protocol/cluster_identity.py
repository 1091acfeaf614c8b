"""The lasting identity of a cluster as it travels in snapshots, as a plain list."""

from __future__ import annotations

from typing import NamedTuple

from shoal.protocol.checks import is_cluster_name, is_count, is_moment, is_number


class ClusterIdentity(NamedTuple):
    """The lasting identity of one cluster of a snapshot."""

    number: int
    """of the cluster in the arrays of this snapshot"""
    identity: int
    name: str
    """the name that people gave it; empty without one"""
    active: bool
    """whether readings fall to it at present"""
    slot: int
    """what it is drawn as: no two known clusters of a model share one"""
    since_reading: int
    """readings that the model had learnt when it was first seen"""
    since: float
    """when that was, seconds since 1970"""
    recent_share: float
    """of the readings of late, 0 to 1"""


def is_cluster_identity(value: object) -> bool:
    """Whether this list can be a `ClusterIdentity`."""
    if not isinstance(value, list) or len(value) != len(ClusterIdentity._fields):
        return False
    number, identity, name, active, slot, since_reading, since, share = value
    counts = is_count(number) and is_count(identity) and is_count(slot) and is_count(since_reading)
    moment = is_moment(since) and is_number(share) and 0 <= share <= 1
    return counts and moment and is_cluster_name(name) and isinstance(active, bool)
