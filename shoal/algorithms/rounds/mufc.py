"""MUFC: one shot, and made to forget. Clients say how many rows lie around each of some cells of an agreed grid.

Source: C. Pan, J. Sima, S. Prakash, V. Rana, O. Milenkovic, "Machine unlearning of federated clusters" (2023),
algorithm 2. A client's cells are those of its k-means++ seeds (or of k-means from there, as the authors' program
does); the server needs no more than their sum over the clients, so that it may as well be summed in secret. Each
cell is filled with as many random points as it counts, and k-means on these is the model.

To forget a client is to combine the others' answers: the result is, to the bit, the model that never saw it. To
forget a row that is not a seed leaves the client's seeds as they are and one count less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.algorithms.rounds.arrays import (
    CENTRES,
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
    LOCAL_CLUSTERS,
    candidates,
    count_and_sum,
    fit_lloyd,
    keep_order,
    plan_params,
    shift,
)
from shoal.algorithms.rounds.options import CLUSTERS, Option, Options, choice, is_int, resolve_options
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.errors import InvalidData
from shoal.kernels.distance import Floats
from shoal.kernels.lloyd import assign, best_kmeans, kmeans_plusplus

LOCALS: Final = ("seeds", "kmeans")
CELLS_MAX: Final = 2**31
POINTS_PER_CELL_MAX: Final = 64
"""more rows than these make the points heavier, not more"""
STARTS: Final = 10
SERVER_STEPS: Final = 300
OPTIONS: Final = {
    "clusters": CLUSTERS,
    "local_clusters": LOCAL_CLUSTERS,
    "local": choice(LOCALS, "what a client's cells are around: k-means++ seeds, or what k-means makes of them"),
    "cells": Option(
        100,
        lambda value: is_int(value, 1, CELLS_MAX),
        f"a whole number, 1 to {CELLS_MAX}",
        "steps of the grid along each feature (the paper: the root of the number of rows)",
    ),
}

# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """The cells (p, d) around at most k' centres of one's own, no cell twice, and the rows that each counts (p,)."""
    k, seed = read_int(params, "local_clusters", 1), read_int(params, "seed", 0)
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
    places = np.rint(np.divide(centres - params["low"], step, out=np.zeros_like(centres), where=step > 0))
    cells = np.clip(places, 0, read_int(params, "cells", 1)).astype(np.int64)
    return _merged(cells[count > 0], count[count > 0])


def _steps(params: Params) -> Floats:
    if params["low"].shape != params["step"].shape or not (params["step"] >= 0).all():
        raise InvalidData("parameter step must hold one number, at least 0, per feature; the call is damaged")
    return np.asarray(params["step"])


def _merged(cells: np.ndarray[tuple[int, ...], np.dtype[np.int64]], count: Floats) -> Stats:
    """Each cell once, in the order of their numbers, with all that it counts."""
    once, place = np.unique(cells, axis=0, return_inverse=True)
    return {"cell": once, "count": np.bincount(place.reshape(-1), count, len(once)).astype(np.float64)}


# What travels.

PARAMS: Final = {
    **CENTRES,
    "clusters": INT,
    "local_clusters": INT,
    "seed": INT,
    "local": INT,
    "cells": INT,
    "low": ArraySpec("<f8", ("d",), rowlike=True),
    "step": ArraySpec("<f8", ("d",)),
}
"""the centres found last and the rows behind them, none at first; how many to find, and how many each client; the
seed; what cells are around; the corner, the number and the size of the cells of the grid"""
STATS: Final = {
    "cell": ArraySpec("<i8", ("p", "d"), per_node=True),
    "count": ArraySpec("<f8", ("p",), per_node=True),
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The plan of the one shot: what clients look for and how, with where rows can lie. Raises `SettingsError`."""
    option = resolve_options("mufc", OPTIONS, options)
    return {
        **plan_params(option, d, hint),
        "local": choice_array(option["local"], LOCALS),
        "cells": int_array(option["cells"]),
        "low": hint.low.astype(np.float64),
        "step": (hint.high - hint.low) / option["cells"],
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """k-means on random points in the cells; a function of the sum of the answers and the seed, and nothing else."""
    most = read_int(params, "cells", 1)
    for each in answers:
        check_answer(STATS, each, n_features(params))
        reject_unless(((each["cell"] >= 0) & (each["cell"] <= most)).all(), "a cell outside of the grid")
        reject_unless((each["count"] > 0).all(), "a cell with no row")
    answers = [each for each in answers if len(each["count"])]
    if not answers:
        return dict(params)
    cells, counts = (np.concatenate([each[name] for each in answers]) for name in ("cell", "count"))
    points, weights = _scattered(params, _merged(cells, counts))
    k, seed = read_int(params, "clusters", 1), read_int(params, "seed", 0)
    centres = best_kmeans(points, k, seed, STARTS, SERVER_STEPS, weights)
    return keep_order(params, centres, assign(points, centres, weights)[0])


def _scattered(params: Params, cells: Stats) -> tuple[Floats, Floats]:
    """-> points (n, d), evenly random within their cells and the box, and the rows each stands for (n,)."""
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
    options=OPTIONS,
    start=start,
    answer=answer,
    combine=combine,
    shift=shift,
)
