"""What happens to a known cluster, and what operators may change of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple


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
    """the mean dwell in it, of a state, has changed from `dwell_before` to `dwell`"""
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


BRIEF_S: Final = 60.0
"""seconds below which a cluster that has ended was none: learning was not finished when it was told
"""
BEGINS: Final = frozenset({EventKind.BIRTH, EventKind.PARTED})
ENDS: Final = frozenset({EventKind.MERGED, EventKind.GONE})
FED_KINDS: Final = BEGINS | {EventKind.RETURNED}
"""kinds of events that have the client from which nearly all readings of the cluster come"""


class DatedEvent(NamedTuple):
    """What of an event decides whether it is one of a brief cluster."""

    at: float
    """time of the newest reading when it was found, seconds since 1970"""
    kind: str
    cluster: int


def brief_events(events: Sequence[DatedEvent]) -> list[bool]:
    """(n,) whether each of n events, in their order, is the begin or the end of a cluster that
    there was for less than `BRIEF_S`.

    Such events are no headline of the page and no line of `shoal events list`.
    """
    brief = [False] * len(events)
    begun: dict[int, int] = {}
    """cluster -> place of the event with which it began"""
    for place, event in enumerate(events):
        if event.kind in BEGINS:
            begun[event.cluster] = place
        elif event.kind in ENDS and event.cluster in begun:
            begin = begun.pop(event.cluster)
            is_brief = 0 <= event.at - events[begin].at < BRIEF_S
            brief[begin] = is_brief
            brief[place] = is_brief
    return brief


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
    """the client, of an event that is of one; of `FED_KINDS` the one from which nearly all readings
    of the cluster come, if there is one"""
    first: float | None = None
    """time of the first readings of a cluster that is new, seconds since 1970; None where it is not
    known, and of other events"""
    last: float | None = None
    """time of its last readings; None where they still came when it was found"""


class ClusterChange(NamedTuple):
    """Change of a known cluster that an operator asks for."""

    identity: int
    kind: EventKind
    """event that reports it"""
    values: Mapping[str, Any]
    """field of `Cluster` -> its value from now on"""
