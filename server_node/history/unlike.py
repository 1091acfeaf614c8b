"""Watch over the clients of a model: reports one whose shares of clusters differ from those of all
others at the same hours more than they usually do, and when it is as others again.

Two clients are compared by the bins of six hours that have readings of both, in the three days up
to the one that is looked at: their distance is the total variation distance of the means of their
shares of clusters in these bins, and a client's *unlikeness* is its distance to the most similar
other client. So what happens to all clients alike, a weekend or a holiday, makes none of them
unlike; and what one of them does some hours before the others, as its people come early, does not
either.

A client may always be unlike the others, as a server room among offices is. Its unlikeness is
therefore compared with that of its own earlier days, to the clients of which there are readings
now. Where days are exchangeable, the chance that it is among the r largest of n + 1 days is
r / (n + 1) (conformal prediction; Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World,
2005), which holds for every client, whatever its distances are like; r is the largest number with
which this is at most the rate of false alarms asked for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.history import (
    DAY_S,
    NO_CLUSTER,
    OTHER_CLIENTS,
    PLACES_S,
    HistoryBin,
    cells_table,
    triples,
)
from shoal.saved_state import IntArray, SavedState, require, state_type
from shoal.server_node.history.shares import Shares
from shoal.server_node.history.sources import PublishedHistory
from shoal.server_node.history.unusual import ROUNDING, Moment

DAYS_MAX: Final = 90
"""days back that a day is compared with, or more where the rate asked for needs them"""
DAYS_KEPT: Final = 365
"""days for which the history has the bins"""
MONTH_DAYS: Final = 30
# Of the distances of the bins of one day .96 alarms a month and client were raised and 30 of 60
# faults found, of means over two days .81 and 37, over three .64 and 38, over five .47 and 41 a day
# later (on the fleets of `benchmarks.client_events`).
MEAN_DAYS: Final = 3
"""days whose bins the shares of clients are the means of"""
FELLOWS_MIN: Final = 2
"""other clients that are needed: of two clients that differ, either may be the unlike one"""
UNLIKE_MIN: Final = 0.05
"""unlikeness beyond the largest usual one: a smaller one is not worth a report, however rare"""
ALARM_DAYS_MAX: Final = 28
"""days after which what is unlike is usual for the client"""

WEEK_S: Final = 7 * DAY_S
WEEKDAYS_MIN: Final = 3
"""earlier days of a weekday without which it is not known what is usual on it"""

ClientShares = Mapping[int, Shares]
"""client -> shares of clusters in its readings"""
DayShares = Callable[[int], ClientShares]
"""reads the shares of the days up to the one that begins there"""


class UnlikeFinding(NamedTuple):
    """A client that has become unlike the others, or is as usual again."""

    unlike: bool
    client: int
    """its number in the history"""
    identity: int
    """the known cluster whose share differs most from that of the most similar other client"""
    share: float
    """its share of the client's readings of the days up to that one"""
    fellow_share: float
    """its share of the readings of the most similar other client"""


class UnlikeClient(NamedTuple):
    """A client that is unlike the others at present."""

    client: int
    """its number in the history"""
    since: int
    """start of the first day of it, seconds since 1970"""


@dataclass(frozen=True)
class _Day:
    """The distances of clients that have readings on one day, in the days up to it."""

    distances: Mapping[int, Mapping[int, float]]
    """client -> other client -> distance, in the order of clients; of two that have no bin in
    common there is none"""

    def unlikeness(self, client: int, fellows: Set[int]) -> float:
        """The distance of a client to the most similar of these; NaN if it, or all but one of them,
        had no readings."""
        others = self.distances.get(client)
        if others is None:
            return math.nan
        distances = [distance for other, distance in others.items() if other in fellows]
        return min(distances) if len(distances) >= FELLOWS_MIN else math.nan

    def most_similar(self, client: int) -> int | None:
        """The client that is most similar to this one, of equal ones the first."""
        others = self.distances.get(client)
        if not others:
            return None
        return min(others, key=lambda other: (others[other], other))


@state_type
class UnlikeState(SavedState):
    """What a watch goes on from: see the fields of `UnlikeWatch`."""

    seen: Moment
    at: Moment
    alarms: Annotated[Ints, IntArray("a", 2, least=-COUNT_MAX)]
    left_out: Annotated[Ints, IntArray("d", 2, least=-COUNT_MAX)]

    def check(self) -> None:
        clients = self.alarms[:, 0].tolist()
        require(len(set(clients)) == len(clients), "a client is unlike the others twice")


