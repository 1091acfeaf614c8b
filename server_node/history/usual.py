"""Whether what happens now is usual: compared with the same time of day on earlier days of the same kind.

Days are of two kinds, Monday to Friday and Saturday with Sunday, by the server's own time zone. Everything is counted
from the bins of the history, so it is made of updates alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np

from server_node.history.store import HistoryReader
from shoal.errors import LogUnavailable
from shoal.protocol.history import COARSE_S, FINE_S, NO_CLUSTER, HistoryBin, pairs

DAYS_MAX = 28
"""days back from now that are compared"""
LIKE_DAYS_MIN = 3
"""days of the same kind before which nothing is called usual"""
NOW_BINS = COARSE_S // FINE_S
"""newest fine bins that count as now: half an hour, as long as the bins they are compared with"""
NEW_BINS = 12
"""newest fine bins in which readings of no known cluster are counted: an hour"""
EARLIER_BINS_MIN, EARLIER_BINS_MAX = 12, 48
"""half hours before them that show how many such readings are usual"""
USUAL_QUANTILE = 0.95

Shares = Mapping[int, float]
"""identity -> share of the readings; `NO_CLUSTER` for those of no known cluster"""


@dataclass(frozen=True)
class Usual:
    """What the readings of a model are like now, and what they were like at this time of earlier days. Shares: 0 to 1.

    None where too little has been seen.
    """

    oldest: int
    """start of the oldest coarse bin, seconds since 1970"""
    newest: int
    """start of the newest fine bin, seconds since 1970: what counts as now, also in a replay of the past"""
    like_days: int
    """earlier days of the same kind that have readings at this time of day"""
    weekend: bool
    """whether today is a Saturday or a Sunday"""
    likeness: float | None = None
    """how much of the shares of clusters is as on those days: 1 less the total variation distance to their mean"""
    likeness_range: tuple[float, float] | None = None
    """the smallest and the largest likeness of one of those days to the mean of the others"""
    ranges: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)
    """identity -> smallest, mean and largest share of the cluster on those days"""
    new: float | None = None
    """share of the readings of the last hour that fell to no known cluster"""
    new_usual: float | None = None
    """the share that half hours before it rarely exceeded (their 95 % quantile)"""


def usual(reader: HistoryReader, model: str) -> Usual | None:
    """What is usual for a model; None before the first bin, and while the file cannot be read."""
    try:
        newest = reader.newest_bins(model, FINE_S, NEW_BINS)
        if not newest:
            return None
        now = newest[0].start
        coarse = reader.extent(model, COARSE_S)
        days = [_shares([one]) for one in reader.bins_at(model, COARSE_S, _like_times(now))]
        earlier = reader.bins(model, COARSE_S, now - EARLIER_BINS_MAX * COARSE_S, now - COARSE_S, EARLIER_BINS_MAX)
    except LogUnavailable:
        return None
    today = _shares([one for one in newest if one.start > now - NOW_BINS * FINE_S])
    found = _likeness(today, [day for day in days if day])
    new, new_usual = _new_readings([one for one in newest if one.start > now - NEW_BINS * FINE_S], earlier)
    oldest = now if coarse is None else coarse[0]
    return Usual(oldest, now, len([day for day in days if day]), _weekend(now), *found, new, new_usual)


def _likeness(
    today: Shares, days: Sequence[Shares]
) -> tuple[float | None, tuple[float, float] | None, Mapping[int, tuple[float, float, float]]]:
    """The likeness of today, its usual range, and the range of each cluster; nothing with too few days."""
    if len(days) < LIKE_DAYS_MIN or not today:
        return None, None, {}
    identities = sorted({identity for day in (today, *days) for identity in day})
    table = np.array([[day.get(identity, 0.0) for identity in identities] for day in days])
    now = np.array([today.get(identity, 0.0) for identity in identities])
    likeness = float(np.minimum(now, table.mean(axis=0)).sum())
    without = (table.sum(axis=0) - table) / (len(days) - 1)
    each = np.minimum(table, without).sum(axis=1)
    columns = zip(table.min(axis=0).tolist(), table.mean(axis=0).tolist(), table.max(axis=0).tolist(), strict=True)
    ranges = {one: range_ for one, range_ in zip(identities, columns, strict=True) if one != NO_CLUSTER}
    return likeness, (float(each.min()), float(each.max())), ranges


def _new_readings(last_hour: Sequence[HistoryBin], earlier: Sequence[HistoryBin]) -> tuple[float | None, float | None]:
    now = _shares(last_hour)
    before = [shares.get(NO_CLUSTER, 0.0) for shares in (_shares([one]) for one in earlier) if shares]
    usual = float(np.quantile(before, USUAL_QUANTILE)) if len(before) >= EARLIER_BINS_MIN else None
    return (now.get(NO_CLUSTER, 0.0) if now else None), usual


def _shares(bins: Sequence[HistoryBin]) -> Shares:
    """The share of each cluster in the readings of all these bins; empty where there were none."""
    count: Counter[int] = Counter()
    for one in bins:
        count.update(dict(pairs(one.clusters)))
    total = count.total()
    return {identity: readings / total for identity, readings in count.items()} if total else {}


def _like_times(now: int) -> list[int]:
    """The starts of the coarse bins at this time of day on earlier days of the same kind."""
    here = datetime.fromtimestamp(now)
    days = (here - timedelta(days=back) for back in range(1, DAYS_MAX + 1))
    return [int(day.timestamp()) // COARSE_S * COARSE_S for day in days if _is_weekend(day) == _is_weekend(here)]


def _weekend(now: int) -> bool:
    return _is_weekend(datetime.fromtimestamp(now))


def _is_weekend(day: datetime) -> bool:
    return day.weekday() >= 5
