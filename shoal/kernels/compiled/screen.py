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

from shoal.kernels.compiled.chords import MANTISSA, add_chords, reaching
from shoal.kernels.compiled.intrinsics import borrowed
from shoal.kernels.scalars import FAR, FAR_AT_ALL, KEPT, MARGIN, MEAN_SIGMA, SIZE
from shoal.kernels.workspace import BLOCK

CHORD_RATIO = 1.0616
"""above the largest ratio of chord and curve, 1.06148"""
HALF_LOG2_E = 0.5 / math.log(2.0)
FURTHEST = 1e18
"""of a coordinate from the origin of the screen, so that no square overflows in 32 bits"""
STEEPEST = 1e30
"""largest 1 / (2 sigma^2 ln 2), so that it is finite in 32 bits"""
PART = 32
"""features after which a block may be left"""
LOWEST = np.float32(-1.0)
"""a bound that every node reaches"""
FAR_KEPT = 30.0
"""of a coordinate from an origin that is kept, times the root of the slope: it adds as much to the margin as y does"""


@njit(error_model="numpy")
def open_screen(rows: Any, weights: Any, screen: Any, ints: Any, floats: Any) -> None:
    """Make columns, origin and margin a screen of the nodes for rows (n, d).

    What the workspace has kept stays, unless the rows are so far from its origin that they would take from the margin.
    """
    _, _, origin, _ = screen
    if ints[KEPT]:
        set_furthest(rows, weights, origin, ints, floats)
        if floats[FAR] * math.sqrt(slope(floats)) <= FAR_KEPT:
            set_margin(len(origin), floats)
            return
    origin[:] = rows[0]
    put_all(screen, weights, ints)
    set_furthest(rows, weights, origin, ints, floats)
    set_margin(len(origin), floats)


@njit
def set_furthest(rows: Any, weights: Any, origin: Any, ints: Any, floats: Any) -> None:
    """Set the largest |coordinate| of rows and nodes relative to the origin, and at all."""
    lowest, highest = origin.copy(), origin.copy()
    add_extremes(rows, len(rows), borrowed(lowest), borrowed(highest))
    add_extremes(weights, ints[SIZE], borrowed(lowest), borrowed(highest))
    floats[FAR] = max((highest - origin).max(), (origin - lowest).max())
    floats[FAR_AT_ALL] = max(np.abs(highest).max(), np.abs(lowest).max())


@njit(forceinline=True)
def add_extremes(rows: Any, n: Any, lowest: Any, highest: Any) -> None:
    """Lower lowest (d,) and raise highest (d,) to the extremes of each feature in the first n rows."""
    for i in range(n):
        row = rows[i]
        for j in range(len(lowest)):
            lowest[j] = row[j] if row[j] < lowest[j] else lowest[j]
            highest[j] = row[j] if row[j] > highest[j] else highest[j]


@njit(forceinline=True, error_model="numpy")
def slope(floats: Any) -> Any:
    """1 / (2 sigma^2 ln 2): y is minus this times the square of a difference. Infinite where sigma^2 underflows."""
    return HALF_LOG2_E / (floats[MEAN_SIGMA] * floats[MEAN_SIGMA])


@njit(error_model="numpy")
def set_margin(d: Any, floats: Any) -> None:
    """Set the margin: what rounding can take from a sum of d chords, or -1 where 32-bit floats do not hold the numbers.

    For each term: 3.8e-6 from y + 127 and 1e-7 from the products, for which 1.2e-5 is allowed; from the coordinates, of
    24 bits each, 2.5e-7 max|x| sqrt(slope), for which 4e-7 is allowed, and rounding in 64 bits; and d + 3 roundings of
    the sum. The largest coordinates are of a whole chunk: moving nodes never leave them, as they move towards rows.
    Without nodes there is no bandwidth, and nothing to bound.
    """
    if floats[MEAN_SIGMA] > 0.0 and slope(floats) <= STEEPEST and floats[FAR] <= FURTHEST:
        coordinates = (4e-7 * floats[FAR] + 1e-15 * floats[FAR_AT_ALL]) * math.sqrt(slope(floats))
        floats[MARGIN] = d * (1.2e-5 + coordinates + 6e-8 * (d + 3))
    else:
        floats[MARGIN] = -1.0


@njit(forceinline=True)
def put(screen: Any, k: Any, weights: Any) -> None:
    """Set the column of node k to its weight."""
    columns, _, origin, _ = screen
    for j in range(len(origin)):
        columns[k // BLOCK, j, k % BLOCK] = np.float32(weights[k, j] - origin[j])


@njit(forceinline=True)
def put_all(screen: Any, weights: Any, ints: Any) -> None:
    """Set the columns of all nodes."""
    for k in range(ints[SIZE]):
        put(screen, k, weights)


@njit
def least_of_nearest(screen: Any, ints: Any, floats: Any) -> Any:
    """The least that the sum of the nearest node can be."""
    _, bounds, _, _ = screen
    return at_least(largest(bounds[: ints[SIZE]]), floats)


@njit(fastmath={"nnan", "nsz", "reassoc"}, forceinline=True)
def largest(bounds: Any) -> Any:
    """The largest of some bounds, none of which is below -2."""
    found = np.float32(-2.0)
    for one in bounds:
        found = max(found, one)
    return found


@njit(forceinline=True)
def lowest_bound(least: Any, floats: Any) -> Any:
    """What the bound of a node whose sum is at least `least` is at least; without a screen, a bound that all reach."""
    return just_below(least - floats[MARGIN]) if floats[MARGIN] >= 0.0 else LOWEST


@njit(forceinline=True)
def just_below(number: Any) -> Any:
    """A 32-bit float that is not above a number."""
    return np.float32(number - 1e-6 * abs(number))


@njit(forceinline=True)
def at_least(bound: Any, floats: Any) -> Any:
    """What the sum of a node with this bound is at least."""
    return (bound - floats[MARGIN]) / CHORD_RATIO


@njit(forceinline=True)
def blocks(ints: Any) -> Any:
    """Blocks that hold all nodes."""
    return -(-ints[SIZE] // BLOCK)


@njit(forceinline=True)
def bound(row: Any, screen: Any, ints: Any, floats: Any, lowest: Any) -> None:
    """row (d,) -> the bounds of the screen: of d times the correntropy of the row and each node, from above.

    A block is left as soon as none of its nodes can reach `lowest`, as no chord is above 1; its bounds then are below.
    """
    columns, bounds, origin, point = screen
    if floats[MARGIN] < 0.0:
        return
    for j in range(len(point)):
        point[j] = np.float32(row[j] - origin[j])
    steepness = np.float32(slope(floats) * MANTISSA)
    d = len(point)
    for block in range(blocks(ints)):
        for first in range(0, d, PART):
            end = min(first + PART, d)
            add_chords(columns, block, point, first, end, steepness, bounds)
            if end < d and not reaching(bounds, block, just_below(lowest - (d - end))):
                break
