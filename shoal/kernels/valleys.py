"""Valleys of noisy histograms: where a density falls and rises again by more than noise explains.

The NumPy form and the compiled one give the same bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Floats
from shoal.kernels.constants import PEAK_SIGNIFICANCE, SHALLOW, VALLEY_SIGNIFICANCE_MIN, VALLEY_WIDTHS

SHARE_OF_LEARNING = 0.5
"""time to look at a histogram, relative to that in which CA+ learns a row"""


class Valleys(NamedTuple):
    """The deepest valley of each of A histograms."""

    significance: Floats
    """(A,) standard deviations between the valley and the lower of the peaks beside it; -1 where there is none"""
    position: Floats
    """(A,) its middle, in bins from the left end of the histogram"""
    hint: Floats
    """(A,) the significance of the best valley that may still be shallow: what an axis that is sampled more may show"""


def find_valleys(counts: Floats, variances: Floats, depth: float) -> Valleys:
    """counts (A, n) with the variances (A, n) of their noise -> the deepest valley of each.

    A valley is at most `depth` times as high as the lower of the highest places to its left and right. The
    difference has the variance of both places: twice their noise, and that of counting readings itself.
    """
    a, n = counts.shape
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * a)
    if compiled is not None:
        found = np.empty((a, 3))
        compiled.find_valleys(np.ascontiguousarray(counts), np.ascontiguousarray(variances), depth, found)
        return Valleys(*np.ascontiguousarray(found.T))
    best, position, hint = np.full(a, -1.0), np.zeros(a), np.full(a, -1.0)
    summed, noise = _running(counts), _running(variances)
    for width in VALLEY_WIDTHS:
        if 4 * width > n:
            break
        height, variance = summed[:, width:] - summed[:, :-width], noise[:, width:] - noise[:, :-width]
        top, top_variance = _lower_peak(height, variance, width)
        # A count varies like its root, besides the noise; the floor is for empty places without noise.
        error = np.sqrt(variance + top_variance + np.maximum(height, 0.0) + top + 1e-9)
        is_peak = top > PEAK_SIGNIFICANCE * np.sqrt(top_variance)
        score = np.where(is_peak, (top - height) / error, -1.0)
        hint = np.maximum(hint, np.where(height <= SHALLOW * top, score, -1.0).max(axis=1))
        score[height > depth * top] = -1.0
        deepest = score.argmax(axis=1)
        value = score[np.arange(a), deepest]
        for axis in np.flatnonzero(value > np.maximum(best, VALLEY_SIGNIFICANCE_MIN)).tolist():
            best[axis] = value[axis]
            position[axis] = _middle(height[axis], variance[axis], top[axis], int(deepest[axis])) + width / 2
    return Valleys(best, position, hint)


def _running(values: Floats) -> Floats:
    return np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)


def _lower_peak(height: Floats, variance: Floats, width: int) -> tuple[Floats, Floats]:
    """Heights (A, k) of moving sums of `width` bins and their variances (A, k) -> those of the lower of the peaks left
    and right of each, 0 without both."""
    left, left_variance = _peak_before(height, variance, width)
    right, right_variance = (found[:, ::-1] for found in _peak_before(height[:, ::-1], variance[:, ::-1], width))
    return np.minimum(left, right), np.where(left < right, left_variance, right_variance)


def _peak_before(height: Floats, variance: Floats, width: int) -> tuple[Floats, Floats]:
    """The highest place at least `width` places before each, at least 0, and its variance."""
    highest = np.maximum.accumulate(height, axis=1)
    # The last place of equally high ones: the nearest to the valley.
    at = np.maximum.accumulate(np.where(height == highest, np.arange(height.shape[1]), 0), axis=1)
    peak, peak_variance = np.zeros_like(height), np.zeros_like(height)
    peak[:, width:] = np.maximum(highest[:, :-width], 0.0)
    peak_variance[:, width:] = np.take_along_axis(variance, at, axis=1)[:, :-width]
    return peak, peak_variance


def _middle(height: Floats, variance: Floats, top: Floats, at: int) -> float:
    """The middle of the places around `at` that are as low as it, as far as noise can tell."""
    limit = height[at] + math.sqrt(variance[at] + max(height[at], 0.0)) + 0.05 * top[at]
    low = height <= limit
    first = at - int(np.argmin(low[at::-1])) + 1 if not low[: at + 1].all() else 0
    last = at + int(np.argmin(low[at:])) - 1 if not low[at:].all() else len(low) - 1
    return (first + last) / 2.0
