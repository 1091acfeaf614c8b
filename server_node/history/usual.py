"""The usual state of a model at this time of the day, and how far the newest readings are from it.

Now is compared with the same time of day on earlier days of the same kind with readings of the same
clients. Days are of two kinds,
Monday to Friday and Saturday with Sunday, by the server's own time zone. Everything is counted from
the bins of the history, so it is made of updates alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import numpy as np

from shoal.errors import LogUnavailable
from shoal.protocol.history import COARSE_S, DAY_S, FINE_S, NO_CLUSTER, HistoryBin
from shoal.server_node.history.shares import Shares, client_shares, same_clients, shares_of
from shoal.server_node.history.store import HistoryReader

DAYS_MAX = 28
"""days back from now that are compared"""
LIKE_DAYS_MIN = 3
"""days of the same kind before which nothing is called usual"""
NOW_BINS = COARSE_S // FINE_S
"""newest fine bins that count as now: half an hour, as long as the bins they are compared with"""
NEW_BINS = 12
"""newest fine bins in which readings of no known cluster are counted: an hour"""
EARLIER_BINS_MIN = 12
EARLIER_BINS_MAX = 48
"""half hours before them that show how many such readings are usual"""
USUAL_QUANTILE = 0.95


@dataclass(frozen=True)
class Usual:
    """Readings of a model now compared with this time of earlier days. Shares are those of
    `shares_of`, 0 to 1.

    None where too little has been seen.
    """

    oldest: int
    """start of the oldest coarse bin, of days where these reach further back, seconds since 1970"""
    newest: int
    """start of the newest fine bin, seconds since 1970: what counts as now, also in a replay of the
    past"""
    like_days: int
    """earlier days of the same kind that have readings of the same clients at this time of day"""
    weekend: bool
    """whether today is a Saturday or a Sunday"""
    likeness: float | None = None
    """part of the shares of clusters in the last half hour that is as on those days: 1 less the
    total variation distance to their mean; of the bins that are over"""
    likeness_range: tuple[float, float] | None = None
    """the smallest and the largest likeness of one of those days to the mean of the others"""
    ranges: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)
    """identity -> smallest, mean and largest share of the cluster on those days"""
    now: Shares = field(default_factory=dict)
    """shares of the readings of the last hour, those of no known cluster among them"""
    new: float | None = None
    """share of the readings of the last hour that fell to no known cluster"""
    new_usual: float | None = None
    """the share that half hours before it rarely exceeded (their 95 % quantile)"""


def usual(reader: HistoryReader, model: str) -> Usual | None:
    """The usual state of a model; None before the first bin, and while the file cannot be read."""
    try:
        newest = reader.newest_bins(model, FINE_S, NEW_BINS)
        if not newest:
            return None
        now = newest[0].start
        half_hour = _since(newest, now - NOW_BINS * FINE_S)
        # The newest bin may not be over, and what is missing in it would look unusual. Where it is
        # the only one a sensor sends seldom, and has hardly more to send.
        if len(half_hour) > 1:
            half_hour = half_hour[1:]
        compared = half_hour[0].start
        coarse = reader.extent(model, COARSE_S)
        whole_days = reader.extent(model, DAY_S)
        like_bins = reader.bins_at(model, COARSE_S, like_times(compared))
        earliest = now - EARLIER_BINS_MAX * COARSE_S
        earlier = reader.bins(model, COARSE_S, earliest, now - COARSE_S, EARLIER_BINS_MAX)
    except LogUnavailable:
        return None
    clients = client_shares(half_hour)
    days = []
    for counted in like_bins:
        shares = shares_of([counted])
        # Without the same clients it is another mixture of rooms, and no other behaviour of them.
        if shares and same_clients(clients, client_shares([counted])):
            days.append(shares)
    last_half_hour = shares_of(half_hour)
    last_hour = shares_of(_since(newest, now - NEW_BINS * FINE_S))
    likeness, likeness_range, ranges = _likeness(last_half_hour, days)
    oldest = now if coarse is None else coarse[0]
    # Bins of days are kept for longer; their first one counts where it is a day older at least.
    if whole_days is not None and whole_days[0] <= oldest - DAY_S:
        oldest = whole_days[0]
    return Usual(
        oldest,
        now,
        len(days),
        is_weekend(datetime.fromtimestamp(now)),
        likeness,
        likeness_range,
        ranges,
        last_hour,
        last_hour.get(NO_CLUSTER, 0.0) if last_hour else None,
        _usually_new(earlier),
    )


def _since(bins: Sequence[HistoryBin], after: float) -> list[HistoryBin]:
    # The newest bins of a sensor that sends seldom may reach far back.
    return [counted for counted in bins if counted.start > after]


def _likeness(
    today: Shares, days: Sequence[Shares]
) -> tuple[float | None, tuple[float, float] | None, Mapping[int, tuple[float, float, float]]]:
    """The likeness of today, its usual range, and the range of each cluster; nothing with too few
    days."""
    if len(days) < LIKE_DAYS_MIN or not today:
        return None, None, {}
    present = set(today)
    for day in days:
        present.update(day)
    identities = sorted(present)
    table = np.array([[day.get(identity, 0.0) for identity in identities] for day in days])
    now = np.array([today.get(identity, 0.0) for identity in identities])
    # The sum of minima of two sets of shares is 1 less their total variation distance.
    likeness = float(np.minimum(now, table.mean(axis=0)).sum())
    # Each day is left out of the mean that it is compared with, as today is.
    mean_of_others = (table.sum(axis=0) - table) / (len(days) - 1)
    of_days = np.minimum(table, mean_of_others).sum(axis=1)
    columns = zip(
        identities,
        table.min(axis=0).tolist(),
        table.mean(axis=0).tolist(),
        table.max(axis=0).tolist(),
        strict=True,
    )
    ranges = {
        identity: (smallest, mean, largest)
        for identity, smallest, mean, largest in columns
        if identity != NO_CLUSTER
    }
    return likeness, (float(of_days.min()), float(of_days.max())), ranges


def _usually_new(earlier: Sequence[HistoryBin]) -> float | None:
    """The share of no known cluster that these bins rarely exceeded; None of too few bins."""
    shares = []
    for counted in earlier:
        of_bin = shares_of([counted])
        if of_bin:
            shares.append(of_bin.get(NO_CLUSTER, 0.0))
    if len(shares) < EARLIER_BINS_MIN:
        return None
    return float(np.quantile(shares, USUAL_QUANTILE))


def like_times(now: int) -> list[int]:
    """The starts of the coarse bins at this time of day on earlier days of the same kind."""
    here = datetime.fromtimestamp(now)
    times = []
    for back in range(1, DAYS_MAX + 1):
        # By the calendar and not by 24 hours: the change to summer time must not move the time of
        # day.
        day = here - timedelta(days=back)
        if is_weekend(day) == is_weekend(here):
            times.append(int(day.timestamp()) // COARSE_S * COARSE_S)
    return times


def is_weekend(day: date) -> bool:
    """Whether a day is a Saturday or a Sunday."""
    return day.weekday() >= 5
