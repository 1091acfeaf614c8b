"""Readings in: what a sensor says becomes rows of numbers, or is set aside with a reason. Never fatal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from client_nodes.readings_decoder import usual
from shoal.errors import MessageRejected
from shoal.protocol.messages import Reading
from shoal.transports.base import Record

Reason = Literal["malformed", "width", "missing", "not_a_number", "infinite"]


class RejectedReading(NamedTuple):
    """A reading that cannot be learnt, and why. It stays on the client."""

    record: Record
    reason: Reason


class Intake(NamedTuple):
    """One batch, sorted into what can be learnt and what cannot."""

    values: NDArray[np.float64]
    """(n, d) in the units of the contract"""
    places: list[tuple[int, int]]
    """(partition, offset) of each row"""
    times: list[float | None]
    """event time of each row, seconds since 1970"""
    rejected: list[RejectedReading]


def take_in(records: Sequence[Record], width: int) -> Intake:
    """Sort records of the readings log; `width` is the number of features d."""
    values = np.empty((len(records), width))
    times: list[float | None] = [None] * len(records)
    fit = np.zeros(len(records), dtype=np.bool_)
    rejected: list[RejectedReading] = []
    together = usual(records, width)
    values[together.which] = together.values
    fit[together.which] = True
    for number, time in zip(together.which.tolist(), together.times.tolist(), strict=True):
        times[number] = time
    for number in np.flatnonzero(~fit).tolist():
        taken = _take_one(records[number], width)
        if isinstance(taken, RejectedReading):
            rejected.append(taken)
        else:
            times[number], values[number] = taken
            fit[number] = True
    kept = np.flatnonzero(fit).tolist()
    places = [(records[number].partition, records[number].offset) for number in kept]
    return Intake(values[fit], places, [times[number] for number in kept], rejected)


def _take_one(record: Record, width: int) -> tuple[float | None, NDArray[np.float64]] | RejectedReading:
    try:
        reading = Reading.decode(record.value, record.headers)
    except MessageRejected:
        return RejectedReading(record, "malformed")
    row = _row(reading.values, width)
    return RejectedReading(record, row) if isinstance(row, str) else (reading.time, row)


def _row(values: NDArray[Any] | list[Any], width: int) -> NDArray[np.float64] | Reason:
    if isinstance(values, list):
        if len(values) != width:
            return "width"
        unfit = next((reason for value in values if (reason := _unfit(value))), None)
        return unfit or np.array(values, dtype=np.float64)
    if not isinstance(values, np.ndarray) or values.dtype != np.float64:
        return "malformed"
    if values.shape != (width,):
        return "width"
    if np.isfinite(values).all():
        return values
    return "not_a_number" if np.isnan(values).any() else "infinite"


def _unfit(value: object) -> Reason | None:
    if value is None:
        return "missing"
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return "not_a_number"
    return "infinite" if math.isinf(value) else None
