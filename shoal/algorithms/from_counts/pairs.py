"""Pairs of blocks by the public bins of their means, and two states in noisy sums of such counts.

Bins divide the contract's bounds of a feature. A cut of a feature is what
`shoal.algorithms.states.sets.find_cut` takes for states: streams cross it seldom for how steadily
they move. Here every test has to be passed by more than the noise of the counts explains. Each is
of sums of counts with weights, whose noise is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.counting import FOUND_SIGNIFICANCE
from shoal.algorithms.states.sets import (
    CROSSINGS_MAX,
    CUT_JUMPS_MIN,
    CUT_VALLEY,
    DIRECT_MIN,
    DWELL_MIN,
    CellSets,
    correlation_of_sides,
    cuts_midway,
    mutual_information,
    normal_scores,
)
from shoal.kernels.arrays import Bools, Floats, Ints

BINS: Final = 16
"""bins of each feature"""
LAGS: Final = (1, 2)
"""blocks between the two of a pair"""
LOWER, UPPER = np.triu_indices(BINS)
CELLS: Final = len(LOWER)
"""cells of one kind of pairs: two bins, in any order"""
CELL_OF: Final = np.zeros((BINS, BINS), dtype=np.int64)
CELL_OF[LOWER, UPPER] = CELL_OF[UPPER, LOWER] = np.arange(CELLS)
MEMBER: Final = (np.arange(BINS)[:, None] == LOWER).astype(np.float64) + (
    np.arange(BINS)[:, None] == UPPER
)
"""(bins, cells) blocks of a pair that lie in each bin"""
MIDDLES: Final = (np.arange(BINS) + 0.5) / BINS
CHANCE: Final = 2.0
"""standard deviations of noise and of chance by which a cut must pass each test"""
EDGE: Final = 3.0
"""standard deviations by which the blocks beyond a bin must exceed the noise, for the bin to be
looked at"""
SPAN_MIN: Final = 2.0
"""bins between the middles of two states, at least"""
MASS_MIN: Final = 1e-9


def pair_places(blocks: int, lag: int) -> Ints:
    """The first blocks of the pairs at a distance: each block is in one pair at most."""
    first = np.arange(blocks)
    return np.asarray(first[((first // lag) % 2 == 0) & (first + lag < blocks)])


class Linear(NamedTuple):
    """A sum of counts with weights: its value, and the variance of its noise."""

    value: float
    variance: float


class FeaturePairs:
    """The sums of one feature at both distances, in the bins that hold blocks beyond doubt."""

    def __init__(self, sums: Floats, variance: Floats) -> None:
        """`sums` (lags, cells), and the variance of the noise of one of them at each distance
        (lags,)."""
        self._variance = variance
        mass = MEMBER @ sums.sum(axis=0)
        noise = float(variance.sum()) * (MEMBER**2).sum(axis=1)
        # From both ends: a bin between readings is looked at, whatever it holds, and one beyond all
        # of them is not.
        here = np.flatnonzero(_beyond(mass, noise) & _beyond(mass[::-1], noise[::-1])[::-1])
        inside = np.zeros(BINS, dtype=np.bool_)
        if len(here):
            inside[here[0] : here[-1] + 1] = True
        self._of_cell = (inside[LOWER] & inside[UPPER]).astype(np.float64)
        self._sums = sums * self._of_cell
        self.mass = np.maximum(MEMBER @ self._sums.sum(axis=0), MASS_MIN)
        """(bins,) blocks of each bin, by both distances"""

    def at(self, lag: int, weights: Floats) -> Linear:
        """The sum of the pairs (cells,) at a distance with these weights."""
        own = weights * self._of_cell
        return Linear(float(own @ self._sums[lag]), float(self._variance[lag] * (own @ own)))

    def both(self, weights: Floats) -> Linear:
        """The sum of the pairs at both distances."""
        near = self.at(0, weights)
        far = self.at(1, weights)
        return Linear(near.value + far.value, near.variance + far.variance)

    @property
    def is_there(self) -> bool:
        """Whether the feature has any blocks at either distance, by more than noise."""
        for lag in range(len(LAGS)):
            blocks = self.at(lag, np.ones(CELLS))
            if blocks.value <= max(FOUND_SIGNIFICANCE * math.sqrt(blocks.variance), 0.0):
                return False
        return True


def _beyond(mass: Floats, noise: Floats) -> Bools:
    """(bins,) whether the blocks up to a bin exceed the noise of all counts up to it."""
    beyond: Bools = np.cumsum(mass) > EDGE * np.sqrt(np.cumsum(noise))
    return beyond


@dataclass(frozen=True, eq=False)
class FoundCut:
    """Two states: the lower and the upper part of a feature."""

    feature: int
    at: float
    """place of the cut, in unit coordinates"""
    sets: CellSets
    mass: Floats
    """(bins,) blocks of each bin"""

    @cached_property
    def information(self) -> float:
        """See `mutual_information`."""
        return mutual_information(np.maximum(self.sets.changes, 0.0))


def find_private_cut(feature: int, pairs: FeaturePairs) -> FoundCut | None:
    """The cut of a feature that streams cross seldom, as `shoal.algorithms.states.sets.find_cut`
    has it.

    Each test of it must be passed by `CHANCE` standard deviations of the noise.
    """
    if not pairs.is_there:
        return None
    best = None
    for along in cuts_midway(MIDDLES, pairs.mass):
        cut = _tested(feature, pairs, along)
        # Of equal ones the first, so that every run takes the same.
        if cut is not None and (best is None or cut.information > best.information):
            best = cut
    return best


def _tested(feature: int, pairs: FeaturePairs, along: Floats) -> FoundCut | None:
    """The cut with bins (bins,) along it, 0 and 1 at the means of both sides, if it passes."""
    step = float(along[1] - along[0])
    # The means of both sides would be nearer than bins can tell.
    if step * SPAN_MIN > 1.0:
        return None
    upper = along > 0.5
    apart = (upper[LOWER] != upper[UPPER]).astype(np.float64)
    crossed = pairs.at(0, apart)
    ones = np.ones(CELLS)
    # One change more or less is chance, noise apart.
    most = crossed.value + CHANCE * math.sqrt(crossed.variance + max(crossed.value, 0.0) + 1.0)
    below = pairs.both(MEMBER[~upper].sum(axis=0)).value
    above = pairs.both(MEMBER[upper].sum(axis=0)).value
    if min(below, above) <= 0.0 or not _has_valley(pairs, along, step):
        return None
    share = above / (below + above)
    pairs_of = [pairs.at(lag, ones).value for lag in range(len(LAGS))]
    dwells = [pairs.at(0, MEMBER[side].sum(axis=0)).value for side in (~upper, upper)]
    if min(dwells) < DWELL_MIN * most:
        return None
    expected = (
        2.0
        * share
        * (1.0 - share)
        * (1.0 - correlation_of_sides(_correlation(pairs), share))
        * pairs_of[0]
    )
    if most > CROSSINGS_MAX * expected:
        return None
    low = along < 1 / 3
    high = along > 2 / 3
    jumps = (low[LOWER] & high[UPPER] | high[LOWER] & low[UPPER]).astype(np.float64)
    direct = pairs.at(1, jumps)
    fewest = direct.value - CHANCE * math.sqrt(direct.variance + max(direct.value, 0.0))
    if (
        fewest < DIRECT_MIN * crossed.value * pairs_of[1] / pairs_of[0]
        or fewest < 2 * CUT_JUMPS_MIN
    ):
        return None
    sets = CellSets(
        upper.astype(np.int64), *(_changes(pairs, lag, upper) for lag in range(len(LAGS)))
    )
    return FoundCut(feature, float(np.count_nonzero(~upper)) / BINS, sets, pairs.mass)


def _has_valley(pairs: FeaturePairs, along: Floats, step: float) -> bool:
    """Whether the blocks midway are `CUT_VALLEY` of those at either mean at most, by more than
    noise and chance."""
    # A bin counts by the part of it that lies near: bins are as wide as what is looked at.
    near = [
        np.clip(
            (np.minimum(along + step / 2, at + 1 / 6) - np.maximum(along - step / 2, at - 1 / 6))
            / step,
            0,
            1,
        )
        for at in (0.0, 0.5, 1.0)
    ]
    midway = pairs.both(near[1] @ MEMBER)
    chance = math.sqrt(max(midway.value, 0.0)) + 1.0
    for at in (near[0], near[2]):
        more = pairs.both((CUT_VALLEY * at - near[1]) @ MEMBER)
        if more.value - chance < CHANCE * math.sqrt(more.variance):
            return False
    return True


def _correlation(pairs: FeaturePairs) -> float:
    """Correlation of neighbouring blocks by their normal scores, and as much more as noise may have
    taken away."""
    score = normal_scores(MIDDLES, pairs.mass)
    squares = pairs.at(0, score[LOWER] ** 2 + score[UPPER] ** 2)
    if squares.value <= 0.0:
        return 1.0
    together = 2.0 * score[LOWER] * score[UPPER]
    correlation = pairs.at(0, together).value / squares.value
    noise = pairs.at(0, together - correlation * (score[LOWER] ** 2 + score[UPPER] ** 2)).variance
    return min(1.0, correlation + CHANCE * math.sqrt(noise) / squares.value)


def _changes(pairs: FeaturePairs, lag: int, upper: Bools) -> Floats:
    """(2, 2) pairs by the sets of their blocks; half of those on both sides are changes each
    way."""
    sides = upper[LOWER].astype(np.int64) + upper[UPPER]
    below = pairs.at(lag, (sides == 0).astype(np.float64)).value
    crossed = pairs.at(lag, (sides == 1).astype(np.float64)).value
    above = pairs.at(lag, (sides == 2).astype(np.float64)).value
    return np.asarray(np.maximum([[below, crossed / 2], [crossed / 2, above]], 0.0))
