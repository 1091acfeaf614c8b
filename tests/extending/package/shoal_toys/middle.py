"""An algorithm in rounds: one cluster, whose centre is the mean of the rows of all clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.algorithms.claims import Claims, check_masses, check_sums
from shoal.algorithms.options import AlgorithmOptions, Options
from shoal.algorithms.rounds.arrays import CENTRES, Params, Stats, reject_unless, sum_answers
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.streaming import ArraySpec, Rows

STATS = {"count": ArraySpec("<f8", (1,)), "sum": ArraySpec("<f8", ("d",))}


class MiddleOptions(AlgorithmOptions):
    """It has none."""

    ALGORITHM = "middle"


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first centre (1, d): the middle of the bounds."""
    MiddleOptions.parse(options)
    return {"centre": (hint.low + hint.high)[None] / 2, "weight": np.zeros(1)}


def answer(params: Params, rows: Rows) -> Stats:
    """The number and the sum of the client's rows (n, d)."""
    return {"count": np.array([float(len(rows))]), "sum": rows.sum(axis=0)}


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` for more rows than readings, or a sum that rows within the bounds cannot
    have."""
    check_masses("count", stats["count"], claims)
    check_sums("sum", stats["count"], stats["sum"][None], claims)


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The mean of all rows; the same parameters while there are none."""
    sums = sum_answers(params, STATS, answers)
    if sums is None or not sums["count"].any():
        return dict(params)
    reject_unless(sums["count"][0] > 0, "a number of rows below 0")
    return {"centre": sums["sum"][None] / sums["count"], "weight": sums["count"]}


MIDDLE = RoundsAlgorithm(
    name="middle",
    snapshot=CENTRES,
    update=STATS,
    options=MiddleOptions,
    start=start,
    answer=answer,
    combine=combine,
    additive=True,
    check_claims=check_claims,
)
