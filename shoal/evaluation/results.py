"""What an experiment measured: figures over its trials, beside those that a paper published."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

Format = Callable[[float], str]
"""writes a number with the digits that its measure is printed with"""
Formats = Mapping[str, Format]
"""by measure, in the order of the report"""


@dataclass(frozen=True)
class Figure:
    """Mean and population standard deviation of a measure over trials; the deviation is NaN where there is none."""

    mean: float
    sd: float = math.nan

    def written(self, form: Format) -> str:
        """`mean (sd)`, or the mean alone."""
        return form(self.mean) if math.isnan(self.sd) else f"{form(self.mean)} ({form(self.sd)})"


@dataclass(frozen=True)
class Result:
    """One row of a report: what was run, how often, what was measured and what was published for it."""

    keys: Mapping[str, Any]
    """what was run: data set, split, and the parameters of the experiment"""
    trials: int
    measured: Mapping[str, Figure]
    published: Mapping[str, Figure]
    """by measure; only those that a paper has"""
    agrees: Mapping[str, bool]
    """by measure; only those for which the experiment states how near the published figure must be"""


def summary(values: Sequence[float]) -> Figure:
    """Mean and population standard deviation (divided by n, as in the papers' tables)."""
    return Figure(float(np.mean(values)), float(np.std(values)))


def python_format(form: str) -> Format:
    """Numbers as Python's format specification writes them, such as `.4f`."""
    return lambda number: format(number, form)


def half_up(digits: int) -> Format:
    """Numbers with so many decimals, ties away from zero, judged by the shortest decimal form (69.25 becomes 69.3)."""
    last_digit = Decimal(1).scaleb(-digits)
    return lambda number: str(Decimal(repr(number)).quantize(last_digit, ROUND_HALF_UP))
