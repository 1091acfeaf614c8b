"""Statistics of differences in series of bins: whether two spans of time differ, and whether a
period returns.

Successive bins of a sensor are alike, so that many bins are worth few independent ones: with a
correlation r of neighbours, n bins are worth n (1 - r) / (1 + r) (Zwiers and von Storch, J. Climate
8, 1995), and Welch's t-test counts what they are worth. r is estimated from both spans, with the
bias of short series taken off (Marriott and Pope, Biometrika 41, 1954). Spans of at least two days
are compared at the same times of the day.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.chances import careful_correlation, inflation_of, two_sided
from shoal.protocol.history import DAY_S

BINS_MIN: Final = 12
"""bins that each span needs, or nothing is said about chance"""
DAYS_MIN: Final = 2
"""days of each span from which on times of the day are compared with the same ones"""
ROUNDING: Final = 1e-9
"""a difference is none that is this small in relation to the values: sums are rounded"""
# Above 1, where a span would be worth no independent bin at all, whatever its length.
WORTH_MIN: Final = 1.5
"""independent bins that a span is worth at least"""


class Series(NamedTuple):
    """Means of bins in one span, in the order of time."""

    starts: Ints
    """(b,) seconds since 1970"""
    means: Floats
    """(b, f), NaN where one is not known"""
    weights: Floats
    """(b,) readings behind each, above 0"""


class Difference(NamedTuple):
    """The later span less the earlier one, in each of f features."""

    before: Floats
    """(f,) mean of the earlier span"""
    after: Floats
    """(f,)"""
    moved: Floats
    """(f,) the difference, at the same times of the day where the spans are long enough"""
    chance: Floats
    """(f,) of a difference as large where nothing has changed; 1 where it is not known"""


def unrolled(before: Series, after: Series, circular: Sequence[int]) -> tuple[Series, Series]:
    """Both series with their `circular` features, in turns, within half a turn of the mean
    direction of all bins.

    So bins on both sides of the place where a circle is cut lie beside each other, and may lie
    below 0 or above 1.
    """
    both = [before.means.copy(), after.means.copy()]
    weights = np.concatenate([before.weights, after.weights])
    for feature in circular:
        # A series has the first features of the contract, which may be fewer than all.
        if feature >= before.means.shape[1]:
            continue
        turns = np.concatenate([means[:, feature] for means in both])
        known = np.isfinite(turns)
        direction = np.exp(2j * np.pi * turns[known]) @ weights[known]
        middle = float(np.angle(direction)) / (2.0 * np.pi) % 1.0
        for means in both:
            means[:, feature] -= np.rint(means[:, feature] - middle)
    return before._replace(means=both[0]), after._replace(means=both[1])


def difference(before: Series, after: Series, width_s: int) -> Difference:
    """The difference of two series of bins of `width_s` seconds, of the same f features."""
    mean_before = _mean(before.means, before.weights)
    mean_after = _mean(after.means, after.weights)
    features = before.means.shape[1]
    if min(len(before.starts), len(after.starts)) < BINS_MIN:
        return Difference(mean_before, mean_after, mean_after - mean_before, np.ones(features))
    weights = [even_weights(before.weights), even_weights(after.weights)]
    values, slots = _at_the_same_times(before, after, weights, width_s)
    centres = [_mean(value, weight) for value, weight in zip(values, weights, strict=True)]
    centred = []
    for value, weight, centre in zip(values, weights, centres, strict=True):
        centred.append((value - centre) * weight[:, None] / weight.mean())
    inflation = inflation_of(_correlation([before.starts, after.starts], centred, width_s))
    worths = []
    errors = []
    for deviations in centred:
        n = len(deviations)
        worth = np.maximum(n / inflation, WORTH_MIN)
        # The mean of correlated bins follows them, so that they vary around it less than around the
        # true one.
        # Where correlation takes nearly all bins the divisor stays above 0, and the variance at
        # most eight times that of independent ones.
        freedom = np.maximum(n - inflation - slots / 2, n / 8)
        worths.append(worth)
        errors.append((deviations**2).sum(axis=0) / freedom / worth)
    moved = centres[1] - centres[0]
    chance = _welch(moved, errors, worths)
    # What is as small as the rounding of sums is no difference.
    still = np.abs(moved) <= ROUNDING * (np.abs(mean_before) + np.abs(mean_after))
    return Difference(mean_before, mean_after, moved, np.where(still, 1.0, chance))


def _welch(moved: Floats, errors: Sequence[Floats], worths: Sequence[Floats]) -> Floats:
    """(f,) chance by Welch's t-test of differences (f,), of the squared standard errors (f,) of
    both means and the independent bins (f,) that each is worth."""
    features = len(moved)
    whole = errors[0] + errors[1]
    t = np.divide(np.abs(moved), np.sqrt(whole), out=np.full(features, math.inf), where=whole > 0)
    # Welch-Satterthwaite. `WORTH_MIN` keeps the divisor above 0.
    lost = sum(error**2 / (worth - 1) for error, worth in zip(errors, worths, strict=True))
    degrees = np.divide(whole**2, lost, out=np.ones(features), where=whole > 0)
    return two_sided(t, np.maximum(degrees, 1.0))


def even_weights(weights: Floats) -> Floats:
    """Weights (b,) of at most their median: bins with few readings count less, and no bin counts
    for many."""
    return np.minimum(weights, np.median(weights)).astype(np.float64)


def _mean(values: Floats, weights: Floats) -> Floats:
    total = weights.sum()
    if not total > 0:
        return np.full(values.shape[1], math.nan)
    mean: Floats = (values * weights[:, None]).sum(axis=0) / total
    return mean


def _at_the_same_times(
    before: Series, after: Series, weights: list[Floats], width_s: int
) -> tuple[list[Floats], int]:
    """The values of both spans less what each time of the day adds to them, and how many such times
    there are.

    A difference between spans in which the day is not covered alike would be that of day and night.
    None is taken off spans of less than `DAYS_MIN` days, in which the hours cannot be told from the
    days.
    """
    values = [before.means, after.means]
    lengths = [series.starts[-1] - series.starts[0] + width_s for series in (before, after)]
    if min(lengths) < DAYS_MIN * DAY_S or width_s >= DAY_S:
        return values, 0
    starts = np.concatenate([before.starts, after.starts])
    _, slot = np.unique(starts % DAY_S, return_inverse=True)
    number = int(slot.max()) + 1
    design = np.zeros((len(starts), 1 + number))
    design[len(before.starts) :, 0] = 1.0
    design[np.arange(len(starts)), 1 + slot] = 1.0
    # Weighted least squares: each row times the root of its weight.
    root = np.sqrt(np.concatenate(weights))[:, None]
    fitted, *_ = np.linalg.lstsq(design * root, np.concatenate(values) * root, rcond=None)
    of_slot = fitted[1:]
    # Around the mean of all times, so that the level of a span stays what it is.
    less = (of_slot - of_slot.mean(axis=0))[slot]
    n = len(before.starts)
    # Less one: the mean of all times is the level of the span, and was not taken off.
    return [values[0] - less[:n], values[1] - less[n:]], number - 1


def _correlation(starts: list[Ints], centred: list[Floats], width_s: int) -> Floats:
    """(f,) correlation of neighbouring bins, from both spans, at least 0."""
    products = 0.0
    squares = 0.0
    pairs = 0
    for at, deviations in zip(starts, centred, strict=True):
        # Bins without readings are missing: those on both sides of a gap are no neighbours.
        first = np.flatnonzero(np.diff(at) == width_s)
        products = products + (deviations[first + 1] * deviations[first]).sum(axis=0)
        # As many squares as products: with gaps there are fewer pairs of neighbours than bins, and
        # r would come out too small.
        squares = squares + (deviations**2).mean(axis=0) * max(1, len(first) + 1)
        pairs += len(first)
    if not pairs:
        return np.zeros(centred[0].shape[1])
    raw = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0)
    return careful_correlation(raw, pairs)
