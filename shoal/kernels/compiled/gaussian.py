"""Shares of the components of a Gaussian mixture in rows, from logarithms of densities, tile by tile.

Of few features the densities are computed here as well, in the order of `shoal.kernels.gaussian`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.intrinsics import exp_in_place
from shoal.kernels.compiled.tiles import TILE, take_columns, take_tile
from shoal.kernels.distance import FLAT

ROWS = types.Array(types.float64, 2, "C", readonly=True)
FACTORS = types.Array(types.float64, 3, "C", readonly=True)
ADDENDS = types.Array(types.float64, 1, "C", readonly=True)
REAL = types.float64[::1]
SIGNATURE = types.void(ROWS, ROWS, FACTORS, ADDENDS, ADDENDS, types.float64[:, ::1], REAL, REAL, types.int64[::1])
FAR = 1e300
"""as in `shoal.kernels.gaussian`"""
LOG_CIRCLE = math.log(2 * math.pi)


@njit(forceinline=True)
def set_densities(columns: Any, means: Any, factors: Any, scale: Any, work: Any, logs: Any) -> None:
    """columns (FLAT, TILE), means (k, d), factors (k, d, d), logarithms of their determinants (k,) -> `logs` (k, TILE)
    of the densities; `work` (FLAT + 1, TILE) is overwritten."""
    (k, d), gaps, deviation = means.shape, work[:FLAT], work[FLAT]
    for c in range(k):
        line = logs[c]
        line[:] = 0.0
        for j in range(d):
            mean, column, gap = means[c, j], columns[j], gaps[j]
            for i in range(TILE):
                gap[i] = column[i] - mean
        for j in range(d):
            factor, gap = factors[c, 0, j], gaps[0]
            for i in range(TILE):
                deviation[i] = gap[i] * factor
            for other in range(1, j + 1):
                factor, gap = factors[c, other, j], gaps[other]
                for i in range(TILE):
                    deviation[i] += gap[i] * factor
            for i in range(TILE):
                line[i] += deviation[i] * deviation[i]
        for i in range(TILE):
            far = FAR if line[i] > FAR else line[i]
            line[i] = -0.5 * (d * LOG_CIRCLE + far) + scale[c]


@njit(forceinline=True, error_model="numpy")
def share(logs: Any, addends: Any, peak: Any, totals: Any, loops: Any) -> None:
    """Add to `logs` (k, TILE) the addends (k,) and replace them by exponentials relative to the largest of each column,
    `peak` (TILE,); `totals` (TILE,) are their sums."""
    k = len(logs)
    peak[:], totals[:] = -math.inf, 0.0
    for c in range(k):
        line, addend = logs[c], addends[c]
        for i in range(TILE):
            line[i] += addend
            peak[i] = line[i] if line[i] > peak[i] else peak[i]
    for c in range(k):
        line = logs[c]
        for i in range(TILE):
            line[i] -= peak[i]
    exp_in_place(loops, logs.reshape(k * TILE))
    for c in range(k):
        line = logs[c]
        for i in range(TILE):
            totals[i] += line[i]


def kernel(sources: str) -> Any:
    """rows (n, d), means (k, d), factors (k, d, d), logarithms of their determinants (k,) and of the weights (k,); or,
    where there are no factors, logarithms of the densities in `shares` -> sets `shares` (k, n), and of each row the
    logarithm of its largest weighted density (n,) and the sum of all relative to that one (n,).

    Compiled or from Numba's cache; `sources` is what it was made from (`digest_of_sources`).
    """

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def mixture_shares(
        rows: Any,
        means: Any,
        factors: Any,
        scale: Any,
        log_weights: Any,
        shares: Any,
        peak: Any,
        totals: Any,
        loops: Any,
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n, k = len(rows), len(means)
        columns, work, logs = np.zeros((FLAT, TILE)), np.zeros((FLAT + 1, TILE)), np.zeros((k, TILE))
        highest, whole, inverse = np.empty(TILE), np.empty(TILE), np.empty(TILE)
        for first in range(0, n, TILE):
            if len(factors):
                take_columns(rows[first : first + TILE], columns)
                set_densities(columns, means, factors, scale, work, logs)
            else:
                take_tile(shares, first, logs)
            share(logs, log_weights, highest, whole, loops)
            inverse[:] = 1.0 / whole
            here, there = peak[first : first + TILE], totals[first : first + TILE]
            for i in range(len(here)):
                here[i], there[i] = highest[i], whole[i]
            for c in range(k):
                line, own = shares[c][first : first + TILE], logs[c]
                for i in range(len(line)):
                    line[i] = own[i] * inverse[i]

    return mixture_shares
