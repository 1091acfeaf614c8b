"""tsk: federated Takagi-Sugeno rules by sums, a regression of one feature, the target, on the
others.

Source: A. Wilbik, P. Grefen, "Towards a federated fuzzy learning system" (2021), eq. 1 to 5. Rounds
first find the conditions of the rules: by fuzzy c-means on the inputs of all clients together
(which the paper names as future work), or from centres that another model has found. Then they fit
the consequents: least squares solves the summed normal equations at once; the paper's gradient
descent takes one step in each round. `TSK` declares the functions that run on clients and server;
what the parameters predict stands here beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.algorithms.options import Options
from shoal.algorithms.regression import Regression, RuleBase, target_position
from shoal.algorithms.rounds.arrays import Params, label_rows, n_features, row_blocks
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.streaming import Rows
from shoal.algorithms.tsk.client import (
    PARAMS,
    STATS,
    TSKOptions,
    answer,
    check_claims,
    epoch,
    has_conditions,
    standardised,
    target_of,
    weighting,
)
from shoal.algorithms.tsk.server import combine, shift, start
from shoal.kernels.arrays import Floats, Ints


def strongest_rule(params: Params, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) the rule whose condition each meets best. Raises `InvalidData`."""
    weights_of = weighting(params)
    k, d = params["centre"].shape

    def label(block: Floats) -> Ints:
        return np.asarray(weights_of(standardised(params, block)).argmax(axis=0))

    return label_rows(rows, d, k, label)


def predicted_target(params: Params, rows: Rows) -> Floats:
    """Eq. 3: rows (n, d) -> (n,) the values of the rules, weighted by their firing strengths.
    Raises `InvalidData`.

    The column of the target is not used, but must be finite.
    """
    target = target_of(params)
    weights_of = weighting(params)
    k, d = params["centre"].shape
    consequent = params["consequent"]
    fitting = has_conditions(params)
    # In standardised coordinates; empty first, for rows of none.
    values = [np.empty(0)]
    for block in row_blocks(rows, d, k):
        z = standardised(params, block)
        if fitting:
            # Before the column of the target is overwritten, though weights do not depend on it.
            weights = weights_of(z)
            z[target] = 1.0
            values.append(np.einsum("kn,kn->n", weights, consequent @ z))
        else:
            # Until the conditions are found all rules have the same consequent.
            z[target] = 1.0
            values.append(consequent[0] @ z)
    origin = params["origin"][target]
    return np.asarray(origin + params["scale"][target] * np.concatenate(values))


def named_target(options: Options, d: int, names: Sequence[str]) -> int:
    """The position of the target that the options name. Raises `SettingsError`."""
    return target_position(TSKOptions.parse(options).target, d, names)


def rule_base(params: Params) -> RuleBase:
    """The rules in row coordinates."""
    target = target_of(params)
    origin = params["origin"]
    scale = params["scale"]
    inputs = [feature for feature in range(n_features(params)) if feature != target]
    # Rules are fitted in standardised coordinates; here their units come back.
    coefficient = params["consequent"] * scale[target] / scale
    # The place of the target has the constant, which is not multiplied with any input.
    coefficient[:, target] = 0.0
    at_origin = origin[target] + scale[target] * params["consequent"][:, target]
    error = None
    if len(params["error"]):
        # Rounding may make a sum of squares that is nearly 0 negative.
        error = math.sqrt(max(float(params["error"][0]), 0.0)) * float(scale[target])
    return RuleBase(
        target=target,
        inputs=inputs,
        centre=params["centre"].copy(),
        width=params["width"].copy(),
        origin=origin.copy(),
        scale=scale.copy(),
        constant=at_origin - coefficient @ origin,
        coefficient=coefficient,
        mass=params["weight"].copy(),
        error=error,
        settled=has_conditions(params),
    )


TSK: Final = RoundsAlgorithm(
    name="tsk",
    snapshot=PARAMS,
    update=STATS,
    options=TSKOptions,
    start=start,
    answer=answer,
    combine=combine,
    additive=True,
    shift=shift,
    predict=strongest_rule,
    predictor=None,
    check_claims=check_claims,
    epoch=epoch,
    robust=(
        "its normal equations couple all rules, so there is no place of one rule to compare "
        "between clients"
    ),
    regression=Regression(target=named_target, predict=predicted_target, rules=rule_base),
)
