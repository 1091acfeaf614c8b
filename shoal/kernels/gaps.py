"""Missing values: NaN in rows, replaced by those of the nearest point over what a row has.

Distances are summed feature by feature in their order, so that they are the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats, Ints

TABLE_CELLS: Final = 1 << 16
"""distances that are held at once"""
MIDDLE: Final = 0.5
"""a missing value in unit coordinates where there is no point to take it from"""


def nearest_over_present(rows: Floats, points: Floats) -> tuple[Ints, Floats]:
    """rows (n, d) with NaN for missing values, points (k, d) whole, k > 0 -> (n,) the nearest point, (n,) distance².

    The squared distance over the features that a row has is scaled by d over their number, which makes no difference to
    which point is nearest. Of equally near points the first is taken. A row without any value: the first, at 0.
    """
    nearest, squared = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
    for part in _parts(len(rows), len(points)):
        near = _table(rows[part], points)
        nearest[part] = near.argmin(axis=1)
        squared[part] = near[np.arange(len(near)), nearest[part]]
    d = rows.shape[1]
    present = d - np.isnan(rows).sum(axis=1)
    return nearest, np.where(present == d, squared, squared * (d / np.maximum(present, 1)))


def filled_from(rows: Floats, points: Floats) -> Floats:
    """rows (n, d) with NaN for missing values, points (k, d) whole -> the rows, missing values those of the nearest
    point; `MIDDLE` where there is no point."""
    lacks = np.isnan(rows)
    if not lacks.any():
        return rows
    if not len(points):
        return np.where(lacks, MIDDLE, rows)
    some = np.flatnonzero(lacks.any(axis=1))
    found = rows.copy()
    nearest, _ = nearest_over_present(rows[some], points)
    found[some] = np.where(lacks[some], points[nearest], rows[some])
    return found


def _parts(n: int, k: int) -> Iterator[slice]:
    size = max(1, TABLE_CELLS // k)
    return (slice(first, min(first + size, n)) for first in range(0, n, size))


def _table(rows: Floats, points: Floats) -> Floats:
    """(n, k) sums of squared differences over the features that each row has."""
    table = np.zeros((len(rows), len(points)))
    for column, places in zip(rows.T, np.ascontiguousarray(points.T), strict=True):
        apart = column[:, None] - places
        apart *= apart
        apart[np.isnan(column)] = 0.0
        table += apart
    return table
