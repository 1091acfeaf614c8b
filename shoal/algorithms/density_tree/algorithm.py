"""The declaration of density_tree as an algorithm of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.density_tree.arrays import SNAPSHOT, UPDATE
from shoal.algorithms.density_tree.counter import DensityTreeCounter
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.algorithms.density_tree.snapshot import predict, view
from shoal.errors import SettingsError


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
)
