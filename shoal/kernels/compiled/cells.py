"""Counts rows by the cells of a grid, row by row: in a table of all cells, or in a hash table of those that hold rows.

The number of a cell is computed as `cell_places`, `cell_digits` and `cell_numbers` in `shoal.kernels.cells` do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.intrinsics import CONST_FLOAT64_1D, CONST_FLOAT64_2D, INT64_1D, INT64_2D
from shoal.kernels.constants import GOLDEN_RATIO

GRID = (CONST_FLOAT64_1D, CONST_FLOAT64_1D, types.int64)
TABLE_SIGNATURE = types.void(CONST_FLOAT64_2D, *GRID, INT64_1D)
SLOTS_SIGNATURE = types.UniTuple(types.int64, 2)(CONST_FLOAT64_2D, *GRID, INT64_2D, types.int64)
NUMBER, COUNT = 0, 1
"""columns of the slots"""
FACTOR = np.uint64(GOLDEN_RATIO)
"""factor whose product spreads cells that are side by side"""


@njit(forceinline=True, error_model="numpy")
def cell_of(row: Any, low: Any, step: Any, cells: Any) -> Any:
    """The number of the cell of a row (d,)."""
    number, last = np.int64(0), np.float64(cells - 1)
    for j in range(len(row)):
        coordinate = (row[j] - low[j]) / step[j] if step[j] > 0.0 else 0.0
        number = number * cells + np.int64(min(max(coordinate, 0.0), last))
    return number


@njit(forceinline=True)
def slot_of(number: Any, slots: Any, shift: Any) -> Any:
    """The slot that holds a cell, or else the free one for it: the first from the place that its product names."""
    slot = np.int64((np.uint64(number) * FACTOR) >> shift)
    while slots[slot, NUMBER] != number and slots[slot, NUMBER] >= 0:
        slot = (slot + 1) & (len(slots) - 1)
    return slot


def table_kernel(sources: str) -> Any:
    """rows (n, d), corner (d,) of the grid, its step (d,), its cells along a feature -> adds to a table (cells^d,)."""

    @njit(TABLE_SIGNATURE, cache=True, error_model="numpy")
    def count_in_table(rows: Any, low: Any, step: Any, cells: Any, table: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        for i in range(len(rows)):
            table[cell_of(rows[i], low, step, cells)] += 1

    return count_in_table


def slots_kernel(sources: str) -> Any:
    """Like `table_kernel`, with slots (m, 2), m a power of 2 above 1: a cell and its count in each, or -1. `room`: how
    many more cells may come, so that some slots stay free -> rows counted, up to one without room; cells that came.
    """

    @njit(SLOTS_SIGNATURE, cache=True, error_model="numpy")
    def count_in_slots(rows: Any, low: Any, step: Any, cells: Any, slots: Any, room: Any) -> Any:
        sources  # noqa: B018  # see above
        come, bits = 0, 0
        while (1 << bits) < len(slots):
            bits += 1
        shift = np.uint64(64 - bits)
        for i in range(len(rows)):
            number = cell_of(rows[i], low, step, cells)
            slot = slot_of(number, slots, shift)
            if slots[slot, NUMBER] < 0:
                if come == room:
                    return i, come
                come += 1
                slots[slot, NUMBER], slots[slot, COUNT] = number, 0
            slots[slot, COUNT] += 1
        return len(rows), come

    return count_in_slots
