"""An exact screen: which nodes can be near enough to a row, found without an exponential.

In base 2, correntropy is the mean over features of 2^y with y = -(x - w)^2 / (2 sigma^2 ln 2). The bits of the whole
number (y + 127) 2^23, read as a 32-bit float, are the chord of 2^y between whole numbers y: at least 2^y, which is
convex, and at most 1.0615 times it. So a sum of chords bounds d times the correntropy from above. Only nodes whose
bound, plus all that rounding to 32 bits can take from it, reaches a threshold are compared with 64-bit exponentials.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from shoal.kernels.compiled.intrinsics import float_of_bits
from shoal.kernels.compiled.places import MEAN_SIGMA, SIZE

CHORD_RATIO = 1.0616
"""above the largest ratio of chord and curve, 1.06148"""
HALF_LOG2_E = 0.5 / math.log(2.0)
FURTHEST = 1e18
"""of a coordinate from the origin of the screen, so that no square overflows in 32 bits"""
STEEPEST = 1e30
"""largest 1 / (2 sigma^2 ln 2), so that it is finite in 32 bits"""
BLOCK = 16
"""columns are bounded in whole blocks: they fill the vectors of the processor"""
MANTISSA = 2.0**23
ONE = np.float32(127 * MANTISSA)
LEAST = np.float32(MANTISSA)


@njit
def open_screen(rows: Any, weights: Any, whole: Any, real: Any) -> Any:
    """A screen of nodes for rows (n, d): origin (d,), columns (d, capacity), bounds (capacity,), and margin (3,)."""
    d, size = rows.shape[1], whole[SIZE]
    whole_blocks = -(-len(weights) // BLOCK) * BLOCK
    origin = rows[0].copy()
    columns, bounds = np.zeros((d, whole_blocks), np.float32), np.zeros(whole_blocks, np.float32)
    put_all(columns, origin, weights, whole)
    far = np.zeros(2)
    furthest(rows, origin, far)
    furthest(weights[:size], origin, far)
    margin = np.empty(3)
    margin[1:] = far
    set_margin(margin, d, real)
    return origin, columns, bounds, margin


@njit
def furthest(rows: Any, origin: Any, far: Any) -> None:
    """Raise `far` (2,) to the largest |coordinate| of the rows relative to the origin, and at all."""
    for row in rows:
        for j in range(len(origin)):
            far[0] = max(far[0], abs(row[j] - origin[j]))
            far[1] = max(far[1], abs(row[j]))


@njit
def set_margin(margin: Any, d: Any, real: Any) -> None:
    """Set margin[0]: what rounding can take from a sum of d chords, or -1 where 32-bit floats do not hold the numbers.

    For each term: 3.8e-6 from y + 127 and 1e-7 from the products, for which 1.2e-5 is allowed; from the coordinates, of
    24 bits each, 2.5e-7 max|x| sqrt(slope), for which 4e-7 is allowed, and rounding in 64 bits; and d + 3 roundings of
    the sum. margin[1:] are the largest coordinates, which moving nodes never leave: they move towards rows.
    """
    slope = HALF_LOG2_E / (real[MEAN_SIGMA] * real[MEAN_SIGMA])
    if slope <= STEEPEST and margin[1] <= FURTHEST:
        coordinates = (4e-7 * margin[1] + 1e-15 * margin[2]) * math.sqrt(slope)
        margin[0] = d * (1.2e-5 + coordinates + 6e-8 * (d + 3))
    else:
        margin[0] = -1.0


@njit(forceinline=True)
def put(columns: Any, origin: Any, k: Any, weights: Any) -> None:
    """Set column k to the weight of node k."""
    for j in range(len(origin)):
        columns[j, k] = np.float32(weights[k, j] - origin[j])


@njit(forceinline=True)
def put_all(columns: Any, origin: Any, weights: Any, whole: Any) -> None:
    """Set the columns of all nodes."""
    for k in range(whole[SIZE]):
        put(columns, origin, k, weights)


@njit
def least_of_nearest(bounds: Any, whole: Any, margin: Any) -> Any:
    """The least that the sum of the nearest node can be."""
    return (largest(bounds[: whole[SIZE]]) - margin[0]) / CHORD_RATIO


@njit(fastmath={"nnan", "nsz", "reassoc"}, forceinline=True)
def largest(bounds: Any) -> Any:
    """The largest of some bounds, none of which is below -2."""
    found = np.float32(-2.0)
    for one in bounds:
        found = max(found, one)
    return found


@njit(forceinline=True)
def just_below(number: Any) -> Any:
    """A 32-bit float that is not above a number."""
    return np.float32(number - 1e-6 * abs(number))


@njit(fastmath={"contract", "reassoc", "nsz"}, forceinline=True)
def bound(row: Any, origin: Any, columns: Any, whole: Any, real: Any, margin: Any, bounds: Any) -> None:
    """row (d,) -> bounds[:size]: of d times the correntropy of the row and each node, from above."""
    if margin[0] < 0.0:
        return
    steepness = np.float32(HALF_LOG2_E / (real[MEAN_SIGMA] * real[MEAN_SIGMA]) * MANTISSA)
    d, k = len(row), -(-whole[SIZE] // BLOCK) * BLOCK
    sums = bounds[:k]
    sums[:] = np.float32(0.0)
    # Four features at a time: then a sum is read and written once for four terms.
    for j in range(0, d - 3, 4):
        x0, w0 = np.float32(row[j] - origin[j]), columns[j, :k]
        x1, w1 = np.float32(row[j + 1] - origin[j + 1]), columns[j + 1, :k]
        x2, w2 = np.float32(row[j + 2] - origin[j + 2]), columns[j + 2, :k]
        x3, w3 = np.float32(row[j + 3] - origin[j + 3]), columns[j + 3, :k]
        for i in range(k):
            pair = chord(x0 - w0[i], steepness) + chord(x1 - w1[i], steepness)
            sums[i] += pair + (chord(x2 - w2[i], steepness) + chord(x3 - w3[i], steepness))
    for j in range(d - d % 4, d):
        x0, w0 = np.float32(row[j] - origin[j]), columns[j, :k]
        for i in range(k):
            sums[i] += chord(x0 - w0[i], steepness)


@njit(fastmath={"contract"}, forceinline=True)
def chord(difference: Any, steepness: Any) -> Any:
    """The chord of 2^y; y may be as low as it likes, the chord is at least 2^-126."""
    return float_of_bits(max(ONE - difference * steepness * difference, LEAST))
