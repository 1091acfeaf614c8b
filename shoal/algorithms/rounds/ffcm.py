"""Federated fuzzy c-means by averaging centres (FFCM), with both of its averages.

Source: M. Stallmann, A. Wilbik, "Towards federated clustering: a federated fuzzy c-means algorithm
(FFCM)" (2022): steps 1 to 6, eq. 7 (support), eq. 8 (avg1), eq. 9 (avg2). The paper and its program
differ in two points, which are options here. `local`: step 3 of the paper reads as one step from
the centres received, the program runs to convergence. `support`: the paper weights by memberships
to the power of the fuzzifier, the program by memberships. With one step and powers, avg1 is the
exact algorithm of `shoal.algorithms.rounds.fcm`, with which FFCM is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np

from shoal.algorithms.claims import Claims, check_at_most, check_masses
from shoal.algorithms.options import AlgorithmOptions, Clusters, Options, clusters_option, option
from shoal.algorithms.rounds.arrays import (
    FLOAT,
    INT,
    SOME_CENTRES,
    Params,
    Stats,
    check_answer,
    choice_array,
    float_array,
    int_array,
    n_features,
    read_choice,
    read_float,
    read_int,
    reject_unless,
    require_centres,
    row_blocks,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.fcm import fuzzifier_option, fuzzy_sums
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.rounds.one_shot import candidates
from shoal.algorithms.rounds.robust import RobustForm
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.kernels.arrays import Floats
from shoal.kernels.distance import squared_distances
from shoal.kernels.fuzzy import memberships
from shoal.kernels.lloyd import best_kmeans, lloyd, means
from shoal.kernels.matching import match_order

Average = Literal["avg1", "avg2"]
Local = Literal["fit", "step"]
Support = Literal["memberships", "powers"]
AVERAGES: Final = get_args(Average)
LOCALS: Final = get_args(Local)
SUPPORTS: Final = get_args(Support)
LOCAL_STEPS: Final = 1000
SERVER_STARTS: Final = 10
SERVER_STEPS: Final = 300


class FFCMOptions(AlgorithmOptions):
    """Options of ffcm."""

    ALGORITHM = "ffcm"

    clusters: Clusters = clusters_option()
    fuzzifier: float = fuzzifier_option()
    average: Average = option(
        "avg1", "the mean of centres in the same position, weighted by support; or k-means on all"
    )
    local: Local = option(
        "fit",
        "what a client runs from the centres received: fuzzy c-means to convergence, or one step",
    )
    support: Support = option(
        "memberships", "weight of a centre: the sum of its memberships, or of their powers"
    )
    tolerance: float = option(
        1e-4,
        "a client's fit has converged when its centres move less than this share of the rows' "
        "standard deviation",
        above=0.0,
        most=1.0,
    )


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """Steps 3 and 4 -> the client's own centres (p, d), in the order of those received, and their
    support (p,)."""
    require_centres(params)
    centres = params["centre"]
    fuzzifier = read_float(params, "fuzzifier", above=1.0)
    sample = candidates(rows, n_features(params))
    if not len(sample):
        return {"prototype": sample, "support": np.zeros(0)}
    fit = read_choice(params, "local", LOCALS) == "fit"
    # Scaled, so that the squares of large values do not overflow in the standard deviation.
    scale = float(np.abs(sample).max()) or 1.0
    still = read_float(params, "tolerance", above=0.0) * float(np.std(sample / scale)) * scale
    for _ in range(LOCAL_STEPS if fit else 1):
        mass, total = fuzzy_sums(centres, fuzzifier, rows)
        before = centres
        centres = means(mass, total, centres)
        if np.abs(centres - before).max() <= still:
            break
    if read_choice(params, "support", SUPPORTS) == "memberships":
        mass = _memberships(centres, fuzzifier, rows)
    return {"prototype": centres.copy(), "support": mass}


def _memberships(centres: Floats, fuzzifier: float, rows: Rows) -> Floats:
    """centres (k, d), rows (n, d) -> (k,) the sum of the memberships in each centre."""
    k, d = centres.shape
    total = np.zeros(k)
    for block in row_blocks(rows, d, k):
        total += memberships(squared_distances(block, centres), fuzzifier).sum(axis=0)
    return total


# What travels.

PARAMS: Final = {
    **SOME_CENTRES,
    "fuzzifier": FLOAT,
    "tolerance": FLOAT,
    "average": INT,
    "local": INT,
    "support": INT,
    "seed": INT,
}
"""besides the centres and their support, the options, and the seed of the first k-means of avg2"""
STATS: Final = {
    "prototype": ArraySpec("<f8", ("p", "d"), rowlike=True, per_node=True),
    "support": ArraySpec("<f8", ("p",), per_node=True),
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first centres (k, d), and the options that clients and server need. Raises
    `SettingsError`."""
    chosen = FFCMOptions.parse(options)
    centre = starting_centres(chosen.clusters, d, hint)
    return {
        "centre": centre,
        "weight": np.zeros(len(centre)),
        "fuzzifier": float_array(chosen.fuzzifier),
        "tolerance": float_array(chosen.tolerance),
        "average": choice_array(chosen.average, AVERAGES),
        "local": choice_array(chosen.local, LOCALS),
        "support": choice_array(chosen.support, SUPPORTS),
        "seed": int_array(hint.seed),
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless the supports (sums of memberships, or of powers) can be those of
    the rows."""
    check_at_most("prototype", len(stats["prototype"]), len(params["centre"]))
    check_masses("support", stats["support"], claims)


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """Step 5: the average of the clients' centres. Clients without rows are left out."""
    k = len(params["centre"])
    for stats in answers:
        check_answer(STATS, stats, n_features(params))
        reject_unless(
            len(stats["support"]) in (0, k), "another number of centres than the round request has"
        )
        reject_unless((stats["support"] >= 0).all(), "a support below 0")
    with_rows = [stats for stats in answers if len(stats["support"])]
    if not with_rows:
        return dict(params)
    centres = np.stack([stats["prototype"] for stats in with_rows])
    support = np.stack([stats["support"] for stats in with_rows])
    if read_choice(params, "average", AVERAGES) == "avg1":
        # Eq. 8.
        total = np.einsum("ck,ckd->kd", support, centres)
        return {
            **params,
            "centre": means(support.sum(axis=0), total, params["centre"]),
            "weight": support.sum(axis=0),
        }
    return _regrouped(params, centres.reshape(-1, centres.shape[2]), support.reshape(-1))


def _regrouped(params: Params, centres: Floats, support: Floats) -> Params:
    """Eq. 9: k-means on the centres of all clients, unweighted.

    It starts by k-means++ in the first round, later from the previous centres, which keeps their
    order.
    """
    before = params["centre"]
    if params["weight"].any():
        centre, _ = lloyd(centres, before, SERVER_STEPS)
    else:
        seed = read_int(params, "seed", 0)
        centre = best_kmeans(centres, len(before), seed, SERVER_STARTS, SERVER_STEPS)
        if len(centre) == len(before):
            centre = centre[match_order(before, centre)]
        else:
            # Fewer centres of clients differ than there are clusters: the others stay.
            centre = np.concatenate([centre, before[len(centre) :]])
    cluster = squared_distances(centres, centre).argmin(axis=1)
    weight = np.bincount(cluster, support, len(centre)).astype(np.float64)
    return {**params, "centre": centre, "weight": weight}


def _refuse_regrouped(options: Options) -> str:
    """Why answers cannot be combined robustly under these options; empty where they can."""
    if options.get("average") == "avg2":
        return 'average = "avg2" clusters the centres of all clients instead of averaging them'
    return ""


FFCM: Final = RoundsAlgorithm(
    name="ffcm",
    snapshot=PARAMS,
    update=STATS,
    options=FFCMOptions,
    start=start,
    answer=answer,
    combine=combine,
    check_claims=check_claims,
    robust=RobustForm(
        mass="support", moments=("prototype",), sums=False, refuses=_refuse_regrouped
    ),
    paper_only=True,
)
