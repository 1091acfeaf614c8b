"""Numbers as people read them: in the units of the contract, with the digits that tell something."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.config.contract import Contract, Feature
from shoal.config.privacy_terms import bounds_of


def in_units(points: NDArray[np.float64], contract: Contract, shown: list[int]) -> list[list[float]]:
    """points (n, d) in unit coordinates -> values (n, k) of the k features shown, rounded as they are shown."""
    values = bounds_of(contract).from_unit(points)
    columns = [np.round(values[:, j], digits(contract.features[j])) for j in shown]
    rows: list[list[float]] = np.column_stack(columns).tolist()
    return rows


def rounded(numbers: NDArray[np.float64]) -> list[float]:
    """Six digits of each; what is not finite is told as the largest number or as 0."""
    return [float(f"{number:.6g}") for number in np.nan_to_num(numbers).tolist()]


def told(feature: Feature) -> dict[str, Any]:
    """A feature for the page."""
    return {"name": feature.name, "unit": feature.unit, "digits": digits(feature)}


def named(feature: Feature) -> str:
    """A feature with its unit, if it has one."""
    return f"{feature.name} ({feature.unit})" if feature.unit else feature.name


def digits(feature: Feature) -> int:
    """Digits after the point that tell a thousandth of the feature's bounds apart."""
    return min(12, max(0, math.ceil(3 - math.log10(feature.high - feature.low))))
