"""The nearest landmarks of rows with their weights, and the sums of products of weights, in one
pass over distances.

The smallest distances of all rows of a tile are kept in order while the landmarks are taken one by
one; which landmarks they belong to is found afterwards. Both are comparisons without a branch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.distance import TILE, flat_distances, take_tile
from shoal.kernels.compiled.intrinsics import (
    CONST_FLOAT64_2D,
    CONST_INT64_2D,
    FLOAT64_1D,
    FLOAT64_2D,
    INT64_1D,
    INT64_2D,
    exp_in_place,
    total,
)
from shoal.kernels.constants import FEW_FEATURES

WEIGHTS_SIGNATURE = types.void(
    CONST_FLOAT64_2D,
    CONST_FLOAT64_2D,
    CONST_FLOAT64_2D,
    types.float64,
    INT64_2D,
    FLOAT64_2D,
    FLOAT64_1D,
    INT64_1D,
)
GRAM_SIGNATURE = types.void(FLOAT64_2D, CONST_INT64_2D, CONST_FLOAT64_2D)
PAIRWISE = 8
"""numbers from which on NumPy adds a row in another order than one by one"""


@njit(forceinline=True)
def set_least(squared: Any, least: Any, carried: Any) -> None:
    """distances² (q, TILE) -> `least` (r, TILE) the r smallest of each column, ascending."""
    least[:] = math.inf
    for c in range(len(squared)):
        line = squared[c]
        here = least[0]
        for i in range(TILE):
            one = here[i]
            other = line[i]
            here[i] = other if other < one else one
            carried[i] = one if other < one else other
        for rank in range(1, len(least)):
            here = least[rank]
            for i in range(TILE):
                one = here[i]
                other = carried[i]
                here[i] = other if other < one else one
                carried[i] = one if other < one else other


@njit(forceinline=True)
def set_nearest(squared: Any, least: Any, nearest: Any) -> None:
    """distances² (q, TILE), their smallest (r, TILE) -> `nearest` (r, TILE) their lines; of equal
    ones the first."""
    # From the last to the first, so that of equal ones the first stays.
    for c in range(len(squared) - 1, -1, -1):
        line = squared[c]
        for rank in range(len(least)):
            here = least[rank]
            its = nearest[rank]
            for i in range(TILE):
                its[i] = c if line[i] == here[i] else its[i]
    for rank in range(1, len(least)):
        for i in range(TILE):
            # Of equal distances every rank has found the first landmark: each goes on from the one
            # before.
            if least[rank, i] == least[rank - 1, i]:
                c = nearest[rank - 1, i] + 1
                while c < len(squared) - 1 and squared[c, i] != least[rank, i]:
                    c += 1
                nearest[rank, i] = c


@njit(forceinline=True, error_model="numpy")
def set_weights(least: Any, scale: Any, terms: Any, weights: Any, loops: Any) -> None:
    """distances² (r, TILE) -> weights (n, r) that add up to 1; `terms` (r, TILE) is overwritten."""
    n, width = weights.shape
    for rank in range(width):
        for i in range(TILE):
            # Relative to the nearest, whose weight is 1: far from all landmarks all would underflow
            # to 0, and their total is divided by.
            terms[rank, i] = (least[0, i] - least[rank, i]) / scale
    exp_in_place(loops, terms.reshape(width * TILE))
    for i in range(n):
        row = weights[i]
        row_total = 0.0
        for rank in range(width):
            row[rank] = terms[rank, i]
            row_total += row[rank]
        if width >= PAIRWISE:
            row_total = total(loops, row)
        for rank in range(width):
            row[rank] /= row_total


def weights_kernel(sources: str) -> Any:
    """rows (n, d), landmarks (q, d), distances² (q, n), twice the squared bandwidth -> sets the
    nearest landmarks (n, r), their weights (n, r) and the least distances² (n,), as
    `shoal.kernels.landmarks.nearest_weights` does. Of few features, distances are computed here and
    not read.
    """

    @njit(WEIGHTS_SIGNATURE, cache=True, error_model="numpy")
    def nearest_weights(
        rows: Any,
        landmarks: Any,
        squared: Any,
        scale: Any,
        which: Any,
        weights: Any,
        square: Any,
        loops: Any,
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        (n, d) = rows.shape
        q = len(landmarks)
        width = which.shape[1]
        columns = np.zeros((FEW_FEATURES, TILE))
        tile = np.zeros((q, TILE))
        carried = np.empty(TILE)
        least = np.empty((width, TILE))
        nearest = np.zeros((width, TILE), np.int64)
        terms = np.empty((width, TILE))
        for first in range(0, n, TILE):
            if d <= FEW_FEATURES:
                flat_distances(rows[first : first + TILE], landmarks, columns, tile)
            else:
                take_tile(squared, first, tile)
            set_least(tile, least, carried)
            set_nearest(tile, least, nearest)
            for i in range(min(TILE, n - first)):
                square[first + i] = least[0, i]
                for rank in range(width):
                    which[first + i, rank] = nearest[rank, i]
            set_weights(least, scale, terms, weights[first : first + TILE], loops)

    return nearest_weights


def gram_kernel(sources: str) -> Any:
    """`sums` (q, q), landmarks (n, r) with weights (n, r) -> adds the products of each row's
    weights, pair by pair."""

    @njit(GRAM_SIGNATURE, cache=True, error_model="numpy")
    def add_gram(sums: Any, which: Any, weights: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n, width = which.shape
        for a in range(width):
            for b in range(a, width):
                for i in range(n):
                    one = which[i, a]
                    other = which[i, b]
                    # The matrix of these products is symmetric: one half of it is enough.
                    sums[min(one, other), max(one, other)] += weights[i, a] * weights[i, b]

    return add_gram
