"""The length of the window that shows what a stream does: found from its first readings."""

from __future__ import annotations

import numpy as np

from shoal.kernels.arrays import Floats

SHORTEST = 10
"""readings of a window, at least"""
LIKE_THE_WHOLE = 0.89
"""share of the way from the least to the most like the whole from which on a window is like it; the
authors' choice"""


def window_length(first: Floats) -> int:
    """first (n, d), the first readings -> readings of a window: the least of the columns that vary.

    A column that drifts has a window as long as its drift. With the mean over columns one such
    column, as a temperature, would decide how finely all of them are seen.

    Summary statistics subsequence (SuSS; Ermshaus, Schaefer and Leser, "ClaSP: parameter-free time
    series segmentation", Data Mining and Knowledge Discovery 37, 2023, section 4.2): twice the
    shortest window whose mean, spread and range are like those of the whole, found by doubling and
    then by bisection.
    """
    lengths = [_length_of_column(column) for column in first.T if np.ptp(column) > 0]
    return min(lengths, default=_length_of_column(first[:, 0]))


def _length_of_column(values: Floats) -> int:
    n = len(values)
    likeness = _Likeness((values - values.min()) / (np.ptp(values) + 1e-12))
    longest = 1
    while longest < n // 2 and likeness.of(longest) <= LIKE_THE_WHOLE:
        longest *= 2
    low = max(SHORTEST, longest // 2)
    high = min(longest + 1, n // 2)
    while low <= high:
        middle = (low + high) // 2
        if likeness.of(middle) < LIKE_THE_WHOLE:
            low = middle + 1
        else:
            high = middle - 1
    return max(SHORTEST, min(2 * low, n // 4))


class _Likeness:
    """How like the whole the windows of a length are: 0 for single readings, 1 for nearly all."""

    def __init__(self, values: Floats) -> None:
        """`values` (n,) between 0 and 1."""
        self._values = values
        self._sums = np.concatenate([[0.0], np.cumsum(values)])
        self._squares = np.concatenate([[0.0], np.cumsum(values**2)])
        self._whole = np.array([values.mean(), values.std(), 1.0])
        self._least = self._distance(1)
        self._most = self._distance(max(len(values) - 1, 1))

    def of(self, w: int) -> float:
        way = self._most - self._least
        # A column that never varies has no way to go: any window is like it.
        return 1.0 if way > -1e-12 else 1.0 - (self._distance(w) - self._most) / -way

    def _distance(self, w: int) -> float:
        """Mean distance of the windows' statistics from the whole's, in units of the window's
        root."""
        mean = (self._sums[w:] - self._sums[:-w]) / w
        variance = (self._squares[w:] - self._squares[:-w]) / w - mean**2
        deviation = np.sqrt(np.maximum(variance, 0.0))
        gaps = np.stack([mean, deviation, _ranges(self._values, w)]) - self._whole[:, None]
        return float(np.sqrt((gaps**2).sum(axis=0)).mean() / np.sqrt(w))


def _ranges(values: Floats, w: int) -> Floats:
    """(n,) -> (n - w + 1,) largest less smallest value of each window, by windows of doubled
    length."""
    high = values
    low = values
    length = 1
    while 2 * length <= w:
        high = np.maximum(high[length:], high[:-length])
        low = np.minimum(low[length:], low[:-length])
        length *= 2
    # Below `length`: two windows of that length which are `rest` apart cover one of w.
    rest = w - length
    if rest:
        high = np.maximum(high[rest:], high[:-rest])
        low = np.minimum(low[rest:], low[:-rest])
    return high - low
