"""Functions that the algorithms of one round share: clustering on a client, and clusters that keep
their numbers."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from shoal.algorithms.claims import Claims, check_at_most, check_masses
from shoal.algorithms.options import (
    CLUSTERS_MAX,
    AlgorithmOptions,
    Clusters,
    clusters_option,
    option,
)
from shoal.algorithms.rounds.arrays import (
    CENTRES,
    INT,
    Params,
    Stats,
    int_array,
    read_int,
    row_blocks,
)
from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.streaming import Rows, check_rows
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.kernels.lloyd import assign, means
from shoal.kernels.matching import match_order, matched_distance

CANDIDATES_MAX: Final = 50_000
"""rows among which seeds are chosen, evenly spaced ones of all, to bound memory"""
CLIENT_STEPS: Final = 300

CLUSTERED_ANSWERS: Final = (
    "its server clusters what clients send, so answers far from all others get a cluster of their "
    "own instead of being outvoted"
)
"""why answers of algorithms of one round cannot be combined robustly"""

ONE_SHOT_PARAMS: Final = {**CENTRES, "clusters": INT, "local_clusters": INT, "seed": INT}
"""the newest centres, none at first; the number of clusters, and the number that each client looks
for; the seed of every random number"""


class OneShotOptions(AlgorithmOptions):
    """Options that the algorithms of one round share."""

    clusters: Clusters = clusters_option()
    local_clusters: int = option(
        0,
        "number of clusters that each client looks for (k'); 0: as many as `clusters`",
        least=0,
        most=CLUSTERS_MAX,
    )


# Client half.


def candidates(rows: Rows, d: int) -> Floats:
    """rows (n, d) -> the rows among which seeds are chosen. Raises `InvalidData`."""
    table = rows if isinstance(rows, np.ndarray) else check_rows(rows, d)
    every = max(1, math.ceil(len(table) / CANDIDATES_MAX))
    return check_rows(table[::every], d)


def count_and_sum(rows: Rows, centres: Floats) -> tuple[Floats, Floats]:
    """The number (k,) and the sum (k, d) of the rows (n, d) of each centre (k, d).

    Raises `InvalidData`.
    """
    k, d = centres.shape
    count = np.zeros(k)
    total = np.zeros_like(centres)
    for block in row_blocks(rows, d, k):
        block_count, block_sum, _ = assign(block, centres)
        count += block_count
        total += block_sum
    return count, total


def fit_lloyd(rows: Rows, centres: Floats) -> tuple[Floats, Floats]:
    """Lloyd's algorithm on the rows, from `centres` (k, d) to convergence.

    -> centres (k, d), and the number of rows of each (k,).
    """
    for _ in range(CLIENT_STEPS):
        count, total = count_and_sum(rows, centres)
        before = centres
        centres = means(count, total, centres)
        # To the bit: rows that stay with their centres give the same sums in the same order, and
        # then no further step changes anything.
        if (before == centres).all():
            break
    # Counted again: the counts of the last step are those of the centres before it.
    return centres, count_and_sum(rows, centres)[0]


def nonempty_centres(centres: Floats, count: Floats, name: str) -> Stats:
    """An answer with the centres that have rows, under `name`, and their counts."""
    return {name: centres[count > 0], "count": count[count > 0]}


# Server half.


def plan_params(options: OneShotOptions, d: int, hint: InitHint) -> dict[str, Any]:
    """The parameters of a model without centres. Raises `SettingsError`."""
    k = options.clusters
    if k == "auto":
        if hint.points is None or not len(hint.points):
            raise SettingsError(
                'clusters = "auto" needs a `source` that has found some; or give a number'
            )
        k = len(hint.points)
    local = options.local_clusters or k
    if local > k:
        raise SettingsError(f"local_clusters = {local}, must be at most clusters, which is {k}")
    return {
        "centre": np.empty((0, d)),
        "weight": np.empty(0),
        "clusters": int_array(k),
        "local_clusters": int_array(local),
        "seed": int_array(hint.seed),
    }


def forget_centres(params: Params) -> Params:
    """The parameters before any answer: without centres, on which no answer depends."""
    return {**params, "centre": params["centre"][:0], "weight": params["weight"][:0]}


def check_local_counts(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` for more local clusters, or more rows, than there can be."""
    check_at_most("count", len(stats["count"]), read_int(params, "local_clusters", 1))
    check_masses("count", stats["count"], claims)


def keep_order(params: Params, centres: Floats, weight: Floats) -> Params:
    """`params` with new centres, in the order of the previous ones if there are as many.

    So a cluster keeps its number from round to round.
    """
    if params["centre"].shape == centres.shape:
        order = match_order(params["centre"], centres)
        centres = centres[order]
        weight = weight[order]
    return {**params, "centre": centres, "weight": weight}


def shift(before: Params, after: Params) -> float:
    """The Frobenius norm of the movement of matched centres; infinite when their number changed."""
    if before["centre"].shape != after["centre"].shape:
        return math.inf
    return matched_distance(before["centre"], after["centre"])
