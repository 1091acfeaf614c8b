"""Parsing of cells: numbers, times, users and texts.

A cell that is neither a number nor a time is passed on unchanged, and the client counts it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.protocol.checks import MOMENT_MAX

CELL_CHARS_MAX = 256
"""a longer cell is cut; no number is longer"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_UNITS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
"""(below, units per second): an epoch below 1e11 is in s (until the year 5138), then ms, µs, ns"""


def values_of(cells: Sequence[Any]) -> Floats | list[Any]:
    """d cells -> (d,) float64 when all are numbers, else a list with the other cells unchanged."""
    values = [number_of(cell) for cell in cells]
    if all(type(value) is float for value in values):
        return np.array(values, dtype=np.float64)
    return values


def values_of_rows(rows: Sequence[Sequence[Any]]) -> list[Floats | list[Any]]:
    """What `values_of` gives for each of n rows of d cells; texts are converted all at once."""
    flat = list(chain.from_iterable(rows))
    kinds = set(map(type, flat))
    if kinds == {float} or (kinds == {str} and "_" not in "".join(flat)):
        try:
            return list(np.array(list(map(float, flat))).reshape(len(rows), -1))
        except ValueError:
            pass  # a text is not a number
    return [values_of(cells) for cells in rows]


def number_of(cell: Any) -> Any:
    """The number as a float; None for an empty cell; anything else in a form that can be packed."""
    kind = type(cell)
    if kind is str:
        return _number_of_text(cell)
    if kind is float or cell is None or kind is bool:
        return cell
    if isinstance(cell, int | Decimal):
        try:
            return float(cell)
        # JSON has whole numbers of any length.
        except OverflowError:
            if cell > 0:
                return math.inf
            return -math.inf
    return f"<{kind.__name__}>"


def _number_of_text(cell: str) -> float | str | None:
    try:
        # Python reads 1_000 as a number; no sensor writes that.
        if "_" not in cell:
            return float(cell.replace("\u2212", "-"))
    except ValueError:
        pass
    if not cell.strip():
        return None
    # Half a surrogate pair, as JSON can escape it, has no UTF-8.
    return cell[:CELL_CHARS_MAX].encode("utf-8", "replace").decode()


def seconds_of(cell: Any) -> float | None:
    """ISO 8601 (UTC where no zone is given), an epoch or a date -> seconds since 1970, or None."""
    seconds = _seconds_of(cell)
    if seconds is None or abs(seconds) > MOMENT_MAX:
        return None
    return seconds


def _seconds_of(cell: Any) -> float | None:
    if isinstance(cell, str):
        cell = _time_of_text(cell.strip())
    if isinstance(cell, datetime):
        aware = cell if cell.tzinfo else cell.replace(tzinfo=UTC)
        return (aware - EPOCH).total_seconds()
    if isinstance(cell, date):
        return (datetime.combine(cell, time(), UTC) - EPOCH).total_seconds()
    if isinstance(cell, bool) or not isinstance(cell, int | float | Decimal):
        return None
    epoch = number_of(cell)
    for below, units in EPOCH_UNITS:
        if abs(epoch) < below:
            seconds: float = epoch / units
            return seconds
    return None


def _time_of_text(cell: str) -> float | datetime | None:
    try:
        # Before any date: the standard library reads the 13 digits of an epoch in ms as a day in
        # another century, and 8 digits as a day.
        return float(cell)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(cell)
    except ValueError:
        return None


def user_of(cell: Any) -> str | None:
    """A cell as a user id; None for an empty cell.

    A long one is replaced by its digest, so that all of it counts.
    """
    # Half a surrogate pair has no UTF-8, which the digest and the log need (see `_number_of_text`).
    text = text_of(cell).encode("utf-8", "replace").decode()
    if len(text) > CELL_CHARS_MAX:
        return hashlib.sha256(text.encode()).hexdigest()
    return text or None


def text_of(cell: Any) -> str:
    """A cell as text, for the name of a class or a client; empty for an empty cell."""
    if cell is None:
        return ""
    return str(cell).strip()
