"""Silverman's bandwidth: the spread of a set of points as one number."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

ZERO_SPREAD = 1e-6
"""replaces the standard deviation of a constant feature, as in the published programs"""
SIGMA_MIN = 1e-150
"""keeps 1 / sigma^2 finite; reached only by points that differ in their last denormal bits"""


def bandwidth(points: NDArray[np.float64]) -> float:
    """points (m, d), m >= 2 -> (4 / (2 + d))^(1 / (4 + d)) * m^(-1 / (4 + d)) * the median over features of
    the sample standard deviation (FCAC paper, eq. 11 and 14). Finite and positive for |points| <= 1e150."""
    m, d = points.shape
    # Relative to the first point, so that a constant feature has a spread of exactly 0 whatever its value.
    centred = points - points[0]
    centred -= centred.sum(axis=0) / m
    np.multiply(centred, centred, out=centred)
    spread = np.sqrt(centred.sum(axis=0) / (m - 1))
    spread[spread == 0.0] = ZERO_SPREAD
    spread.sort()
    median = float(0.5 * (spread[(d - 1) // 2] + spread[d // 2]))
    return max(bandwidth_factor(m, d) * median, SIGMA_MIN)


def bandwidth_factor(m: int, d: int) -> float:
    """The bandwidth of m points of d features over the median of their standard deviations."""
    return math.pow(4.0 / (2.0 + d), 1.0 / (4.0 + d)) * math.pow(m, -1.0 / (4.0 + d))
