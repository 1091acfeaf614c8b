"""The declaration of density_tree as an algorithm of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shoal.algorithms.claims import ROUNDING_SHARE, Claims, require_possible
from shoal.algorithms.counting import CountingAlgorithm, check_private_counts
from shoal.algorithms.density_tree.aggregator import DensityTreeAggregator
from shoal.algorithms.density_tree.arrays import REGION_UPDATE, SNAPSHOT, UPDATE
from shoal.algorithms.density_tree.counter import DensityTreeCounter
from shoal.algorithms.density_tree.leaf import BINS
from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.density_tree.snapshot import counted_points, predict, view
from shoal.algorithms.streaming import Aggregation, Arrays
from shoal.errors import SettingsError


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts that so many readings cannot have, whatever the noise.

    They are of one window of a client, or of all windows that a region has added up.
    """
    variance = DensityTreeOptions.from_mapping(options).noise_variance
    counts, cells, windows = arrays["count"], arrays["cells"], arrays.get("windows")
    require_possible(int(arrays["places"][0]) == claims.readings, "its window has other readings than the update")
    for name in ("leaf", "axis", "epoch"):
        require_possible(bool((arrays[name] >= 0).all()), f"{name} holds a number below 0")
    require_possible(bool((cells <= 2 * BINS).all()), "a block has more cells than an axis can have")
    require_possible(int(cells.sum()) == len(counts), "the cells of its blocks are not as many as its counts")
    if windows is not None:
        require_possible(bool((windows <= claims.readings).all()), "it has more windows than readings")
        exposed = bool((arrays["exposure"] <= claims.readings * (1.0 + ROUNDING_SHARE)).all())
        require_possible(exposed, "exposure is above its readings")
        windows = np.repeat(windows, cells)
    check_private_counts(counts, claims.readings, variance, windows)


def _server(options: Mapping[str, Any], dimensions: int | None) -> DensityTreeServer:
    if dimensions is None:
        raise SettingsError("density_tree needs the number of features before the first reading")
    return DensityTreeServer(dimensions, **options)


DENSITY_TREE: Final = CountingAlgorithm(
    name="density_tree",
    counter=lambda options, dimensions: DensityTreeCounter(dimensions, **options),
    server=_server,
    update=UPDATE,
    snapshot=SNAPSHOT,
    predict=predict,
    view=view,
    check_claims=check_claims,
    counted_points=counted_points,
    aggregation=Aggregation(
        lambda options, dimensions: DensityTreeAggregator(), update=REGION_UPDATE, plan_from_upstream=True
    ),
)
