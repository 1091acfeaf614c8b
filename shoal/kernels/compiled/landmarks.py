"""The nearest landmarks of rows with their weights, and the sums of products of weights, in one pass over distances.

The smallest distances of all rows of a tile are kept in order while the landmarks are taken one by one; which landmarks
they belong to is found afterwards. Both are comparisons without a branch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.intrinsics import exp_in_place, total
from shoal.kernels.compiled.tiles import TILE, flat_distances, take_tile
from shoal.kernels.distance import FLAT

ROWS = types.Array(types.float64, 2, "C", readonly=True)
WHICH = types.Array(types.int64, 2, "C", readonly=True)
TABLE, WHOLE = types.float64[:, ::1], types.int64[::1]
WEIGHTS_SIGNATURE = types.void(ROWS, ROWS, ROWS, types.float64, types.int64[:, ::1], TABLE, types.float64[::1], WHOLE)
GRAM_SIGNATURE = types.void(TABLE, WHICH, ROWS)
PAIRWISE = 8
"""numbers from which on NumPy adds a row in another order than one by one"""


@njit(forceinline=True)
def set_least(far: Any, least: Any, carried: Any) -> None:
    """distances² (q, TILE) -> `least` (r, TILE) the r smallest of each column, ascending."""
    least[:] = math.inf
    for c in range(len(far)):
        line, here = far[c], least[0]
        for i in range(TILE):
            one, other = here[i], line[i]
            here[i] = other if other < one else one
            carried[i] = one if other < one else other
        for place in range(1, len(least)):
            here = least[place]
            for i in range(TILE):
                one, other = here[i], carried[i]
                here[i] = other if other < one else one
                carried[i] = one if other < one else other


@njit(forceinline=True)
def set_nearest(far: Any, least: Any, nearest: Any) -> None:
    """distances² (q, TILE), their smallest (r, TILE) -> `nearest` (r, TILE) their lines; of equal ones the first."""
    for c in range(len(far) - 1, -1, -1):
        line = far[c]
        for place in range(len(least)):
            here, its = least[place], nearest[place]
            for i in range(TILE):
                its[i] = c if line[i] == here[i] else its[i]
    for place in range(1, len(least)):
        for i in range(TILE):
            if least[place, i] == least[place - 1, i]:
                c = nearest[place - 1, i] + 1
                while c < len(far) - 1 and far[c, i] != least[place, i]:
                    c += 1
                nearest[place, i] = c


@njit(forceinline=True, error_model="numpy")
def set_weights(least: Any, scale: Any, terms: Any, weights: Any, loops: Any) -> None:
    """distances² (r, TILE) -> weights (n, r) that add up to 1; `terms` (r, TILE) is overwritten."""
    n, width = weights.shape
    for place in range(width):
        for i in range(TILE):
            terms[place, i] = (least[0, i] - least[place, i]) / scale
    exp_in_place(loops, terms.reshape(width * TILE))
    for i in range(n):
        row, whole = weights[i], 0.0
        for place in range(width):
            row[place] = terms[place, i]
            whole += row[place]
        if width >= PAIRWISE:
            whole = total(loops, row)
        for place in range(width):
            row[place] /= whole


def weights_kernel(sources: str) -> Any:
    """rows (n, d), landmarks (q, d), distances² (q, n), twice the squared bandwidth -> sets the nearest landmarks
    (n, r), their weights (n, r) and the least distances² (n,), as `shoal.kernels.landmarks.nearest_weights` does. Of
    few features, distances are computed here and not read.

    Compiled or from Numba's cache; `sources` is what it was made from (`digest_of_sources`).
    """

    @njit(WEIGHTS_SIGNATURE, cache=True, error_model="numpy")
    def nearest_weights(
        rows: Any, landmarks: Any, far: Any, scale: Any, which: Any, weights: Any, square: Any, loops: Any
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        (n, d), (q, width) = rows.shape, (len(landmarks), which.shape[1])
        columns, tile, carried = np.zeros((FLAT, TILE)), np.zeros((q, TILE)), np.empty(TILE)
        least, nearest, terms = np.empty((width, TILE)), np.zeros((width, TILE), np.int64), np.empty((width, TILE))
        for first in range(0, n, TILE):
            if d <= FLAT:
                flat_distances(rows[first : first + TILE], landmarks, columns, tile)
            else:
                take_tile(far, first, tile)
            set_least(tile, least, carried)
            set_nearest(tile, least, nearest)
            for i in range(min(TILE, n - first)):
                square[first + i] = least[0, i]
                for place in range(width):
                    which[first + i, place] = nearest[place, i]
            set_weights(least, scale, terms, weights[first : first + TILE], loops)

    return nearest_weights


def gram_kernel(sources: str) -> Any:
    """`sums` (q, q), landmarks (n, r) with weights (n, r) -> adds the products of each row's weights, pair by pair."""

    @njit(GRAM_SIGNATURE, cache=True, error_model="numpy")
    def add_gram(sums: Any, which: Any, weights: Any) -> None:
        sources  # noqa: B018  # see above
        n, width = which.shape
        for a in range(width):
            for b in range(a, width):
                for i in range(n):
                    one, other = which[i, a], which[i, b]
                    sums[min(one, other), max(one, other)] += weights[i, a] * weights[i, b]

    return add_gram
