"""The one definition of a share of readings, for the page, the API, commands and pictures.

A share is the part of a cluster, or of a client, in all readings of some bins of a model's history,
0 to 1: of every reading that the server has accepted from any client within the time of the bins,
by the clients' clocks, those of no known cluster included. A reading that a client withheld, or an
update that was rejected, is in no bin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from shoal.protocol.history import (
    FINE_S,
    OTHER_CLIENTS,
    HistoryBin,
    HistoryMessage,
    pairs,
)

Shares = Mapping[int, float]
"""identity -> share of the readings; `NO_CLUSTER` for those of no known cluster"""


def shares_of(bins: Iterable[HistoryBin]) -> Shares:
    """The share of each cluster in the readings of all these bins; empty where there were none."""
    counts: Counter[int] = Counter()
    for counted in bins:
        counts.update(dict(pairs(counted.clusters)))
    total = counts.total()
    return {identity: readings / total for identity, readings in counts.items() if readings}


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
