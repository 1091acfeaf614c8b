"""The recent history of a model's clusters: how shares have moved, and which clients feed them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    cells_table,
    readings_table,
)
from shoal.server_node.history.shares import client_name, largest_client
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
    """The recent history of one model. Shares are those of `shares_of`, 0 to 1."""

    start: int
    """start of the first step, seconds since 1970, by the times in the updates"""
    step_s: int
    shares: Mapping[int, Sequence[float | None]]
    """identity -> share of the readings in each step, the newest last; None where there were no
    readings at all"""
    feeding: Mapping[int, Sequence[tuple[str, float]]]
    """identity -> the clients from which the cluster's readings in the newest `FEEDING_BINS` bins
    came, with their parts of these, the largest first"""
    by_client: Mapping[str, Sequence[tuple[int, float]]]
    """client -> the known clusters that its readings in these bins fell to, with their parts, the
    largest first; clients with the most readings first"""
    most_from: tuple[str, float] | None = None
    """the client of several that supplies most of the readings of these bins (`MOST_SHARE`), and
    its share of them"""

    def trend_text(self, identity: int) -> str:
        """Movement of a cluster's share, such as "4 to 62 % in 7 days"; empty if not known."""
        shares = [share for share in self.shares.get(identity, ()) if share is not None]
        if not shares:
            return ""
        low = f"{100 * min(shares):.0f}"
        high = f"{100 * max(shares):.0f}"
        moved = f"{low} to {high} %" if low != high else f"{low} %"
        return f"{moved} in {duration(self.step_s * len(self.shares[identity]))}"

    def feeding_text(self, identity: int, client_names: Mapping[str, str]) -> str:
        """Clients that feed a cluster, such as "client-2 48 %, client-1 30 % and 3 others"; empty
        where none does. `client_names` are those shown in the place of clients."""
        clients = self.feeding.get(identity, ())
        named = ", ".join(
            f"{client_names.get(client, client)} {100 * share:.0f} %"
            for client, share in clients[:CLIENTS_NAMED_MAX]
        )
        others = len(clients) - CLIENTS_NAMED_MAX
        if others <= 0:
            return named
        return f"{named} and {others} other{'s' if others > 1 else ''}"


def recent_history(reader: HistoryReader, model: str) -> RecentHistory | None:
    """The recent history of a model; None before the first bin, and while the file cannot be
    read."""
    try:
        fine = reader.extent(model, FINE_S)
        coarse = reader.extent(model, COARSE_S)
        if fine is None or coarse is None:
            return None
        width, span = _width_and_span(reader, model, coarse)
        extent = fine if width == FINE_S else coarse
        end = extent[1] + width
        bins = reader.each_bin(model, width, end - span, end)
        # There is one: the newest bin lies in every span.
        oldest = next(bins)
        # Of whole bins: where in a bin its readings lie is not known.
        step = width * max(1, math.ceil(span / STEPS_MAX / width))
        # The newest step is a whole one.
        start = end - step * math.ceil((end - oldest.start) / step)
        shares = _shares(chain([oldest], bins), start, step, (end - start) // step)
        newest_bins = reader.newest_bins(model, FINE_S, FEEDING_BINS)
        names = reader.names(model)
    except LogUnavailable:
        return None
    clients = [] if names is None else names.clients
    feeding, by_client = _feeding(newest_bins, clients)
    return RecentHistory(start, step, shares, feeding, by_client, _most_from(newest_bins, clients))


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
    """The share of each known cluster in each step.

    Counted in a matrix, as 60 clusters in 48 steps are 2880 counts.
    """
    columns: dict[int, int] = {}
    counts = np.zeros((steps, 0))
    for counted in bins:
        place = (counted.start - start) // step
        if not 0 <= place < steps:
            continue
        table = readings_table(counted.clusters)
        here = [columns.setdefault(identity, len(columns)) for identity in table[:, 0].tolist()]
        if len(columns) > counts.shape[1]:
            counts = np.pad(counts, ((0, 0), (0, len(columns) - counts.shape[1])))
        counts[place, here] += table[:, 1]
    totals = counts.sum(axis=1).tolist()
    shares: dict[int, list[float | None]] = {}
    for identity, column in sorted(columns.items()):
        if identity != NO_CLUSTER:
            readings = counts[:, column].tolist()
            shares[identity] = [
                n / total if total else None for n, total in zip(readings, totals, strict=True)
            ]
    return shares


def _most_from(bins: Sequence[HistoryBin], clients: Sequence[str]) -> tuple[str, float] | None:
    """The client with most of the readings of these bins (`MOST_SHARE`), and its share; None where
    none has."""
    largest = largest_client(bins)
    if len(clients) < 2 or largest is None:
        return None
    number, share = largest
    # Of two clients each has half by chance: one is named that has clearly more than an equal part.
    least = max(MOST_SHARE, TIMES_EQUAL / len(clients))
    if number == OTHER_CLIENTS or share <= least:
        return None
    return client_name(number, clients), share


def _feeding(
    bins: Sequence[HistoryBin], clients: Sequence[str]
) -> tuple[Divided[int, str], Divided[str, int]]:
    """Clients that feed each cluster, and clusters that each client feeds."""
    tables = [cells_table(counted.cells) for counted in bins]
    cells = np.concatenate([np.empty((0, 3), np.int64), *tables])
    cells = cells[cells[:, 1] != NO_CLUSTER]
    identities, columns = np.unique(cells[:, 1], return_inverse=True)
    numbers, rows = np.unique(cells[:, 0], return_inverse=True)
    # Several numbers may have one name: that of the other clients.
    named: dict[str, int] = {}
    places = []
    for number in numbers.tolist():
        places.append(named.setdefault(client_name(number, clients), len(named)))
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
        counts.sort(key=lambda pair: (-pair[1], pair[0]))
        total = row.sum()
        return [(other, float(n / total)) for other, n in counts]

    def __iter__(self) -> Iterator[Name]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
