"""From what stood in the logs to latencies: which snapshot is the first to hold each reading, and when it was seen.

A snapshot says how far it has read the updates, each update how many readings of its client are behind it, and a client
learns its readings in the order of its log. So it is known of every single reading which snapshot holds it first, and
a late one cannot hide behind the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NEVER = np.inf


class Said(NamedTuple):
    """One update as it stands in the log."""

    client: str
    sequence: int
    readings: int
    """learnt since the client's update before it"""
    bytes: int
    """of key, value and headers"""


class Seen(NamedTuple):
    """One snapshot as the observer got it."""

    at: float
    """seconds since 1970, after it was read and decoded"""
    version: int
    position: int
    """the first update that is not in it"""
    bytes: int


class Stored(NamedTuple):
    """The readings in one client's log, in the order of the log."""

    rows: NDArray[np.int64]
    """(n,) number of the row in the source"""
    at: Floats
    """(n,) when they became readable, seconds since 1970"""


class Contents:
    """Which readings of which client each snapshot holds."""

    def __init__(self, said: Sequence[Said], seen: Sequence[Seen]) -> None:
        self._said = said
        self._seen = sorted(seen)
        self._at = np.array([snapshot.at for snapshot in self._seen])

    @property
    def moments(self) -> Floats:
        """(snapshots,) when each was seen."""
        return self._at

    @property
    def bytes_said(self) -> int:
        """Of all updates."""
        return sum(update.bytes for update in self._said)

    @property
    def bytes_seen(self) -> float:
        """Of all snapshots; of those that were replaced before anybody saw them, what the others have on average."""
        if not self._seen:
            return 0.0
        return max(snapshot.version for snapshot in self._seen) * float(np.mean([each.bytes for each in self._seen]))

    def held(self, client: str) -> NDArray[np.int64]:
        """(snapshots,) how many of the client's readings the one seen last by then holds, in order of sight."""
        counts = np.zeros(len(self._said) + 1, dtype=np.int64)
        last = 0
        for place, update in enumerate(self._said):
            # What a client repeats after a kill is counted once, as the server does.
            if update.client == client and update.sequence > last:
                last = update.sequence
                counts[place + 1] = update.readings
        by_position = np.cumsum(counts)
        return np.maximum.accumulate(
            by_position[[min(snapshot.position, len(self._said)) for snapshot in self._seen]], dtype=np.int64
        )

    def seen_at(self, client: str, readings: int) -> Floats:
        """(readings,) when each of the client's first readings was first seen in a snapshot; `NEVER` if it was not."""
        first = np.searchsorted(self.held(client), np.arange(readings), side="right")
        return np.append(self._at, NEVER)[first]


def due_at(stored: Sequence[Stored], rate: float) -> list[Floats]:
    """When each reading was due, by its row's place in a stream of `rate` rows per second.

    A reading that the producer stores late is late: the clock of the stream goes on. It began when it must have begun
    at the latest for no reading to have been stored before it was due.
    """
    began = min(float((log.at - log.rows / rate).min()) for log in stored)
    return [began + log.rows / rate for log in stored]


def percentiles(latencies: Floats) -> dict[str, float]:
    """Of every reading measured, none left out. Raises ValueError when one was never seen."""
    if not np.isfinite(latencies).all():
        raise ValueError(f"{int((~np.isfinite(latencies)).sum())} readings are in no snapshot")
    p50, p99 = np.percentile(latencies, [50, 99], method="higher")
    return {
        "readings": len(latencies),
        "p50_s": round(float(p50), 4),
        "p99_s": round(float(p99), 4),
        "max_s": round(float(latencies.max()), 4),
    }
