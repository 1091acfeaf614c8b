"""The options of tsk."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shoal.algorithms.regression import TARGET
from shoal.algorithms.rounds.fcm import FUZZIFIER
from shoal.algorithms.rounds.options import CLUSTERS, Option, choice, is_int, is_number

FORMS: Final = ("least_squares", "gradient")
ROUNDS_MAX: Final = 10_000
OPTIONS: Final = {
    "clusters": replace(
        CLUSTERS,
        meaning='number of rules; "auto": as many as the model it is initialised from has found. Rules times features '
        "is at most 2000",
    ),
    "target": TARGET,
    "consequents": choice(FORMS, "solved from the summed normal equations, or one gradient step in each round (F2LS)"),
    "ridge": Option(
        1.0,
        lambda value: is_number(value, 0.0),
        "above 0",
        "least squares: what is added to the diagonal of the normal equations, which keeps coefficients small",
    ),
    "step": Option(0.01, lambda value: is_number(value, 0.0, 1.0), "above 0, at most 1", "gradient: length of a step"),
    "fuzzifier": FUZZIFIER,
    "condition_rounds": Option(
        30,
        lambda value: is_int(value, 0, ROUNDS_MAX),
        f"a whole number, 0 to {ROUNDS_MAX}",
        "most rounds of fuzzy c-means to find the conditions; 0: they keep the centres that the model starts from",
    ),
    "outdated": Option(
        1.0,
        lambda value: is_number(value, 0.0),
        "above 0",
        "the conditions are found again when the rows of a rule have moved by so many standard deviations",
    ),
}
