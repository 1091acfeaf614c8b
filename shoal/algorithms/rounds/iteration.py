"""The loop of every algorithm in rounds: ask for answers, combine them, measure the move."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.algorithms.rounds.base import Params, RoundsAlgorithm, Stats


class Run(NamedTuple):
    """The result of some rounds."""

    params: Params
    shifts: list[float]
    """distance by which each round moved the model"""


def iterate(
    algorithm: RoundsAlgorithm,
    params: Params,
    ask: Callable[[Params], Sequence[Stats] | None],
    *,
    rounds_max: int,
    tolerance: float,
    is_over: Callable[[float], bool] = lambda shift: False,
) -> Run:
    """Run rounds until one moves the model less than `tolerance`, or not at all; at most
    `rounds_max`.

    `ask` gives the answers to parameters, ordered by client; None ends the rounds. `is_over` is
    asked after each round, with how far it moved the model, whether to stop there. Raises
    `InvalidData`.
    """
    shifts: list[float] = []
    for _ in range(rounds_max):
        answers = ask(params)
        if answers is None:
            break
        before = params
        params = algorithm.combine(params, answers)
        shift = algorithm.shift(before, params)
        shifts.append(shift)
        # It is asked in any case: it counts the rounds too.
        if is_over(shift):
            break
        # With a tolerance of 0 nothing is below it, and a model that has not moved never will.
        if shift < tolerance or shift == 0.0:
            break
    return Run(params, shifts)


def converged(shifts: Sequence[float], tolerance: float) -> bool:
    """Whether the last round moved the model less than `tolerance`."""
    return bool(shifts) and math.isfinite(shifts[-1]) and shifts[-1] < tolerance
