"""The clients of a federation as its history shows them, for a page that does not read updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from shoal.errors import LogUnavailable
from shoal.protocol.history import BINS_KEPT, DAY_S, FINE_S, OTHER_CLIENTS, pairs
from shoal.protocol.messages import Snapshot
from shoal.server_node.history.shares import client_name
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.report.status import ClientStatus

LATE_S: Final = 3600
"""how far back fine bins are looked at again: an update that comes late may have changed them"""


@dataclass
class _ModelClients:
    """What the bins of one model show of its clients, by their numbers."""

    earlier: Counter[int] = field(default_factory=Counter)
    """client -> readings of all days but the newest"""
    seen: dict[int, int] = field(default_factory=dict)
    """client -> start of the newest fine bin that has readings of it"""
    newest: int | None = None
    """start of the newest fine bin"""


class HistoryClients:
    """The clients of all models, each with its readings and when it was last seen.

    The readings are those that the history counts; a client was last seen when the newest of its
    bins of 5 minutes was, by the time at which the newest snapshot was made.
    """

    def __init__(self, reader: HistoryReader) -> None:
        self._reader = reader
        self._models: dict[str, _ModelClients] = {}

    def statuses(self, snapshots: Iterable[Snapshot]) -> list[ClientStatus]:
        """The clients by name, as the model knows them that counts most of their readings; none
        while the history cannot be read."""
        merged: dict[str, ClientStatus] = {}
        for snapshot in snapshots:
            try:
                clients = self._of_model(snapshot)
            except LogUnavailable:
                return []
            for client in clients:
                known = merged.get(client.client)
                if known is None or client.readings > known.readings:
                    merged[client.client] = client
        return sorted(merged.values(), key=lambda client: client.client)

    def _of_model(self, snapshot: Snapshot) -> list[ClientStatus]:
        names = self._reader.names(snapshot.model)
        days = self._reader.extent(snapshot.model, DAY_S)
        fine = self._reader.extent(snapshot.model, FINE_S)
        if names is None or not names.clients or days is None or fine is None:
            return []
        clients = self._models.setdefault(snapshot.model, _ModelClients())
        if clients.newest != fine[1]:
            # Seldom, as there may be thousands of days: updates that come late change earlier ones.
            last = days[1] - DAY_S
            clients.earlier = self._readings(snapshot.model, DAY_S, days[0], last)
        self._look_at_fine_bins(clients, snapshot.model, fine)
        readings = clients.earlier + self._readings(snapshot.model, DAY_S, days[1], days[1])
        # The bin before the newest one is over, so its rate is that of whole 5 minutes.
        before = fine[1] - FINE_S
        over = self._readings(snapshot.model, FINE_S, before, before)
        statuses = []
        for number, total in sorted(readings.items()):
            if number == OTHER_CLIENTS:
                continue
            ago_s = fine[1] - clients.seen.get(number, fine[1] - BINS_KEPT[FINE_S] * FINE_S)
            statuses.append(
                ClientStatus(
                    client_name(number, names.clients),
                    last_seen=snapshot.made_at - ago_s,
                    # Bins do not tell in how many updates their readings came.
                    updates=0,
                    readings=total,
                    readings_per_s=over[number] / FINE_S,
                    interval_s=float(FINE_S),
                )
            )
        return statuses

    def _look_at_fine_bins(self, clients: _ModelClients, model: str, fine: tuple[int, int]) -> None:
        first = fine[0] if clients.newest is None else clients.newest - LATE_S
        for counted in self._reader.each_bin(model, FINE_S, first, fine[1]):
            for number, _ in pairs(counted.clients):
                clients.seen[number] = max(counted.start, clients.seen.get(number, counted.start))
        clients.newest = fine[1]

    def _readings(self, model: str, width_s: int, first: int, last: int) -> Counter[int]:
        """client -> its readings in the bins of this width that start from `first` to `last`."""
        readings: Counter[int] = Counter()
        for counted in self._reader.each_bin(model, width_s, first, last):
            readings.update(dict(pairs(counted.clients)))
        return readings
