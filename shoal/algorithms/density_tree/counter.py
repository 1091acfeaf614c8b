"""The client half of density_tree: counts windows of readings under the newest plan."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.density_tree.plan import CountedWindow, CountingPlan
from shoal.algorithms.density_tree.sampling import axes_sampled
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.streaming import Arrays, Rows
from shoal.errors import InvalidData
from shoal.kernels.arrays import Bools

COUNTED: Final = (
    "readings, by leaf of the tree of cuts that the server publishes and bin of one feature: each "
    "in one cell at most"
)
"""what a window counts under a tree of cuts, for people"""


@lru_cache(maxsize=16)
def _first_plan(dimensions: int, options: DensityTreeOptions) -> CountingPlan:
    """The plan of a tree that has learnt nothing: one for all clients of a host."""
    snapshot = DensityTreeServer(dimensions, **options.model_dump()).snapshot()
    return CountingPlan.from_arrays(snapshot, dimensions)


class DensityTreeCounter:
    """Counts windows. It keeps nothing of a reading: all it has is the plan, which is public."""

    def __init__(self, dimensions: int, **options: Any) -> None:
        """Begin with the plan of a tree that has learnt nothing, until the first snapshot. Raises
        `SettingsError`."""
        self._d = dimensions
        self._options = DensityTreeOptions.parse(options)
        self._plan = _first_plan(dimensions, self._options)

    @property
    def plan_digest(self) -> bytes:
        """32 bytes that identify the plan under which the next window is counted."""
        return self._plan.digest

    def adopt(self, snapshot: Arrays) -> None:
        """Count under the plan of this snapshot from now on. Raises `InvalidData`; then the plan
        stays what it was."""
        plan = CountingPlan.from_arrays(snapshot, self._d)
        self._check_size(plan)
        self._plan = plan

    def _check_size(self, plan: CountingPlan) -> None:
        """Raises `InvalidData` for a plan of more leaves or axes than a server with these options
        makes.

        Every axis that a window samples costs the client time, memory and bytes of an update.
        """
        options = self._options
        leaves = len(plan.leaf_ids)
        axes = self._d
        if self._d > 1 and options.oblique_axes:
            # The parts of a leaf keep the oblique axis on which it was cut, and a tree has one cut
            # less than leaves.
            axes += options.oblique_axes + leaves - 1
        sampled = axes_sampled(
            axes, options.window_readings, options.noise_variance, options.axes_per_window
        )
        axes_of_largest = np.bincount(plan.axis_leaf, minlength=1).max()
        is_sampled_more = plan.share.sum() > leaves * sampled * SHARE_ONE
        if leaves > options.leaves_max or axes_of_largest > axes or is_sampled_more:
            raise InvalidData(
                f"the plan of counting is too large: {leaves} leaves with up to {axes_of_largest} "
                f"axes, where the contract allows {options.leaves_max} with {axes}, of which a "
                f"window samples {sampled}"
            )

    def count(
        self,
        rows: Rows,
        valid: Bools,
        client: bytes,
        number: int,
        cohort: tuple[bytes, int] | None = None,
    ) -> CountedWindow:
        """Count a window, see `CountingPlan.count`."""
        return self._plan.count(rows, valid, client, number, cohort)
