"""The client half of tsk: its options, the arrays that travel, a client's answer, and the check of
its claims.

k rules, d features; *standardised* is z = (row - origin) / scale. The constant of a consequent
takes the place of the target: x is z with 1 in the column of the target, and a rule's value is its
d coefficients times x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

import numpy as np

from shoal.algorithms.claims import (
    ROUNDING_SHARE,
    Box,
    Claims,
    check_definite,
    check_masses,
    check_moments,
    check_sums,
    require_possible,
)
from shoal.algorithms.options import AUTO_MEANS, AlgorithmOptions, Clusters, option
from shoal.algorithms.regression import Target, target_option
from shoal.algorithms.rounds.arrays import (
    FLOAT,
    INT,
    SOME_CENTRES,
    Params,
    Stats,
    n_features,
    read_choice,
    read_float,
    read_int,
    require_centres,
    row_blocks,
)
from shoal.algorithms.rounds.fcm import fuzzifier_option
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, pair_count, pair_products
from shoal.kernels.fuzzy import expand_gram, firing_strengths, fuzzy_weights

Form = Literal["least_squares", "gradient"]
FORMS: Final = get_args(Form)
ROUNDS_MAX: Final = 10_000


class TSKOptions(AlgorithmOptions):
    """Options of tsk."""

    ALGORITHM = "tsk"

    clusters: Clusters = option(
        "auto", f"number of rules; {AUTO_MEANS}. Rules times features is at most 2000"
    )
    target: Target = target_option()
    consequents: Form = option(
        "least_squares",
        "solved from the summed normal equations, or one gradient step in each round (F2LS)",
    )
    ridge: float = option(
        1.0,
        "least squares: what is added to the diagonal of the normal equations, which keeps "
        "coefficients small",
        above=0.0,
    )
    step: float = option(0.01, "gradient: length of a step", above=0.0, most=1.0)
    fuzzifier: float = fuzzifier_option()
    condition_rounds: int = option(
        30,
        "most rounds of fuzzy c-means to find the conditions; 0: they keep the centres that the "
        "model starts from",
        least=0,
        most=ROUNDS_MAX,
    )
    outdated: float = option(
        1.0,
        "the conditions are found again when the rows of a rule have moved by this many standard "
        "deviations",
        above=0.0,
    )


COEFFICIENTS_MAX: Final = 2000
"""rules times features: the number of unknowns of the normal equations"""
STAGES: Final = ("conditions", "consequents")
"""parts that rounds find"""
PARAMS: Final = {
    **SOME_CENTRES,
    "width": ArraySpec("<f8", ("k", "d"), positive=True),
    "consequent": ArraySpec("<f8", ("k", "d")),
    "baseline": ArraySpec("<f8", ("k", "d")),
    "origin": ArraySpec("<f8", ("d",), rowlike=True),
    "scale": ArraySpec("<f8", ("d",), positive=True),
    "error": ArraySpec("<f8", ("t",)),
    "target": INT,
    "stage": INT,
    "epoch": INT,
    "steps": INT,
    "form": INT,
    "condition_rounds": INT,
    "fuzzifier": FLOAT,
    "ridge": FLOAT,
    "step": FLOAT,
    "outdated": FLOAT,
}
"""`width`: of the Gaussian condition on each input, in the column of the target the spread of its
values. `consequent`: coefficients of x. `baseline`: the mean rows of the rules when their
conditions were found, standardised. `error`: mean squared error, standardised, over the rows that
the consequents were fitted to; empty at first. `steps`: rounds in this stage. `epoch` changes when
answers to earlier parameters no longer count. The others are options"""
STATS: Final = {
    "mass": ArraySpec("<f8", ("k",), per_node=True),
    "total": ArraySpec("<f8", ("k", "d"), per_node=True),
    "square": ArraySpec("<f8", ("k", "d"), per_node=True),
    "gram": ArraySpec("<f8", ("q", "m"), per_node=True),
    "cross": ArraySpec("<f8", ("r", "d"), per_node=True),
    "energy": FLOAT,
    "rows": FLOAT,
}
"""arrays of an answer. `mass`, `total` and `square` of each rule: weights, and weighted sums of z
and z². `gram` and `cross`: the normal equations, sums of w_i w_j x_a x_b over pairs i <= j and a <=
b, and of w_j y x_a, where y is z of the target. `energy`: the sum of y². In the stage of conditions
the weights are memberships to the power of the fuzzifier, and the equations those of one rule that
always holds; later the weights are firing strengths w"""


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
    # In C order each feature lies in one piece, as the products that follow read it.
    z = np.subtract(rows.T, params["origin"][:, None], order="C")
    z /= params["scale"][:, None]
    return z


def standardised_centres(params: Params) -> Floats:
    """The centres of the rules (k, d), standardised. Raises `InvalidData`."""
    if not ((params["scale"] > 0).all() and (params["width"] > 0).all()):
        raise InvalidData(
            "parameters scale and width must be above 0; the round request is damaged"
        )
    return np.asarray((params["centre"] - params["origin"]) / params["scale"])


def weighting(params: Params) -> Callable[[Floats], Floats]:
    """A function from columns z (d, n) to the weights (k, n) of the rows in the rules.

    It does not use the target. Raises `InvalidData`.
    """
    require_centres(params)
    if len(params["centre"]) > rules_max(n_features(params)):
        raise InvalidData(
            "parameter centre holds more rules than a model can have; the round request is damaged"
        )
    target = target_of(params)
    centres = standardised_centres(params)
    if has_conditions(params):
        precision = np.square(params["scale"] / params["width"])
        # A condition on the target would need what is to be predicted.
        precision[:, target] = 0.0
        return lambda z: firing_strengths(z, centres, precision)
    fuzzifier = read_float(params, "fuzzifier", above=1.0)
    centres[:, target] = 0.0

    def weights_of_conditions(z: Floats) -> Floats:
        # A copy, as the sums that follow need z with its target.
        inputs = z.T.copy()
        inputs[:, target] = 0.0
        return fuzzy_weights(inputs, centres, fuzzifier)

    return weights_of_conditions


def answer(params: Params, rows: Rows) -> Stats:
    """The sums of `STATS` over rows (n, d), in bounded memory.

    They do not depend on the consequents so far.
    """
    k, d = params["centre"].shape
    target = target_of(params)
    weights_of = weighting(params)
    fitting = has_conditions(params)
    sums = empty_sums(params)
    # Tables of pairs may be four times as large as others: products of matrices are slow at few
    # rows.
    pairs = pair_count(d)
    if fitting:
        pairs = max(pairs, pair_count(k))
    for block in row_blocks(rows, d, k + pairs // 4):
        z = standardised(params, block)
        weights = weights_of(z)
        sums["mass"] += weights.sum(axis=1)
        sums["total"] += weights @ z.T
        sums["square"] += weights @ np.square(z).T
        # A copy, as its row is overwritten: x is z with 1 in the place of the target.
        y = z[target].copy()
        x = z
        x[target] = 1.0
        strengths = weights if fitting else np.ones((1, len(block)))
        sums["gram"] += pair_products(strengths) @ pair_products(x).T
        sums["cross"] += (strengths * y) @ x.T
        sums["energy"] += y @ y
        sums["rows"] += len(block)
    return sums


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless all sums can be those of the rows, and agree with each other."""
    for name, expected in empty_sums(params).items():
        require_possible(
            stats[name].shape == expected.shape, f"another {name} than the round request has"
        )
    # Called for its check of scale and width, by which the box is divided.
    standardised_centres(params)
    lowest = (claims.low - params["origin"]) / params["scale"]
    highest = (claims.high - params["origin"]) / params["scale"]
    box = Claims(claims.readings, Box(lowest, highest))
    mass = stats["mass"]
    total = stats["total"]
    square = stats["square"]
    require_possible(
        float(stats["rows"][0]) == claims.readings, "another number of rows than readings"
    )
    check_masses("mass", mass, claims)
    check_sums("total", mass, total, box)
    check_moments(mass, total, square, box)
    target = target_of(params)
    rules = len(stats["cross"])
    matrix = expand_gram(stats["gram"], rules, total.shape[1])
    if has_conditions(params):
        # Strengths add up to 1, so the sum over the second rule of each pair leaves the moments of
        # the first.
        moments = matrix.reshape(rules, total.shape[1], rules, total.shape[1]).sum(axis=2)
        _check_overlap(moments, stats, target, box)
    else:
        sums = matrix[target].copy()
        squares = matrix.diagonal().copy()
        sums[target] = stats["cross"][0, target]
        squares[target] = stats["energy"][0]
        _check_equal(matrix[target, target], stats["rows"][0], box)
        check_moments(stats["rows"], sums[None], squares[None], box)
    _check_equations(matrix, stats, box)


