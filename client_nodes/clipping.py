"""Tells a client's operator that many readings lie outside the bounds of a feature, and so are clipped to them.

What is counted here is made from raw readings: it goes to the client's own events and metrics, and is never published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

WINDOW_READINGS: Final = 1000
"""readings after which shares are looked at"""
SHARE_MAX: Final = 0.1
"""share of clipped readings that is still usual; clipping distorts what is learnt, the more the larger it is"""


class ClippingWatch:
    """Finds the features of which too many readings are clipped, once each time that it begins."""

    def __init__(self, n_features: int) -> None:
        self._readings = 0
        self._clipped = np.zeros(n_features, dtype=np.int64)
        self._over = np.zeros(n_features, dtype=np.bool_)

    def add(self, readings: int, clipped: Sequence[int]) -> list[tuple[int, float, int]]:
        """So many readings more, and how many of them were clipped by feature (none: () will do).

        -> (position of the feature, share clipped, of how many readings) of each one that has begun to be clipped.
        """
        self._readings += readings
        if clipped:
            self._clipped += np.asarray(clipped, dtype=np.int64)
        if self._readings < WINDOW_READINGS:
            return []
        shares, looked_at = self._clipped / self._readings, self._readings
        over = shares > SHARE_MAX
        begun = np.flatnonzero(over & ~self._over).tolist()
        self._readings, self._over = 0, over
        self._clipped[:] = 0
        return [(position, float(shares[position]), looked_at) for position in begun]
