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

from shoal.algorithms.rounds import base as rounds
from shoal.algorithms.rounds.base import InitHint, Option, Options, Params, RoundsAlgorithm, Stats
from shoal.algorithms.rounds.one_shot import LOCAL, candidates, fitted, followed, planned, shift, tallied
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.errors import InvalidData
from shoal.kernels.distance import Floats
from shoal.kernels.lloyd import assigned, best_of, seeds

LOCALS: Final = ("seeds", "kmeans")
CELLS_MAX: Final = 2**31
POINTS_PER_CELL_MAX: Final = 64
"""more rows than these make the points heavier, not more"""
STARTS: Final = 10
SERVER_STEPS: Final = 300
OPTIONS: Final = {
    "clusters": rounds.CLUSTERS,
    "local_clusters": LOCAL,
    "local": rounds.choice(LOCALS, "what a client's cells are around: k-means++ seeds, or what k-means makes of them"),
    "cells": Option(
        100,
        lambda value: rounds.is_whole(value, 1, CELLS_MAX),
        f"a whole number, 1 to {CELLS_MAX}",
        "steps of the grid along each feature (the paper: the root of the number of rows)",
    ),
}

# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """The cells (p, d) around at most k' centres of one's own, no cell twice, and the rows that each counts (p,)."""
    k, seed = rounds.whole(params, "local_clusters", 1), rounds.whole(params, "seed", 0)
    d = rounds.width(params)
    sample = candidates(rows, d)
    if not len(sample):
        return {"cell": np.empty((0, d), dtype=np.int64), "count": np.zeros(0)}
    centres = sample[seeds(sample, k, seed)]
    if LOCALS[rounds.whole(params, "local", 0, 1)] == "kmeans":
        centres, count = fitted(rows, centres)
    else:
        count = tallied(rows, centres)[0]
    step = _steps(params)
    places = np.rint(np.divide(centres - params["low"], step, out=np.zeros_like(centres), where=step > 0))
    cells = np.clip(places, 0, rounds.whole(params, "cells", 1)).astype(np.int64)
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
    "centre": ArraySpec("<f8", ("c", "d"), rowlike=True),
    "weight": ArraySpec("<f8", ("c",)),
    "clusters": ArraySpec("<i8", (1,)),
    "local_clusters": ArraySpec("<i8", (1,)),
    "seed": ArraySpec("<i8", (1,)),
    "local": ArraySpec("<i8", (1,)),
    "cells": ArraySpec("<i8", (1,)),
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
    option = rounds.chosen("mufc", OPTIONS, options)
    return {
        **planned(option, d, hint),
        "local": rounds.one_whole(LOCALS.index(option["local"])),
        "cells": rounds.one_whole(option["cells"]),
        "low": hint.low.astype(np.float64),
        "step": (hint.high - hint.low) / option["cells"],
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """k-means on random points in the cells; a function of the sum of the answers and the seed, and nothing else."""
    most = rounds.whole(params, "cells", 1)
    for each in answers:
        rounds.check_answer(STATS, each, rounds.width(params))
        rounds.require(((each["cell"] >= 0) & (each["cell"] <= most)).all(), "a cell outside of the grid")
        rounds.require((each["count"] > 0).all(), "a cell with no row")
    answers = [each for each in answers if len(each["count"])]
    if not answers:
        return dict(params)
    cells, counts = (np.concatenate([each[name] for each in answers]) for name in ("cell", "count"))
    points, weights = _scattered(params, _merged(cells, counts))
    k, seed = rounds.whole(params, "clusters", 1), rounds.whole(params, "seed", 0)
    centres = best_of(points, k, seed, STARTS, SERVER_STEPS, weights)
    return followed(params, centres, assigned(points, centres, weights)[0])


def _scattered(params: Params, cells: Stats) -> tuple[Floats, Floats]:
    """-> points (n, d), evenly random within their cells and the box, and the rows each stands for (n,)."""
    each = np.clip(np.rint(cells["count"]), 1, POINTS_PER_CELL_MAX).astype(np.int64)
    of_cell = np.repeat(np.arange(len(each)), each)
    generator = np.random.default_rng(rounds.whole(params, "seed", 0))
    within = generator.uniform(-0.5, 0.5, size=(len(of_cell), rounds.width(params)))
    places = np.clip(cells["cell"][of_cell] + within, 0, rounds.whole(params, "cells", 1))
    return params["low"] + places * params["step"], (cells["count"] / each)[of_cell]


MUFC: Final = RoundsAlgorithm(
    name="mufc",
    snapshot=PARAMS,
    update=STATS,
    additive=False,
    one_shot=True,
    options=OPTIONS,
    start=start,
    answer=answer,
    combine=combine,
    shift=shift,
    predict=rounds.nearest_centre,
    view=rounds.view,
)
