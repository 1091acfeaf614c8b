"""Tiles: rows of few features as columns and their squared distances, or columns of a table computed before."""

from __future__ import annotations

from typing import Any

from numba import njit

from shoal.kernels.distance import FLAT

TILE = 128
"""rows that are taken together, a constant length of loops: they fill the vectors of the processor"""


@njit(forceinline=True)
def take_columns(rows: Any, columns: Any) -> None:
    """Copy rows (n, d) of at most `FLAT` features, n at most `TILE`, into `columns` (FLAT, TILE), a feature in each."""
    n, d = rows.shape
    for i in range(n):
        for j in range(FLAT):
            if j < d:
                columns[j, i] = rows[i, j]


@njit(forceinline=True)
def flat_distances(rows: Any, centres: Any, columns: Any, far: Any) -> None:
    """rows (n, d) of at most `FLAT` features, n at most `TILE`; centres (k, d) -> `far` (k, TILE), with the bits that
    `squared_by_differences` has in `shoal.kernels.distance`. `columns` (FLAT, TILE) is overwritten."""
    take_columns(rows, columns)
    for c in range(len(centres)):
        line = far[c]
        line[:] = 0.0
        for j in range(rows.shape[1]):
            place, column = centres[c, j], columns[j]
            for i in range(TILE):
                gap = column[i] - place
                line[i] += gap * gap


@njit(forceinline=True)
def take_tile(table: Any, first: Any, tile: Any) -> None:
    """Copy the columns of a table (k, n) from `first` on, at most `TILE`, into `tile` (k, TILE)."""
    for c in range(len(table)):
        line, own = table[c][first : first + TILE], tile[c]
        for i in range(len(line)):
            own[i] = line[i]
