"""The deepest valley of each histogram, as in `shoal.kernels.valleys`, place by place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.intrinsics import CONST_FLOAT64_2D, FLOAT64_2D
from shoal.kernels.constants import PEAK_SIGNIFICANCE, SHALLOW, VALLEY_SIGNIFICANCE_MIN, VALLEY_WIDTHS

SIGNATURE = types.void(CONST_FLOAT64_2D, CONST_FLOAT64_2D, types.float64, FLOAT64_2D)
FOUND, POSITION, HINT = range(3)
"""the rows of what is found"""


@njit(forceinline=True)
def sum_places(values: Any, width: Any, sums: Any, summed: Any) -> None:
    """values (n,) -> sets summed[:n - width + 1] to the sums of `width` of them, as differences of running sums."""
    n, total = len(values), 0.0
    sums[0] = 0.0
    for at in range(n):
        total += values[at]
        sums[at + 1] = total
    for at in range(n - width + 1):
        summed[at] = sums[at + width] - sums[at]


@njit(forceinline=True)
def lower_peaks(height: Any, variance: Any, width: Any, top: Any, top_variance: Any) -> None:
    """heights (k,), variances (k,) -> sets the lower of the highest places left and right of each, and its variance."""
    k = len(height)
    top[:], top_variance[:] = 0.0, 0.0
    highest, of_highest = -math.inf, 0.0
    for at in range(width, k):
        if height[at - width] >= highest:
            highest, of_highest = height[at - width], variance[at - width]
        top[at], top_variance[at] = max(highest, 0.0), of_highest
    highest, of_highest = -math.inf, 0.0
    for at in range(k - 1, -1, -1):
        right, of_right = 0.0, 0.0
        if at + width < k:
            if height[at + width] >= highest:
                highest, of_highest = height[at + width], variance[at + width]
            right, of_right = max(highest, 0.0), of_highest
        if not top[at] < right:
            top[at], top_variance[at] = right, of_right


@njit(forceinline=True)
def middle(height: Any, variance: Any, top: Any, at: Any) -> Any:
    """The middle of the places around `at` that are as low as it, as far as noise can tell."""
    limit = height[at] + math.sqrt(variance[at] + max(height[at], 0.0)) + 0.05 * top[at]
    first, last = at, at
    while first > 0 and height[first - 1] <= limit:
        first -= 1
    while last < len(height) - 1 and height[last + 1] <= limit:
        last += 1
    return (first + last) / 2.0


@njit(forceinline=True, error_model="numpy")
def look_at_width(height: Any, variance: Any, peaks: Any, width: Any, depth: Any, found: Any) -> None:
    """Compare the places of one width with what is found in the narrower ones: `found` (3,)."""
    top, top_variance = peaks
    lower_peaks(height, variance, width, top, top_variance)
    deepest, best = 0, -math.inf
    for at in range(len(height)):
        score = -1.0
        if top[at] > PEAK_SIGNIFICANCE * math.sqrt(top_variance[at]):
            error = math.sqrt(variance[at] + top_variance[at] + max(height[at], 0.0) + top[at] + 1e-9)
            score = (top[at] - height[at]) / error
        if height[at] <= SHALLOW * top[at]:
            found[HINT] = max(found[HINT], score)
        if height[at] > depth * top[at]:
            score = -1.0
        if score > best:
            deepest, best = at, score
    if best > max(found[FOUND], VALLEY_SIGNIFICANCE_MIN):
        found[FOUND] = best
        found[POSITION] = middle(height, variance, top, deepest) + width / 2


def kernel(sources: str) -> Any:
    """counts (A, n), variances (A, n), depth -> sets `found` (A, 3): significance, position and hint."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def find_valleys(counts: Any, variances: Any, depth: Any, found: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n = counts.shape[1]
        sums, places = np.empty(n + 1), np.empty((4, n))
        for axis in range(len(counts)):
            found[axis, FOUND], found[axis, POSITION], found[axis, HINT] = -1.0, 0.0, -1.0
            for width in VALLEY_WIDTHS:
                if 4 * width > n:
                    break
                height, variance = places[0, : n - width + 1], places[1, : n - width + 1]
                sum_places(counts[axis], width, sums, height)
                sum_places(variances[axis], width, sums, variance)
                peaks = places[2, : n - width + 1], places[3, : n - width + 1]
                look_at_width(height, variance, peaks, width, depth, found[axis])

    return find_valleys
