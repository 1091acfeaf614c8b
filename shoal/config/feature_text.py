"""Values of a feature as people read them: rounded to about a hundredth of the range between its bounds, with unit.

Those of a category are as the contract calls them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.config.contract import Feature


def rounded(values: Sequence[float], feature: Feature) -> list[str]:
    """Values to about a hundredth of the range between the bounds, without unit; of a category the nearest ones."""
    if feature.kind == "category":
        return [category_text(value, feature) for value in values]
    digits = min(12, max(0, math.ceil(2 - math.log10(feature.high - feature.low))))
    return [f"{round(value, digits) + 0.0:.{digits}f}" for value in values]


def category_text(value: float, feature: Feature) -> str:
    """What the contract calls the value of a category that is nearest to this number."""
    return feature.values[min(max(round(value), 0), len(feature.values) - 1)]


def value_text(value: float, feature: Feature) -> str:
    """One value with its unit, such as "1540 lux"."""
    return f"{rounded((value,), feature)[0]} {feature.unit}".rstrip()


def range_text(low: float, high: float, feature: Feature) -> str:
    """Both ends with the unit, such as "390-640 lux"; one number where they are the same."""
    return f"{ends_text(low, high, feature)} {feature.unit}".rstrip()


def ends_text(low: float, high: float, feature: Feature) -> str:
    """Both ends without unit."""
    first, last = rounded((low, high), feature)
    # A minus sign before the upper end would read like two dashes.
    joint = " to " if "-" in first + last or feature.kind == "category" else "-"
    return first if first == last else f"{first}{joint}{last}"
