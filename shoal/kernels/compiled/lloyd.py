"""The sums of k-means on a block of rows in one pass: nearest centre, then mass, sum and inertia.

As in `shoal.kernels.lloyd`, a row belongs to the centre of the least distance that sums of
differences give, feature by feature, the lowest of a tie. In more than `FEW_FEATURES` features a
screen in 32-bit floats finds it for almost every row: |c|² - 2 x·c, relative to the mean of the
centres, with a bound on what rounding can change. Where two centres are closer than that, the
distances are computed in 64 bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.distance import TILE, take_columns
from shoal.kernels.compiled.intrinsics import (
    CONST_FLOAT64_1D,
    CONST_FLOAT64_2D,
    FLOAT64_1D,
    FLOAT64_2D,
    INT64_1D,
    total,
)
from shoal.kernels.constants import FEW_FEATURES

SIGNATURE = types.float64(
    CONST_FLOAT64_2D, CONST_FLOAT64_2D, CONST_FLOAT64_1D, FLOAT64_1D, FLOAT64_2D, INT64_1D
)
ROUNDING = np.float32(2.0**-24)
SCREEN_MAX = np.float32(1e36)
"""largest squared length for the screen, so that nothing in it is infinite"""
SCREEN_MIN = np.float32(1e-30)
"""more than all numbers that are too small for 32 bits can add up to"""


@njit(forceinline=True)
def labels_by_differences(rows: Any, centres: Any, tile: Any, labels: Any) -> None:
    """Set labels[:n] for rows (n, d) of few features, without a screen."""
    columns, squared, least = tile
    d = rows.shape[1]
    take_columns(rows, columns)
    least[:] = math.inf
    labels[:] = 0
    for c in range(len(centres)):
        squared[:] = 0.0
        for j in range(d):
            coordinate = centres[c, j]
            column = columns[j]
            for i in range(TILE):
                gap = column[i] - coordinate
                squared[i] += gap * gap
        # Without a branch: LLVM turns choices into instructions for several rows at once.
        for i in range(TILE):
            nearer = squared[i] < least[i]
            labels[i] = np.int32(c) if nearer else labels[i]
            least[i] = squared[i] if nearer else least[i]


@njit(forceinline=True, error_model="numpy")
def open_screen(centres: Any) -> Any:
    """centres (k, d) -> their mean (d,); -2 times the centres relative to it, their squared
    lengths; the largest.

    The screen takes two centres at a time: where k is odd, there is one more, infinitely far away.
    """
    k, d = centres.shape
    origin = np.zeros(d)
    pulls = np.zeros((k + k % 2, d), np.float32)
    lengths = np.full(k + k % 2, np.float32(math.inf))
    for c in range(k):
        for j in range(d):
            origin[j] += centres[c, j]
    origin /= k
    longest = np.float32(0.0)
    for c in range(k):
        lengths[c] = np.float32(0.0)
        for j in range(d):
            coordinate = np.float32(centres[c, j] - origin[j])
            pulls[c, j] = np.float32(-2.0) * coordinate
            lengths[c] += coordinate * coordinate
        longest = max(longest, lengths[c])
    return origin, pulls, lengths, longest


# In any order, as the bound on rounding holds for all of them, and so in vectors. Infinities stay
# what they are: the centre that fills up an odd number of them has an infinite length.
@njit(fastmath={"contract", "reassoc", "nsz"}, forceinline=True)
def screen_pair(
    columns: Any, c: Any, pulls: Any, lengths: Any, relative: Any, relative_next: Any
) -> None:
    """Set `relative` and `relative_next` (TILE,) to |c|² - 2 x·c of centres c and c + 1, for the
    rows in `columns` (d, TILE)."""
    d = pulls.shape[1]
    p = pulls[c]
    q = pulls[c + 1]
    relative[:] = lengths[c]
    relative_next[:] = lengths[c + 1]
    # Four features and two centres at a time: then sums and rows are seldom read and written.
    for j in range(0, d - 3, 4):
        p0 = p[j]
        p1 = p[j + 1]
        p2 = p[j + 2]
        p3 = p[j + 3]
        q0 = q[j]
        q1 = q[j + 1]
        q2 = q[j + 2]
        q3 = q[j + 3]
        x0 = columns[j]
        x1 = columns[j + 1]
        x2 = columns[j + 2]
        x3 = columns[j + 3]
        for i in range(TILE):
            relative[i] += (p0 * x0[i] + p1 * x1[i]) + (p2 * x2[i] + p3 * x3[i])
            relative_next[i] += (q0 * x0[i] + q1 * x1[i]) + (q2 * x2[i] + q3 * x3[i])
    for j in range(d - d % 4, d):
        p0 = p[j]
        q0 = q[j]
        x0 = columns[j]
        for i in range(TILE):
            relative[i] += p0 * x0[i]
            relative_next[i] += q0 * x0[i]


@njit(forceinline=True)
def labels_by_screen(rows: Any, centres: Any, screen: Any, tile: Any, labels: Any) -> None:
    """Set labels[:n] for rows (n, d)."""
    origin, pulls, lengths, longest = screen
    columns, relative, relative_next, least, next_least, own_length = tile
    n, d = rows.shape
    own_length[:] = np.float32(0.0)
    for j in range(d):
        column = columns[j]
        shift = origin[j]
        for i in range(n):
            column[i] = np.float32(rows[i, j] - shift)
        for i in range(TILE):
            own_length[i] += column[i] * column[i]
    least[:] = np.float32(math.inf)
    next_least[:] = np.float32(math.inf)
    for c in range(0, len(lengths), 2):
        screen_pair(columns, c, pulls, lengths, relative, relative_next)
        # Without a branch, as above.
        for i in range(TILE):
            swapped = relative_next[i] < relative[i]
            nearest, other = (
                (relative_next[i], relative[i]) if swapped else (relative[i], relative_next[i])
            )
            nearer = nearest < least[i]
            next_least[i] = min(next_least[i], other, least[i] if nearer else nearest)
            labels[i] = (np.int32(c + 1) if swapped else np.int32(c)) if nearer else labels[i]
            least[i] = nearest if nearer else least[i]
    # Each value is off by at most d + 8 roundings of |x|² + |c|²; the factor 4 is for two values,
    # and twice that.
    share = np.float32(4 * (d + 8)) * ROUNDING
    for i in range(n):
        scale = own_length[i] + longest
        # Written so that it holds for what is not a number, too.
        if not (next_least[i] - least[i] > share * scale + SCREEN_MIN and scale < SCREEN_MAX):
            labels[i] = label_by_differences(rows[i], centres)


@njit
def label_by_differences(row: Any, centres: Any) -> Any:
    """The nearest centre of one row."""
    label = 0
    least = math.inf
    for c in range(len(centres)):
        squared = 0.0
        for j in range(len(row)):
            gap = row[j] - centres[c, j]
            squared += gap * gap
        if squared < least:
            label = c
            least = squared
    return label


@njit(forceinline=True)
def add_rows(
    rows: Any, centres: Any, weights: Any, labels: Any, count: Any, sums: Any, squares: Any
) -> None:
    """Add rows (n, d) to the sums of their centres, and set `squares` (n, d) of their differences
    from them."""
    n, d = rows.shape
    for i in range(n):
        label = labels[i]
        weight = weights[i] if len(weights) else 1.0
        count[label] += weight
        for j in range(d):
            sums[label, j] += rows[i, j] * weight
        for j in range(d):
            gap = centres[label, j] - rows[i, j]
            squares[i, j] = gap * gap * weight


@njit(forceinline=True)
def add_flat_rows(
    rows: Any, centres: Any, weights: Any, labels: Any, count: Any, sums: Any, squares: Any
) -> None:
    """Add rows of few features: the loop over them is unrolled."""
    n, d = rows.shape
    for i in range(n):
        label = labels[i]
        weight = weights[i] if len(weights) else 1.0
        count[label] += weight
        for j in range(FEW_FEATURES):
            if j < d:
                sums[label, j] += rows[i, j] * weight
                gap = centres[label, j] - rows[i, j]
                squares[i, j] = gap * gap * weight


@njit(forceinline=True)
def assign_flat(rows: Any, centres: Any, weights: Any, count: Any, sums: Any, squares: Any) -> None:
    """Assign rows of at most `FEW_FEATURES` features."""
    tile = (np.zeros((FEW_FEATURES, TILE)), np.empty(TILE), np.empty(TILE))
    labels = np.zeros(TILE, np.int32)
    for first in range(0, len(rows), TILE):
        part = slice(first, min(first + TILE, len(rows)))
        labels_by_differences(rows[part], centres, tile, labels)
        add_flat_rows(rows[part], centres, weights[part], labels, count, sums, squares[part])


@njit(forceinline=True)
def assign_wide(rows: Any, centres: Any, weights: Any, count: Any, sums: Any, squares: Any) -> None:
    """Find the nearest centre of each row (n, d), tile by tile, and add the rows: see
    `add_rows`."""
    labels = np.zeros(TILE, np.int32)
    columns = np.zeros((rows.shape[1], TILE), np.float32)
    relative = np.zeros(TILE, np.float32)
    relative_next = np.zeros(TILE, np.float32)
    least = np.zeros(TILE, np.float32)
    next_least = np.zeros(TILE, np.float32)
    tile = columns, relative, relative_next, least, next_least, np.zeros(TILE, np.float32)
    screen = open_screen(centres)
    for first in range(0, len(rows), TILE):
        part = slice(first, min(first + TILE, len(rows)))
        labels_by_screen(rows[part], centres, screen, tile, labels)
        add_rows(rows[part], centres, weights[part], labels, count, sums, squares[part])


NEAREST = types.void(CONST_FLOAT64_2D, CONST_FLOAT64_2D, INT64_1D)


@njit(forceinline=True)
def label_flat(rows: Any, centres: Any, nearest: Any) -> None:
    """Set `nearest` (n,) for rows of at most `FEW_FEATURES` features."""
    tile = (np.zeros((FEW_FEATURES, TILE)), np.empty(TILE), np.empty(TILE))
    labels = np.zeros(TILE, np.int32)
    for first in range(0, len(rows), TILE):
        part = rows[first : first + TILE]
        labels_by_differences(part, centres, tile, labels)
        nearest[first : first + len(part)] = labels[: len(part)]


@njit(forceinline=True)
def label_wide(rows: Any, centres: Any, nearest: Any) -> None:
    """Set `nearest` (n,) for rows (n, d), tile by tile."""
    labels = np.zeros(TILE, np.int32)
    columns = np.zeros((rows.shape[1], TILE), np.float32)
    relative = np.zeros(TILE, np.float32)
    relative_next = np.zeros(TILE, np.float32)
    least = np.zeros(TILE, np.float32)
    next_least = np.zeros(TILE, np.float32)
    tile = columns, relative, relative_next, least, next_least, np.zeros(TILE, np.float32)
    screen = open_screen(centres)
    for first in range(0, len(rows), TILE):
        part = rows[first : first + TILE]
        labels_by_screen(part, centres, screen, tile, labels)
        nearest[first : first + len(part)] = labels[: len(part)]


def nearest_kernel(sources: str) -> Any:
    """rows (n, d), centres (k, d), k > 0 -> sets `nearest` (n,) to the centre of each row."""

    @njit(NEAREST, cache=True, error_model="numpy")
    def nearest_centres(rows: Any, centres: Any, nearest: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        if rows.shape[1] <= FEW_FEATURES:
            label_flat(rows, centres, nearest)
        else:
            label_wide(rows, centres, nearest)

    return nearest_centres


def kernel(sources: str) -> Any:
    """rows (n, d), centres (k, d), weights (n,) or (0,) -> inertia; adds to mass (k,) and sums (k,
    d)."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def assign(rows: Any, centres: Any, weights: Any, count: Any, sums: Any, loops: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n, d = rows.shape
        squares = np.empty((n, d))
        if d <= FEW_FEATURES:
            assign_flat(rows, centres, weights, count, sums, squares)
        else:
            assign_wide(rows, centres, weights, count, sums, squares)
        return total(loops, squares.reshape(n * d))

    return assign
