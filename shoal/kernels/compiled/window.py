"""The counts of a window of readings, as `shoal.algorithms.density_tree.plan` describes them, reading by reading."""

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
)

AXES = (CONST_INT64_1D, CONST_INT64_1D, CONST_FLOAT64_1D, CONST_FLOAT64_1D)
CUTS = types.Tuple((*AXES, CONST_FLOAT64_1D, CONST_INT64_2D))
COUNTED = types.Tuple((*AXES, CONST_FLOAT64_1D, CONST_FLOAT64_1D, CONST_INT64_1D, CONST_INT64_1D))
SAMPLING = types.Tuple((CONST_INT64_1D, CONST_INT64_1D, CONST_INT64_1D, types.int64))
SIGNATURE = types.void(CONST_FLOAT64_2D, CONST_INT64_1D, CONST_UINT32_1D, CUTS, COUNTED, SAMPLING, INT64_1D)


@njit(forceinline=True)
def position_on(row: Any, axes: Any, axis: Any) -> Any:
    """The position of a row on an axis; the row is limited to the unit cube."""
    one, other = row[axes[0][axis]], row[axes[1][axis]]
    return min(max(one, 0.0), 1.0) * axes[2][axis] + min(max(other, 0.0), 1.0) * axes[3][axis]


@njit(forceinline=True, error_model="numpy")
def cell_of(position: Any, axes: Any, axis: Any, bins: Any) -> Any:
    """The cell of an axis that a position falls into: coarse bins outside the zoom, then fine bins."""
    start, end, zoom, span = axes[4][axis], axes[5][axis], axes[6][axis], axes[7][axis]
    at = min(max((position - start) / (end - start) * bins, 0.0), bins * (1.0 - 1e-12))
    coarse = np.int64(at)
    if zoom < 0 or coarse < zoom:
        return coarse
    if coarse >= zoom + span:
        return coarse - span
    fine = np.int64((at - zoom) * bins / max(span, 1))
    return bins - span + min(max(fine, 0), bins - 1)


def kernel(sources: str) -> Any:
    """rows (n, d), which are readings (m,), words (n,), cuts, axes, sampling -> adds to the counts of cells.

    Cuts: two features and their weights (s,), places (s,), parts (s, 2). Axes of all leaves: features, weights, start,
    end, zoom, span. Sampling: the axes of this window (b,), how many before each leaf (l + 1,), the first cell of each
    (b,), bins.
    """

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def count(rows: Any, readings: Any, words: Any, cuts: Any, axes: Any, sampling: Any, counts: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        sampled_axes, before, first_cell, bins = sampling
        places, parts = cuts[4], cuts[5]
        for reading in readings:
            row, node = rows[reading], -1 if len(places) == 0 else 0
            while node >= 0:
                node = parts[node, 1 if position_on(row, cuts, node) >= places[node] else 0]
            leaf = -1 - node
            block = before[leaf] + ((np.int64(words[reading]) * (before[leaf + 1] - before[leaf])) >> 32)
            axis = sampled_axes[block]
            counts[first_cell[block] + cell_of(position_on(row, axes, axis), axes, axis, bins)] += 1

    return count
