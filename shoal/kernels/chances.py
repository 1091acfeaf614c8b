"""Chances of differences and trends in series whose neighbours are alike.

With a correlation r of neighbours, n values are worth n (1 - r) / (1 + r) independent ones (Zwiers
and von Storch, J. Climate 8, 1995).
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats

# At 1 a series would be worth no independent value at all, whatever its length.
CORRELATION_MAX: Final = 0.99
DEGREES_MAX: Final = 500.0
"""degrees of freedom above which the chance of Student's t hardly changes any more"""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)
_LAGUERRE: Final = np.polynomial.laguerre.laggauss(48)


def careful_correlation(raw: Floats, pairs: int) -> Floats:
    """Correlations of neighbours by those of this number of pairs: without the bias of short
    series, at least 0."""
    unbiased = raw + 2 * (1 + 4 * raw) / (pairs + 2)
    # Half a standard error more: what is taken for less than it is makes chances too small, in
    # short series by far.
    error = np.sqrt(np.maximum(1 - raw**2, 0.0) / pairs)
    correlation: Floats = np.clip(unbiased + error / 2, 0.0, CORRELATION_MAX)
    return correlation


def inflation_of(correlation: Floats) -> Floats:
    """(f,) correlations of neighbours -> (f,) factor by which the variance of a mean exceeds that
    of the mean of as many independent values; at least 1."""
    inflation: Floats = (1 + correlation) / (1 - correlation)
    return inflation


def two_sided(t: Floats, degrees: Floats) -> Floats:
    """Chance that Student's t with these degrees of freedom (at least 1) is beyond t on either
    side.

    With t = sqrt(v) tan a, the density of a is proportional to cos(a)^(v - 1): the integral of that
    from a to pi / 2.
    """
    v = np.clip(degrees, 1.0, DEGREES_MAX)
    angle = np.arctan2(np.where(np.isfinite(t), t, 0.0), np.sqrt(v))
    half = (math.pi / 2 - angle) / 2
    points = angle[..., None] + half[..., None] * (1 + _NODES)
    inner = (np.cos(points) ** (v[..., None] - 1) * _WEIGHTS).sum(axis=-1) * half
    whole = np.array([_whole_density(freedom) for freedom in v])
    chance: Floats = np.where(np.isfinite(t), np.clip(2 * inner / whole, 0.0, 1.0), 0.0)
    return chance


def _whole_density(v: float) -> float:
    """The integral of cos(a)^(v - 1) over all angles."""
    return math.sqrt(math.pi) * math.exp(math.lgamma(v / 2) - math.lgamma(v / 2 + 0.5))


def gamma_tail(shape: Floats, x: Floats) -> Floats:
    """Chance that a gamma variable of these shapes (above 0) and scale 1 is above x (above 0)."""
    # The integral is less exact below the mean, where the chance is large anyway: there it is that
    # of the mean.
    x = np.maximum(x, shape)
    inner = ((1.0 + _LAGUERRE[0] / x[:, None]) ** (shape[:, None] - 1.0)) @ _LAGUERRE[1]
    log = np.array([math.lgamma(value) for value in shape])
    tail: Floats = np.minimum(1.0, np.exp((shape - 1.0) * np.log(x) - x - log) * inner)
    return tail
