"""Readings as they are stored in a client's readings log, and their decoder for one and for many at once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.protocol.checks import MOMENT_MAX, is_moment, require
from shoal.protocol.messages import Envelope
from shoal.transports.base import Headers, Record

NUMBER_BYTES = 8
MARKER_TIME = 1234567890.123
USER_ID: Final = "user_id"
"""header of a reading: which user (person, device) it is from. It never leaves the client's site"""


@dataclass(frozen=True)
class Reading(Envelope):
    """One raw reading in the readings log of a client. It never leaves the client's site."""

    TYPE: ClassVar[str] = "reading"

    time: float | None
    """event time, seconds since 1970; None when the source has none"""
    values: NDArray[np.float64] | list[Any]
    """d numbers in the order of the contract; a list when the source gave something that may not be numbers"""

    def __post_init__(self) -> None:
        require(self.time is None or is_moment(self.time), "malformed", "time")

    @classmethod
    def decode_many(cls, records: Sequence[Record], width: int) -> DecodedReadings:
        """Decode at once those records that hold d = `width` finite float64 values and a float time.

        Such readings, as a producer writes them, have the same bytes but for the numbers themselves. So a batch of
        them is checked and decoded as one block of bytes. Records that differ in any other byte are left out: `decode`
        tells what they are.
        """
        layout = _layout_of(width)
        size, headers = len(layout.template), cls.headers()
        candidates = [
            number
            for number, record in enumerate(records)
            if record.value is not None and len(record.value) == size and _are_usual(record.headers, headers)
        ]
        block = np.frombuffer(b"".join([records[number].value or b"" for number in candidates]), dtype=np.uint8)
        block = block.reshape(len(candidates), size)
        times = block[:, layout.time_at : layout.time_at + NUMBER_BYTES].copy().view(">f8")[:, 0].astype(np.float64)
        values = block[:, layout.values_at :].copy().view("<f8").astype(np.float64, copy=False)
        fits = (block[:, layout.is_fixed] == layout.template[layout.is_fixed]).all(axis=1)
        fits &= np.isfinite(values).all(axis=1) & (times >= -MOMENT_MAX) & (times <= MOMENT_MAX)
        return DecodedReadings(np.array(candidates, dtype=np.intp)[fits], times[fits], values[fits])


def user_of(headers: Headers) -> bytes | None:
    """The user id of a reading; None without one. Of several headers with this name the last one counts."""
    return dict(headers).get(USER_ID) or None


class DecodedReadings(NamedTuple):
    """What `Reading.decode_many` decoded."""

    indices: NDArray[np.intp]
    """(m,) which of the records, ascending"""
    times: NDArray[np.float64]
    """(m,) event times, seconds since 1970"""
    values: NDArray[np.float64]
    """(m, d) finite"""


class _Layout(NamedTuple):
    """The bytes of an encoded reading of d float64 values and a float time."""

    template: NDArray[np.uint8]
    """(bytes,) of one such reading"""
    is_fixed: NDArray[np.bool_]
    """(bytes,) which of them are the same in all"""
    time_at: int
    values_at: int


@lru_cache(maxsize=8)
def _layout_of(width: int) -> _Layout:
    """Derived from what the encoder writes for d = `width`, so that the two cannot disagree."""
    encoded = Reading(MARKER_TIME, np.zeros(width)).encode()
    # No other eight bytes can equal this number: names stand before them, zeros behind them.
    time_at, values_at = encoded.index(struct.pack(">d", MARKER_TIME)), len(encoded) - NUMBER_BYTES * width
    is_fixed = np.ones(len(encoded), dtype=np.bool_)
    is_fixed[time_at : time_at + NUMBER_BYTES] = False
    is_fixed[values_at:] = False
    return _Layout(np.frombuffer(encoded, dtype=np.uint8), is_fixed, time_at, values_at)


def _are_usual(headers: Headers, wanted: Headers) -> bool:
    # Of several headers with one name `decode` uses the last.
    return headers[:2] == wanted and not any(name in ("type", "v") for name, _ in headers[2:])