def _check_overlap(moments: Floats, stats: Stats, target: int, box: Claims) -> None:
    """Raises `InvalidData` unless moments (k, d, d) by the normal equations are the answer's
    own."""
    inputs = np.arange(moments.shape[1]) != target
    _check_equal(moments[:, target, target], stats["mass"], box)
    _check_equal(moments[:, target][:, inputs], stats["total"][:, inputs], box)
    _check_equal(np.diagonal(moments, axis1=1, axis2=2)[:, inputs], stats["square"][:, inputs], box)
    _check_equal(stats["cross"][:, target], stats["total"][:, target], box)
    _check_equal(stats["mass"].sum(), stats["rows"][0], box)
    _check_equal(stats["square"][:, target].sum(), stats["energy"][0], box)


def _check_equations(matrix: Floats, stats: Stats, box: Claims) -> None:
    """Raises `InvalidData` unless some regressors and targets have these products.

    They have, if the matrix (p, p), bordered with the products of the target, is positive definite.
    """
    p = len(matrix)
    whole = np.empty((p + 1, p + 1))
    whole[:p, :p] = matrix
    whole[p, p] = stats["energy"][0]
    whole[p, :p] = stats["cross"].ravel()
    whole[:p, p] = stats["cross"].ravel()
    # Rounding may make the smallest eigenvalue of a sum of squares negative.
    whole[np.diag_indices(p + 1)] += p * _slack(box)
    check_definite(whole)


def _check_equal(first: Floats, second: Floats, box: Claims) -> None:
    """Raises `InvalidData` for sums that differ by more than rounding."""
    # Sums of a malicious client may overflow; infinite differences are refused below.
    with np.errstate(over="ignore", invalid="ignore"):
        equal = bool((np.abs(first - second) <= _slack(box)).all())
    require_possible(equal, "sums that overlap and differ")


def _slack(box: Claims) -> float:
    """Distance by which sums of products of two features may differ because of rounding."""
    return ROUNDING_SHARE * max(box.scale, 1.0) ** 2 * (box.readings + ROUNDING_SHARE)
