"""The client half of tsk."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.rounds.arrays import Params, Stats, row_blocks
from shoal.algorithms.streaming import Rows
from shoal.algorithms.tsk.arrays import empty_sums, has_conditions, standardised, target_of, weighting
from shoal.kernels.moments import pair_count, pair_products


def answer(params: Params, rows: Rows) -> Stats:
    """The sums of `STATS` over rows (n, d), in bounded memory. They do not depend on the consequents so far."""
    k, d = params["centre"].shape
    target, weights_of, fitting = target_of(params), weighting(params), has_conditions(params)
    sums = empty_sums(params)
    # Tables of pairs may be four times as large as others: products of matrices are slow at few rows.
    pairs = max(pair_count(d), pair_count(k) if fitting else 1)
    for block in row_blocks(rows, d, k + pairs // 4):
        z = standardised(params, block)
        weights = weights_of(z)
        sums["mass"] += weights.sum(axis=1)
        sums["total"] += weights @ z.T
        y, x = z[target].copy(), z
        sums["square"] += weights @ np.square(z).T
        x[target] = 1.0
        strengths = weights if fitting else np.ones((1, len(block)))
        sums["gram"] += pair_products(strengths) @ pair_products(x).T
        sums["cross"] += (strengths * y) @ x.T
        sums["energy"] += y @ y
        sums["rows"] += len(block)
    return sums
