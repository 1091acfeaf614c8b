"""Tiles: rows of few features as columns and their squared distances, or columns of a table
computed before."""

from __future__ import annotations

from typing import Any

from numba import njit

from shoal.kernels.constants import FEW_FEATURES

TILE = 128
"""rows that are taken together, a constant length of loops: they fill the vectors of the processor
"""


@njit(forceinline=True)
def take_columns(rows: Any, columns: Any) -> None:
    """Copy rows (n, d) of at most `FEW_FEATURES` features, n at most `TILE`, into `columns`
    (FEW_FEATURES, TILE), a feature in each."""
    n, d = rows.shape
    for i in range(n):
        for j in range(FEW_FEATURES):
            if j < d:
                columns[j, i] = rows[i, j]


@njit(forceinline=True)
def flat_distances(rows: Any, centres: Any, columns: Any, squared: Any) -> None:
    """rows (n, d) of at most `FEW_FEATURES` features, n at most `TILE`; centres (k, d) -> `squared`
    (k, TILE), with the bits that `squared_by_differences` has in `shoal.kernels.distance`.

    `columns` (FEW_FEATURES, TILE) is overwritten.
    """
    take_columns(rows, columns)
    for c in range(len(centres)):
        line = squared[c]
        line[:] = 0.0
        for j in range(rows.shape[1]):
            coordinate = centres[c, j]
            column = columns[j]
            for i in range(TILE):
                gap = column[i] - coordinate
                line[i] += gap * gap


@njit(forceinline=True)
def take_tile(table: Any, first: Any, tile: Any) -> None:
    """Copy the columns of a table (k, n) from `first` on, at most `TILE`, into `tile` (k, TILE)."""
    for c in range(len(table)):
        line = table[c][first : first + TILE]
        own = tile[c]
        for i in range(len(line)):
            own[i] = line[i]
