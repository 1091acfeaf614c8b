"""Constants of several kernels, and of both forms of one: the compiled functions take theirs from
here.

This module imports nothing, so both forms can import it, and a kernel is compiled again only if a
constant changes.
"""

from __future__ import annotations

from typing import Final

COUNT_MAX: Final = 2**53
"""largest whole number that is counted, stored or sent: 64-bit floats are exact up to here, and
readers in other languages may have no others"""

FEW_FEATURES: Final = 3
"""features up to which differences are as fast as a product"""

ZERO_SPREAD: Final = 1e-6
"""replaces the standard deviation of a constant feature in a bandwidth, as in the published
programs"""
SIGMA_MIN: Final = 1e-150
"""keeps 1 / sigma^2 finite; reached only by points that differ in their last denormal bits"""

SQUARED_MAX: Final = 1e300
"""upper limit of squared distances in standard deviations, so that none is infinite"""

GOLDEN_RATIO: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd. Its multiples fill a circle more evenly than those of any
other number; the upper bits of a product with it depend on all bits of the other factor, and
products of neighbours lie far apart (Knuth, volume 3, 6.4)"""

VALLEY_WIDTHS: Final = (1, 2, 4)
"""bins that are summed before two places are compared: a wide valley shows in sums of bins that are
too noisy alone"""
VALLEY_SIGNIFICANCE_MIN: Final = 2.5
"""standard deviations below which a valley is not located"""
PEAK_SIGNIFICANCE: Final = 3.5
"""standard deviations of its noise that a place is above zero, to be a peak: the highest of many
places without readings is often two or three above"""
SHALLOW: Final = 0.8
"""depth up to which a valley counts as a hint"""
