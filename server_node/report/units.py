"""Values in the units of the contract: features as people see them, and the view of a snapshot."""

from __future__ import annotations

import math

from shoal.algorithms.view import ClusteringView
from shoal.config.contract import Feature
from shoal.config.resolved import ResolvedContract
from shoal.protocol.messages import Snapshot
from shoal.server_node.report.types import FeatureView

DIGITS_MAX = 12
"""digits after the point beyond which a float shows its own rounding"""


def view_of(snapshot: Snapshot, contract: ResolvedContract) -> ClusteringView:
    """The clustering in `snapshot`, as its algorithm reads it."""
    return contract.models[snapshot.model].algorithm.view(snapshot.arrays)


def feature_view(feature: Feature) -> FeatureView:
    """A feature of the contract as people see it."""
    return FeatureView(
        name=feature.name,
        unit=feature.unit,
        digits=digits(feature),
        values=list(feature.values) if feature.values else None,
        period=feature.period or None,
    )


def feature_label(feature: Feature) -> str:
    """A feature's name, with its unit if it has one that the name does not end with, as columns of
    files often do."""
    name = feature.name
    unit = feature.unit
    if not unit or name.endswith((f"({unit})", f"[{unit}]", f" {unit}")):
        return name
    return f"{name} ({unit})"


def digits(feature: Feature) -> int:
    """Digits after the point that resolve a thousandth of the range between its bounds."""
    needed = math.ceil(3 - math.log10(feature.high - feature.low))
    return min(DIGITS_MAX, max(0, needed))
