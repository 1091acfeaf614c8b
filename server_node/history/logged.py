"""The history of one model as its topic has it, for commands that run beside a server."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shoal.config.resolved import ResolvedContract
from shoal.protocol.history import HistoryBin, HistoryNames
from shoal.server_node.history.store import decode_record
from shoal.transports.base import Log, latest


class LoggedHistory:
    """The bins and names of one model, in memory. A `HistorySource`."""

    def __init__(self, log: Log, contract: ResolvedContract, model: str) -> None:
        """The log has the topic. Raises as the log does."""
        self._bins: dict[int, list[HistoryBin]] = {}
        """width -> bins, oldest first"""
        self._names: HistoryNames | None = None
        for record in latest(log, contract.contract.history_topic).values():
            decoded = decode_record(record, contract)
            message = None if decoded is None else decoded.message
            if message is None or message.model != model:
                continue
            if isinstance(message, HistoryNames):
                self._names = message
            else:
                self._bins.setdefault(message.width_s, []).append(message)
        for bins in self._bins.values():
            # A compacted topic has the newest version of each key where it was written last, so its
            # order is not that of time.
            bins.sort(key=lambda counted: counted.start)

    def extent(self, model: str, width_s: int) -> tuple[int, int] | None:
        """The starts of the oldest and the newest bin of this width; None if there is none."""
        bins = self._bins.get(width_s)
        return (bins[0].start, bins[-1].start) if bins else None

    def each_bin(
        self, model: str, width_s: int, first: float = -math.inf, last: float = math.inf
    ) -> Iterator[HistoryBin]:
        """The bins of this width that start from `first` to `last`, oldest first."""
        for counted in self._bins.get(width_s, ()):
            if first <= counted.start <= last:
                yield counted

    def names(self, model: str) -> HistoryNames | None:
        """The clients and clusters that the bins name by number."""
        return self._names
