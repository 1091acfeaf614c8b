"""The declaration of density_tree as an algorithm of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.claims import Claims, require_possible
from shoal.algorithms.counting import CountingAlgorithm, check_private_counts
from shoal.algorithms.density_tree.arrays import SNAPSHOT, UPDATE
from shoal.algorithms.density_tree.counter import DensityTreeCounter
from shoal.algorithms.density_tree.leaf import BINS
from shoal.algorithms.density_tree.options import DensityTreeOptions
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.density_tree.snapshot import counted_points, predict, view
from shoal.algorithms.streaming import Arrays
from shoal.errors import SettingsError


def check_claims(options: Mapping[str, Any], arrays: Arrays, claims: Claims) -> None:
    """Raises `InvalidData` for counts that a window of so many readings cannot have, whatever the noise."""
    variance = DensityTreeOptions.from_mapping(options).noise_variance
    counts, cells = arrays["count"], arrays["cells"]
    require_possible(int(arrays["places"][0]) == claims.readings, "its window has other readings than the update")
    for name in ("leaf", "axis", "epoch"):
        require_possible(bool((arrays[name] >= 0).all()), f"{name} holds a number below 0")
    require_possible(bool((cells <= 2 * BINS).all()), "a block has more cells than an axis can have")
    require_possible(int(cells.sum()) == len(counts), "the cells of its blocks are not as many as its counts")
    check_private_counts(counts, claims.readings, variance)


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
)
