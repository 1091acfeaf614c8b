"""What an algorithm offers that predicts one feature, its target, from the others: values, and rules to read.

Web pages, commands and estimators read the rule base and never an array of a snapshot by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from shoal.algorithms.rounds.options import Option, Options, is_int
from shoal.algorithms.streaming import Arrays, Rows
from shoal.algorithms.view import Floats
from shoal.errors import SettingsError

Positions: TypeAlias = Sequence[int]

TARGET = Option(
    "",
    lambda value: isinstance(value, str) or is_int(value, 0),
    'the name of a feature, its position from 0 on, or "" for the last one',
    "the feature that is predicted from the others",
)


@dataclass(frozen=True)
class RuleBase:
    """The rules of one snapshot, in the coordinates of rows; k rules, d features.

    Rule j: if each input is near `centre[j]`, within about `width[j]`, then the target is `constant[j]` plus the inputs
    times `coefficient[j]`. What is predicted for a row is the mean of the rules' values, weighted by how well the row
    meets their conditions.
    """

    target: int
    """position of the feature that is predicted"""
    inputs: Positions
    """positions of the others"""
    centre: Floats
    """(k, d) where each rule holds; in the column of the target the mean of its values there"""
    width: Floats
    """(k, d) standard deviation of the condition on each input; in the column of the target that of its values"""
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
    """root of the mean squared error over the rows that the consequents were fitted to; None before any were"""
    settled: bool
    """whether the conditions are found, so that every rule has a consequent of its own"""

    def in_units(self, low: Floats, high: Floats) -> RuleBase:
        """The same rules for readings between `low` and `high` (d,) instead of unit coordinates."""
        span = high - low
        coefficient = self.coefficient * span[self.target] / span
        return replace(
            self,
            centre=low + self.centre * span,
            width=self.width * span,
            origin=low + self.origin * span,
            scale=self.scale * span,
            constant=low[self.target] + span[self.target] * self.constant - coefficient @ low,
            coefficient=coefficient,
            error=None if self.error is None else self.error * float(span[self.target]),
        )


@dataclass(frozen=True)
class Regression:
    """The functions of an algorithm that predicts a target."""

    target: Callable[[Options, int, Sequence[str]], int]
    """(options, d, names of the features if they have any) -> the target's position. Raises `SettingsError`"""
    predict: Callable[[Arrays, Rows], Floats]
    """(parameters, rows (n, d)) -> (n,) predicted values; the column of the target is not used, but must be finite.
    Raises `InvalidData`"""
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
