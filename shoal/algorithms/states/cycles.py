"""Cycles: the period that shows most in the latest readings."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shoal.kernels.arrays import Floats

CYCLE_MIN: Final = 0.5
"""autocorrelation at its period from which on a stretch shows a cycle; noise of a third of a sine's
deviation leaves .9"""
CYCLE_SHARE: Final = 0.6
"""share of a state's half-tiles that show a cycle of the same period, at least"""
LIKE_THE_HIGHEST: Final = 0.9
"""part of the highest peak that the first one must have to be the period"""
SAME_PERIOD: Final = 0.1
"""two periods are the same within this share"""


def dominant_periods(before: Floats, count: int, half: int, length: int) -> Floats:
    """(count, 2): the period that shows most in the `length` readings up to the end of each of the
    last `count` half-tiles of `half` readings, and the autocorrelation at it.

    `before` (n, d), n >= length + count * half - half. Of all columns that with the largest
    autocorrelation counts. The period is the lag of the first of its high peaks beyond its first
    fall below 0, up to half of `length`; 0 and 0 where there is none.
    """
    best = np.zeros((count, 2))
    ends = len(before) - half * np.arange(count - 1, -1, -1)
    for column in before.T:
        stretches = sliding_window_view(column, length)[ends - length]
        correlation = _autocorrelation(stretches)
        is_beyond = np.logical_or.accumulate(correlation < 0, axis=1)
        beyond = np.where(is_beyond, correlation, 0.0)[:, :-1]
        # Multiples of a period are as high as itself; what still rises at the longest lag is none.
        is_peak = beyond > correlation[:, 1:]
        is_peak[:, 1:] &= beyond[:, 1:] > correlation[:, :-2]
        peaks = np.where(is_peak, beyond, 0.0)
        period = (peaks >= LIKE_THE_HIGHEST * peaks.max(axis=1)[:, None]).argmax(axis=1)
        strength = peaks[np.arange(count), period]
        stronger = strength > best[:, 1]
        best[stronger] = np.stack([period, strength], axis=1)[stronger]
    return best


def _autocorrelation(stretches: Floats) -> Floats:
    """(n, length) -> (n, length // 2 + 1) correlations of each stretch with itself at lags from 0
    on; 0 for one that does not vary.

    Relative to the squares of the readings that a lag leaves, or a period would come out too short
    (McLeod and Wyvill, "A smarter way to find pitch", ICMC 2005, equation 9).
    """
    length = stretches.shape[1]
    lags = np.arange(length // 2 + 1)
    gaps = stretches - stretches.mean(axis=1)[:, None]
    # Padded with zeros: the transform is circular, and would relate the end to the beginning.
    size = 1 << (length + len(lags) - 1).bit_length()
    power = np.abs(np.fft.rfft(gaps, size, axis=1)) ** 2
    lagged = np.fft.irfft(power, size, axis=1)[:, : len(lags)]
    squares = np.concatenate([np.zeros((len(gaps), 1)), np.cumsum(gaps**2, axis=1)], axis=1)
    left = squares[:, length - lags] + squares[:, -1:] - squares[:, lags]
    varies = squares[:, -1:] > 1e-12 * length
    return np.where(varies, 2 * lagged / np.maximum(left, 1e-12), 0.0)


def shared_period(periods: Floats) -> float:
    """The period (readings) that most of a state's half-tiles show; NaN where there is none.

    `periods` (n, 2) as in `dominant_periods`.
    """
    shown = periods[periods[:, 1] >= CYCLE_MIN, 0]
    if len(shown) < max(1.0, CYCLE_SHARE * len(periods)):
        return float("nan")
    period = float(np.median(shown))
    same = np.abs(shown - period) <= SAME_PERIOD * period
    return period if same.sum() >= CYCLE_SHARE * len(periods) else float("nan")
