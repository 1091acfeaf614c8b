"""How much the windows of clients differ in what they hold, from private counts alone."""

from __future__ import annotations

import math
from typing import Final

from shoal.kernels.arrays import Floats

COMPARED_SIGNIFICANCE: Final = 4.0
"""standard deviations above zero from which the readings of an axis are compared with those of a
window"""


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
