"""What happens to a known cluster, and what operators may change of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


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
    """its share of the recent readings has moved, and by more than it does by day and night or at
    weekends: `share` of the readings of the newest day, where `share_before` is usual"""
    DWELL_MOVED = "dwell_moved"
    """the mean dwell in it, of a regime, has changed from `dwell_before` to `dwell`"""
    UNUSUAL = "unusual"
    """shares of clusters are unusual for the time of day, its own most: `share` where
    `share_before` is usual"""
    USUAL_AGAIN = "usual_again"
    """the shares are usual again"""
    UNLIKE_OTHERS = "unlike_others"
    """the shares of the client `client` differ from those of all others, of this cluster most:
    `share` where the most similar other client has `share_before`"""
    LIKE_OTHERS_AGAIN = "like_others_again"
    """they differ no more than usual again"""


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
    client: str = ""
    """the client, of an event that is of one"""


class ClusterChange(NamedTuple):
    """Change of a known cluster that an operator asks for."""

    identity: int
    kind: EventKind
    """event that reports it"""
    values: Mapping[str, Any]
    """field of `Cluster` -> its value from now on"""
