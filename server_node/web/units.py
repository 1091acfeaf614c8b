"""Numbers for the page: in the units of the contract, rounded to the digits that carry information."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shoal.config.contract import Feature
from shoal.config.resolved import ResolvedContract
from shoal.kernels.arrays import Floats


def in_units(points: Floats, contract: ResolvedContract, shown: list[int]) -> list[list[float]]:
    """points (n, d) in unit coordinates -> values (n, k) of the k features shown, rounded for display."""
    values = contract.bounds.from_unit(points)
    columns = [np.round(values[:, j], digits(contract.features[j])) for j in shown]
    rows: list[list[float]] = np.column_stack(columns).tolist()
    return rows


def rounded(numbers: Floats) -> list[float]:
    """Each number to six digits; NaN becomes 0 and an infinity the largest float."""
    return [float(f"{number:.6g}") for number in np.nan_to_num(numbers).tolist()]


def feature_json(feature: Feature) -> dict[str, Any]:
    """A feature as the page gets it: name, unit, digits after the point, and the values of a category."""
    values = {"values": list(feature.values)} if feature.values else {}
    return {"name": feature.name, "unit": feature.unit, "digits": digits(feature), **values}


def feature_label(feature: Feature) -> str:
    """A feature's name, with its unit if it has one that the name does not end with, as columns of files often do."""
    name, unit = feature.name, feature.unit
    return f"{name} ({unit})" if unit and not name.endswith((f"({unit})", f"[{unit}]", f" {unit}")) else name


def digits(feature: Feature) -> int:
    """Digits after the point that resolve a thousandth of the range between the feature's bounds."""
    return min(12, max(0, math.ceil(3 - math.log10(feature.high - feature.low))))
