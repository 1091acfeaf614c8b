"""Valleys where two leaves meet: across a cut, or where a circular feature closes."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.density_tree.leaf import BINS, Leaf
from shoal.algorithms.density_tree.tree import Cut, axis_in
from shoal.kernels.arrays import Floats

NEAR_BINS: Final = 16
"""bins on either side of a cut in which the peaks beside it are sought"""
SURE: Final = 2.0
"""standard deviations above zero from which a density near a cut is one"""
ENDS_WIDTH: Final = 1 / 64
"""least width of the bins in which the two ends of a circular feature are compared"""

Side = list[tuple[Leaf, int]]
"""leaves on one side of a place, each with its axis across it"""


class _Meeting(NamedTuple):
    """The place on an axis where the leaves of a left side end and those of a right side begin."""

    left: Side
    right: Side
    left_end: float
    """the end of the left side"""
    right_start: float
    """the start of the right side: the same place, but for a circular feature"""
    first: float
    """ends of the range in which peaks may lie"""
    last: float
    step: float
    """width of the bins in which densities are compared"""


def density(side: Side, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Readings per unit of length in intervals (n,) of an axis, over the leaves of a side; and its
    variance."""
    mass = np.zeros(len(low))
    variance = np.zeros(len(low))
    for leaf, axis in side:
        more, uncertain = leaf.density(axis, low, high)
        mass = mass + more
        variance = variance + uncertain
    length = high - low
    return mass / length, variance / length**2


class Saddle(NamedTuple):
    """The place where two sides meet, and the peaks beside it."""

    height: float
    """density on the side where it is lower"""
    error: float
    """its standard deviation; infinite where nothing was counted"""
    peak: float
    """the lower of the peaks of both sides; infinite where the density is none"""

    def is_filled(self, filled: float, sure: float) -> bool:
        """Whether there is no valley: the density exceeds `filled` times the lower peak by `sure`
        standard deviations."""
        return self.height > filled * self.peak + sure * self.error

    def is_clear(self, filled: float, sure: float) -> bool:
        """Whether there is a valley: the density is below that by `sure` standard deviations."""
        return self.height + sure * self.error <= filled * self.peak


NOTHING_COUNTED: Final = Saddle(0.0, math.inf, 0.0)


def saddle_of(cut: Cut, left: list[Leaf], right: list[Leaf]) -> Saddle:
    """The saddle of a cut between leaves of its two sides.

    It is judged at the bin width at which the valley was found.
    """
    meeting = _Meeting(
        [(leaf, axis_in(leaf, cut)) for leaf in left],
        [(leaf, axis_in(leaf, cut)) for leaf in right],
        cut.at,
        cut.at,
        float(cut.leaf.start[cut.axis]),
        float(cut.leaf.end[cut.axis]),
        cut.step,
    )
    return _saddle(meeting)


def is_filled(
    cut: Cut, left: list[Leaf], right: list[Leaf], filled: float, sure: float = 1.0
) -> bool:
    """Whether the valley of a cut is none any more between the leaves of its two sides, by `sure`
    standard deviations."""
    return saddle_of(cut, left, right).is_filled(filled, sure)


def ends_meet(feature: int, last: Leaf, first: Leaf, filled: float) -> bool:
    """Whether there is no valley where a circular feature ends in one leaf, at 1, and begins in
    another, at 0."""
    widths = [float(leaf.bin_width[feature]) for leaf in (last, first)]
    # No wider than the leaf itself: nothing beyond it is counted in it.
    step = min(max(*widths, ENDS_WIDTH), *(BINS * width for width in widths))
    meeting = _Meeting([(last, feature)], [(first, feature)], 1.0, 0.0, 0.0, 1.0, step)
    return _saddle(meeting).is_filled(filled, sure=1.0)


def _saddle(meeting: _Meeting) -> Saddle:
    """The saddle where the left side ends and the right one begins."""
    # A leaf that has not counted the axis yet has density 0 there, which would pass for a clear
    # valley: it is neither filled nor clear.
    if min(leaf.exposure[axis] for leaf, axis in meeting.left + meeting.right) <= 0.0:
        return NOTHING_COUNTED
    step = meeting.step
    # The side where it is lower, with its own error: a cut at the foot of one peak is a valley
    # although the other side rises at once.
    lowest, error = min(
        _density_at(meeting.left, meeting.left_end - step, step),
        _density_at(meeting.right, meeting.right_start, step),
    )
    # Most valleys hold next to nothing: their peaks need not be looked for.
    if lowest <= SURE * error:
        return Saddle(lowest, error, math.inf)
    reach = NEAR_BINS * step
    left_start = max(meeting.first, meeting.left_end - reach)
    left_peak = _peak(meeting.left, left_start, meeting.left_end, step)
    right_end = min(meeting.last, meeting.right_start + reach)
    right_peak = _peak(meeting.right, meeting.right_start, right_end, step)
    return Saddle(lowest, error, min(left_peak, right_peak))


def _density_at(side: Side, low: float, step: float) -> tuple[float, float]:
    """The density of a side in the bin from `low` on, and its standard deviation."""
    value, variance = density(side, np.array([low]), np.array([low + step]))
    return float(value[0]), math.sqrt(variance[0])


def _peak(side: Side, first: float, last: float, step: float) -> float:
    """The highest density of a side in bins between two places, by steps of half a bin."""
    # .99: the last whole step must be there, whichever way the quotient is rounded.
    low = np.arange(first, last - 0.99 * step, step / 2)
    return float(density(side, low, low + step)[0].max(initial=0.0))
