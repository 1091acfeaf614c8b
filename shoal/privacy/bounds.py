"""Declared bounds: where the values of a feature can lie. They come from its data sheet and never from data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import InvalidData, SettingsError


class Bounds:
    """Declared `low` and `high` of every feature, (d,) each, in the feature's own unit.

    Models learn in unit coordinates, u = (x - low) / (high - low), so that no feature outweighs another.
    Raises `SettingsError` for bounds that are empty, of unequal number, not finite, or not low < high.
    """

    def __init__(self, low: Sequence[float] | NDArray[np.float64], high: Sequence[float] | NDArray[np.float64]) -> None:
        self.low: NDArray[np.float64] = np.array(low, dtype=np.float64)
        self.high: NDArray[np.float64] = np.array(high, dtype=np.float64)
        if self.low.ndim != 1 or self.low.shape != self.high.shape or self.low.size == 0:
            raise SettingsError("bounds need one low and one high for each feature, and at least one feature")
        with np.errstate(over="ignore", invalid="ignore"):
            self.span: NDArray[np.float64] = self.high - self.low
        for j, (lowest, highest, span) in enumerate(zip(self.low, self.high, self.span, strict=True)):
            if not (np.isfinite([lowest, highest, span]).all() and span > 0):
                raise SettingsError(f"feature {j}: bounds {lowest} to {highest} must be finite numbers with low < high")
        for array in (self.low, self.high, self.span):
            array.setflags(write=False)

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.low.size)

    def checked(self, readings: NDArray[np.float64]) -> NDArray[np.float64]:
        """readings (n, d) as float64. Raises `InvalidData` for another width, NaN or infinity (noise hides none).

        The error does not contain values.
        """
        rows = np.asarray(readings, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.d:
            raise InvalidData(f"readings of shape {rows.shape} where (n, {self.d}) is needed")
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            raise InvalidData(
                f"{int((~finite).sum())} of {len(rows)} readings hold a value that is not a finite number; "
                "remove them first"
            )
        return rows

    def clip(self, readings: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
        """readings (n, d) -> the readings clipped to the bounds, and how many of them were outside.

        The count is made from raw readings: it must not leave the client.
        """
        rows = self.checked(readings)
        inside = np.clip(rows, self.low, self.high)
        return inside, int((inside != rows).any(axis=1).sum())

    def to_unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """values (..., d) in the features' units -> unit coordinates; 0 is `low`, 1 is `high`."""
        return (np.asarray(values, dtype=np.float64) - self.low) / self.span

    def from_unit(self, unit: NDArray[np.float64]) -> NDArray[np.float64]:
        """unit coordinates (..., d) -> values in the features' units."""
        return self.low + np.asarray(unit, dtype=np.float64) * self.span
