"""Readings as they are stored in a client's readings log, encoded one by one or many at once.

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
from shoal.kernels.arrays import Floats, Indices, Octets
from shoal.protocol.checks import MOMENT_MAX, is_moment, require
from shoal.protocol.messages import Envelope
from shoal.protocol.reading_faults import is_missing
from shoal.transports.base import BytesColumn, Headers, Record, RecordColumns

NUMBER_BYTES = 8
_LITTLE: Final = np.dtype("<f8")
_BIG: Final = np.dtype(">f8")
NOTED_DIGITS_MAX = 20
"""digits of a time that a producer has noted, with its sign"""
MARKER_TIME = 1234567890.123
USER_ID: Final = "user_id"
"""header of a reading: which user (person, device) it is from. It never leaves the client's site"""
NUMBER: Final = "number"
"""header of a reading: its number in the source, and its time in whole seconds behind a space"""


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
            np.concatenate([with_time.indices, without.indices])[order],
            np.concatenate([with_time.times, without.times])[order],
            np.concatenate([with_time.values, without.values])[order],
        )


def number_contents(numbers: Sequence[int], times: Sequence[float | None]) -> list[bytes]:
    """numbers (n,) of readings in their source, their event times (n,) -> (n,) headers `NUMBER`.

    The time is there beside the one in the reading: what a client may publish of it must not depend
    on whether the reading can be decoded. In one header with the number, as a log reads records
    fastest whose headers differ in the last content alone.
    """
    contents = []
    for number, time in zip(numbers, times, strict=True):
        contents.append(b"%d" % number if time is None else b"%d %d" % (number, math.floor(time)))
    return contents


def number_of(headers: Headers) -> int | None:
    """The number of a reading in its source; None where no producer has noted one."""
    number, _, _ = dict(headers).get(NUMBER, b"").partition(b" ")
    return int(number) if number.isdigit() else None


def stored_times(records: Sequence[Record]) -> list[float | None]:
    """Event times of records (n,) as their producer noted them beside the readings, whole seconds
    since 1970; None where it noted none.

    They depend on no content of a reading.
    """
    if isinstance(records, RecordColumns) and _end_in_number(records.forms):
        return [_noted_time(content) for content in records.last_contents]
    return [_noted_time(dict(record.headers).get(NUMBER, b"")) for record in records]


def _end_in_number(forms: Sequence[Headers]) -> bool:
    return all(form and form[-1][0] == NUMBER for form in forms)


def _noted_time(content: bytes) -> float | None:
    _, _, text = content.partition(b" ")
    if not text.removeprefix(b"-").isdigit() or len(text) > NOTED_DIGITS_MAX:
        return None
    time = float(text)
    return time if is_moment(time) else None


def user_of(headers: Headers) -> bytes | None:
    """The user id of a reading; None without one.

    Of several headers with this name the last one counts.
    """
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
    fixed: Sequence[tuple[int, int]]
    """(begin, end) of the bytes that are the same in all"""
    time_at: int | None
    values_at: int


@lru_cache(maxsize=8)
def _layout_of(width: int, timed: bool) -> _Layout:
    """Derived from what the encoder writes for d = `width`, so that the two cannot disagree."""
    encoded = Reading(MARKER_TIME if timed else None, np.zeros(width)).encode()
    # No other eight bytes can equal this number: names stand before them, zeros behind them.
    time_at = encoded.index(struct.pack(">d", MARKER_TIME)) if timed else None
    values_at = len(encoded) - NUMBER_BYTES * width
    fixed = [(0, values_at)]
    if time_at is not None:
        fixed = [(0, time_at), (time_at + NUMBER_BYTES, values_at)]
    return _Layout(np.frombuffer(encoded, dtype=np.uint8), fixed, time_at, values_at)


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
        # MessagePack writes a number with its highest byte first; the values are a block of bytes
        # to it.
        moments = np.array(times, dtype=">f8")
        if not ((moments >= -MOMENT_MAX) & (moments <= MOMENT_MAX)).all():
            # One of them is no moment: building its reading raises.
            return None
        block[:, layout.time_at : layout.time_at + NUMBER_BYTES] = moments.view(np.uint8).reshape(
            -1, NUMBER_BYTES
        )
    return block


def _as_numbers(values: RowsOfValues) -> Floats | None:
    """The rows as one array (n, d); None unless all are d float64 values."""
    if isinstance(values, np.ndarray):
        is_table = values.ndim == 2 and values.dtype == np.float64
        return values if is_table else None
    shapes = set()
    for row in values:
        if not isinstance(row, np.ndarray) or row.dtype != np.float64 or row.ndim != 1:
            return None
        shapes.add(row.shape)
    if len(shapes) != 1:
        return None
    return np.array(values)


