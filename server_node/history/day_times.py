"""Shares of the clusters by day, at night and at weekends: when a model is in which state.

Counted from half hours of the history, by the server's own time zone, as what is usual at this time
of day is. Day and night are those of the names of clusters (`times`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

from shoal.errors import LogUnavailable
from shoal.protocol.history import COARSE_S, DAY_S, pairs
from shoal.server_node.history.shares import Shares
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.history.times import SEGMENT_ENDS
from shoal.server_node.history.usual import DAYS_MAX, LIKE_DAYS_MIN, is_weekend

SEGMENTS: Final = ("night", "day", "day", "evening", "night")
"""name of each segment of a working day (`SEGMENT_ENDS`)"""
WEEKEND_DAYS_MIN: Final = 2
"""days of weekends before which nothing is said: one weekend"""


@dataclass(frozen=True)
class DayTimes:
    """Shares of the readings of the newest four weeks that fell to each cluster, 0 to 1."""

    day: Shares
    """those from 6 to 18 o'clock from Monday to Friday"""
    night: Shares
    """those before 6 and from 22 o'clock on, on the same days"""
    weekend: Shares
    """those on Saturdays and Sundays"""


def day_times(reader: HistoryReader, model: str) -> DayTimes | None:
    """The shares of a model; None with readings of fewer than three working days or one weekend,
    and while the file cannot be read."""
    counts: dict[str, Counter[int]] = {name: Counter() for name in (*SEGMENTS, "weekend")}
    days: dict[bool, set[date]] = {True: set(), False: set()}
    try:
        extent = reader.extent(model, COARSE_S)
        if extent is None:
            return None
        newest = extent[1]
        for counted in reader.each_bin(model, COARSE_S, newest - DAYS_MAX * DAY_S, newest):
            at = datetime.fromtimestamp(counted.start)
            weekend = is_weekend(at)
            time = SEGMENTS[bisect_right(SEGMENT_ENDS, at.hour)]
            if weekend:
                time = "weekend"
            counts[time].update(dict(pairs(counted.clusters)))
            days[weekend].add(at.date())
    except LogUnavailable:
        return None
    if len(days[False]) < LIKE_DAYS_MIN or len(days[True]) < WEEKEND_DAYS_MIN:
        return None
    return DayTimes(*(_shares(counts[time]) for time in ("day", "night", "weekend")))


def _shares(counts: Counter[int]) -> Shares:
    """The share of each cluster; empty without readings, as of a sensor that is off at night."""
    total = counts.total()
    return {identity: readings / total for identity, readings in counts.items() if total}
