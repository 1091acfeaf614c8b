"""Coarse readings: each value is spread evenly over the declared step of its feature before anything learns from it.

A sensor that shows whole degrees puts all that lies between two of them on one value, and a histogram with finer bins
has a valley between any two values. The step is public, part of the contract. How far a value is moved is a function of
the key, the client, the readings log and the place of the reading, so a reading that is read again is moved as before.

It protects nothing and costs nothing: each reading is moved by itself, at its own place, before noise is added, so two
logs that differ in one reading still differ in that reading alone. Only what is learnt is spread; labels are of
readings as they were measured.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.privacy.base import Bounds
from shoal.privacy.keyed import CONTEXT_BYTES, KEY_BYTES, KeyedRandomness, Places

_CONTEXT: Final = b"shoal coarse readings 1".ljust(CONTEXT_BYTES, b"\0")
_UNIT: Final = 2.0**-53


class CoarseReadings:
    """Spreads the readings of one client over the steps of their features."""

    def __init__(self, bounds: Bounds, steps: Floats, key: bytes | None, client: str, source: bytes) -> None:
        """`steps` (d,) in the units of the features, 0 for a feature without one; `key` None: spread by public words.

        Raises `SettingsError` for a step that is below 0, or above the range of its feature.
        """
        self._bounds, self._steps = bounds, np.array(steps, dtype=np.float64)
        if self._steps.shape != (bounds.d,) or not ((self._steps >= 0.0) & (self._steps <= bounds.span)).all():
            raise SettingsError("step: one number for each feature, from 0 to high - low")
        self._coarse = np.flatnonzero(self._steps)
        self._random = KeyedRandomness(bytes(KEY_BYTES) if key is None else key, client, source, _CONTEXT, 1)

    def spread(self, readings: Floats, places: Places) -> Floats:
        """readings (n, d) with their places (n, 2) in the readings log -> (n, d) spread, within the bounds.

        A value x with step s comes to lie in x - s/2 .. x + s/2; one beyond its bounds, and one that is missing, stays.
        """
        if not len(self._coarse) or not len(readings):
            return readings
        words = self._random.draw(places, np.zeros((len(readings), 1), dtype=np.int64), len(self._coarse))
        share = (words >> np.uint64(11)).astype(np.float64) * _UNIT
        values, half = readings[:, self._coarse], self._steps[self._coarse] / 2.0
        least, most = self._bounds.low[self._coarse], self._bounds.high[self._coarse]
        low, high = np.maximum(values - half, least), np.minimum(values + half, most)
        moved = np.minimum(low + share * (high - low), most)
        found = readings.copy()
        found[:, self._coarse] = np.where((values >= least) & (values <= most), moved, values)
        return found
