"""MUFC: federated clustering in one round that supports unlearning. Clients send counts of rows in
cells of a grid.

Source: C. Pan, J. Sima, S. Prakash, V. Rana, O. Milenkovic, "Machine unlearning of federated
clusters" (2023), algorithm 2. A client's cells are those of its k-means++ seeds (or of the centres
that k-means finds from there, as in the authors' program). The server needs only the sum of the
counts over all clients, which secure aggregation could compute. It draws as many random points in
each cell as the cell counts, and runs k-means on them.

Unlearning a client: combine the answers of the others; the result is, to the bit, the model without
that client. Unlearning a row that is not a seed leaves the client's seeds unchanged and one count
smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np

from shoal.algorithms.claims import Claims, require_possible
from shoal.algorithms.options import Options, option
from shoal.algorithms.rounds.arrays import (
    INT,
    Params,
    Stats,
    check_answer,
    choice_array,
    int_array,
    n_features,
    read_choice,
    read_int,
    reject_unless,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.one_shot import (
    CLUSTERED_ANSWERS,
    ONE_SHOT_PARAMS,
    OneShotOptions,
    candidates,
    check_local_counts,
    count_and_sum,
    fit_lloyd,
    forget_centres,
    keep_order,
    plan_params,
    shift,
)
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.lloyd import assign, best_kmeans, kmeans_plusplus

Local = Literal["seeds", "kmeans"]
LOCALS: Final = get_args(Local)
CELLS_MAX: Final = 2**31
POINTS_PER_CELL_MAX: Final = 64
"""a cell that counts more rows gets heavier points, not more of them"""
STARTS: Final = 10
SERVER_STEPS: Final = 300


class MUFCOptions(OneShotOptions):
    """Options of mufc."""

    ALGORITHM = "mufc"

    local: Local = option(
        "seeds",
        "which points a client's cells contain: k-means++ seeds, or the k-means centres found from "
        "them",
    )
    cells: int = option(
        100,
        "cells of the grid along each feature (in the paper the square root of the number of rows)",
        least=1,
        most=CELLS_MAX,
    )


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """Algorithm 2, clients: the cells of at most k' centres of the rows.

    -> the cells (p, d), each once, and the number of rows of each (p,).
    """
    k = read_int(params, "local_clusters", 1)
    seed = read_int(params, "seed", 0)
    d = n_features(params)
    sample = candidates(rows, d)
    if not len(sample):
        return {"cell": np.empty((0, d), dtype=np.int64), "count": np.zeros(0)}
    centres = sample[kmeans_plusplus(sample, k, seed)]
    if read_choice(params, "local", LOCALS) == "kmeans":
        centres, count = fit_lloyd(rows, centres)
    else:
        count = count_and_sum(rows, centres)[0]
    step = _steps(params)
    # A feature that is the same everywhere has steps of 0, and one cell.
    origin = np.zeros_like(centres)
    places = np.rint(np.divide(centres - params["low"], step, out=origin, where=step > 0))
    cells = np.clip(places, 0, read_int(params, "cells", 1)).astype(np.int64)
    return _merged(cells[count > 0], count[count > 0])


def _steps(params: Params) -> Floats:
    """(d,) the side of a cell along each feature. Raises `InvalidData`."""
    if params["low"].shape != params["step"].shape or not (params["step"] >= 0).all():
        raise InvalidData(
            "parameter step must hold one number, at least 0, per feature; "
            "the round request is damaged"
        )
    return np.asarray(params["step"])


def _merged(cells: Ints, count: Floats) -> Stats:
    """Each cell once, in the order of their numbers, with the sum of its counts."""
    once, place = np.unique(cells, axis=0, return_inverse=True)
    return {
        "cell": once,
        "count": np.bincount(place.reshape(-1), count, len(once)).astype(np.float64),
    }


# What travels.

PARAMS: Final = {
    **ONE_SHOT_PARAMS,
    "local": INT,
    "cells": INT,
    "low": ArraySpec("<f8", ("d",), rowlike=True),
    "step": ArraySpec("<f8", ("d",)),
}
"""`local`, the option; the grid: `cells` along each feature, its lower corner `low`, its `step`"""
STATS: Final = {
    "cell": ArraySpec("<i8", ("p", "d"), per_node=True),
    "count": ArraySpec("<f8", ("p",), per_node=True),
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """Parameters without centres: the options and the grid. Raises `SettingsError`."""
    chosen = MUFCOptions.parse(options)
    return {
        **plan_params(chosen, d, hint),
        "local": choice_array(chosen.local, LOCALS),
        "cells": int_array(chosen.cells),
        "low": hint.low.astype(np.float64),
        "step": (hint.high - hint.low) / chosen.cells,
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` for too many cells or rows, or a cell that is there twice."""
    check_local_counts(params, stats, claims)
    once = np.unique(stats["cell"], axis=0)
    require_possible(len(once) == len(stats["cell"]), "a cell is there twice")


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """Algorithm 2, server: k-means on random points in the cells.

    The result is a function of the sum of the answers and the seed alone.
    """
    most = read_int(params, "cells", 1)
    for stats in answers:
        check_answer(STATS, stats, n_features(params))
        inside = (stats["cell"] >= 0) & (stats["cell"] <= most)
        reject_unless(inside.all(), "a cell outside the grid")
        reject_unless((stats["count"] > 0).all(), "a cell without rows")
    with_rows = [stats for stats in answers if len(stats["count"])]
    if not with_rows:
        return dict(params)
    cells = np.concatenate([stats["cell"] for stats in with_rows])
    counts = np.concatenate([stats["count"] for stats in with_rows])
    points, weights = _random_points(params, _merged(cells, counts))
    k = read_int(params, "clusters", 1)
    seed = read_int(params, "seed", 0)
    centres = best_kmeans(points, k, seed, STARTS, SERVER_STEPS, weights)
    return keep_order(params, centres, assign(points, centres, weights)[0])


def _random_points(params: Params, cells: Stats) -> tuple[Floats, Floats]:
    """Points that are uniformly random in their cells within the box.

    -> points (n, d), and the number of rows that each stands for (n,).
    """
    points = np.clip(np.rint(cells["count"]), 1, POINTS_PER_CELL_MAX).astype(np.int64)
    of_cell = np.repeat(np.arange(len(points)), points)
    generator = np.random.default_rng(read_int(params, "seed", 0))
    within = generator.uniform(-0.5, 0.5, size=(len(of_cell), n_features(params)))
    places = np.clip(cells["cell"][of_cell] + within, 0, read_int(params, "cells", 1))
    return params["low"] + places * params["step"], (cells["count"] / points)[of_cell]


MUFC: Final = RoundsAlgorithm(
    name="mufc",
    snapshot=PARAMS,
    update=STATS,
    one_shot=True,
    options=MUFCOptions,
    start=start,
    answer=answer,
    combine=combine,
    check_claims=check_claims,
    robust=CLUSTERED_ANSWERS,
    shift=shift,
    forget=forget_centres,
)
