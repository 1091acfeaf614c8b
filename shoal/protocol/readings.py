"""Readings as they are stored in a client's readings log, encoded and decoded one by one or many at
once.

A category is stored as the place of its value among those that the contract declares.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from shoal.config.contract import Contract
from shoal.kernels.arrays import Bools, Floats, Indices, Octets
from shoal.protocol.checks import MOMENT_MAX, is_moment, require
from shoal.protocol.messages import Envelope
from shoal.protocol.reading_faults import is_missing
from shoal.transports.base import BytesColumn, Headers, Record, RecordColumns

NUMBER_BYTES = 8
MARKER_TIME = 1234567890.123
USER_ID: Final = "user_id"
"""header of a reading: which user (person, device) it is from. It never leaves the client's site"""


RowsOfValues = Floats | Sequence[Floats | list[Any]]
"""values of n readings: (n, d) numbers, or `Reading.values` of each"""


@dataclass(frozen=True)
class Reading(Envelope):
    """One raw reading in the readings log of a client. It never leaves the client's site.

    >>> import numpy as np
    >>> import shoal
    >>> reading = shoal.Reading(time=1_700_000_000.0, values=np.array([21.5, 0.4]))
    >>> shoal.Reading.decode(reading.encode(), reading.headers()).values
    array([21.5,  0.4])
    """

    TYPE: ClassVar[str] = "reading"

    time: float | None
    """event time, seconds since 1970; None when the source has none"""
    values: Floats | list[Any]
    """d numbers in the order of the contract; a list when the source gave something that may not be
    numbers"""

    def __post_init__(self) -> None:
        require(self.time is None or is_moment(self.time), "malformed", "time")

    @classmethod
    def encode_many(cls, times: Sequence[float | None], values: RowsOfValues) -> Sequence[bytes]:
        """What `encode` gives for each reading (n): n times, and n rows of values.

        Usual readings (all rows d float64 values, and all with a float time or all without one)
        differ in the numbers alone, so they are encoded as one block of bytes. Raises as building
        and encoding each one does.
        """
        block = _encode_block(times, values)
        if block is None:
            return [cls(time, row).encode() for time, row in zip(times, values, strict=True)]
        return BytesColumn(block.tobytes(), block.shape[1])

    @classmethod
    def decode_many(
        cls, records: Sequence[Record], width: int, gaps: bool = False
    ) -> DecodedReadings:
        """Decode at once those records that hold d = `width` finite float64 values and a float time
        or none.

        With `gaps` values may be missing (NaN), but not all of one reading.

        Such readings, as a producer writes them, have the same bytes but for the numbers
        themselves. So a batch of them is checked and decoded as one block of bytes. Records that
        differ in any other byte are left out: `decode` tells what they are.
        """
        with_time = _decode_block(records, _layout_of(width, True), cls.headers(), gaps)
        if len(with_time.indices) == len(records):
            return with_time
        without = _decode_block(records, _layout_of(width, False), cls.headers(), gaps)
        if not len(with_time.indices):
            return without
        # Indices are all different, so any sort puts readings back in the order of the log.
        order = np.argsort(np.concatenate([with_time.indices, without.indices]))
        return DecodedReadings(
            *(np.concatenate(pair)[order] for pair in zip(with_time, without, strict=True))
        )


def user_of(headers: Headers) -> bytes | None:
    """The user id of a reading; None without one. Of several headers with this name the last one
    counts."""
    return dict(headers).get(USER_ID) or None


class DecodedReadings(NamedTuple):
    """What `Reading.decode_many` decoded."""

    indices: Indices
    """(m,) which of the records, ascending"""
    times: Floats
    """(m,) event times, seconds since 1970; NaN for a reading without one"""
    values: Floats
    """(m, d) finite, but for missing values where those may be"""


class _Layout(NamedTuple):
    """The bytes of an encoded reading of d float64 values, with a float time or without one."""

    template: Octets
    """(bytes,) of one such reading"""
    is_fixed: Bools
    """(bytes,) which of them are the same in all"""
    time_at: int | None
    values_at: int


@lru_cache(maxsize=8)
def _layout_of(width: int, timed: bool) -> _Layout:
    """Derived from what the encoder writes for d = `width`, so that the two cannot disagree."""
    encoded = Reading(MARKER_TIME if timed else None, np.zeros(width)).encode()
    # No other eight bytes can equal this number: names stand before them, zeros behind them.
    time_at = encoded.index(struct.pack(">d", MARKER_TIME)) if timed else None
    values_at = len(encoded) - NUMBER_BYTES * width
    is_fixed = np.ones(len(encoded), dtype=np.bool_)
    if time_at is not None:
        is_fixed[time_at : time_at + NUMBER_BYTES] = False
    is_fixed[values_at:] = False
    return _Layout(np.frombuffer(encoded, dtype=np.uint8), is_fixed, time_at, values_at)


def _encode_block(times: Sequence[float | None], values: RowsOfValues) -> Octets | None:
    """(n, bytes) the encoded readings; None for any that are not usual."""
    kinds = set(map(type, times))
    numbers = _as_numbers(values)
    if numbers is None or len(kinds) != 1 or not kinds <= {float, type(None)}:
        return None
    timed = kinds == {float}
    layout = _layout_of(numbers.shape[1], timed)
    block = np.tile(layout.template, (len(numbers), 1))
    block[:, layout.values_at :] = np.ascontiguousarray(numbers, dtype="<f8").view(np.uint8)
    if layout.time_at is not None:
        moments = np.array(times, dtype=">f8")
        if not ((moments >= -MOMENT_MAX) & (moments <= MOMENT_MAX)).all():
            return None  # building one of them raises
        block[:, layout.time_at : layout.time_at + NUMBER_BYTES] = moments.view(np.uint8).reshape(
            -1, NUMBER_BYTES
        )
    return block


