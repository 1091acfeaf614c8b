"""Responsibilities of the components of a Gaussian mixture for rows of few features, tile by tile.

The components have full covariances; densities are computed in the order of
`shoal.kernels.gaussian`.
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
    CONST_FLOAT64_3D,
    FLOAT64_1D,
    FLOAT64_2D,
    INT64_1D,
    exp_in_place,
)
from shoal.kernels.constants import FEW_FEATURES, SQUARED_MAX

SIGNATURE = types.void(
    CONST_FLOAT64_2D,
    CONST_FLOAT64_2D,
    CONST_FLOAT64_3D,
    CONST_FLOAT64_1D,
    CONST_FLOAT64_1D,
    FLOAT64_2D,
    FLOAT64_1D,
    FLOAT64_1D,
    INT64_1D,
)
LOG_2_PI = math.log(2 * math.pi)


@njit(forceinline=True)
def set_densities(
    columns: Any, means: Any, factors: Any, log_determinants: Any, work: Any, logs: Any
) -> None:
    """columns (FEW_FEATURES, TILE), means (k, d), factors (k, d, d), logarithms of their
    determinants (k,) -> `logs` (k, TILE) of the densities; `work` (FEW_FEATURES + 1, TILE) is
    overwritten."""
    (k, d) = means.shape
    gaps = work[:FEW_FEATURES]
    deviation = work[FEW_FEATURES]
    for c in range(k):
        line = logs[c]
        line[:] = 0.0
        for j in range(d):
            mean = means[c, j]
            column = columns[j]
            gap = gaps[j]
            for i in range(TILE):
                gap[i] = column[i] - mean
        for j in range(d):
            factor = factors[c, 0, j]
            gap = gaps[0]
            for i in range(TILE):
                deviation[i] = gap[i] * factor
            for other in range(1, j + 1):
                factor = factors[c, other, j]
                gap = gaps[other]
                for i in range(TILE):
                    deviation[i] += gap[i] * factor
            for i in range(TILE):
                line[i] += deviation[i] * deviation[i]
        for i in range(TILE):
            squared = SQUARED_MAX if line[i] > SQUARED_MAX else line[i]
            line[i] = -0.5 * (d * LOG_2_PI + squared) + log_determinants[c]


@njit(forceinline=True, error_model="numpy")
def set_exponentials(logs: Any, log_weights: Any, log_max: Any, totals: Any, loops: Any) -> None:
    """Add logarithms of weights (k,) to `logs` (k, TILE) and replace them by exponentials relative
    to the largest of each column, `log_max` (TILE,); `totals` (TILE,) are their sums."""
    k = len(logs)
    log_max[:] = -math.inf
    totals[:] = 0.0
    for c in range(k):
        line = logs[c]
        log_weight = log_weights[c]
        for i in range(TILE):
            line[i] += log_weight
            log_max[i] = line[i] if line[i] > log_max[i] else log_max[i]
    for c in range(k):
        line = logs[c]
        for i in range(TILE):
            line[i] -= log_max[i]
    exp_in_place(loops, logs.reshape(k * TILE))
    for c in range(k):
        line = logs[c]
        for i in range(TILE):
            totals[i] += line[i]


def kernel(sources: str) -> Any:
    """rows (n, d), means (k, d), factors (k, d, d), logarithms of their determinants (k,) and of
    the weights (k,) -> sets `responsibilities` (k, n), the logarithm of each row's largest weighted
    density (n,), and the sum of all its weighted densities relative to that one (n,).
    """

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def mixture_responsibilities(
        rows: Any,
        means: Any,
        factors: Any,
        log_determinants: Any,
        log_weights: Any,
        responsibilities: Any,
        log_max: Any,
        totals: Any,
        loops: Any,
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n = len(rows)
        k = len(means)
        columns = np.zeros((FEW_FEATURES, TILE))
        work = np.zeros((FEW_FEATURES + 1, TILE))
        logs = np.zeros((k, TILE))
        tile_log_max = np.empty(TILE)
        tile_totals = np.empty(TILE)
        inverse_totals = np.empty(TILE)
        for first in range(0, n, TILE):
            take_columns(rows[first : first + TILE], columns)
            set_densities(columns, means, factors, log_determinants, work, logs)
            set_exponentials(logs, log_weights, tile_log_max, tile_totals, loops)
            inverse_totals[:] = 1.0 / tile_totals
            here = log_max[first : first + TILE]
            there = totals[first : first + TILE]
            for i in range(len(here)):
                here[i] = tile_log_max[i]
                there[i] = tile_totals[i]
            for c in range(k):
                line = responsibilities[c][first : first + TILE]
                own = logs[c]
                for i in range(len(line)):
                    line[i] = own[i] * inverse_totals[i]

    return mixture_responsibilities
