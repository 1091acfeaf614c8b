"""Canaries: readings with values that occur nowhere else, and the search for them in what leaves a client."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shoal.privacy.base import Bounds

DIGITS = 10
"""significant digits by which text is searched: in long text of other numbers fewer occur by chance"""


def canary_readings(bounds: Bounds, n: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """(n, d) readings within the bounds, whose values have more digits than any that occur by chance."""
    return bounds.from_unit(generator.uniform(0.1, 0.9, size=(n, bounds.d)))


def traces(readings: NDArray[np.float64], bounds: Bounds, digits: int = DIGITS) -> frozenset[bytes]:
    """All byte strings that give away a value of these readings, in their units or in unit coordinates.

    A value may be written as a number of 64 bits in either byte order, or as decimal digits; and a whole reading as
    numbers of 32 bits, of which a single one occurs by chance.
    """
    found: set[bytes] = set()
    for rows in (readings, bounds.to_unit(readings)):
        for value in rows.ravel().tolist():
            found.update((struct.pack("<d", value), struct.pack(">d", value), _digits(value, digits)))
        found.update(row.astype(form).tobytes() for row in rows for form in ("<f4", ">f4") if len(row) > 1)
    return frozenset(found)


def occurrences(where: bytes, wanted: Iterable[bytes]) -> int:
    """How many of the byte strings occur in `where`."""
    return sum(each in where for each in wanted)


def _digits(value: float, digits: int) -> bytes:
    """The first significant digits, cut and not rounded, with the point; a number below 1 without the 0 before it."""
    whole, _, rest = f"{abs(value):.17f}".partition(".")
    if whole != "0":
        return f"{whole}.{rest}"[: digits + 1].encode()
    return f".{rest}"[: len(rest) - len(rest.lstrip("0")) + digits + 1].encode()
