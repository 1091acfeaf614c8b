"""Regression of one feature, the target, on the others: predicted values, and rules to read.

Web pages, commands and estimators read the rule base and never an array of a snapshot by its name.
Rules are also written in words: "if temperature is high and humidity is low then power = 3.1 + 0.52
× temperature".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from pydantic import Field

from shoal.algorithms.options import Options, option
from shoal.algorithms.streaming import Arrays, Rows
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.constants import COUNT_MAX

Positions: TypeAlias = Sequence[int]
Target: TypeAlias = str | Annotated[int, Field(ge=0, le=COUNT_MAX)]


def target_option() -> Any:
    """Declares the option `target` of algorithms that predict a feature."""
    return option(
        "",
        "the feature that is predicted from the others",
        expected='the name of a feature, its position from 0 on, or "" for the last one',
    )


@dataclass(frozen=True)
class RuleBase:
    """The rules of one snapshot, in the coordinates of rows; k rules, d features.

    Rule j: if each input is near `centre[j]`, within about `width[j]`, then the target is
    `constant[j]` plus the inputs times `coefficient[j]`. What is predicted for a row is the mean of
    the rules' values, weighted by how well the row meets their conditions.
    """

    target: int
    """position of the feature that is predicted"""
    inputs: Positions
    """positions of the others"""
    centre: Floats
    """(k, d) where each rule holds; in the column of the target the mean of its values there"""
    width: Floats
    """(k, d) standard deviation of the condition on each input; in the column of the target that of
    its values"""
    origin: Floats
    """(d,) mean of all rows when the rules were found"""
    scale: Floats
    """(d,) their standard deviation"""
    constant: Floats
    """(k,)"""
    coefficient: Floats
    """(k, d) 0 in the column of the target"""
    mass: Floats
    """(k,) rows that each rule stands for"""
    error: float | None
    """root of the mean squared error over the rows that the consequents were fitted to; None before
    any were"""
    settled: bool
    """whether the conditions are found, so that every rule has a consequent of its own"""

    def in_units(self, low: Floats, high: Floats) -> RuleBase:
        """The same rules for readings between `low` and `high` (d,) instead of unit coordinates."""
        span = high - low
        # y = low_t + span_t (constant + sum over inputs of coefficient_j (x_j - low_j) / span_j).
        coefficient = self.coefficient * span[self.target] / span
        error = None if self.error is None else self.error * float(span[self.target])
        return replace(
            self,
            centre=low + self.centre * span,
            width=self.width * span,
            origin=low + self.origin * span,
            scale=self.scale * span,
            constant=low[self.target] + span[self.target] * self.constant - coefficient @ low,
            coefficient=coefficient,
            error=error,
        )


@dataclass(frozen=True)
class Regression:
    """The functions of an algorithm that predicts a target."""

    target: Callable[[Options, int, Sequence[str]], int]
    """(options, d, names of the features if they have any) -> the target's position. Raises
    `SettingsError`"""
    predict: Callable[[Arrays, Rows], Floats]
    """(parameters, rows (n, d)) -> (n,) predicted values; the column of the target is not used, but
    must be finite. Raises `InvalidData`"""
    rules: Callable[[Arrays], RuleBase]
    """parameters -> its rules"""


def target_position(target: Any, d: int, names: Sequence[str]) -> int:
    """The position of the feature that the option `target` names. Raises `SettingsError`."""
    if target == "":
        return d - 1
    if isinstance(target, str):
        if target not in names:
            known = ", ".join(names) or "no names, so give a position"
            raise SettingsError(f"target = {target!r} is no feature; there are: {known}")
        return list(names).index(target)
    if not target < d:
        raise SettingsError(f"target = {target}, must be a position from 0 to {d - 1}")
    return int(target)


WORDS: Final = ("very low", "low", "medium", "high", "very high")
FIFTHS: Final = (-0.842, -0.253, 0.253, 0.842)
"""quantiles .2, .4, .6 and .8 of the normal distribution: where one word ends and the next begins
"""
DIGITS: Final = 3


@dataclass(frozen=True)
class Condition:
    """Condition of a rule on one input, in its unit."""

    feature: int
    word: str
    """name of the fifth of a normal distribution, with mean and deviation of all rows, that the
    centre lies in"""
    centre: float
    width: float
    """standard deviation: how far from the centre the rule still holds"""


@dataclass(frozen=True)
class Rule:
    """One rule in words and in numbers, in the units of the features."""

    number: int
    """position among all rules, which is also the number of the cluster"""
    share: float
    """share of the rows behind all rules"""
    conditions: tuple[Condition, ...]
    constant: float
    coefficients: tuple[float, ...]
    """one for each condition, of the same input"""
    text: str


def rules_of(base: RuleBase, names: Sequence[str]) -> list[Rule]:
    """The rules, the one with most rows first; `base` is in the units of the features, `names` are
    theirs (d,).

    Rules without rows are left out. Numbers in texts are rounded to three digits, the others are
    not.
    """
    total = float(base.mass.sum())
    # Stable: rules of equal mass stand in the same order on every machine.
    heaviest = np.argsort(-base.mass, kind="stable").tolist()
    return [_rule(base, names, number, total) for number in heaviest if base.mass[number] > 0]


def _rule(base: RuleBase, names: Sequence[str], number: int, total: float) -> Rule:
    """Rule `number` in words and numbers; `total` is the mass of all rules."""
    conditions = []
    for feature in base.inputs:
        word = _word(base, number, feature)
        centre = float(base.centre[number, feature])
        conditions.append(Condition(feature, word, centre, float(base.width[number, feature])))
    constant = float(base.constant[number])
    coefficients = tuple(base.coefficient[number, list(base.inputs)].tolist())
    return Rule(
        number,
        float(base.mass[number]) / total,
        tuple(conditions),
        constant,
        coefficients,
        _text(names, base.target, conditions, constant, coefficients),
    )


def _text(
    names: Sequence[str],
    target: int,
    conditions: Sequence[Condition],
    constant: float,
    coefficients: Sequence[float],
) -> str:
    """A rule as "if a is high and b is low then c = 3.1 + 0.52 × a - 2 × b"."""
    value = written(constant)
    for condition, coefficient in zip(conditions, coefficients, strict=True):
        sign = "-" if coefficient < 0 else "+"
        # An input with weight 0 has no effect in a rule.
        if coefficient != 0.0:
            value += f" {sign} {written(abs(coefficient))} × {names[condition.feature]}"
    consequence = f"{names[target]} = {value}"
    if not conditions:
        return consequence
    when = " and ".join(
        f"{names[condition.feature]} is {condition.word}" for condition in conditions
    )
    return f"if {when} then {consequence}"


def _word(base: RuleBase, number: int, feature: int) -> str:
    """The fifth of a normal distribution that the centre of a rule lies in, by all rows."""
    deviations = (base.centre[number, feature] - base.origin[feature]) / base.scale[feature]
    return WORDS[int(np.searchsorted(FIFTHS, deviations))]


def written(number: float) -> str:
    """A number with three digits that count, and an exponent only where it would be very long."""
    if number == 0.0 or not math.isfinite(number):
        return f"{number:g}"
    decimals = DIGITS - 1 - math.floor(math.log10(abs(number)))
    # From 10^9 on, and below 10^-4, zeros would be most of the number.
    if not -6 <= decimals <= 6:
        return f"{number:.{DIGITS}g}"
    return f"{number:.{max(0, decimals)}f}"
