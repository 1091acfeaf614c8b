"""The checks that rows pass before an algorithm learns them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import InvalidData

MAGNITUDE_MAX = 1e150
"""the squares of larger numbers overflow float64"""


def check_rows(rows: ArrayLike, width: int | None) -> NDArray[np.float64]:
    """rows (n, d) of any real type -> (n, d) float64, not to be written to; `width` is d, or None for any d >= 1.

    An empty table may have any width. Raises `InvalidData`, whose message contains no value.
    """
    try:
        given = np.asarray(rows)
    except ValueError:
        raise InvalidData("rows must form a table (n, d); these are of unequal lengths") from None
    if given.ndim != 2:
        raise InvalidData(f"rows must form a table (n, d); this has {given.ndim} dimensions")
    n, d = given.shape
    if n == 0:
        return np.empty((0, d if width is None else width))
    if d != (d if width is None else width) or d == 0:
        raise InvalidData(f"rows have {d} features, expected {'at least 1' if width is None else width}")
    if given.dtype.kind not in "fiub":
        raise InvalidData(f"rows must be real numbers, not {given.dtype}")
    table = np.ascontiguousarray(given, dtype=np.float64)
    if not np.abs(table).max() <= MAGNITUDE_MAX:
        bad = np.flatnonzero(~(np.abs(table) <= MAGNITUDE_MAX).all(axis=1))
        raise InvalidData(
            f"row {bad[0]} ({len(bad)} of {n}) is not finite or beyond ±{MAGNITUDE_MAX:g}; drop it, nothing was learnt"
        )
    return table
