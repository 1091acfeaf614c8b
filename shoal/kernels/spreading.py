"""Values of a coarse scale (integers, steps of 0.1) spread over their step, so that ties are no point masses."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.kernels import forms
from shoal.kernels.distance import Floats
from shoal.kernels.golden_ratio import GOLDEN_RATIO
from shoal.kernels.lloyd import row_hashes

VALUES_MIN: Final = 4
"""a column of fewer values is a category, and its values are apart on purpose"""
VALUES_SHARE_MAX: Final = 0.7
TIED_SHARE_MIN: Final = 0.5
"""a column is coarse where at least so many rows share their value, and different values are at most so many of them"""
MARKS_PER_ROW: Final = 3
"""places for the marks of different values: few of them meet"""


def spread_ties(rows: Floats) -> Floats:
    """rows (n, d) -> (n, d), not to be written to: each coarse column spread evenly over its step, within its range.

    The step is the median difference of neighbouring values. What is added to a value is drawn from the bits of its
    row and of how many equal rows stand before it: a function of the rows alone.
    """
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        marks = np.empty(1 << (MARKS_PER_ROW * len(rows)).bit_length(), dtype=np.uint8)
        bits = np.ascontiguousarray(rows).view(np.uint64)
        if compiled.all_exceed(bits, VALUES_SHARE_MAX * len(rows), marks):
            return rows
    # The values of a column side by side: they are sorted and compared twice as fast.
    ordered = np.sort(np.ascontiguousarray(rows.T), axis=1)
    fresh = np.ones(ordered.shape, dtype=np.bool_)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=fresh[:, 1:])
    alone = fresh.copy()
    alone[:, :-1] &= fresh[:, 1:]
    values, tied = np.count_nonzero(fresh, axis=1), len(rows) - np.count_nonzero(alone, axis=1)
    coarse = (values >= VALUES_MIN) & (values <= VALUES_SHARE_MAX * len(rows)) & (tied >= TIED_SHARE_MIN * len(rows))
    if not coarse.any():
        return rows
    out, hashes = rows.copy(), row_hashes(rows, 0)
    for column in np.flatnonzero(coarse).tolist():
        different = ordered[column, fresh[column]]
        out[:, column] = _spread(rows[:, column], different, _uniform(hashes, column))
    return out


def _spread(values: Floats, different: Floats, uniform: Floats) -> Floats:
    """values (n,), the different ones in order, uniform (n,) in [0, 1) -> (n,) within the range of `values`."""
    low, high = float(different[0]), float(different[-1])
    step = float(np.median(np.diff(different)))
    # Each value becomes an interval of one step, and the whole is drawn together by a step to stay in the range.
    shrink = (high - low) / (high - low + step)
    return np.clip(low + (values - low + uniform * step) * shrink, low, high)


def _uniform(hashes: NDArray[np.uint64], column: int) -> Floats:
    """64 bits for each row -> (n,) in [0, 1), others for every column (Steele, Lea and Flood's finaliser, 2014)."""
    mixed = hashes + np.uint64((column + 1) * GOLDEN_RATIO % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed ^ (mixed >> np.uint64(27))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
