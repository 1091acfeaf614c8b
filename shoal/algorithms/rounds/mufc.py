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
from shoal.kernels.arrays import Floats
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
        "which points a client's cells contain: k-means++ seeds, or the k-means centres found from them",
    )
    cells: int = option(
        100,
        "cells of the grid along each feature (in the paper the square root of the number of rows)",
        least=1,
        most=CELLS_MAX,
    )


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """-> the cells (p, d) of at most k' centres of the rows, each cell once, and the number of rows
    of each (p,)."""
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
    places = np.rint(
        np.divide(centres - params["low"], step, out=np.zeros_like(centres), where=step > 0)
    )
    cells = np.clip(places, 0, read_int(params, "cells", 1)).astype(np.int64)
    return _merged(cells[count > 0], count[count > 0])


def _steps(params: Params) -> Floats:
    if params["low"].shape != params["step"].shape or not (params["step"] >= 0).all():
        raise InvalidData(
            "parameter step must hold one number, at least 0, per feature; the round request is damaged"
        )
    return np.asarray(params["step"])


def _merged(cells: np.ndarray[tuple[int, ...], np.dtype[np.int64]], count: Floats) -> Stats:
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
    """Parameters without centres: the options and the grid that clients and server need. Raises
    `SettingsError`."""
    chosen = MUFCOptions.parse(options)
    return {
        **plan_params(chosen, d, hint),
        "local": choice_array(chosen.local, LOCALS),
        "cells": int_array(chosen.cells),
        "low": hint.low.astype(np.float64),
        "step": (hint.high - hint.low) / chosen.cells,
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` for more cells than were asked for, one that is there twice, or too many
    rows."""
    check_local_counts(params, stats, claims)
    once = np.unique(stats["cell"], axis=0)
    require_possible(len(once) == len(stats["cell"]), "a cell is there twice")


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """k-means on random points in the cells; a function of the sum of the answers and the seed
    alone."""
    most = read_int(params, "cells", 1)
    for each in answers:
        check_answer(STATS, each, n_features(params))
        reject_unless(
            ((each["cell"] >= 0) & (each["cell"] <= most)).all(), "a cell outside the grid"
        )
        reject_unless((each["count"] > 0).all(), "a cell without rows")
    answers = [each for each in answers if len(each["count"])]
    if not answers:
        return dict(params)
    cells, counts = (np.concatenate([each[name] for each in answers]) for name in ("cell", "count"))
    points, weights = _random_points(params, _merged(cells, counts))
    k = read_int(params, "clusters", 1)
    seed = read_int(params, "seed", 0)
    centres = best_kmeans(points, k, seed, STARTS, SERVER_STEPS, weights)
    return keep_order(params, centres, assign(points, centres, weights)[0])


def _random_points(params: Params, cells: Stats) -> tuple[Floats, Floats]:
    """-> points (n, d), uniformly random in their cells within the box, and the number of rows each
    stands for (n,)."""
    each = np.clip(np.rint(cells["count"]), 1, POINTS_PER_CELL_MAX).astype(np.int64)
    of_cell = np.repeat(np.arange(len(each)), each)
    generator = np.random.default_rng(read_int(params, "seed", 0))
    within = generator.uniform(-0.5, 0.5, size=(len(of_cell), n_features(params)))
    places = np.clip(cells["cell"][of_cell] + within, 0, read_int(params, "cells", 1))
    return params["low"] + places * params["step"], (cells["count"] / each)[of_cell]


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
