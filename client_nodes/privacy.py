"""The second stage of a step: makes readings private. Everything after it works on noisy rows only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_nodes.intake import Batch
from shoal.algorithms.streaming import Rows
from shoal.config.contract import Contract
from shoal.privacy import Mechanism


class PrivateBatch(NamedTuple):
    """A batch after privacy."""

    rows: Rows
    """(n, d) in unit coordinates"""
    times: list[float | None]
    """event time of each row, seconds since 1970"""
    numbers: NDArray[np.int64]
    """(n,) which place of the batch each row is from, ascending"""
    place_times: Sequence[float | None]
    """event time of each place of the batch: of rows, and of readings that were rejected or withheld"""
    clipped: int = 0
    """readings that were outside the bounds of the contract and were moved to them; never leaves the client"""
    withheld: int = 0
    """readings for which the mechanism releases no row; never leaves the client"""
    counted: int = 0
    """readings that are only counted, where no model learns rows"""
    clipped_by_feature: tuple[int, ...] = ()
    """readings that were outside the bounds of each feature; () where none was; never leaves the client"""


def privatise(mechanism: Mechanism, batch: Batch, contract: Contract) -> PrivateBatch:
    """Make every reading of the batch private, in order."""
    released = mechanism.privatise(batch.values, np.array(batch.places, dtype=np.int64).reshape(-1, 2))
    times = [time for time, kept in zip(batch.times, released.kept, strict=True) if kept]
    outside: tuple[int, ...] = ()
    if released.clipped:
        low, high = np.array([(feature.low, feature.high) for feature in contract.features]).T
        outside = tuple(((batch.values < low) | (batch.values > high)).sum(axis=0).tolist())
    withheld = len(batch.places) - len(released.rows)
    return PrivateBatch(
        released.rows,
        times,
        np.asarray(batch.numbers, dtype=np.int64)[released.kept],
        batch.record_times,
        released.clipped,
        withheld,
        clipped_by_feature=outside,
    )
