"""Latencies: the first snapshot that contains each reading, and when another process had read it.

A snapshot has the position up to which the server has read the updates, an update has the number of
readings that it covers, and a client learns readings in the order of its log. So the first snapshot
with a reading is known for every single reading, and none is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats, Ints

NEVER = np.inf


class LoggedUpdate(NamedTuple):
    """One update in the log."""

    client: str
    sequence: int
    readings: int
    """learnt since the client's previous update"""
    bytes: int
    """bytes of key, value and headers"""


class SeenSnapshot(NamedTuple):
    """One snapshot that the observer has read."""

    at: float
    """seconds since 1970, after it was read and decoded"""
    version: int
    position: int
    """offset of the first update that is not in it"""
    bytes: int


class StoredReadings(NamedTuple):
    """The readings in one client's log, in the order of the log."""

    rows: Ints
    """(n,) number of the row in the source"""
    at: Floats
    """(n,) when they became readable, seconds since 1970"""


class SnapshotContents:
    """The readings of each client in each snapshot."""

    def __init__(self, updates: Sequence[LoggedUpdate], seen: Sequence[SeenSnapshot]) -> None:
        self._updates = updates
        self._seen = sorted(seen)
        self._at = np.array([snapshot.at for snapshot in self._seen])

    @property
    def times(self) -> Floats:
        """(snapshots,) when each was read, seconds since 1970."""
        return self._at

    @property
    def update_bytes(self) -> int:
        """Bytes of all updates."""
        return sum(update.bytes for update in self._updates)

    @property
    def snapshot_bytes(self) -> float:
        """Bytes of all snapshots; those that were replaced before they were read count with the
        mean of the others."""
        if not self._seen:
            return 0.0
        return max(snapshot.version for snapshot in self._seen) * float(
            np.mean([message.bytes for message in self._seen])
        )

    def readings_in(self, client: str) -> Ints:
        """(snapshots,) number of the client's readings in the newest snapshot read so far, in the
        order of reading."""
        counts = np.zeros(len(self._updates) + 1, dtype=np.int64)
        last = 0
        for place, update in enumerate(self._updates):
            # An update that is repeated after a kill counts once, as on the server.
            if update.client == client and update.sequence > last:
                last = update.sequence
                counts[place + 1] = update.readings
        by_position = np.cumsum(counts)
        return np.maximum.accumulate(
            by_position[[min(snapshot.position, len(self._updates)) for snapshot in self._seen]],
            dtype=np.int64,
        )

    def seen_at(self, client: str, readings: int) -> Floats:
        """(readings,) when the first snapshot with each of the client's readings was read; `NEVER`
        if none was."""
        first = np.searchsorted(self.readings_in(client), np.arange(readings), side="right")
        return np.append(self._at, NEVER)[first]


def due_at(stored: Sequence[StoredReadings], rate: float) -> list[Floats]:
    """Times at which readings were due, by rows' places in a stream of `rate` rows per second,
    seconds since 1970.

    A reading that the producer stores late counts as late. The stream starts at the latest time at
    which no reading is stored before it is due.
    """
    began = min(float((log.at - log.rows / rate).min()) for log in stored)
    return [began + log.rows / rate for log in stored]


def percentiles(latencies: Floats) -> dict[str, float]:
    """Percentiles of all latencies in seconds. Raises ValueError if a reading is in no snapshot."""
    if not np.isfinite(latencies).all():
        raise ValueError(f"{int((~np.isfinite(latencies)).sum())} readings are in no snapshot")
    p50, p99 = np.percentile(latencies, [50, 99], method="higher")
    return {
        "readings": len(latencies),
        "p50_s": round(float(p50), 4),
        "p99_s": round(float(p99), 4),
        "max_s": round(float(latencies.max()), 4),
    }
