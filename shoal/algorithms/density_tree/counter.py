"""The client half of density_tree: counts windows of readings under the newest plan it knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.density_tree.plan import CountedWindow, CountingPlan
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.streaming import Arrays, Rows


class DensityTreeCounter:
    """Counts windows. It keeps nothing of a reading: all it has is the plan, which is public."""

    def __init__(self, dimensions: int, **options: Any) -> None:
        """Before the first snapshot the plan is that of a tree that has learnt nothing. Raises `SettingsError`."""
        self._d = dimensions
        self._plan = CountingPlan.from_arrays(DensityTreeServer(dimensions, **options).snapshot(), dimensions)

    @property
    def plan_digest(self) -> bytes:
        """32 bytes that identify the plan under which the next window is counted."""
        return self._plan.digest

    def adopt(self, snapshot: Arrays) -> None:
        """Count under the plan of this snapshot from now on. Raises `InvalidData`; then the plan stays what it was."""
        self._plan = CountingPlan.from_arrays(snapshot, self._d)

    def count(self, rows: Rows, valid: NDArray[np.bool_], client: bytes, number: int) -> CountedWindow:
        """Count a window, see `CountingPlan.count`."""
        return self._plan.count(rows, valid, client, number)
