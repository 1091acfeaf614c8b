"""Readings in the usual form, many at once.

Readings as a producer writes them, of numbers and with a time, have the same bytes but for the numbers themselves. So a
batch of them is one block of bytes, and is checked and taken apart as one; what is otherwise is left to the decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.messages import Reading
from shoal.transports.base import Headers, Record

NUMBER_BYTES = 8
MARKED_TIME = 1234567890.123


class Usual(NamedTuple):
    """Which records have the usual form, and what is in them."""

    which: NDArray[np.intp]
    """(m,) their places among all"""
    times: NDArray[np.float64]
    """(m,) event times, seconds since 1970"""
    values: NDArray[np.float64]
    """(m, d) finite"""


class Form(NamedTuple):
    """The bytes of a reading in the usual form."""

    fixed: NDArray[np.uint8]
    """(bytes,) of one reading"""
    is_fixed: NDArray[np.bool_]
    """(bytes,) which of them are the same in all"""
    time_at: int
    values_at: int


@lru_cache(maxsize=8)
def form_of(width: int) -> Form:
    """The form of readings with d = `width` features, as the encoder writes it."""
    written = Reading(MARKED_TIME, np.zeros(width)).encode()
    # The only eight bytes of it that are this number: what stands before them are names, behind them zeros.
    time_at, values_at = written.index(struct.pack(">d", MARKED_TIME)), len(written) - NUMBER_BYTES * width
    is_fixed = np.ones(len(written), dtype=np.bool_)
    is_fixed[time_at : time_at + NUMBER_BYTES] = False
    is_fixed[values_at:] = False
    return Form(np.frombuffer(written, dtype=np.uint8), is_fixed, time_at, values_at)


def usual(records: Sequence[Record], width: int) -> Usual:
    """Those records that the decoder would take for finite readings of d = `width` features, at least most of them."""
    form = form_of(width)
    size, headers = len(form.fixed), Reading.headers()
    likely = [
        number
        for number, record in enumerate(records)
        if record.value is not None and len(record.value) == size and _are_usual(record.headers, headers)
    ]
    block = np.frombuffer(b"".join([records[number].value or b"" for number in likely]), dtype=np.uint8)
    block = block.reshape(len(likely), size)
    times = block[:, form.time_at : form.time_at + NUMBER_BYTES].copy().view(">f8")[:, 0].astype(np.float64)
    values = block[:, form.values_at :].copy().view("<f8").astype(np.float64, copy=False)
    fits = (block[:, form.is_fixed] == form.fixed[form.is_fixed]).all(axis=1)
    fits &= np.isfinite(values).all(axis=1) & (times >= -MOMENT_MAX) & (times <= MOMENT_MAX)
    return Usual(np.array(likely, dtype=np.intp)[fits], times[fits], values[fits])


def _are_usual(headers: Headers, wanted: Headers) -> bool:
    # Of headers of one name the decoder believes the last one.
    return headers[:2] == wanted and not any(name in ("type", "v") for name, _ in headers[2:])
