"""Federated fuzzy c-means by sums: exactly fuzzy c-means on the rows of all clients together.

Source: J. L. Corcuera Bárcena and others, "A federated fuzzy c-means clustering algorithm" (2021),
algorithms 1 and 2; the centres are eq. 3, the memberships eq. 9. No membership matrix is ever
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np

from shoal.algorithms.claims import Claims, check_masses, check_sums
from shoal.algorithms.options import (
    AlgorithmOptions,
    Clusters,
    Options,
    clusters_max_option,
    clusters_option,
    option,
)
from shoal.algorithms.rounds.arrays import (
    FLOAT,
    SOME_CENTRES,
    Params,
    Stats,
    check_shape,
    float_array,
    read_float,
    reject_unless,
    require_centres,
    sum_answers,
    weighted_blocks,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.rounds.robust import RobustForm
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.kernels.arrays import Floats
from shoal.kernels.fuzzy import fuzzy_weights
from shoal.kernels.lloyd import means

# Beyond it every row belongs to all clusters alike, and powers of shares underflow.
FUZZIFIER_MAX: Final = 100.0


def fuzzifier_option() -> Any:
    """Declares the option `fuzzifier` of all algorithms on fuzzy clusters."""
    return option(
        2.0, "how fuzzy clusters are: near 1 is k-means, 2 is usual", above=1.0, most=FUZZIFIER_MAX
    )


class FCMOptions(AlgorithmOptions):
    """Options of fcm."""

    ALGORITHM = "fcm"

    clusters: Clusters | Literal["gap", "silhouette"] = clusters_option("gap", "silhouette")
    clusters_max: int = clusters_max_option()
    fuzzifier: float = fuzzifier_option()


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """Algorithm 2.

    -> per centre `mass` (k,), the sum of the memberships to the power of the fuzzifier, and `sum`
    (k, d), the sum of the rows weighted by the same powers.
    """
    require_centres(params)
    mass, total = fuzzy_sums(params["centre"], read_float(params, "fuzzifier", above=1.0), rows)
    return {"mass": mass, "sum": total}


def weigh(params: Params, rows: Rows, weights: Floats) -> Stats:
    """The answer of rows that count as often as their weights (n,) say."""
    require_centres(params)
    fuzzifier = read_float(params, "fuzzifier", above=1.0)
    mass, total = fuzzy_sums(params["centre"], fuzzifier, rows, weights)
    return {"mass": mass, "sum": total}


def fuzzy_sums(
    centres: Floats, fuzzifier: float, rows: Rows, weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """centres (k, d), rows (n, d), weights (n,) -> mass (k,), weighted sum of the rows (k, d),
    block by block."""
    k, d = centres.shape
    mass = np.zeros(k)
    total = np.zeros((k, d))
    for block, own_weights in weighted_blocks(rows, d, k, weights):
        powers = fuzzy_weights(block, centres, fuzzifier)
        if own_weights is not None:
            powers = powers * own_weights
        mass += powers.sum(axis=1)
        total += powers @ block
    return mass, total


# What travels.

PARAMS: Final = {**SOME_CENTRES, "fuzzifier": FLOAT}
STATS: Final = {
    "mass": ArraySpec("<f8", ("k",), per_node=True),
    "sum": ArraySpec("<f8", ("k", "d"), per_node=True),
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first centres (k, d) and the fuzzifier. Raises `SettingsError`."""
    chosen = FCMOptions.parse(options)
    centre = starting_centres(chosen.clusters, d, hint)
    return {
        "centre": centre,
        "weight": np.zeros(len(centre)),
        "fuzzifier": float_array(chosen.fuzzifier),
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless masses and sums can be those of the rows: powers of memberships
    are below 1."""
    check_masses("mass", stats["mass"], claims)
    check_sums("sum", stats["mass"], stats["sum"], claims)


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """Eq. 3. A centre whose mass is 0, because all its powers underflow, keeps its position."""
    sums = sum_answers(params, STATS, answers)
    if sums is None or not sums["mass"].any():
        return dict(params)
    check_shape(sums["mass"], params["weight"], "number of centres")
    reject_unless((sums["mass"] >= 0).all(), "a mass below 0")
    return {
        **params,
        "centre": means(sums["mass"], sums["sum"], params["centre"]),
        "weight": sums["mass"],
    }


FCM: Final = RoundsAlgorithm(
    name="fcm",
    snapshot=PARAMS,
    update=STATS,
    options=FCMOptions,
    start=start,
    answer=answer,
    weigh=weigh,
    combine=combine,
    robust=RobustForm(mass="mass", moments=("sum",)),
    additive=True,
    check_claims=check_claims,
)
