"""The second stage of a step: makes readings private. Everything after it works on private rows only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from client_nodes.intake import Batch
from shoal.algorithms.streaming import Rows
from shoal.privacy import Mechanism


class PrivateBatch(NamedTuple):
    """A batch after privacy."""

    rows: Rows
    """(n, d) in unit coordinates"""
    times: list[float | None]
    """event time of each row, seconds since 1970"""
    clipped: int = 0
    """readings that were outside the bounds of the contract and were moved to them; never leaves the client"""
    withheld: int = 0
    """readings for which the mechanism releases no row; never leaves the client"""
    counted: int = 0
    """readings that are only counted, where no model learns rows"""


def privatise(mechanism: Mechanism, batch: Batch) -> PrivateBatch:
    """Make every reading of the batch private, in order."""
    released = mechanism.privatise(batch.values, np.array(batch.places, dtype=np.int64).reshape(-1, 2))
    times = [time for time, kept in zip(batch.times, released.kept, strict=True) if kept]
    return PrivateBatch(released.rows, times, released.clipped, len(batch.places) - len(released.rows))
