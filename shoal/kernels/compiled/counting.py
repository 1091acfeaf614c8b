"""Counts of rows by cells: of a window, as `shoal.algorithms.density_tree.plan` describes it, and
of a grid.

The cells of a grid are counted in a table of all cells, or in a hash table of those that hold rows.
The number of a cell is computed as `cell_places`, `cell_digits` and `cell_numbers` in
`shoal.kernels.cells` do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.intrinsics import (
    CONST_FLOAT64_1D,
    CONST_FLOAT64_2D,
    CONST_INT64_1D,
    CONST_INT64_2D,
    CONST_UINT32_1D,
    INT64_1D,
    INT64_2D,
)
from shoal.kernels.constants import GOLDEN_RATIO

AXES = (CONST_INT64_1D, CONST_INT64_1D, CONST_FLOAT64_1D, CONST_FLOAT64_1D)
CUTS = types.Tuple((*AXES, CONST_FLOAT64_1D, CONST_INT64_2D))
COUNTED = types.Tuple((*AXES, CONST_FLOAT64_1D, CONST_FLOAT64_1D, CONST_INT64_1D, CONST_INT64_1D))
SAMPLING = types.Tuple((CONST_INT64_1D, CONST_INT64_1D, CONST_INT64_1D, types.int64))
SIGNATURE = types.void(
    CONST_FLOAT64_2D, CONST_INT64_1D, CONST_UINT32_1D, CUTS, COUNTED, SAMPLING, INT64_1D
)


@njit(forceinline=True)
def position_on(row: Any, axes: Any, axis: Any) -> Any:
    """The position of a row on an axis; the row is limited to the unit cube."""
    one = row[axes[0][axis]]
    other = row[axes[1][axis]]
    return min(max(one, 0.0), 1.0) * axes[2][axis] + min(max(other, 0.0), 1.0) * axes[3][axis]


@njit(forceinline=True, error_model="numpy")
def cell_of(position: Any, axes: Any, axis: Any, bins: Any) -> Any:
    """The cell of an axis that a position falls into: coarse bins outside the zoom, then fine
    bins."""
    start = axes[4][axis]
    end = axes[5][axis]
    zoom = axes[6][axis]
    span = axes[7][axis]
    # The upper end belongs to the last bin, and not to one behind it.
    at = min(max((position - start) / (end - start) * bins, 0.0), bins * (1.0 - 1e-12))
    coarse = np.int64(at)
    if zoom < 0 or coarse < zoom:
        return coarse
    if coarse >= zoom + span:
        return coarse - span
    fine = np.int64((at - zoom) * bins / max(span, 1))
    return bins - span + min(max(fine, 0), bins - 1)


def window_kernel(sources: str) -> Any:
    """rows (n, d), which are readings (m,), words (n,), cuts, axes, sampling -> adds to the counts
    of cells.

    Cuts: two features and their weights (s,), places (s,), parts (s, 2). Axes of all leaves:
    features, weights, start, end, zoom, span. Sampling: the axes of this window (b,), how many
    before each leaf (l + 1,), the first cell of each (b,), bins.
    """

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def count(
        rows: Any, readings: Any, words: Any, cuts: Any, axes: Any, sampling: Any, counts: Any
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        sampled_axes, before, first_cell, bins = sampling
        places = cuts[4]
        parts = cuts[5]
        for reading in readings:
            row = rows[reading]
            node = -1 if len(places) == 0 else 0
            while node >= 0:
                # Without a look at the ends of arrays, and certain to reach a leaf: `check_plan`
                # refuses whatever is not one tree, and all indices beyond it, before a client
                # adopts a plan.
                node = parts[node, 1 if position_on(row, cuts, node) >= places[node] else 0]
            leaf = -1 - node
            block = before[leaf] + (
                (np.int64(words[reading]) * (before[leaf + 1] - before[leaf])) >> 32
            )
            axis = sampled_axes[block]
            counts[first_cell[block] + cell_of(position_on(row, axes, axis), axes, axis, bins)] += 1

    return count


GRID = (CONST_FLOAT64_1D, CONST_FLOAT64_1D, types.int64)
TABLE_SIGNATURE = types.void(CONST_FLOAT64_2D, *GRID, INT64_1D)
SLOTS_SIGNATURE = types.UniTuple(types.int64, 2)(CONST_FLOAT64_2D, *GRID, INT64_2D, types.int64)
NUMBER = 0
COUNT = 1
"""columns of the slots"""
FACTOR = np.uint64(GOLDEN_RATIO)
"""factor whose product spreads cells that are side by side"""


@njit(forceinline=True, error_model="numpy")
def table_cell_of(row: Any, low: Any, step: Any, cells: Any) -> Any:
    """The number of the cell of a row (d,)."""
    number = np.int64(0)
    last = np.float64(cells - 1)
    for j in range(len(row)):
        coordinate = (row[j] - low[j]) / step[j] if step[j] > 0.0 else 0.0
        number = number * cells + np.int64(min(max(coordinate, 0.0), last))
    return number


@njit(forceinline=True)
def slot_of(number: Any, slots: Any, shift: Any) -> Any:
    """The slot that holds a cell, or else the free one for it: the first from the place that its
    product names."""
    slot = np.int64((np.uint64(number) * FACTOR) >> shift)
    while slots[slot, NUMBER] != number and slots[slot, NUMBER] >= 0:
        # Ends: `room` keeps slots free, and their number is a power of 2, so that this goes round.
        slot = (slot + 1) & (len(slots) - 1)
    return slot


def table_kernel(sources: str) -> Any:
    """rows (n, d), corner (d,) of the grid, its step (d,), its cells along a feature -> adds to a
    table (cells^d,)."""

    @njit(TABLE_SIGNATURE, cache=True, error_model="numpy")
    def count_in_table(rows: Any, low: Any, step: Any, cells: Any, table: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        for i in range(len(rows)):
            table[table_cell_of(rows[i], low, step, cells)] += 1

    return count_in_table


def slots_kernel(sources: str) -> Any:
    """Like `table_kernel`, with slots (m, 2), m a power of 2 above 1: a cell and its count in each,
    or -1. `room`: how many more cells may come, so that some slots stay free -> rows counted, up to
    one without room; cells that came.
    """

    @njit(SLOTS_SIGNATURE, cache=True, error_model="numpy")
    def count_in_slots(rows: Any, low: Any, step: Any, cells: Any, slots: Any, room: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        come = 0
        bits = 0
        while (1 << bits) < len(slots):
            bits += 1
        shift = np.uint64(64 - bits)
        for i in range(len(rows)):
            number = table_cell_of(rows[i], low, step, cells)
            slot = slot_of(number, slots, shift)
            if slots[slot, NUMBER] < 0:
                if come == room:
                    return i, come
                come += 1
                slots[slot, NUMBER] = number
                slots[slot, COUNT] = 0
            slots[slot, COUNT] += 1
        return len(rows), come

    return count_in_slots
