"""Findings from the history of a model's clusters: how shares have moved, which clients feed them,
and what is unusual.

Now is compared with the same time of day on earlier days of the same kind. Days are of two kinds,
Monday to Friday and Saturday with Sunday, by the server's own time zone. Everything is counted from
the bins of the history, so it is made of updates alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import TypeVar

import numpy as np

from shoal.errors import LogUnavailable
from shoal.kernels.arrays import Floats
from shoal.protocol.events import duration
from shoal.protocol.history import (
    COARSE_S,
    DAY_S,
    FINE_S,
    NO_CLUSTER,
    OTHER_CLIENTS,
    HistoryBin,
    HistoryMessage,
    cells_table,
    pairs,
    readings_table,
)
from shoal.server_node.history.store import HistoryReader

Name = TypeVar("Name", int, str)
Other = TypeVar("Other", int, str)

STEPS_MAX = 48
SPANS_S = (DAY_S, 7 * DAY_S, 30 * DAY_S, 365 * DAY_S)
BINS_MIN = 12
"""bins with readings from which a span shows how shares move; with fewer, the next longer span is
shown"""
YOUNG_S = 4 * 3600
"""a history that is shorter than this is shown in fine bins"""
FEEDING_BINS = 12
"""newest fine bins that show which clients feed a cluster: the last hour, where readings come all
the time"""
CLIENTS_NAMED_MAX = 2


MOST_SHARE = 0.5
TIMES_EQUAL = 1.5
"""a client is named that supplies more than this share of the readings, and more than this many
times an equal part"""


@dataclass(frozen=True)
class RecentHistory:
    """The recent history of one model."""

    start: int
    """start of the first step, seconds since 1970, by the times in the updates"""
    step_s: int
    shares: Mapping[int, Sequence[float | None]]
    """identity -> share of the readings in each step, the newest last; None where there were no
    readings at all"""
    feeding: Mapping[int, Sequence[tuple[str, float]]]
    """identity -> the clients from which its newest readings came with their shares of these, the
    largest first"""
    by_client: Mapping[str, Sequence[tuple[int, float]]]
    """client -> the clusters that its newest readings fell to with their shares of these, the
    largest first; clients with the most readings first"""
    most_from: tuple[str, float] | None = None
    """the client of several that supplies most of the newest readings (`MOST_SHARE`), and its share
    of these"""

    def trend_text(self, identity: int) -> str:
        """Movement of a cluster's share, such as "4 to 62 % in 7 days"; empty if it is not known."""
        shares = [share for share in self.shares.get(identity, ()) if share is not None]
        if not shares:
            return ""
        low = f"{100 * min(shares):.0f}"
        high = f"{100 * max(shares):.0f}"
        moved = f"{low} to {high} %" if low != high else f"{low} %"
        return f"{moved} in {duration(self.step_s * len(self.shares[identity]))}"

    def feeding_text(self, identity: int) -> str:
        """Clients that feed a cluster, such as "client-2 48 %, client-1 30 % and 3 others"; empty
        where none does."""
        clients = self.feeding.get(identity, ())
        named = ", ".join(
            f"{client} {100 * share:.0f} %" for client, share in clients[:CLIENTS_NAMED_MAX]
        )
        others = len(clients) - CLIENTS_NAMED_MAX
        return f"{named} and {others} other{'s' * (others > 1)}" if others > 0 else named


def newest_fine_bin(history: Iterable[HistoryMessage]) -> HistoryBin | None:
    """The newest of the fine bins among these messages; None if there is none."""
    bins = [one for one in history if isinstance(one, HistoryBin) and one.width_s == FINE_S]
    return max(bins, key=lambda one: one.start, default=None)


