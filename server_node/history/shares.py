"""The one definition of a share of readings, for the page, the API, commands and pictures.

A share is the part of a cluster, or of a client, in all readings of some bins of a model's history,
0 to 1: of every reading that the server has accepted from any client within the time of the bins,
by the clients' clocks, those of no known cluster included. A reading that a client withheld, or an
update that was rejected, is in no bin.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shoal.protocol.history import (
    FINE_S,
    OTHER_CLIENTS,
    HistoryBin,
    HistoryMessage,
    pairs,
)

MISSING_MAX: Final = 0.1
"""part of the readings of a span of time whose clients may be missing in one that it is compared
with"""

Shares = Mapping[int, float]
"""identity -> share of the readings; `NO_CLUSTER` for those of no known cluster"""


def shares_of(bins: Iterable[HistoryBin]) -> Shares:
    """The share of each cluster in the readings of all these bins; empty where there were none."""
    counts: Counter[int] = Counter()
    for counted in bins:
        counts.update(dict(pairs(counted.clusters)))
    total = counts.total()
    return {identity: readings / total for identity, readings in counts.items() if readings}


def client_shares(bins: Iterable[HistoryBin]) -> Shares:
    """The share of each client, by its number, in the readings of all these bins."""
    counts: Counter[int] = Counter()
    for counted in bins:
        counts.update(dict(pairs(counted.clients)))
    total = counts.total()
    return {number: readings / total for number, readings in counts.items() if readings}


def same_clients(one: Shares, other: Shares) -> bool:
    """Whether two spans of time have the readings of the same clients, so that their clusters can
    be compared; shares as of `client_shares`.

    A client of one span is missing in the other if it has less than half of its share there. Those
    that are missing have up to `MISSING_MAX` of the readings: of many clients some always pause.
    """
    return max(_missing_share(one, other), _missing_share(other, one)) <= MISSING_MAX


def _missing_share(there: Shares, here: Shares) -> float:
    missing = [share for number, share in there.items() if here.get(number, 0.0) < share / 2]
    return math.fsum(missing)


def largest_client(bins: Iterable[HistoryBin]) -> tuple[int, float] | None:
    """The number of the client with the most readings of these bins, and its share of them."""
    counts: Counter[int] = Counter()
    for counted in bins:
        counts.update(dict(pairs(counted.clients)))
    if not counts.total():
        return None
    number, readings = counts.most_common(1)[0]
    return number, readings / counts.total()


def client_name(number: int, clients: Sequence[str]) -> str:
    """The name of a client by its number in the history."""
    if number == OTHER_CLIENTS or number >= len(clients):
        return "other clients"
    return clients[number]


def newest_fine_bin(history: Iterable[HistoryMessage]) -> HistoryBin | None:
    """The newest of the fine bins among these messages; None if there is none."""
    fine = [
        message
        for message in history
        if isinstance(message, HistoryBin) and message.width_s == FINE_S
    ]
    return max(fine, key=lambda message: message.start, default=None)
