"""The second stage of a step: makes readings private. Everything after it works on noisy rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.intake import Batch
from shoal.kernels.arrays import Bools, Ints
from shoal.privacy import Bounds, Mechanism
from shoal.protocol.reading_faults import beyond_bounds, first_rows


class PrivateBatch(NamedTuple):
    """A batch after privacy."""

    rows: Rows
    """(n, d) in unit coordinates"""
    times: list[float | None]
    """time of each row, as updates may state it, seconds since 1970"""
    numbers: Ints
    """(n,) which place of the batch each row is from, ascending"""
    place_times: Sequence[float | None]
    """such a time of each place of the batch: of rows, and of readings that were rejected or
    withheld"""
    clipped: int = 0
    """readings that were outside the bounds of the contract and were moved to them; never leaves
    the client"""
    withheld: int = 0
    """readings for which the mechanism releases no row; never leaves the client"""
    counted: int = 0
    """readings that are only counted, where no model learns rows"""
    clipped_by_feature: tuple[int, ...] = ()
    """readings that were outside the bounds of each feature; () where none was; never leaves the
    client"""
    first_clipped: Mapping[int, tuple[int, int]] = {}
    """position of a feature -> (partition, offset) of the first reading outside its bounds; never
    leaves the client"""
    missing_by_feature: tuple[int, ...] = ()
    """readings that lack a value of each feature; () where none does; never leaves the client"""


def _without_rows(bounds: Bounds) -> PrivateBatch:
    return PrivateBatch(np.empty((0, bounds.d)), [], np.empty(0, dtype=np.int64), [])


def privatise(mechanism: Mechanism, batch: Batch, bounds: Bounds) -> PrivateBatch:
    """Make every reading of the batch private, in order."""
    # First, as it is every step of an idle client.
    if not batch.record_times:
        return _without_rows(bounds)
    places = np.array(batch.places, dtype=np.int64).reshape(-1, 2)
    released = mechanism.privatise(batch.values, places)
    numbers = np.asarray(batch.numbers, dtype=np.int64)[released.kept]
    clipped: tuple[int, ...] = ()
    first: dict[int, tuple[int, int]] = {}
    if released.clipped:
        clipped, first = _clipped(batch, beyond_bounds(batch.values, bounds))
    return PrivateBatch(
        released.rows,
        [batch.public_times[number] for number in numbers.tolist()],
        numbers,
        batch.public_times,
        released.clipped,
        withheld=len(batch.places) - len(released.rows),
        clipped_by_feature=clipped,
        first_clipped=first,
        missing_by_feature=_missing(batch.values),
    )


def counted_only(batch: Batch, bounds: Bounds, gaps: bool = False) -> PrivateBatch:
    """A batch without rows, which no model learns: only its numbers are known."""
    # First, as it is every step of an idle client.
    if not len(batch.values):
        return _without_rows(bounds)
    # Windows clip the values themselves, and check them: here they are counted alone.
    beyond = beyond_bounds(batch.values, bounds)
    by_feature, first = _clipped(batch, beyond)
    none = _without_rows(bounds)
    return PrivateBatch(
        none.rows,
        none.times,
        none.numbers,
        none.place_times,
        clipped=int(beyond.any(axis=1).sum()) if by_feature else 0,
        counted=len(batch.values),
        clipped_by_feature=by_feature,
        first_clipped=first,
        missing_by_feature=_missing(batch.values) if gaps else (),
    )


def _clipped(batch: Batch, beyond: Bools) -> tuple[tuple[int, ...], dict[int, tuple[int, int]]]:
    """Readings outside the bounds of each feature, () where none is, and the first by position.

    `beyond`: (n, d) which values of the batch are outside.
    """
    if not beyond.any():
        return (), {}
    first = {position: batch.places[row] for position, row in first_rows(beyond).items()}
    return tuple(beyond.sum(axis=0).tolist()), first


def _missing(values: Rows) -> tuple[int, ...]:
    """Readings that lack a value of each feature; () where none does."""
    missing = np.isnan(values).sum(axis=0)
    return tuple(missing.tolist()) if missing.any() else ()
