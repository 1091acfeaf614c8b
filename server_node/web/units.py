"""Numbers for the page: in the units of the contract, rounded to the digits that carry information."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.config.contract import Contract, Feature
from shoal.config.privacy import declared_bounds


def in_units(points: NDArray[np.float64], contract: Contract, shown: list[int]) -> list[list[float]]:
    """points (n, d) in unit coordinates -> values (n, k) of the k features shown, rounded for display."""
    values = declared_bounds(contract).from_unit(points)
    columns = [np.round(values[:, j], digits(contract.features[j])) for j in shown]
    rows: list[list[float]] = np.column_stack(columns).tolist()
    return rows


def rounded(numbers: NDArray[np.float64]) -> list[float]:
    """Each number to six digits; NaN becomes 0 and an infinity the largest float."""
    return [float(f"{number:.6g}") for number in np.nan_to_num(numbers).tolist()]


def feature_json(feature: Feature) -> dict[str, Any]:
    """A feature as the page gets it: name, unit, digits after the point."""
    return {"name": feature.name, "unit": feature.unit, "digits": digits(feature)}


def feature_label(feature: Feature) -> str:
    """A feature's name, with its unit if it has one."""
    return f"{feature.name} ({feature.unit})" if feature.unit else feature.name


def digits(feature: Feature) -> int:
    """Digits after the point that resolve a thousandth of the range between the feature's bounds."""
    return min(12, max(0, math.ceil(3 - math.log10(feature.high - feature.low))))