def _as_numbers(values: RowsOfValues) -> Floats | None:
    """The rows as one array (n, d); None unless all are d float64 values."""
    if isinstance(values, np.ndarray):
        return values if values.ndim == 2 and values.dtype == np.float64 else None
    forms = {(row.shape, row.dtype) if isinstance(row, np.ndarray) else None for row in values}
    if (
        len(forms) != 1
        or (form := forms.pop()) is None
        or len(form[0]) != 1
        or form[1] != np.float64
    ):
        return None
    return np.array(values)


def _decode_block(
    records: Sequence[Record], layout: _Layout, headers: Headers, gaps: bool
) -> DecodedReadings:
    """The records that have this layout, decoded; `headers` are those of a reading."""
    candidates, encoded = _of_length(records, len(layout.template), headers)
    block = np.frombuffer(encoded, dtype=np.uint8).reshape(len(candidates), len(layout.template))
    values = block[:, layout.values_at :].copy().view("<f8").astype(np.float64, copy=False)
    fits = (block[:, layout.is_fixed] == layout.template[layout.is_fixed]).all(axis=1)
    finite = np.isfinite(values)
    fits &= finite.any(axis=1) & ~np.isinf(values).any(axis=1) if gaps else finite.all(axis=1)
    if layout.time_at is None:
        times = np.full(len(block), np.nan)
    else:
        times = (
            block[:, layout.time_at : layout.time_at + NUMBER_BYTES]
            .copy()
            .view(">f8")[:, 0]
            .astype(np.float64)
        )
        fits &= (times >= -MOMENT_MAX) & (times <= MOMENT_MAX)
    return DecodedReadings(candidates[fits], times[fits], values[fits])


def _of_length(records: Sequence[Record], size: int, headers: Headers) -> tuple[Indices, bytes]:
    """Which records have these headers and a value of this many bytes; and their values in one
    block."""
    if isinstance(records, RecordColumns):
        usual = [_are_usual(form, headers) for form in records.forms]
        # Those of one form may differ in the last content, which may be one of these headers.
        differ = any(len(form) <= len(headers) for form in records.forms)
        if (
            isinstance(records.values, BytesColumn)
            and records.values.length == size
            and all(usual)
            and not differ
        ):
            return np.arange(len(records)), records.values.block
        values = [value or b"" for value in records.values]
        lengths = np.fromiter(map(len, values), np.intp, len(values))
        is_usual = (lengths == size) & np.array(usual)[records.form_of]
        if differ:
            is_usual &= np.array(
                [
                    records.headers_of(place)[: len(headers)] == headers
                    for place in range(len(values))
                ]
            )
        fits = np.flatnonzero(is_usual)
        return fits, b"".join(
            values if len(fits) == len(values) else [values[number] for number in fits]
        )
    found = [
        (number, record.value)
        for number, record in enumerate(records)
        if record.value is not None
        and len(record.value) == size
        and _are_usual(record.headers, headers)
    ]
    return np.array([number for number, _ in found], dtype=np.intp), b"".join(
        [value for _, value in found]
    )


def _are_usual(headers: Headers, wanted: Headers) -> bool:
    # Of several headers with one name `decode` uses the last.
    return headers[:2] == wanted and _ENVELOPE.isdisjoint([name for name, _ in headers[2:]])


_ENVELOPE: Final = frozenset({"type", "v"})


@dataclass(frozen=True)
class Codes:
    """The declared values of one feature: a text is compared as it is written, a number by its
    value.

    Truths are written as true, True or TRUE, by programs of one kind each.
    """

    values: tuple[str, ...]

    @cached_property
    def _texts(self) -> dict[str, float]:
        return {text: float(place) for place, text in enumerate(self.values)}

    @cached_property
    def _numbers(self) -> dict[float, float]:
        return {
            number: place
            for text, place in self._texts.items()
            if (number := _number(text)) is not None
        }

    @cached_property
    def _truths(self) -> dict[str, float]:
        return {
            text.lower(): place
            for text, place in self._texts.items()
            if text.lower() in ("true", "false")
        }

    def place(self, cell: Any) -> float | None:
        """The place of a value; None for one that is not declared, and for a missing one."""
        if is_missing(cell):
            return None
        text = str(cell).lower() if isinstance(cell, bool) else str(cell).strip()
        if text in self._texts:
            return self._texts[text]
        if text.lower() in self._truths:
            return self._truths[text.lower()]
        number = _number(text)
        return None if number is None else self._numbers.get(number)

    def place_or_number(self, cell: Any) -> float | None:
        """`place`, or the cell itself as a place where no declared value is a number, as snapshots
        have centres."""
        place = self.place(cell)
        if (
            place is None
            and not self._numbers
            and isinstance(cell, int | float)
            and not isinstance(cell, bool)
        ):
            return float(cell) if -0.5 <= cell <= len(self.values) - 0.5 else None
        return place


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def codes_of(contract: Contract) -> dict[int, Codes]:
    """position -> the values of each feature of kind "category"."""
    return {
        j: Codes(feature.values)
        for j, feature in enumerate(contract.features)
        if feature.kind == "category"
    }
