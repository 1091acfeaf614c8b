"""density_tree: clusters from private counts of readings on the axes of a public tree of cuts.

Clients count their readings under the newest plan of the server, and the server lets the tree grow
where noisy counts show valleys. `DENSITY_TREE` declares both halves as an algorithm of a
federation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.density_tree.arrays import REGION_UPDATE, SNAPSHOT, UPDATE
from shoal.algorithms.density_tree.claims import check_claims
from shoal.algorithms.density_tree.clusters import MASS_SIGNIFICANCE
from shoal.algorithms.density_tree.counter import COUNTED, DensityTreeCounter
from shoal.algorithms.density_tree.leaf import BINS
from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.density_tree.region import DensityTreeAggregator
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.density_tree.snapshot import counted_points, predict, predictor, view
from shoal.algorithms.streaming import Aggregation
from shoal.errors import SettingsError

__all__ = ["DensityTreeCounter", "DensityTreeOptions", "DensityTreeServer"]


def _server(options: Mapping[str, Any], dimensions: int | None) -> DensityTreeServer:
    if dimensions is None:
        raise SettingsError("density_tree needs the number of features before the first reading")
    return DensityTreeServer(dimensions, **options)


def readings_to_exceed_noise(options: Mapping[str, Any], d: int) -> int:
    """About how many readings are needed until a cluster can be known: its mass exceeds its noise,
    and the tree has been looked at.

    One window at least.
    """
    parsed = DensityTreeOptions.parse(options)
    # Mass must exceed `MASS_SIGNIFICANCE` deviations of its noise, to which every window adds that
    # of the bins of each feature: m > s * sqrt(noise * m + m), where m is in readings.
    noise = parsed.noise_variance * BINS * d / parsed.window_readings
    exceeded = math.ceil(MASS_SIGNIFICANCE**2 * (noise + 1))
    return max(parsed.window_readings, parsed.grow_readings, exceeded)


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
    counted=COUNTED,
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
