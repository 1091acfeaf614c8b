"""Rules in words: "if temperature is high and humidity is low then power = 3.1 + 0.52 × temperature"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.algorithms.regression import RuleBase

WORDS: Final = ("very low", "low", "medium", "high", "very high")
FIFTHS: Final = (-0.842, -0.253, 0.253, 0.842)
"""quantiles .2, .4, .6 and .8 of the normal distribution: where one word ends and the next begins"""
DIGITS: Final = 3


@dataclass(frozen=True)
class Condition:
    """What a rule demands of one input, in its unit."""

    feature: int
    word: str
    """in which fifth of a normal distribution, with the mean and the deviation of all rows, the centre lies"""
    centre: float
    width: float
    """standard deviation: how far from the centre the rule still holds"""


@dataclass(frozen=True)
class Rule:
    """One rule in words and in numbers, in the units of the features."""

    number: int
    """its position among all rules, which is also the number of its cluster"""
    share: float
    """of the rows behind all rules"""
    conditions: tuple[Condition, ...]
    constant: float
    coefficients: tuple[float, ...]
    """one for each condition, of the same input"""
    text: str


def rules_of(base: RuleBase, names: Sequence[str]) -> list[Rule]:
    """The rules, the one with most rows first; `base` is in the units of the features, `names` are theirs (d,).

    Rules without rows are left out. Numbers in texts are rounded to three digits, the others are not.
    """
    total = float(base.mass.sum())
    heaviest = np.argsort(-base.mass, kind="stable").tolist()
    return [_rule(base, names, number, total) for number in heaviest if base.mass[number] > 0]


def _rule(base: RuleBase, names: Sequence[str], number: int, total: float) -> Rule:
    conditions = tuple(
        Condition(j, _word(base, number, j), float(base.centre[number, j]), float(base.width[number, j]))
        for j in base.inputs
    )
    constant, coefficients = float(base.constant[number]), tuple(base.coefficient[number, list(base.inputs)].tolist())
    when = " and ".join(f"{names[each.feature]} is {each.word}" for each in conditions)
    terms = [
        f"{'-' if coefficient < 0 else '+'} {written(abs(coefficient))} × {names[each.feature]}"
        for coefficient, each in zip(coefficients, conditions, strict=True)
        if coefficient != 0.0
    ]
    then = " ".join([written(constant), *terms])
    text = f"if {when} then {names[base.target]} = {then}" if conditions else f"{names[base.target]} = {then}"
    return Rule(number, float(base.mass[number]) / total, conditions, constant, coefficients, text)


def _word(base: RuleBase, number: int, feature: int) -> str:
    deviations = (base.centre[number, feature] - base.origin[feature]) / base.scale[feature]
    return WORDS[int(np.searchsorted(FIFTHS, deviations))]


def written(number: float) -> str:
    """A number with three digits that count, and an exponent only where it would be very long."""
    if number == 0.0 or not math.isfinite(number):
        return f"{number:g}"
    digits = DIGITS - 1 - math.floor(math.log10(abs(number)))
    return f"{number:.{max(0, digits)}f}" if -6 <= digits <= 6 else f"{number:.{DIGITS}g}"
