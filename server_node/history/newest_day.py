"""The shares of clusters in the newest day of a model's history, beside those that are usual.

A share of the recent readings moves with the time of the day and of the week. Whether it has moved
by more than that shows in the comparison of each half hour of a day with the same half hour of
earlier days of the same kind with readings of the same clients, as the page compares now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from shoal.protocol.history import COARSE_S, DAY_S
from shoal.server_node.history.shares import Shares, same_clients
from shoal.server_node.history.sources import PublishedHistory
from shoal.server_node.history.unusual import HalfHour, read_half_hours
from shoal.server_node.history.usual import LIKE_DAYS_MIN, like_times


class _Compared(NamedTuple):
    """Half an hour of the newest day."""

    shares: Shares
    earlier: Sequence[tuple[int, Shares]]
    """start and shares of the half hours that it is compared with"""


class NewestDay:
    """The newest day that is over and published: read once for each half hour."""

    def __init__(self) -> None:
        self._end: int | None = None
        self._half_hours: list[_Compared] = []

    def read(self, published: PublishedHistory, model: str, newest: int | None) -> None:
        """Read the day; `newest` is where the newest half hour starts that is known, published or
        not."""
        end = published.newest(model, COARSE_S)
        if end is None or newest is None:
            return
        # The newest half hour may not be over. A log that is read again is behind the file.
        end = min(end, newest)
        if end == self._end:
            return
        self._end = end
        known: dict[int, HalfHour] = {}
        starts = range(end - DAY_S, end, COARSE_S)
        self._half_hours = [
            _compared(published, model, start, known)
            for start in read_half_hours(published, model, starts, known)
        ]

    def share(self, identity: int, since: float) -> tuple[float, float] | None:
        """The share of a cluster in the readings of the day, and its usual one: the mean of the
        half hours that are compared.

        Of earlier days only those after `since` count, seconds since 1970. None where most half
        hours have fewer than `LIKE_DAYS_MIN` of them.
        """
        shares = []
        usual = []
        for half_hour in self._half_hours:
            days = [of_day for start, of_day in half_hour.earlier if start >= since]
            if len(days) >= LIKE_DAYS_MIN:
                shares.append(half_hour.shares.get(identity, 0.0))
                usual.append(math.fsum(day.get(identity, 0.0) for day in days) / len(days))
        n = len(shares)
        if n == 0 or n < len(self._half_hours) / 2:
            return None
        return math.fsum(shares) / n, math.fsum(usual) / n


def _compared(
    published: PublishedHistory, model: str, start: int, known: dict[int, HalfHour]
) -> _Compared:
    times = read_half_hours(published, model, like_times(start), known)
    clients = known[start].clients
    earlier = [(at, known[at].clusters) for at in times if same_clients(clients, known[at].clients)]
    return _Compared(known[start].clusters, earlier)
