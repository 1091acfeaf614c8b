"""Federated k-means: exact, by sums behind centres; or by averaging what clients reach alone, as the thesis does.

`KMEANS` is Lloyd's algorithm on the rows of all clients together: each says how many rows are nearest to each
centre, and their sum. `KMEANS_LOCAL` is the federated averaging of the thesis (M. Uranga, "Federated clustering",
2024, section 4.2): each takes several of Lloyd's steps alone, and the centres reached are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.algorithms.rounds.arrays import (
    CENTRES,
    FLOAT,
    INT,
    Params,
    Stats,
    choice_array,
    float_array,
    int_array,
    read_choice,
    read_int,
    reject_unless,
    row_blocks,
    sum_answers,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.rounds.options import CLUSTERS, Option, Options, choice, is_int, resolve_options
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.kernels.distance import Floats
from shoal.kernels.lloyd import assign_block, means

AVERAGES: Final = ("weighted", "unweighted")
OPTIONS: Final = {"clusters": CLUSTERS}
LOCAL_OPTIONS: Final = {
    **OPTIONS,
    "average": choice(
        AVERAGES, "by the rows behind each centre; or plain, where a client without rows of a cluster repeats the call"
    ),
    "steps": Option(5, lambda value: is_int(value, 1, 1000), "a whole number, 1 to 1000", "of Lloyd, alone"),
}

# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """One of Lloyd's steps: of the rows nearest to each centre the number (k,) and the sum (k, d); the inertia (1,)."""
    return _sums(params["centre"], rows)


def answer_locally(params: Params, rows: Rows) -> Stats:
    """`steps` of Lloyd's steps from the call's centres, alone: per centre the rows behind it and what they add up to.

    The rows of the last step, so sum / count is where the client's centre ends.
    """
    centres = params["centre"]
    for _ in range(read_int(params, "steps", 1, 1000) - 1):
        alone = _sums(centres, rows)
        centres = means(alone["count"], alone["sum"], centres)
    return _sums(centres, rows)


def _sums(centres: Floats, rows: Rows) -> dict[str, Floats]:
    k, d = centres.shape
    count, total, inertia = np.zeros(k), np.zeros((k, d)), 0.0
    for block in row_blocks(rows, d, k):
        gained = assign_block(block, centres)
        count += gained[0]
        total += gained[1]
        inertia += gained[2]
    return {"count": count, "sum": total, "inertia": float_array(inertia)}


# What travels.

PARAMS: Final = {
    **CENTRES,
}
"""the centres, and the rows behind each when it was made: 0 for one that nobody has used yet"""
LOCAL_PARAMS: Final = {**PARAMS, "average": INT, "steps": INT}
STATS: Final = {
    "count": ArraySpec("<f8", ("k",), per_node=True),
    "sum": ArraySpec("<f8", ("k", "d"), per_node=True),
    "inertia": FLOAT,
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first centres (k, d), counted by nobody yet. Raises `SettingsError`."""
    centre = starting_centres(resolve_options("kmeans", OPTIONS, options)["clusters"], d, hint)
    return {"centre": centre, "weight": np.zeros(len(centre))}


def start_locally(options: Options, d: int, hint: InitHint) -> Params:
    """The first centres, and how clients step and the server averages. Raises `SettingsError`."""
    option = resolve_options("kmeans_local", LOCAL_OPTIONS, options)
    return {
        **start({"clusters": option["clusters"]}, d, hint),
        "average": choice_array(option["average"], AVERAGES),
        "steps": int_array(option["steps"]),
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """Sums over counts. A centre that nobody has rows of stays where it is."""
    sums = sum_answers(params, STATS, answers)
    if sums is None or not sums["count"].any():
        return dict(params)
    _check(params, sums)
    return {
        **params,
        "centre": means(sums["count"], sums["sum"], params["centre"]),
        "weight": sums["count"],
    }


def combine_locally(params: Params, answers: Sequence[Stats]) -> Params:
    """The mean of the clients' centres, weighted by the rows behind them or not."""
    weighed = combine(params, answers)
    if read_choice(params, "average", AVERAGES) == "weighted":
        return weighed
    # The thesis counts every client that has rows at all, and one without rows of a cluster repeats its centre:
    # that is what drags its centres when clients hold different clusters.
    speakers = [each for each in answers if each["count"].any()]
    if not speakers:
        return dict(params)
    centres = [means(each["count"], each["sum"], params["centre"]) for each in speakers]
    return {**weighed, "centre": np.mean(centres, axis=0)}


def _check(params: Params, sums: Stats) -> None:
    reject_unless(sums["count"].shape == params["weight"].shape, "of another number of centres than the call has")
    reject_unless((sums["count"] >= 0).all(), "fewer than no rows")


def shift(before: Params, after: Params) -> float:
    """How far the centres moved together: the Frobenius norm of their difference."""
    return float(np.linalg.norm(after["centre"] - before["centre"]))


KMEANS: Final = RoundsAlgorithm(
    name="kmeans",
    snapshot=PARAMS,
    update=STATS,
    additive=True,
    options=OPTIONS,
    start=start,
    answer=answer,
    combine=combine,
    shift=shift,
)
KMEANS_LOCAL: Final = RoundsAlgorithm(
    name="kmeans_local",
    snapshot=LOCAL_PARAMS,
    update=STATS,
    options=LOCAL_OPTIONS,
    start=start_locally,
    answer=answer_locally,
    combine=combine_locally,
    shift=shift,
    paper_only=True,
)
