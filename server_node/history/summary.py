"""What the history says of a model's clusters of late: how the share of each has moved, and which clients feed it."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from server_node.history.store import HistoryReader
from shoal.errors import LogUnavailable
from shoal.protocol.history import COARSE_S, FINE_S, OTHER_CLIENTS, HistoryBin, HistoryNames, cells_table, pairs

Name = TypeVar("Name", int, str)

STEPS_MAX = 48
DAY_S = 86_400
SPANS_S = (DAY_S, 7 * DAY_S, 30 * DAY_S, 365 * DAY_S)
BINS_MIN = 12
"""bins with readings from which a span shows how shares move; with fewer, the next longer span is shown"""
YOUNG_S = 4 * 3600
"""a history that is shorter than this is shown in fine bins"""
FEEDING_BINS = 12
"""newest fine bins that show which clients feed a cluster: the last hour, where readings come all the time"""
CLIENTS_NAMED_MAX = 2


@dataclass(frozen=True)
class Lately:
    """The recent history of one model."""

    start: int
    """of the first step, seconds since 1970, by the times in the updates"""
    step_s: int
    shares: Mapping[int, Sequence[float | None]]
    """identity -> share of the readings in each step, the newest last; None where there were no readings at all"""
    feeding: Mapping[int, Sequence[tuple[str, float]]]
    """identity -> the clients from which its newest readings came with their shares of these, the largest first"""
    by_client: Mapping[str, Sequence[tuple[int, float]]]
    """client -> the clusters that its newest readings fell to with their shares of these, the largest first; clients
    with the most readings first"""

    def trend_text(self, identity: int) -> str:
        """How the share of a cluster has moved, such as "31 % now, 4 to 62 % in 7 days"; empty if it is not known."""
        shares = [share for share in self.shares.get(identity, ()) if share is not None]
        if not shares:
            return ""
        low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
        moved = f"{low} to {high} %" if low != high else f"{low} %"
        return f"{100 * shares[-1]:.0f} % now, {moved} in {duration(self.step_s * len(self.shares[identity]))}"

    def feeding_text(self, identity: int) -> str:
        """Which clients feed a cluster, such as "client-2 48 %, client-1 30 % and 3 others"; empty where none does."""
        clients = self.feeding.get(identity, ())
        named = ", ".join(f"{client} {100 * share:.0f} %" for client, share in clients[:CLIENTS_NAMED_MAX])
        others = len(clients) - CLIENTS_NAMED_MAX
        return f"{named} and {others} other{'s' * (others > 1)}" if others > 0 else named


def newest_fine_bin(history: Iterable[HistoryBin | HistoryNames]) -> HistoryBin | None:
    """The newest of the fine bins among these messages; None if there is none."""
    bins = [one for one in history if isinstance(one, HistoryBin) and one.width_s == FINE_S]
    return max(bins, key=lambda one: one.start, default=None)


def lately(reader: HistoryReader, model: str) -> Lately | None:
    """The recent history of a model; None before the first bin, and while the file cannot be read."""
    try:
        fine, coarse = reader.extent(model, FINE_S), reader.extent(model, COARSE_S)
        if fine is None or coarse is None:
            return None
        width, span = _width_and_span(reader, model, coarse)
        newest = (fine if width == FINE_S else coarse)[1] + width
        bins = reader.bins(model, width, newest - span, newest, STEPS_MAX * span // width)
        feeding, by_client = _feeding(reader, model)
    except LogUnavailable:
        return None
    start = max(newest - span, bins[0].start)
    step = width * max(1, math.ceil(span / STEPS_MAX / width))
    # The newest step is a whole one.
    start = newest - step * math.ceil((newest - start) / step)
    return Lately(start, step, _shares(bins, start, step, (newest - start) // step), feeding, by_client)


def _width_and_span(reader: HistoryReader, model: str, coarse: tuple[int, int]) -> tuple[int, int]:
    first, newest = coarse
    if newest - first < YOUNG_S:
        return FINE_S, YOUNG_S
    for span in SPANS_S:
        if reader.number(model, COARSE_S, newest + COARSE_S - span) >= BINS_MIN:
            return COARSE_S, span
    return COARSE_S, SPANS_S[-1]


def _shares(bins: Sequence[HistoryBin], start: int, step: int, steps: int) -> dict[int, list[float | None]]:
    counts: list[Counter[int]] = [Counter() for _ in range(steps)]
    for one in bins:
        place = (one.start - start) // step
        if 0 <= place < steps:
            counts[place].update(dict(pairs(one.clusters)))
    totals = [sum(count.values()) for count in counts]
    identities = sorted({identity for count in counts for identity in count if identity >= 0})
    return {
        identity: [count[identity] / total if total else None for count, total in zip(counts, totals, strict=True)]
        for identity in identities
    }


def _feeding(
    reader: HistoryReader, model: str
) -> tuple[dict[int, list[tuple[str, float]]], dict[str, list[tuple[int, float]]]]:
    """Which clients feed each cluster, and which clusters each client feeds."""
    names = reader.names(model)
    clients = [] if names is None else names.clients
    of_cluster: defaultdict[int, Counter[str]] = defaultdict(Counter)
    of_client: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for one in reader.newest_bins(model, FINE_S, FEEDING_BINS):
        # As an array, as the cells of a bin are thousands.
        for number, identity, readings in map(np.ndarray.tolist, cells_table(one.cells)):
            if identity >= 0:
                client = client_name(number, clients)
                of_cluster[identity][client] += readings
                of_client[client][identity] += readings
    most_first = sorted(of_client.items(), key=lambda entry: (-entry[1].total(), entry[0]))
    return (
        {identity: _as_shares(count) for identity, count in sorted(of_cluster.items())},
        {client: _as_shares(count) for client, count in most_first},
    )


def _as_shares(count: Counter[Name]) -> list[tuple[Name, float]]:
    """Each with its share of all, the largest first."""
    total = count.total()
    return [(name, n / total) for name, n in sorted(count.items(), key=lambda entry: (-entry[1], entry[0]))]


def client_name(number: int, clients: Sequence[str]) -> str:
    """The name of a client by its number in the history."""
    if number == OTHER_CLIENTS or number >= len(clients):
        return "other clients"
    return clients[number]


def duration(seconds: float) -> str:
    """A length of time in words: minutes, hours or days."""
    for unit, length in (("day", DAY_S), ("hour", 3600)):
        if seconds >= 2 * length or (unit == "hour" and seconds >= length):
            number = round(seconds / length)
            return f"{number} {unit}{'s' * (number > 1)}"
    return f"{max(1, round(seconds / 60))} minutes"
