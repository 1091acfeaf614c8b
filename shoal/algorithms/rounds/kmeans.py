"""Federated k-means by sums: exactly Lloyd's algorithm on the rows of all clients together.

Each client answers with the number and the sum of its rows nearest to each centre; the server
divides the total sums by the total numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from shoal.algorithms.claims import Claims, check_between, check_masses, check_sums
from shoal.algorithms.options import (
    AlgorithmOptions,
    Clusters,
    Options,
    clusters_max_option,
    clusters_option,
)
from shoal.algorithms.rounds.arrays import (
    FLOAT,
    SOME_CENTRES,
    Params,
    Stats,
    check_shape,
    float_array,
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
from shoal.kernels.lloyd import assign_block, means


class KMeansOptions(AlgorithmOptions):
    """Options of kmeans."""

    ALGORITHM = "kmeans"

    clusters: Clusters | Literal["gap", "silhouette"] = clusters_option("gap", "silhouette")
    clusters_max: int = clusters_max_option()


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """One assignment step of Lloyd's algorithm.

    -> `count` (k,) and `sum` (k, d) of the rows nearest to each centre, and the `inertia` (1,).
    """
    require_centres(params)
    return cluster_sums(params["centre"], rows)


def weigh(params: Params, rows: Rows, weights: Floats) -> Stats:
    """The answer of rows that count as often as their weights (n,) say."""
    require_centres(params)
    return cluster_sums(params["centre"], rows, weights)


def cluster_sums(centres: Floats, rows: Rows, weights: Floats | None = None) -> Stats:
    """centres (k, d), rows (n, d), weights (n,) -> `count` (k,), `sum` (k, d) and `inertia` (1,).
    Raises `InvalidData`."""
    k, d = centres.shape
    count = np.zeros(k)
    total = np.zeros((k, d))
    inertia = 0.0
    for block, own_weights in weighted_blocks(rows, d, k, weights):
        block_count, block_sum, block_inertia = assign_block(block, centres, own_weights)
        count += block_count
        total += block_sum
        inertia += block_inertia
    return {"count": count, "sum": total, "inertia": float_array(inertia)}


# What travels.

PARAMS: Final = SOME_CENTRES
"""the centres, and the number of rows that each was computed from: 0 for a centre that no row has
been assigned to"""
STATS: Final = {
    "count": ArraySpec("<f8", ("k",), per_node=True),
    "sum": ArraySpec("<f8", ("k", "d"), per_node=True),
    "inertia": FLOAT,
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first centres (k, d), without rows. Raises `SettingsError`."""
    centre = starting_centres(KMeansOptions.parse(options).clusters, d, hint)
    return {"centre": centre, "weight": np.zeros(len(centre))}


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless counts, sums and inertia can be those of the rows."""
    check_masses("count", stats["count"], claims)
    check_sums("sum", stats["count"], stats["sum"], claims)
    # Centres lie in the box as well, so no row is farther from one than the diagonal.
    check_between(
        "inertia", float(stats["inertia"][0]), 0.0, claims.readings * claims.box.diagonal_squared
    )


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The mean of the rows of each centre. A centre without rows keeps its position."""
    sums = sum_answers(params, STATS, answers)
    if sums is None or not sums["count"].any():
        return dict(params)
    check_shape(sums["count"], params["weight"], "number of centres")
    reject_unless((sums["count"] >= 0).all(), "a number of rows below 0")
    return {
        **params,
        "centre": means(sums["count"], sums["sum"], params["centre"]),
        "weight": sums["count"],
    }


KMEANS: Final = RoundsAlgorithm(
    name="kmeans",
    snapshot=PARAMS,
    update=STATS,
    options=KMeansOptions,
    start=start,
    answer=answer,
    weigh=weigh,
    combine=combine,
    robust=RobustForm(mass="count", moments=("sum",), totals=("inertia",)),
    additive=True,
    check_claims=check_claims,
)
