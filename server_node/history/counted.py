"""All readings of a model that its history counts, by the cluster that they fell to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from shoal.errors import LogUnavailable
from shoal.protocol.history import DAY_S, FINE_S, pairs
from shoal.server_node.history.store import HistoryReader

COUNTED_PART: Final = 0.9
"""part of the readings of the history that a model must have counted itself for its own word on
them: noise in its counts is less than the rest"""


@dataclass(frozen=True)
class CountedReadings:
    """The readings of a model from the oldest day that the history has to its newest bin."""

    start: int
    """start of the oldest day, seconds since 1970, by the times in the updates"""
    end: int
    """end of the newest fine bin"""
    readings: int
    """readings in all, those that fell to no known cluster among them"""
    by_cluster: Mapping[int, int]
    """identity -> readings that fell to it, by the first snapshot that had learnt from them;
    `NO_CLUSTER` for those of none"""

    def told_by(self, counted: Mapping[int, float]) -> CountedReadings:
        """The same readings by what the model itself says of them: identity -> readings that it has
        counted to a cluster since it began.

        It knows better where the readings lay that came before a cluster was found. Where the
        history goes further back than the model, it stays as it is.
        """
        total = math.fsum(counted.values())
        if total <= 0.0 or total < COUNTED_PART * self.readings:
            return self
        by_cluster = {}
        for identity, readings in counted.items():
            # Only the shares are the model's: its counts may have noise, and the number of readings
            # stays that of the history.
            by_cluster[identity] = round(self.readings * readings / total)
        return replace(self, by_cluster=by_cluster)

    def share(self, identity: int) -> float:
        """Part of the readings that fell to a cluster, 0 to 1."""
        if self.readings:
            return self.by_cluster.get(identity, 0) / self.readings
        return 0.0


def counted_readings(reader: HistoryReader, model: str) -> CountedReadings | None:
    """What is counted of a model; None before the first bin, and while the file cannot be read.

    By the bins of days: there are at most 7 300, and they are kept for longer than shorter ones.
    """
    try:
        days = reader.extent(model, DAY_S)
        fine = reader.extent(model, FINE_S)
        if days is None or fine is None:
            return None
        first, newest = days
        by_cluster: Counter[int] = Counter()
        for day in reader.each_bin(model, DAY_S, first, newest):
            by_cluster.update(dict(pairs(day.clusters)))
    except LogUnavailable:
        return None
    return CountedReadings(first, fine[1] + FINE_S, by_cluster.total(), by_cluster)
