"""k-FED: federated clustering in one round. Each client clusters its rows, and the server clusters
the centres.

Source: D. K. Dennis, T. Li, V. Smith, "Heterogeneity for the win: one-shot federated clustering"
(2021): algorithm 1 (Awasthi and Sheffet's local clustering) and algorithm 2, which is
`pick = "farthest"` with `average = "unweighted"`. Clients also send the number of rows of each
centre, which the paper's server does not use. The defaults use it: the centres of clients that have
few of the clusters, or many pieces of one, mislead a server that counts all centres alike
(benchmarks/rounds/tables.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np

from shoal.algorithms.options import Options, option
from shoal.algorithms.rounds.arrays import (
    INT,
    Params,
    Stats,
    check_answer,
    choice_array,
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
    fit_lloyd,
    forget_centres,
    keep_order,
    nonempty_centres,
    plan_params,
    shift,
)
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.kernels.arrays import Floats
from shoal.kernels.distance import block_rows, squared_by_differences, squared_distances
from shoal.kernels.lloyd import assign, best_kmeans, kmeans_plusplus, lloyd

Average = Literal["unweighted", "weighted"]
Pick = Literal["farthest", "seeded"]
AVERAGES: Final = get_args(Average)
PICKS: Final = get_args(Pick)
SEPARATION: Final = 3.0
"""a row counts for its seed if every other seed is at least this many times as far away (algorithm
1, step 3)"""
SERVER_STEPS: Final = 300
STARTS: Final = 10
"""starts by k-means++, of which the one of least inertia counts: single ones miss clusters"""
STARTS_WORK_MAX: Final = 4_000_000
"""points x clusters x features of all starts together: hundreds of clusters of many clients get
fewer starts, one at least, as a server combines again with each answer that it keeps"""


class KFedOptions(OneShotOptions):
    """Options of kfed."""

    ALGORITHM = "kfed"

    average: Average = option(
        "weighted",
        "of the centres in a group: weighted by their rows, or the plain mean of the paper",
    )
    pick: Pick = option(
        "seeded",
        "how the server starts: by k-means++, the best of up to ten starts; or, as in the paper, "
        "from the first client's centres and then the farthest from all",
    )


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """Algorithm 1 -> at most k' centres of the client's rows (p, d), and the number of rows of each
    (p,)."""
    k = read_int(params, "local_clusters", 1)
    seed = read_int(params, "seed", 0)
    sample = candidates(rows, n_features(params))
    if not len(sample):
        return {"prototype": sample, "count": np.zeros(0)}
    centres, count = fit_lloyd(rows, _separated(sample, k, seed))
    return nonempty_centres(centres, count, "prototype")


def _separated(rows: Floats, k: int, seed: int) -> Floats:
    """rows (n, d) -> starting centres (<= k, d) of Lloyd's algorithm.

    They are k-means++ seeds among the rows' projections on their k main directions, each moved to
    the mean of the rows that clearly belong to it (algorithm 1, steps 1 to 3).
    """
    plane = np.eye(rows.shape[1])
    if k < rows.shape[1]:
        # Scaled, so that fourth powers do not overflow.
        scaled = rows / (np.abs(rows).max() or 1.0)
        # Eigenvalues ascend, so that the last k vectors are the leading directions.
        plane = np.linalg.eigh(scaled.T @ scaled)[1][:, -k:]
    flat = rows @ plane
    first = flat[kmeans_plusplus(flat, k, seed)]
    count = np.zeros(len(first))
    total = np.zeros_like(first)
    height = block_rows(*first.shape)
    for start in range(0, len(flat), height):
        far = np.sqrt(squared_distances(flat[start : start + height], first))
        own = far.argmin(axis=1)
        positions = np.arange(len(far))
        nearest = far[positions, own]
        far[positions, own] = np.inf
        clear = far.min(axis=1) >= SEPARATION * nearest
        np.add.at(count, own[clear], 1.0)
        np.add.at(total, own[clear], flat[start : start + height][clear])
    first[count > 0] = total[count > 0] / count[count > 0, None]
    return np.asarray(first @ plane.T)


# What travels.

PARAMS: Final = {**ONE_SHOT_PARAMS, "average": INT, "pick": INT}
STATS: Final = {
    "prototype": ArraySpec("<f8", ("p", "d"), rowlike=True, per_node=True),
    "count": ArraySpec("<f8", ("p",), per_node=True),
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """Parameters without centres: the options that both halves need. Raises `SettingsError`."""
    chosen = KFedOptions.parse(options)
    return {
        **plan_params(chosen, d, hint),
        "average": choice_array(chosen.average, AVERAGES),
        "pick": choice_array(chosen.pick, PICKS),
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """Algorithm 2, with Lloyd's algorithm to convergence, as in its authors' program, or weighted
    k-means from several starts."""
    for stats in answers:
        check_answer(STATS, stats, n_features(params))
        reject_unless((stats["count"] > 0).all(), "a centre without rows")
    with_rows = [stats for stats in answers if len(stats["count"])]
    if not with_rows:
        return dict(params)
    points = np.concatenate([stats["prototype"] for stats in with_rows])
    count = np.concatenate([stats["count"] for stats in with_rows])
    k = read_int(params, "clusters", 1)
    weights = count if read_choice(params, "average", AVERAGES) == "weighted" else None
    if read_choice(params, "pick", PICKS) == "farthest":
        first = _farthest(points, min(len(with_rows[0]["count"]), k), k)
        centres, _ = lloyd(points, first, SERVER_STEPS, 0.0, weights)
    else:
        seed = read_int(params, "seed", 0)
        centres = best_kmeans(points, k, seed, starts_for(points, k), SERVER_STEPS, weights)
    # A cluster keeps its number over rounds, whatever order Lloyd has found it in.
    return keep_order(params, centres, assign(points, centres, count)[0])


def starts_for(points: Floats, k: int) -> int:
    """Number of starts for the centres (n, d) of all clients."""
    return max(1, min(STARTS, STARTS_WORK_MAX // (points.size * k)))


def _farthest(points: Floats, begun: int, k: int) -> Floats:
    """The first `begun` points, and then one by one the point farthest from those chosen, until
    there are k.

    Fewer when all other points equal chosen ones.
    """
    chosen = list(range(begun))
    least = squared_by_differences(points, points[:begun]).min(axis=1)
    while len(chosen) < k and least.max() > 0:
        chosen.append(int(least.argmax()))
        np.minimum(least, squared_by_differences(points, points[chosen[-1:]])[:, 0], out=least)
    return np.asarray(points[chosen])


KFED: Final = RoundsAlgorithm(
    name="kfed",
    snapshot=PARAMS,
    update=STATS,
    one_shot=True,
    options=KFedOptions,
    start=start,
    answer=answer,
    combine=combine,
    check_claims=check_local_counts,
    robust=CLUSTERED_ANSWERS,
    shift=shift,
    forget=forget_centres,
)
