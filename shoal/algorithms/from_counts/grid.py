"""The client half of algorithms that learn from counts on a grid: counts the readings of a window, cell by cell.

The unit cube is cut into the same number of cells along each feature. The grid is public and never changes. Every cell
gets the same noise, so twice the cells need twice the readings; from four features on there would be more cells than
windows can fill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.claims import Claims, require_possible
from shoal.algorithms.counting import Counts, check_private_counts
from shoal.algorithms.streaming import Arrays, ArraySpec, Rows
from shoal.errors import SettingsError
from shoal.kernels.cells import Ints, cell_digits, cell_numbers, digits_of
from shoal.kernels.distance import Floats

CELLS_ALONG: Final = {1: 64, 2: 32, 3: 16}
"""number of features -> cells along each of them"""
FEATURES_MAX: Final = max(CELLS_ALONG)
STREAM: Final = "grid"
"""see `shoal.algorithms.counting.CountingAlgorithm.stream`"""
EPSILON_ADVISED: Final = 1.0
"""see `shoal.algorithms.counting.CountingAlgorithm`: with less, a grid needs far more than 20,000 readings"""
UPDATE: Final = {
    "places": ArraySpec("<i8", (1,), at_least_one=True),
    "count": ArraySpec("<i4", ("n",)),
}
"""one window of a client: how many readings it has, rejected ones included, and the private count of every cell of the
grid, which may be negative"""
_LIMITS: Final = np.iinfo(np.int32)


class Grid:
    """The grid over d features. Raises `SettingsError` for more than `FEATURES_MAX`."""

    def __init__(self, d: int) -> None:
        if d not in CELLS_ALONG:
            raise SettingsError(
                f"a grid of counts is for at most {FEATURES_MAX} features, and there are {d}; take density_tree, which "
                "learns from counts of any number of features"
            )
        self.d, self.along = d, CELLS_ALONG[d]
        self.cells = self.along**d

    def numbers(self, rows: Rows) -> Ints:
        """rows (n, d) in unit coordinates -> (n,) number of the cell that each lies in, or of the nearest one."""
        return cell_numbers(cell_digits(rows * self.along, self.along), self.along)

    @cached_property
    def corners(self) -> Floats:
        """(cells, d) the lowest corner of each cell."""
        return digits_of(np.arange(self.cells), self.along, self.d) / self.along

    def with_neighbours(self, values: Floats) -> Floats:
        """values (cells,) -> (cells,) the sum over each cell and all cells that touch it."""
        table = values.reshape((self.along,) * self.d)
        for axis in range(self.d):
            line = np.moveaxis(table, axis, 0)
            total = line.copy()
            total[1:] += line[:-1]
            total[:-1] += line[1:]
            table = np.moveaxis(total, 0, axis)
        return np.ascontiguousarray(table).reshape(-1)


@dataclass(frozen=True)
class CountedCells:
    """The true counts of a window, which must not leave the client before noise is added."""

    counts: Counts
    """(cells,)"""
    places: int
    """readings of the window, those that are not valid included"""

    def update(self, private: Counts) -> Arrays:
        """The `UPDATE` arrays with private counts (cells,) in the place of the true ones."""
        # No noise reaches the limits of 32 bits in the age of the universe; cutting it off would cost no epsilon.
        small = np.clip(private, _LIMITS.min, _LIMITS.max).astype(np.int32)
        return {"places": np.array([self.places], dtype=np.int64), "count": small}


class GridCounter:
    """Counts windows on the grid. It keeps nothing of a reading, and its plan never changes."""

    def __init__(self, dimensions: int) -> None:
        self._grid = Grid(dimensions)
        self.plan_digest = hashlib.sha256(f"grid;{dimensions};{self._grid.along}".encode()).digest()
        """32 bytes that identify the grid"""

    def adopt(self, snapshot: Arrays) -> None:
        """Nothing: the grid is the same under every snapshot."""

    def count(self, rows: Rows, valid: NDArray[np.bool_], client: bytes, number: int) -> CountedCells:
        """Count the `valid` (n,) of the rows (n, d) in unit coordinates; client and window make no difference."""
        counts = np.bincount(self._grid.numbers(rows[valid]), minlength=self._grid.cells)
        return CountedCells(counts.astype(np.int64), len(rows))


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts that a window of so many readings cannot have, whatever the noise."""
    counts = arrays["count"]
    # Rows are made of what is claimed, so a claim beyond any window could keep the server busy for long.
    require_possible(claims.readings <= options["window_readings"], "it has more readings than a window")
    require_possible(int(arrays["places"][0]) == claims.readings, "its window has other readings than the update")
    require_possible(len(counts) == Grid(len(claims.low)).cells, "its counts are not those of the grid")
    check_private_counts(counts, claims.readings, options["noise_variance"])
