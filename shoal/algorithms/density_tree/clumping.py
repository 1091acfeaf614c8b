"""How much the windows of clients differ in what they hold, from private counts alone, and what
that means for the counts of axes that some windows sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.kernels.arrays import AnyArray, Floats

COMPARED_SIGNIFICANCE: Final = 4.0
"""standard deviations above zero from which the readings of an axis are compared with those of a
window"""
ALONE_LEAST: Final = 0.05
"""least variance of the composition of one reading that is reckoned with: where nearly all readings
lie in one bin, what is left of it is noise"""


class Clumping:
    """How much the windows of clients differ in what they hold, from private counts alone.

    It is the variance of the composition: of the shares p (bins,) that the readings of a window
    have in the bins of an axis, around those of all windows, E|p|² - |E p|². 0 where all readings
    are drawn alike; windows that each hold one of two equal clusters have 1/2. Products of counts
    that share neither noise nor readings need no correction; of squares the variance of both is
    taken off.
    """

    def __init__(self, apart: float = 0.0, compared: float = 0.0) -> None:
        self.apart = apart
        """sum over windows of the square of their readings times the variance"""
        self.compared = compared
        """sum over windows of the square of their readings"""

    def compare(
        self, earlier: Floats, earlier_noise: Floats, counts: Floats, noise: Floats
    ) -> None:
        """A window's counts on an axis (bins,) with what was counted there before, and the
        variances of both."""
        known = float(earlier.sum())
        # Noise may make it negative.
        if known <= 0.0:
            return
        error = math.sqrt(known + float(earlier_noise.sum()))
        if known <= COMPARED_SIGNIFICANCE * error:
            return
        # A count varies by its noise, and by its own number as those of independent readings do.
        usual = earlier / known
        uncertain = noise + counts
        readings = float(counts.sum())
        # The sum of the counts holds the noise of each of them: a product of the two is too large
        # by the variance of that count, as a square is by its own.
        square = readings * readings - float(uncertain.sum())
        own = float(counts @ counts) - float(uncertain.sum())
        self.apart += own - (readings * float(counts @ usual) - float(uncertain @ usual))
        self.compared += square

    @property
    def variance(self) -> float | None:
        """Variance of the composition, at least 0; None while it is not known."""
        return max(0.0, self.apart / self.compared) if self.compared > 0.0 else None


class Missed:
    """How many readings the axes of a plan miss because each window samples some axes only."""

    def __init__(self, plan: Mapping[str, AnyArray], window_readings: int) -> None:
        """`plan`: the arrays of a snapshot under which windows of `window_readings` are counted."""
        axes = np.bincount(plan["axis_leaf"])
        sampled = np.bincount(plan["axis_leaf"], plan["axis_share"]) / SHARE_ONE
        # A window that holds one state lies in one leaf: all of its readings are on the axes that
        # it samples there. By the number of axes, and not by the share of each: an axis on which
        # clumps look like a valley is sampled by every window then, and its counts are of before.
        missed = (1.0 - sampled / axes) * window_readings / sampled
        self._of_leaf: dict[int, float] = dict(
            zip(plan["leaf_id"].tolist(), missed.tolist(), strict=True)
        )
        self._mean = float(missed.mean())

    def of_leaf(self, leaf_id: int) -> float:
        """The chance that a window misses an axis of a leaf, times the readings that one which
        samples it has there; of a leaf that is not in the plan the mean of all."""
        return self._of_leaf.get(leaf_id, self._mean)


def sampling_variance(counts: Floats, missed: float, composition: float) -> Floats:
    """counts (A, bins) of axes, `missed` as of `Missed`, `composition` as of `Clumping.variance` ->
    (A, bins) the variance that the choice of windows adds to each count.

    An axis that is not sampled by every window misses whole windows, and a window that holds one
    state is a clump in few bins: its readings are not independent. This is the design effect of
    cluster sampling (Kish 1965), of which the intraclass correlation is the variance of the
    composition of a window over that of a single reading, 1 - |p|².
    """
    held = np.maximum(counts, 0.0)
    share = held / np.maximum(held.sum(axis=1, keepdims=True), 1e-9)
    alone = np.maximum(1.0 - np.square(share).sum(axis=1), ALONE_LEAST)
    correlation = np.minimum(composition / alone, 1.0)
    return np.asarray(missed * correlation[:, None] * held)