@dataclass
class UnlikeWatch:
    """Knowledge of which clients of a model are unlike the others, and since when."""

    seen: int | None = None
    """start of the newest bin of six hours at the look before: older ones were published then"""
    at: int | None = None
    """start of the newest day that was compared"""
    alarms: dict[int, int] = field(default_factory=dict)
    """client that is unlike the others -> start of the first day of it"""
    left_out: set[tuple[int, int]] = field(default_factory=set)
    """(client, start of a day) on which it was unlike: such days show nothing of what is usual"""
    _days: dict[int, _Day] = field(default_factory=dict, compare=False, repr=False)
    """start -> day, of those that were read; they can be read again"""

    @property
    def unlike(self) -> Sequence[UnlikeClient]:
        """The clients that are unlike the others at present, in the order of their numbers."""
        return [UnlikeClient(client, since) for client, since in sorted(self.alarms.items())]

    @property
    def unlikeness(self) -> Mapping[int, float]:
        """client -> its unlikeness on the newest day that was compared, of those that can be."""
        newest = None if self.at is None else self._days.get(self.at)
        if newest is None:
            return {}
        found = {
            client: newest.unlikeness(client, others.keys())
            for client, others in newest.distances.items()
        }
        return {client: unlike for client, unlike in found.items() if math.isfinite(unlike)}

    def look(
        self,
        published: PublishedHistory,
        model: str,
        newest: int | None,
        known: Collection[int],
        per_month: float,
    ) -> list[UnlikeFinding]:
        """Compare the days that are over and published since the last look; `newest` is where the
        newest bin of six hours starts.

        `known` are the clusters that may be named. `per_month` is the rate of false alarms of each
        client, above 0. A watch that has seen nothing learns from all that was published, and
        reports nothing of it: a rebuild repeats no report.
        """
        upto = self.seen
        self.seen = newest
        # At the first look it is not known yet what has been published.
        if upto is None:
            return []
        end = upto // DAY_S * DAY_S
        days_back = min(DAYS_KEPT, max(DAYS_MAX, math.ceil(MONTH_DAYS / per_month)))
        learns = self.at is None
        first = end - DAYS_KEPT * DAY_S
        if self.at is not None:
            first = max(self.at + DAY_S, first)
        # The newest day alone is read: it has the unlikeness that is shown, and after a restart no
        # day is in memory.
        if first >= end:
            self._read(published, model, [] if self.at is None else [self.at])
            return []
        oldest = first - days_back * DAY_S
        self._read(published, model, range(oldest, end, DAY_S))
        shares = partial(_shares_up_to, published, model)
        findings = []
        for start in range(first, end, DAY_S):
            earlier = range(start - days_back * DAY_S, start, DAY_S)
            findings += self._compare(shares, start, earlier, known, per_month)
            self.at = start
        kept = end - days_back * DAY_S
        self._days = {start: day for start, day in self._days.items() if start >= kept}
        self.left_out = {(client, start) for client, start in self.left_out if start >= kept}
        return [] if learns else findings

    def state(self) -> dict[str, Any]:
        """The saved state for `restore`."""
        return UnlikeState(
            seen=self.seen,
            at=self.at,
            alarms=_table(self.alarms.items()),
            left_out=_table(self.left_out),
        ).saved()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        saved = UnlikeState.read(state)
        self.seen = saved.seen
        self.at = saved.at
        self.alarms = dict(saved.alarms.tolist())
        self.left_out = {(client, start) for client, start in saved.left_out.tolist()}
        self._days = {}

    def _read(self, published: PublishedHistory, model: str, days: Collection[int]) -> None:
        """Read these days, but for those that were read already."""
        missing = [start for start in days if start not in self._days]
        read = sorted({before for start in missing for before in _days_up_to(start)})
        by_day: dict[int, list[HistoryBin]] = {start: [] for start in read}
        starts = [start + part for start in read for part in range(0, DAY_S, PLACES_S)]
        for counted in published.bins_at(model, PLACES_S, starts):
            by_day[counted.start // DAY_S * DAY_S].append(counted)
        for start in missing:
            earlier = [counted for day in _days_up_to(start)[:-1] for counted in by_day[day]]
            self._days[start] = _day_of(by_day[start], earlier)

    def _compare(
        self,
        shares: DayShares,
        start: int,
        earlier: Sequence[int],
        known: Collection[int],
        per_month: float,
    ) -> list[UnlikeFinding]:
        """Compare each client of a day with its earlier days, and report what begins or ends."""
        begun = []
        ended = []
        for client in self._days[start].distances:
            is_unlike = self._is_unlike(client, start, earlier, per_month)
            if is_unlike and client not in self.alarms:
                begun.append(client)
            elif is_unlike:
                self.left_out.add((client, start))
            elif is_unlike is False and client in self.alarms:
                ended.append(client)
        # Before any alarm of this day begins or ends: who has lost its fellow is judged by the
        # alarms of the day before and by those that begin with it.
        begun = self._changed_most(begun, shares, start, earlier)
        findings = []
        for client in ended:
            del self.alarms[client]
            findings.append(self._finding(shares(start), client, start, known, unlike=False))
        for client in begun:
            self.alarms[client] = start
            self.left_out.add((client, start))
            findings.append(self._finding(shares(start), client, start, known, unlike=True))
        # Of a client that has sent nothing for weeks nothing is known any more.
        for client, since in list(self.alarms.items()):
            if start - since > ALARM_DAYS_MAX * DAY_S:
                del self.alarms[client]
        return findings

    def _is_unlike(
        self, client: int, start: int, earlier: Sequence[int], per_month: float
    ) -> bool | None:
        """Whether a client is more unlike the others than it usually is; None where it cannot be
        compared. It is until it is as usual for the weekday, or what it is like has lasted."""
        day = self._days[start]
        fellows = day.distances[client].keys()
        unlike = day.unlikeness(client, fellows)
        largest = _largest_usual(self._earlier(client, fellows, earlier), per_month)
        if largest is None or math.isnan(unlike):
            return None
        since = self.alarms.get(client)
        if since is None:
            return unlike > largest + UNLIKE_MIN
        if start - since >= ALARM_DAYS_MAX * DAY_S:
            # From now on these days are what is usual for it.
            self.left_out = {left for left in self.left_out if left[0] != client}
            return False
        # Without `UNLIKE_MIN`: an alarm ends only when the client is as usual, or it would end and
        # begin again around the limit.
        if unlike > largest + ROUNDING:
            return True
        # A machine that stands still at weekends is as all others then: a day is as usual only if
        # it is so among those of its weekday, or the alarm would end and begin again every week.
        # Without the week before the alarm, in which it may have begun.
        weekdays = []
        for before in earlier:
            if (start - before) % WEEK_S == 0 and before <= since - WEEK_S:
                weekdays.append(before)
        of_weekday = self._earlier(client, fellows, weekdays)
        if len(of_weekday) < WEEKDAYS_MIN:
            return False
        # The second largest: a fault, or a history that began on that day, makes one of them odd.
        return unlike > sorted(of_weekday)[-2] + UNLIKE_MIN

    def _earlier(self, client: int, fellows: Set[int], earlier: Sequence[int]) -> list[float]:
        """The unlikeness of a client on these days, to the clients of which there are readings
        now."""
        found = []
        for start in earlier:
            if (client, start) not in self.left_out:
                unlike = self._days[start].unlikeness(client, fellows)
                if math.isfinite(unlike):
                    found.append(unlike)
        return found

    def _changed_most(
        self, begun: Sequence[int], shares: DayShares, start: int, earlier: Sequence[int]
    ) -> list[int]:
        """Those that have become unlike, but for one whose usually most similar client is unlike,
        too, and has changed more: it has lost its fellow, and is as it was."""
        found = []
        for client in begun:
            fellow = self._usual_fellow(client, earlier)
            if fellow is not None and (fellow in begun or fellow in self.alarms):
                changed = self._changed_by(client, shares, start, earlier)
                if self._changed_by(fellow, shares, start, earlier) > changed:
                    continue
            found.append(client)
        return found

    def _usual_fellow(self, client: int, earlier: Sequence[int]) -> int | None:
        """The client that was the most similar one most often, of equal ones the first."""
        times: dict[int, int] = {}
        for start in earlier:
            fellow = self._days[start].most_similar(client)
            if fellow is not None and (client, start) not in self.left_out:
                times[fellow] = times.get(fellow, 0) + 1
        return max(times, key=lambda fellow: (times[fellow], -fellow), default=None)

    def _changed_by(
        self, client: int, shares: DayShares, start: int, earlier: Sequence[int]
    ) -> float:
        """The distance of a client's shares on a day to their mean on the same day of earlier
        weeks: a weekend may be unlike other days."""
        totals: dict[int, float] = {}
        days = 0
        for before in earlier:
            if (start - before) % WEEK_S or (client, before) in self.left_out:
                continue
            of_client = shares(before).get(client)
            if of_client is not None:
                days += 1
                for identity, share in of_client.items():
                    totals[identity] = totals.get(identity, 0.0) + share
        usual = {identity: total / days for identity, total in totals.items()}
        return _distance(shares(start).get(client, {}), usual)

    def _finding(
        self,
        shares: ClientShares,
        client: int,
        start: int,
        known: Collection[int],
        *,
        unlike: bool,
    ) -> UnlikeFinding:
        most_similar = self._days[start].most_similar(client)
        own = shares[client]
        fellow: Shares = {} if most_similar is None else shares[most_similar]
        named = max(
            sorted({*own, *fellow} & {*known}),
            key=lambda identity: abs(own.get(identity, 0.0) - fellow.get(identity, 0.0)),
            default=NO_CLUSTER,
        )
        return UnlikeFinding(unlike, client, named, own.get(named, 0.0), fellow.get(named, 0.0))


def _largest_usual(usual: Sequence[float], per_month: float) -> float | None:
    """The unlikeness above which a day is one of the r least likely; None of too few days."""
    # A rate of 30 a month is one each day, so all of them. `ROUNDING`: a product that should be
    # whole may come out just below it.
    rank = math.floor((len(usual) + 1) * min(1.0, per_month / MONTH_DAYS) + ROUNDING)
    if rank < 1 or not usual:
        return None
    return sorted(usual, reverse=True)[min(rank, len(usual)) - 1]


def _days_up_to(start: int) -> list[int]:
    """The starts of the days whose bins are compared on a day, that day at the end."""
    return [start - back * DAY_S for back in reversed(range(MEAN_DAYS))]


def _day_of(bins: Sequence[HistoryBin], earlier: Sequence[HistoryBin]) -> _Day:
    """The distances of clients in the bins of one day and of the days before it."""
    # A new federation begins with hundreds of days before it.
    if not bins:
        return _Day({})
    here = _clients_in(bins)
    means = _MeanShares([_cells_of(counted, here) for counted in (*earlier, *bins)])
    distances: dict[int, dict[int, float]] = {}
    for client in here.tolist():
        others = here[here != client]
        apart, common = means.distances(client, others)
        there = np.flatnonzero(common)
        known = zip(others[there].tolist(), apart[there].tolist(), strict=True)
        distances[client] = dict(known)
    return _Day(distances)


def _clients_in(bins: Sequence[HistoryBin]) -> Ints:
    """The clients of which there are readings in these bins, in the order of their numbers."""
    clients = np.concatenate([cells_table(counted.cells)[:, 0] for counted in bins])
    return np.unique(clients[clients != OTHER_CLIENTS])


def _cells_of(counted: HistoryBin, clients: Ints) -> Ints:
    """The cells (n, 3) of a bin that are of these clients."""
    cells = cells_table(counted.cells)
    return cells[np.isin(cells[:, 0], clients)]


class _MeanShares:
    """The shares of clients in bins, and how far their means are apart."""

    def __init__(self, tables: Sequence[Ints]) -> None:
        """`tables`: of each bin its clients, identities and readings (n, 3)."""
        cells = np.concatenate(tables)
        places = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
        self._clients, rows = np.unique(cells[:, 0], return_inverse=True)
        identities, columns = np.unique(cells[:, 1], return_inverse=True)
        counts = np.zeros((len(self._clients), len(tables), len(identities)))
        np.add.at(counts, (rows, places, columns), cells[:, 2])
        totals = counts.sum(axis=2, keepdims=True)
        self._shares = counts / np.maximum(totals, 1.0)
        self._present = totals[:, :, 0] > 0.0

    def distances(self, client: int, others: Ints) -> tuple[Floats, Ints]:
        """The distances of a client to others (o,), and how many bins have readings of both (o,);
        0 where there are none."""
        own = int(self._clients.searchsorted(client))
        rows = self._clients.searchsorted(others)
        both = self._present[rows] & self._present[own]
        common = both.sum(axis=1)
        # In the bins of both alone. A client that is absent in one has no shares there.
        theirs = self._shares[rows][:, self._present[own]].sum(axis=1)
        apart = np.abs(theirs - both @ self._shares[own]).sum(axis=1) / 2
        return apart / np.maximum(common, 1), common


def _shares_up_to(published: PublishedHistory, model: str, start: int) -> ClientShares:
    """The shares of all readings of the days up to one."""
    starts = [day + part for day in _days_up_to(start) for part in range(0, DAY_S, PLACES_S)]
    counts: dict[int, Counter[int]] = {}
    for counted in published.bins_at(model, PLACES_S, starts):
        for client, identity, readings in triples(counted.cells):
            counts.setdefault(client, Counter())[identity] += readings
    shares = {}
    for client, of_client in counts.items():
        total = of_client.total()
        shares[client] = {identity: n / total for identity, n in of_client.items() if n}
    return shares


def _distance(one: Shares, other: Shares) -> float:
    """The total variation distance of two sets of shares."""
    apart = [abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}]
    return math.fsum(apart) / 2


def _table(pairs: Collection[tuple[int, int]]) -> Ints:
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
