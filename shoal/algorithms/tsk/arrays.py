"""The arrays that tsk's clients and server exchange, and how both read the parameters.

k rules, d features; *standardised* is z = (row - origin) / scale. The constant of a consequent takes the place of the
target: x is z with 1 in the column of the target, and a rule's value is its d coefficients times x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from shoal.algorithms.rounds.arrays import (
    FLOAT,
    INT,
    SOME_CENTRES,
    Params,
    n_features,
    read_choice,
    read_float,
    read_int,
    require_centres,
)
from shoal.algorithms.streaming import ArraySpec
from shoal.errors import InvalidData
from shoal.kernels.distance import Floats
from shoal.kernels.fuzzy_rules import firing_strengths
from shoal.kernels.membership import fuzzy_weights
from shoal.kernels.moments import pair_count

COEFFICIENTS_MAX: Final = 2000
"""rules times features: the normal equations have as many unknowns"""
STAGES: Final = ("conditions", "consequents")
"""what rounds are finding"""
PARAMS: Final = {
    **SOME_CENTRES,
    "width": ArraySpec("<f8", ("k", "d"), positive=True),
    "consequent": ArraySpec("<f8", ("k", "d")),
    "baseline": ArraySpec("<f8", ("k", "d")),
    "origin": ArraySpec("<f8", ("d",), rowlike=True),
    "scale": ArraySpec("<f8", ("d",), positive=True),
    "error": ArraySpec("<f8", ("t",)),
    **dict.fromkeys(("target", "stage", "epoch", "steps", "form", "condition_rounds"), INT),
    **dict.fromkeys(("fuzzifier", "ridge", "step", "outdated"), FLOAT),
}
"""`width`: of the Gaussian condition on each input, in the column of the target the spread of its values.
`consequent`: coefficients of x. `baseline`: the mean rows of the rules when their conditions were found, standardised.
`error`: mean squared error, standardised, over the rows that the consequents were fitted to; empty at first. `steps`:
rounds in this stage. `epoch` changes when answers to earlier parameters no longer count. The others are options"""
STATS: Final = {
    "mass": ArraySpec("<f8", ("k",), per_node=True),
    "total": ArraySpec("<f8", ("k", "d"), per_node=True),
    "square": ArraySpec("<f8", ("k", "d"), per_node=True),
    "gram": ArraySpec("<f8", ("q", "m"), per_node=True),
    "cross": ArraySpec("<f8", ("r", "d"), per_node=True),
    "energy": FLOAT,
    "rows": FLOAT,
}
"""per rule `mass`, `total` and `square`: weights, and weighted sums of z and z². `gram` and `cross`: the normal
equations, sums of w_i w_j x_a x_b over pairs i <= j and a <= b, and of w_j y x_a, where y is z of the target. `energy`:
the sum of y². In the stage of conditions the weights are memberships to the power of the fuzzifier, and the equations
those of one rule that always holds; later the weights are firing strengths w"""


def empty_sums(params: Params) -> dict[str, Floats]:
    """An answer without rows."""
    k, d = params["centre"].shape
    rules = k if has_conditions(params) else 1
    return {
        "mass": np.zeros(k),
        "total": np.zeros((k, d)),
        "square": np.zeros((k, d)),
        "gram": np.zeros((pair_count(rules), pair_count(d))),
        "cross": np.zeros((rules, d)),
        "energy": np.zeros(1),
        "rows": np.zeros(1),
    }


def rules_max(d: int) -> int:
    """Most rules of a model of d features."""
    return max(1, COEFFICIENTS_MAX // d)


def target_of(params: Params) -> int:
    """The position of the target. Raises `InvalidData`."""
    return read_int(params, "target", 0, n_features(params) - 1)


def has_conditions(params: Params) -> bool:
    """Whether the conditions are found, so that rounds fit consequents. Raises `InvalidData`."""
    return read_choice(params, "stage", STAGES) == "consequents"


def epoch(params: Params) -> int:
    """Answers to parameters of another epoch do not count. Raises `InvalidData`."""
    return read_int(params, "epoch", 0)


def standardised(params: Params, rows: Floats) -> Floats:
    """rows (n, d) -> z as columns (d, n)."""
    z = np.subtract(rows.T, params["origin"][:, None], order="C")
    z /= params["scale"][:, None]
    return z


def standardised_centres(params: Params) -> Floats:
    """The centres of the rules (k, d), standardised. Raises `InvalidData`."""
    if not ((params["scale"] > 0).all() and (params["width"] > 0).all()):
        raise InvalidData("parameters scale and width must be above 0; the round request is damaged")
    return np.asarray((params["centre"] - params["origin"]) / params["scale"])


def weighting(params: Params) -> Callable[[Floats], Floats]:
    """-> a function from columns z (d, n) to the weight of each row in each rule (k, n); it does not use the target.

    Raises `InvalidData`.
    """
    require_centres(params)
    if len(params["centre"]) > rules_max(n_features(params)):
        raise InvalidData("parameter centre holds more rules than a model can have; the round request is damaged")
    target, centres = target_of(params), standardised_centres(params)
    if has_conditions(params):
        precision = np.square(params["scale"] / params["width"])
        precision[:, target] = 0.0
        return lambda z: firing_strengths(z, centres, precision)
    fuzzifier = read_float(params, "fuzzifier", above=1.0)
    centres[:, target] = 0.0

    def weights_of_conditions(z: Floats) -> Floats:
        inputs = z.T.copy()
        inputs[:, target] = 0.0
        return fuzzy_weights(inputs, centres, fuzzifier)

    return weights_of_conditions
