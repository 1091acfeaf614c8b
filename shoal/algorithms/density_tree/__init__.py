"""density_tree: clusters from private counts of readings on the axes of a public tree of cuts.

Clients count their readings under the newest plan of the server, and the server lets the tree grow
where noisy counts show valleys. `DENSITY_TREE` declares both halves as an algorithm of a
federation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shoal.algorithms.claims import ROUNDING_SHARE, Claims, require_possible
from shoal.algorithms.counting import CountingAlgorithm, check_block_sums, check_private_counts
from shoal.algorithms.density_tree.arrays import (
    REGION_UPDATE,
    SHARE_ONE,
    SNAPSHOT,
    UPDATE,
    DensityTreeAggregator,
    DensityTreeOptions,
    windows_max,
)
from shoal.algorithms.density_tree.clusters import MASS_SIGNIFICANCE
from shoal.algorithms.density_tree.leaf import BINS
from shoal.algorithms.density_tree.plan import CountedWindow, CountingPlan, axes_sampled
from shoal.algorithms.density_tree.server import (
    DensityTreeServer,
    counted_points,
    predict,
    predictor,
    view,
)
from shoal.algorithms.streaming import Aggregation, Arrays, Rows
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Bools

__all__ = ["DensityTreeOptions", "DensityTreeServer"]


class DensityTreeCounter:
    """Counts windows. It keeps nothing of a reading: all it has is the plan, which is public."""

    def __init__(self, dimensions: int, **options: Any) -> None:
        """Begin with the plan of a tree that has learnt nothing, until the first snapshot. Raises
        `SettingsError`."""
        self._d = dimensions
        self._options = DensityTreeOptions.parse(options)
        self._plan = CountingPlan.from_arrays(
            DensityTreeServer(dimensions, **options).snapshot(), dimensions
        )

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
        most = np.bincount(plan.axis_leaf, minlength=1).max()
        if (
            leaves > options.leaves_max
            or most > axes
            or plan.share.sum() > leaves * sampled * SHARE_ONE
        ):
            raise InvalidData(
                f"the plan of counting is too large: {leaves} leaves with up to {most} axes, where the contract allows "
                f"{options.leaves_max} with {axes}, of which a window samples {sampled}"
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


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts that this number of readings cannot have, whatever the noise.

    They are of one window of a client, or of all windows that a region has added up.
    """
    parsed = DensityTreeOptions.parse(options)
    variance = parsed.noise_variance
    full = parsed.window_readings
    counts = arrays["count"]
    cells = arrays["cells"]
    windows = arrays.get("windows")
    require_possible(
        int(arrays["places"][0]) == claims.readings, "its window has other readings than the update"
    )
    for name in ("leaf", "axis", "epoch"):
        require_possible(bool((arrays[name] >= 0).all()), f"{name} holds a number below 0")
    require_possible(
        bool((cells <= 2 * BINS).all()), "a block has more cells than an axis can have"
    )
    require_possible(
        int(cells.sum()) == len(counts), "the cells of its blocks do not add up to its counts"
    )
    if windows is None:
        require_possible(claims.readings <= full, "it has more readings than a window")
        check_private_counts(counts, claims.readings, variance)
        check_block_sums(counts, cells, claims.readings, variance, np.ones_like(cells))
        return
    most = min(claims.readings, windows_max(claims.readings, full))
    require_possible(bool((windows <= most).all()), "it has more windows than its readings make")
    # With masked counts, what has one noise is no window but a batch, of any number of clients.
    full = claims.readings if parsed.axes_per_window else full
    readings = np.minimum(claims.readings, windows.astype(np.float64) * full)
    exposed = bool((arrays["exposure"] <= readings * (1.0 + ROUNDING_SHARE)).all())
    require_possible(exposed, "exposure is above the readings of its windows")
    check_private_counts(counts, claims.readings, variance, np.repeat(windows, cells), full)
    check_block_sums(counts, cells, claims.readings, variance, windows)


def _server(options: Mapping[str, Any], dimensions: int | None) -> DensityTreeServer:
    if dimensions is None:
        raise SettingsError("density_tree needs the number of features before the first reading")
    return DensityTreeServer(dimensions, **options)


def readings_to_exceed_noise(options: Mapping[str, Any], d: int) -> int:
    """About how many readings are needed until the mass of a cluster can exceed its noise.

    One window at least.
    """
    parsed = DensityTreeOptions.parse(options)
    # Mass must exceed `MASS_SIGNIFICANCE` deviations of its noise, to which every window adds that
    # of the bins of each feature: m > s * sqrt(noise * m + m), where m is in readings.
    noise = parsed.noise_variance * BINS * d / parsed.window_readings
    return max(parsed.window_readings, math.ceil(MASS_SIGNIFICANCE**2 * (noise + 1)))


def _aggregator(options: DensityTreeOptions) -> DensityTreeAggregator:
    return DensityTreeAggregator(options.window_readings, options.noise_variance)


DENSITY_TREE: Final = CountingAlgorithm(
    name="density_tree",
    counter=lambda options, dimensions: DensityTreeCounter(dimensions, **options),
    server=_server,
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    predictor=predictor,
    view=view,
    check_claims=check_claims,
    counted_points=counted_points,
    samples_axes=True,
    joins_ends=True,
    readings_to_exceed_noise=readings_to_exceed_noise,
    predicts_gaps=True,
    aggregation=Aggregation(
        lambda options, dimensions: _aggregator(DensityTreeOptions.parse(options)),
        update=REGION_UPDATE,
        plan_from_upstream=True,
    ),
)