def _decode_block(
    records: Sequence[Record], layout: _Layout, headers: Headers, gaps: bool
) -> DecodedReadings:
    """The records that have this layout, decoded; `headers` are those of a reading."""
    candidates, encoded = _of_length(records, len(layout.template), headers)
    block = np.frombuffer(encoded, dtype=np.uint8).reshape(len(candidates), len(layout.template))
    values = block[:, layout.values_at :].copy().view(_LITTLE).astype(np.float64, copy=False)
    fits = np.ones(len(block), dtype=np.bool_)
    # By slices, which are views: of a few readings, to pick bytes one by one takes longest.
    for begin, end in layout.fixed:
        fits &= (block[:, begin:end] == layout.template[begin:end]).all(axis=1)
    finite = np.isfinite(values)
    if gaps:
        fits &= finite.any(axis=1) & ~np.isinf(values).any(axis=1)
    else:
        fits &= finite.all(axis=1)
    if layout.time_at is None:
        times = np.full(len(block), np.nan)
    else:
        packed_times = block[:, layout.time_at : layout.time_at + NUMBER_BYTES].copy()
        times = packed_times.view(_BIG)[:, 0].astype(np.float64)
        fits &= (times >= -MOMENT_MAX) & (times <= MOMENT_MAX)
    if fits.all():
        return DecodedReadings(candidates, times, values)
    return DecodedReadings(candidates[fits], times[fits], values[fits])


def _of_length(records: Sequence[Record], size: int, headers: Headers) -> tuple[Indices, bytes]:
    """Which records have these headers and a value of this many bytes.

    And their values in one block.
    """
    if isinstance(records, RecordColumns):
        return _of_length_in_columns(records, size, headers)
    numbers = []
    values = []
    for number, record in enumerate(records):
        value = record.value
        if value is None or len(value) != size or not _are_usual(record.headers, headers):
            continue
        numbers.append(number)
        values.append(value)
    return np.array(numbers, dtype=np.intp), b"".join(values)


def _of_length_in_columns(
    records: RecordColumns, size: int, headers: Headers
) -> tuple[Indices, bytes]:
    """The same of records that came in columns, which need not be looked at one by one."""
    usual = [_are_usual(form, headers) for form in records.forms]
    # Those of one form may differ in the last content, which may be one of these headers.
    differ = any(len(form) <= len(headers) for form in records.forms)
    differ = differ and set(records.last_contents) != {headers[-1][1]}
    is_block = isinstance(records.values, BytesColumn) and records.values.length == size
    if is_block and all(usual) and not differ:
        assert isinstance(records.values, BytesColumn)
        return np.arange(len(records)), records.values.block
    values = [value or b"" for value in records.values]
    lengths = np.fromiter(map(len, values), np.intp, len(values))
    fits = (lengths == size) & np.array(usual)[records.form_of]
    if differ:
        for place in np.flatnonzero(fits).tolist():
            fits[place] = records.headers_of(place)[: len(headers)] == headers
    numbers = np.flatnonzero(fits)
    if len(numbers) < len(values):
        values = [values[number] for number in numbers]
    return numbers, b"".join(values)


def _are_usual(headers: Headers, wanted: Headers) -> bool:
    # Of several headers with one name `decode` uses the last.
    return headers[:2] == wanted and _ENVELOPE.isdisjoint([name for name, _ in headers[2:]])


_ENVELOPE: Final = frozenset({"type", "v"})


@dataclass(frozen=True)
class Codes:
    """The declared values of one feature.

    A text is compared as it is written, a number by its value. Truths are written as true, True or
    TRUE, by programs of one kind each.
    """

    values: tuple[str, ...]

    @cached_property
    def _texts(self) -> dict[str, float]:
        return {text: float(place) for place, text in enumerate(self.values)}

    @cached_property
    def _numbers(self) -> dict[float, float]:
        places = {}
        for text, place in self._texts.items():
            number = _number(text)
            if number is not None:
                places[number] = place
        return places

    @cached_property
    def _truths(self) -> dict[str, float]:
        places = {}
        for text, place in self._texts.items():
            if text.lower() in ("true", "false"):
                places[text.lower()] = place
        return places

    def place(self, cell: Any) -> float | None:
        """The place of a value; None for one that is not declared, and for a missing one."""
        if is_missing(cell):
            return None
        text = str(cell).strip()
        if isinstance(cell, bool):
            text = text.lower()
        if text in self._texts:
            return self._texts[text]
        if text.lower() in self._truths:
            return self._truths[text.lower()]
        number = _number(text)
        if number is None:
            return None
        return self._numbers.get(number)

    def place_or_number(self, cell: Any) -> float | None:
        """`place`, or the cell itself as a place where no declared value is a number.

        Snapshots have centres as such places.
        """
        place = self.place(cell)
        if place is not None or self._numbers:
            return place
        if not isinstance(cell, int | float) or isinstance(cell, bool):
            return None
        # Up to half a step beyond the first and the last value, where a centre rounds to it.
        if -0.5 <= cell <= len(self.values) - 0.5:
            return float(cell)
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def codes_of(contract: Contract) -> dict[int, Codes]:
    """position -> the values of each feature of kind "category"."""
    codes = {}
    for j, feature in enumerate(contract.features):
        if feature.kind == "category":
            codes[j] = Codes(feature.values)
    return codes
