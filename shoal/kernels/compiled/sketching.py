"""The pairs of near points that may be merged, and the merging, as in `shoal.kernels.sketching`.

Also whether no column of a table can be coarse, found without sorting it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.density_tree import root_of
from shoal.kernels.compiled.intrinsics import (
    CONST_FLOAT32_2D,
    CONST_FLOAT64_1D,
    CONST_FLOAT64_2D,
    CONST_INT64_1D,
    CONST_UINT64_2D,
    FLOAT32_2D,
    FLOAT64_1D,
    FLOAT64_2D,
    INT64_1D,
    INT64_2D,
    UINT8_1D,
)
from shoal.kernels.constants import GOLDEN_RATIO

EXCEED = types.boolean(CONST_UINT64_2D, types.float64, UINT8_1D)
FACTOR = np.uint64(GOLDEN_RATIO)
"""multiplies the bits of a value, so that the highest ones of the product depend on all of them"""


def exceed_kernel(sources: str) -> Any:
    """The bits of values (n, d), a number, room for 2^s marks -> whether each column has more
    different values.

    Every value marks a place that follows from its bits, so there are at least as many values as
    marks. True is certain; where values meet in a place, or a column has few, it is False.
    """

    @njit(EXCEED, cache=True, error_model="numpy")
    def all_exceed(bits: Any, values: Any, marks: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        shift = np.uint64(64)
        while 1 << (64 - shift) < len(marks):
            shift -= np.uint64(1)
        for column in range(bits.shape[1]):
            marks[:] = 0
            # 0 and -0 are equal and have other bits: one of the marks may not count.
            found = -1
            row = 0
            while found <= values and row < len(bits):
                place = (bits[row, column] * FACTOR) >> shift
                found += 1 - marks[place]
                marks[place] = 1
                row += 1
            if found <= values:
                return False
        return True

    return all_exceed


LAY_OUT = types.void(CONST_FLOAT64_2D, types.int64, FLOAT32_2D)
NEAREST = types.void(CONST_FLOAT64_2D, INT64_1D)
PAIRS = types.void(
    CONST_FLOAT32_2D, CONST_INT64_1D, CONST_FLOAT64_1D, types.float64, INT64_2D, INT64_2D
)
UNITE = types.void(CONST_INT64_1D, INT64_2D, types.int64, types.float64, FLOAT64_1D, INT64_1D)
LOCATE = types.float64(CONST_FLOAT64_2D, FLOAT64_1D, FLOAT64_2D)
MERGE = types.int64(CONST_FLOAT64_2D, CONST_FLOAT64_1D, CONST_INT64_1D, FLOAT64_2D, FLOAT64_1D)
INFINITE = 0x7F800000
"""the bits of an infinite 32-bit float; floats that are not negative have the order of their bits
"""
TIED = 0x38000000
"""the bits of 2^-15: what decides a tie is below 1e-12, and does not change so large a 32-bit float
"""
CHUNK = 64
"""distances whose least is kept: whole numbers are compared many at a time"""


SIDE = 16
"""columns that are turned into rows together: as many numbers as a line of the cache holds"""


def lay_out_kernel(sources: str) -> Any:
    """products (b, m), the row from which on they are -> sets a table (n, n), m = n - row, there
    and where it is mirrored: what rounding has made negative is 0, and so is the diagonal."""

    @njit(LAY_OUT, cache=True, error_model="numpy")
    def lay_out(products: Any, first: Any, table: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        b, m = products.shape
        zero = np.float32(0.0)
        for at in range(b):
            line = products[at]
            to = table[first + at][first : first + m]
            for other in range(m):
                squared = np.float32(line[other])
                to[other] = squared if squared > zero else zero
        # What follows the block, tile by tile: a column of the table has a line of the cache to
        # itself in each row, so that read one by one the columns would not stay there.
        turned = np.empty((SIDE, b), np.float32)
        whole = m - (m - b) % SIDE
        for column in range(b, whole, SIDE):
            for at in range(b):
                line = table[first + at][first + column : first + column + SIDE]
                for other in range(SIDE):
                    turned[other, at] = line[other]
            for other in range(SIDE):
                table[first + column + other][first : first + b] = turned[other]
        for column in range(whole, m):
            for at in range(b):
                table[first + column, first + at] = table[first + at, first + column]
        for at in range(b):
            table[first + at, first + at] = zero

    return lay_out


def nearest_kernel(sources: str) -> Any:
    """products (b, m), m > 0 -> sets `nearest` (b,) to the place of the least number of each row in
    32 bits, the first of a tie; what rounding has made negative is 0."""

    @njit(NEAREST, cache=True, error_model="numpy")
    def nearest_in(products: Any, nearest: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        b, m = products.shape
        squared = np.empty(m, np.float32)
        bits = squared.view(np.int32)
        for at in range(b):
            line = products[at]
            for other in range(m):
                squared[other] = np.float32(line[other])
            lowest = np.int32(INFINITE)
            for other in range(m):
                bits[other] = max(bits[other], np.int32(0))
                lowest = min(lowest, bits[other])
            other = 0
            while bits[other] != lowest:
                other += 1
            nearest[at] = other

    return nearest_in


def locate_kernel(sources: str) -> Any:
    """points (n, d), n > 0 -> sets `middle` (d,) of their range, and `placed` (n, d) to them in
    their frame; returns its scale."""

    @njit(LOCATE, cache=True, error_model="numpy")
    def locate(points: Any, middle: Any, placed: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n, d = points.shape
        low = points[0].copy()
        high = points[0].copy()
        scale = 0.0
        for at in range(1, n):
            for feature in range(d):
                value = points[at, feature]
                low[feature] = value if value < low[feature] else low[feature]
                high[feature] = value if value > high[feature] else high[feature]
        for feature in range(d):
            # In halves, as the sum can overflow; + 0.0 makes 0 of -0.
            middle[feature] = low[feature] / 2 + high[feature] / 2 + 0.0
            scale = max(scale, high[feature] / 2 - low[feature] / 2)
        scale = scale if scale > 0.0 else 1.0
        for at in range(n):
            for feature in range(d):
                placed[at, feature] = (points[at, feature] - middle[feature]) / scale
        return scale

    return locate


@njit(forceinline=True)
def set_distances(squared: Any, own: Any, groups: Any, tie: Any, far: Any, bits: Any) -> None:
    """squared (n,) -> sets `far` (n,), whose bits are `bits`, to the distances² of `own` with ties
    decided; infinite: not to be merged."""
    lowest = np.int32(INFINITE)
    far[:] = squared
    far[own] = np.float32(math.inf)
    for other in range(len(squared)):
        lowest = min(lowest, bits[other])
    if lowest < TIED:
        for other in range(len(squared)):
            far[other] = np.float32(
                # By both positions alike, so that a pair has the same distance from either side.
                np.float64(squared[other]) + np.float64(np.int32(own) ^ np.int32(other)) * tie
            )
        far[own] = np.float32(math.inf)
    if len(groups):
        for other in range(len(squared)):
            far[other] = far[other] if groups[other] == groups[own] else np.float32(math.inf)


@njit(forceinline=True)
def least_of(bits: Any, chunk: Any) -> Any:
    """The least of the numbers (n,) in a chunk."""
    part = bits[CHUNK * chunk : CHUNK * chunk + CHUNK]
    lowest = np.int32(INFINITE)
    for at in range(len(part)):
        lowest = min(lowest, part[at])
    return lowest


@njit(forceinline=True)
def index_of_least(bits: Any, lowest: Any) -> Any:
    """The index of the least of numbers (n,), the first of a tie. `lowest`: the least number in
    each chunk."""
    chunk = 0
    for other in range(1, len(lowest)):
        if lowest[other] < lowest[chunk]:
            chunk = other
    at = CHUNK * chunk
    while bits[at] != lowest[chunk]:
        at += 1
    return at


def pairs_kernel(sources: str) -> Any:
    """squared (n, n), groups (n,) or (0,), masses (n,), what a tie adds for the lowest bit -> sets
    two tables (n, q).

    `near`: the nearest others of each; `keys`: the bits of what merging each pair adds, and the
    number of the pair.
    """

    @njit(PAIRS, cache=True, error_model="numpy")
    def near_pairs(squared: Any, groups: Any, masses: Any, tie: Any, near: Any, keys: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n, q = near.shape
        far = np.empty(n, np.float32)
        gap = np.empty(1, np.float32)
        bits = far.view(np.int32)
        gap_bits = gap.view(np.int32)
        lowest = np.empty((n + CHUNK - 1) // CHUNK, np.int32)
        for own in range(n):
            set_distances(squared[own], own, groups, tie, far, bits)
            for chunk in range(len(lowest)):
                lowest[chunk] = least_of(bits, chunk)
            for place in range(q):
                other = index_of_least(bits, lowest)
                mass = masses[own]
                others = masses[other]
                gap[0] = np.float32(np.float64(far[other]) * (mass * others / (mass + others)))
                near[own, place] = other
                keys[own, place] = (np.int64(gap_bits[0]) << 32) | (own * q + place)
                bits[other] = INFINITE
                lowest[other // CHUNK] = least_of(bits, other // CHUNK)

    return near_pairs


def unite_kernel(sources: str) -> Any:
    """Pairs (p,) by number in the order of merging, near (n, q), points to merge, largest mass,
    masses (n,) -> sets `root` (n,) to the lowest position of those that each is merged with."""

    @njit(UNITE, cache=True, error_model="numpy")
    def unite(pairs: Any, near: Any, wanted: Any, mass_max: Any, mass: Any, root: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        q = near.shape[1]
        for pair in pairs:
            if wanted <= 0:
                break
            a = root_of(root, pair // q)
            b = root_of(root, near[pair // q, pair % q])
            if a != b and mass[a] + mass[b] <= mass_max:
                low = min(a, b)
                high = max(a, b)
                # To the lower position, as `merge` puts points into one that stands before them.
                root[high] = low
                mass[low] += mass[high]
                wanted -= 1
        for at in range(len(root)):
            # Ascending: the position that it leads to is lower, and leads to its root already.
            root[at] = root[root[at]]

    return unite


def merge_kernel(sources: str) -> Any:
    """points (n, d), masses (n,), into (n,) -> sets the first of `merged` (n, d) and `mass` (n,);
    returns how many."""

    @njit(MERGE, cache=True, error_model="numpy")
    def merge(points: Any, masses: Any, into: Any, merged: Any, mass: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        place = np.empty(len(into), np.int64)
        n = 0
        for at in range(len(into)):
            if into[at] == at:
                place[at] = n
                mass[n] = 0.0
                merged[n] = 0.0
                n += 1
            # A point is merged into one that stands before it.
            mass[place[into[at]]] += masses[at]
        for at in range(len(into)):
            to = place[into[at]]
            share = masses[at] / mass[to]
            for feature in range(points.shape[1]):
                merged[to, feature] += points[at, feature] * share
        return n

    return merge