def recent_history(reader: HistoryReader, model: str) -> RecentHistory | None:
    """The recent history of a model; None before the first bin, and while the file cannot be read."""
    try:
        fine = reader.extent(model, FINE_S)
        coarse = reader.extent(model, COARSE_S)
        if fine is None or coarse is None:
            return None
        width, span = _width_and_span(reader, model, coarse)
        newest = (fine if width == FINE_S else coarse)[1] + width
        bins = reader.each_bin(model, width, newest - span, newest)
        oldest = next(bins)
        step = width * max(1, math.ceil(span / STEPS_MAX / width))
        # The newest step is a whole one.
        start = newest - step * math.ceil((newest - oldest.start) / step)
        shares = _shares(chain([oldest], bins), start, step, (newest - start) // step)
        newest_bins = reader.newest_bins(model, FINE_S, FEEDING_BINS)
        names = reader.names(model)
        clients = [] if names is None else names.clients
        return RecentHistory(
            start, step, shares, *_feeding(newest_bins, clients), _most_from(newest_bins, clients)
        )
    except LogUnavailable:
        return None


def _width_and_span(reader: HistoryReader, model: str, coarse: tuple[int, int]) -> tuple[int, int]:
    first, newest = coarse
    if newest - first < YOUNG_S:
        return FINE_S, YOUNG_S
    for span in SPANS_S:
        if reader.number(model, COARSE_S, newest + COARSE_S - span) >= BINS_MIN:
            return COARSE_S, span
    return COARSE_S, SPANS_S[-1]


def _shares(
    bins: Iterable[HistoryBin], start: int, step: int, steps: int
) -> dict[int, list[float | None]]:
    """A matrix of counts, as 60 clusters in 48 steps are 2880."""
    columns: dict[int, int] = {}
    counts = np.zeros((steps, 0))
    for one in bins:
        place = (one.start - start) // step
        if not 0 <= place < steps:
            continue
        table = readings_table(one.clusters)
        here = [columns.setdefault(identity, len(columns)) for identity in table[:, 0].tolist()]
        if len(columns) > counts.shape[1]:
            counts = np.pad(counts, ((0, 0), (0, len(columns) - counts.shape[1])))
        counts[place, here] += table[:, 1]
    totals = counts.sum(axis=1).tolist()
    return {
        identity: [
            n / total if total else None
            for n, total in zip(counts[:, column].tolist(), totals, strict=True)
        ]
        for identity, column in sorted(columns.items())
        if identity >= 0
    }


def _most_from(bins: Sequence[HistoryBin], clients: Sequence[str]) -> tuple[str, float] | None:
    """The client with most of the readings of these bins (`MOST_SHARE`), and its share; None where
    none has."""
    counts: Counter[int] = Counter()
    for one in bins:
        counts.update(dict(pairs(one.clients)))
    if len(clients) < 2 or not counts.total():
        return None
    number, readings = counts.most_common(1)[0]
    share = readings / counts.total()
    least = max(MOST_SHARE, TIMES_EQUAL / len(clients))
    return (
        (client_name(number, clients), share) if number != OTHER_CLIENTS and share > least else None
    )


def _feeding(
    bins: Sequence[HistoryBin], clients: Sequence[str]
) -> tuple[Divided[int, str], Divided[str, int]]:
    """Clients that feed each cluster, and clusters that each client feeds."""
    cells = np.concatenate([np.empty((0, 3), np.int64), *(cells_table(one.cells) for one in bins)])
    cells = cells[cells[:, 1] >= 0]
    identities, columns = np.unique(cells[:, 1], return_inverse=True)
    numbers, rows = np.unique(cells[:, 0], return_inverse=True)
    named: dict[str, int] = {}
    places = [
        named.setdefault(client_name(number, clients), len(named)) for number in numbers.tolist()
    ]
    readings = np.zeros((len(named), len(identities)))
    np.add.at(readings, (np.array(places, dtype=np.int64)[rows], columns), cells[:, 2])
    totals = readings.sum(axis=1)
    # Most readings first, then by name: the table is the same in every process.
    most_first = sorted(named, key=lambda client: (-totals[named[client]], client))
    readings = readings[[named[client] for client in most_first]]
    known = identities.tolist()
    return Divided(known, most_first, readings.T), Divided(most_first, known, readings)


class Divided(Mapping[Name, Sequence[tuple[Other, float]]]):
    """Division of the readings of each key: shares of the others, the largest first, without those
    of 0.

    They are worked out when they are asked for, as 60 clusters of 200 clients have 12 000 shares.
    """

    def __init__(self, names: Sequence[Name], others: Sequence[Other], readings: Floats) -> None:
        """names (n,), others (m,) and readings (n, m)."""
        self._places: dict[Name, int] = {name: place for place, name in enumerate(names)}
        self._others: Sequence[Other] = others
        self._readings = readings

    def __getitem__(self, name: Name) -> Sequence[tuple[Other, float]]:
        row = self._readings[self._places[name]]
        counts = [(self._others[place], row[place]) for place in np.flatnonzero(row).tolist()]
        total = row.sum()
        return [
            (other, float(n / total))
            for other, n in sorted(counts, key=lambda pair: (-pair[1], pair[0]))
        ]

    def __iter__(self) -> Iterator[Name]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def client_name(number: int, clients: Sequence[str]) -> str:
    """The name of a client by its number in the history."""
    if number == OTHER_CLIENTS or number >= len(clients):
        return "other clients"
    return clients[number]


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

Shares = Mapping[int, float]
"""identity -> share of the readings; `NO_CLUSTER` for those of no known cluster"""


@dataclass(frozen=True)
class Usual:
    """Readings of a model now compared with this time of earlier days. Shares: 0 to 1.

    None where too little has been seen.
    """

    oldest: int
    """start of the oldest coarse bin, of days where these reach further back, seconds since 1970"""
    newest: int
    """start of the newest fine bin, seconds since 1970: what counts as now, also in a replay of the
    past"""
    like_days: int
    """earlier days of the same kind that have readings at this time of day"""
    weekend: bool
    """whether today is a Saturday or a Sunday"""
    likeness: float | None = None
    """part of the shares of clusters that is as on those days: 1 less the total variation distance
    to their mean"""
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
        coarse = reader.extent(model, COARSE_S)
        whole_days = reader.extent(model, DAY_S)
        days = [
            _shares_at_the_time([one]) for one in reader.bins_at(model, COARSE_S, like_times(now))
        ]
        earlier = reader.bins(
            model, COARSE_S, now - EARLIER_BINS_MAX * COARSE_S, now - COARSE_S, EARLIER_BINS_MAX
        )
    except LogUnavailable:
        return None
    today = _shares_at_the_time([one for one in newest if one.start > now - NOW_BINS * FINE_S])
    found = _likeness(today, [day for day in days if day])
    last_hour = [one for one in newest if one.start > now - NEW_BINS * FINE_S]
    new, new_usual = _new_readings(last_hour, earlier)
    oldest = now if coarse is None else coarse[0]
    # Bins of days are kept for longer; their first one counts where it is a day older at least.
    if whole_days is not None and whole_days[0] <= oldest - DAY_S:
        oldest = whole_days[0]
    return Usual(
        oldest,
        now,
        len([day for day in days if day]),
        _weekend(now),
        *found,
        _shares_at_the_time(last_hour),
        new,
        new_usual,
    )


def _likeness(
    today: Shares, days: Sequence[Shares]
) -> tuple[float | None, tuple[float, float] | None, Mapping[int, tuple[float, float, float]]]:
    """The likeness of today, its usual range, and the range of each cluster; nothing with too few
    days."""
    if len(days) < LIKE_DAYS_MIN or not today:
        return None, None, {}
    identities = sorted({identity for day in (today, *days) for identity in day})
    table = np.array([[day.get(identity, 0.0) for identity in identities] for day in days])
    now = np.array([today.get(identity, 0.0) for identity in identities])
    likeness = float(np.minimum(now, table.mean(axis=0)).sum())
    # Each day is left out of the mean that it is compared with, as today is.
    without = (table.sum(axis=0) - table) / (len(days) - 1)
    each = np.minimum(table, without).sum(axis=1)
    columns = zip(
        table.min(axis=0).tolist(),
        table.mean(axis=0).tolist(),
        table.max(axis=0).tolist(),
        strict=True,
    )
    ranges = {
        one: range_ for one, range_ in zip(identities, columns, strict=True) if one != NO_CLUSTER
    }
    return likeness, (float(each.min()), float(each.max())), ranges


def _new_readings(
    last_hour: Sequence[HistoryBin], earlier: Sequence[HistoryBin]
) -> tuple[float | None, float | None]:
    now = _shares_at_the_time(last_hour)
    before = [
        shares.get(NO_CLUSTER, 0.0)
        for shares in (_shares_at_the_time([one]) for one in earlier)
        if shares
    ]
    usual = float(np.quantile(before, USUAL_QUANTILE)) if len(before) >= EARLIER_BINS_MIN else None
    return (now.get(NO_CLUSTER, 0.0) if now else None), usual


def _shares_at_the_time(bins: Sequence[HistoryBin]) -> Shares:
    """The share of each cluster in the readings of all these bins; empty where there were none."""
    count: Counter[int] = Counter()
    for one in bins:
        count.update(dict(pairs(one.clusters)))
    total = count.total()
    return {identity: readings / total for identity, readings in count.items()} if total else {}


def like_times(now: int) -> list[int]:
    """The starts of the coarse bins at this time of day on earlier days of the same kind."""
    here = datetime.fromtimestamp(now)
    # By the calendar and not by 24 hours: the change to summer time must not move the time of day.
    days = (here - timedelta(days=back) for back in range(1, DAYS_MAX + 1))
    return [
        int(day.timestamp()) // COARSE_S * COARSE_S
        for day in days
        if _is_weekend(day) == _is_weekend(here)
    ]


def _weekend(now: int) -> bool:
    return _is_weekend(datetime.fromtimestamp(now))


def _is_weekend(day: datetime) -> bool:
    return day.weekday() >= 5
