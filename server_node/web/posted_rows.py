"""Readings that somebody posts to be told their clusters: checked, never kept, never repeated in an error."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidData

BODY_BYTES_MAX = 4 * 1024 * 1024
ROWS_MAX = 10_000


def rows_of(body: bytes, width: int) -> NDArray[np.float64]:
    """The body of a request, `{"rows": [[...], ...]}` or `[[...], ...]` -> readings (n, width), all finite.

    Raises `InvalidData` with one line that says what to send and repeats nothing of what was sent.
    """
    try:
        sent = json.loads(body, parse_constant=_not_a_number)
    except (ValueError, RecursionError):
        raise InvalidData('the body is not JSON; send {"rows": [[...], ...]} with finite numbers') from None
    rows = sent.get("rows") if isinstance(sent, dict) else sent
    if not isinstance(rows, list):
        raise InvalidData('there are no rows; send {"rows": [[...], ...]}, or [[...], ...]')
    if len(rows) > ROWS_MAX:
        raise InvalidData(f"{len(rows)} rows; send at most {ROWS_MAX} at a time")
    readings = np.empty((len(rows), width))
    for i, row in enumerate(rows):
        readings[i] = _numbers(row, i, width)
    return readings


def _numbers(row: Any, i: int, width: int) -> list[float]:
    if not isinstance(row, list):
        raise InvalidData(f"row {i} is not a list of numbers")
    if len(row) != width:
        raise InvalidData(f"row {i} has {len(row)} values; this federation has {width} features")
    for j, value in enumerate(row):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise InvalidData(f"row {i}, value {j}: not a finite number")
    return row


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _not_a_number(word: str) -> NoReturn:
    raise ValueError(word)
