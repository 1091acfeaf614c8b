"""Parsing of the readings posted to /predict. They are checked, never stored and never quoted in an error."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidData

BODY_BYTES_MAX = 4 * 1024 * 1024
ROWS_MAX = 10_000


def parse_rows(body: bytes, width: int, target: int | None = None) -> NDArray[np.float64]:
    """The body of a request, `{"rows": [[...], ...]}` or `[[...], ...]` -> readings (n, width), all finite.

    For a model that predicts the feature at position `target`, rows may lack its value or have null in its place, and
    readings have 0 there.

    Raises `InvalidData`; its message is one line, states what to send and quotes nothing of the body.
    """
    try:
        parsed = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidData('the body is not JSON; send {"rows": [[...], ...]} with finite numbers') from None
    rows = parsed.get("rows") if isinstance(parsed, dict) else parsed
    if not isinstance(rows, list):
        raise InvalidData('there are no rows; send {"rows": [[...], ...]}, or [[...], ...]')
    if len(rows) > ROWS_MAX:
        raise InvalidData(f"{len(rows)} rows; send at most {ROWS_MAX} at a time")
    readings = np.empty((len(rows), width))
    for i, row in enumerate(rows):
        readings[i] = _checked_row(row if target is None else _with_target(row, width, target), i, width)
    return readings


def _with_target(row: Any, width: int, target: int) -> Any:
    """A row without the target, or with null there, with 0 in its place; anything else as it is."""
    if not isinstance(row, list):
        return row
    if len(row) == width - 1:
        return [*row[:target], 0.0, *row[target:]]
    return [*row[:target], 0.0, *row[target + 1 :]] if len(row) == width and row[target] is None else row


def _checked_row(row: Any, i: int, width: int) -> list[float]:
    if not isinstance(row, list):
        raise InvalidData(f"row {i} is not a list of numbers")
    if len(row) != width:
        raise InvalidData(f"row {i} has {len(row)} values; this federation has {width} features")
    for j, value in enumerate(row):
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise InvalidData(f"row {i}, value {j}: not a finite number")
    return row


def _is_finite(value: float) -> bool:
    # An integer too large for a float raises instead.
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse_constant(name: str) -> NoReturn:
    """NaN and the infinities, which Python's parser would accept, are not JSON."""
    raise ValueError(name)
