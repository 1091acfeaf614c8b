"""Landmark spectral clustering by sums: clusters of any shape, in any number of features.

Clients send prototypes, from which the server chooses landmarks; then the Gram matrix of their
rows' weights on the landmarks, which adds up over clients. So the graph that is cut is that of all
rows, whichever client has which rows.

Sources: M. Uranga, "Federated clustering" (2024), section 3.4 and algorithm 8 (after J. Thakkar, D.
Joshi, 2023), which averages iterations on graphs of each client's own rows. That needs the same
nodes on every client, which rows are not; landmarks are. The graph is X. Chen and D. Cai's, "Large
scale spectral clustering with landmark-based representation" (2011); embedding and k-means are A.
Ng, M. Jordan and Y. Weiss's, "On spectral clustering" (2001).

Landmarks make an *epoch*: answers to another epoch than the newest do not count. A new one begins
when rows lie much farther from the landmarks than in its first round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from shoal.algorithms.claims import (
    ROUNDING_SHARE,
    Claims,
    check_at_most,
    check_between,
    check_definite,
    check_masses,
    require_possible,
)
from shoal.algorithms.options import CLUSTERS_MAX, AlgorithmOptions, Number, Options, option
from shoal.algorithms.rounds.arrays import (
    CENTRES,
    FLOAT,
    INT,
    Params,
    Stats,
    check_answer,
    choice_array,
    float_array,
    int_array,
    label_rows,
    n_features,
    read_choice,
    read_float,
    read_int,
    reject_unless,
    require_centres,
    row_blocks,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.one_shot import candidates, count_and_sum
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.algorithms.view import NO_CLUSTER, ClusteringView
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, Ints, pack_symmetric, unpack_symmetric
from shoal.kernels.distance import nearest
from shoal.kernels.landmarks import (
    MASS_MIN,
    STARTS,
    STEPS,
    add_gram,
    cut_graph,
    embedded,
    landmark_bandwidth,
    nearest_weights,
)
from shoal.kernels.lloyd import best_kmeans, kmeans_plusplus, lloyd, means
from shoal.kernels.matching import follow_clusters

STAGES: Final = ("prototypes", "gram")
"""what clients answer with: prototypes, from which landmarks are chosen, or the Gram matrix of
their rows on the landmarks"""
LANDMARKS_MAX: Final = 400
"""an answer has a square of them, and the server takes its eigenvectors: work grows with their
cube"""
NEAR_MAX: Final = 10
"""a row that ties more landmarks together ties those of different clusters"""
BANDWIDTH_FACTOR: Final = 0.5
"""times the median distance of landmarks to the nearest other one"""
CLIENT_STEPS: Final = 20
BLOCK_SHARE: Final = 3
"""factor by which blocks of rows are larger than those for k-means: each row is sorted into few
landmarks"""
RENEW_FACTOR: Final = 2.0
"""growth of the mean squared distance of rows to landmarks, since the first round of an epoch, that
begins a new one"""
KEPT_MASS: Final = 0.1
"""factor on the mass of earlier landmarks when new ones are chosen: it keeps places whose clients
do not answer now"""


class SpectralOptions(AlgorithmOptions):
    """Options of spectral."""

    ALGORITHM = "spectral"

    clusters: Number | Literal["eigengap"] = option(
        "eigengap",
        'number of clusters; "eigengap": as many as the eigenvalues and cuts of the graph show, '
        "1 to 20",
    )
    landmarks: int = option(
        100,
        "number of landmarks; fewer even out noise, more follow finer shapes",
        least=2,
        most=LANDMARKS_MAX,
    )
    prototypes: int = option(
        60,
        "number of prototypes of its rows that each client sends when landmarks are chosen",
        least=1,
        most=LANDMARKS_MAX,
    )
    near: int = option(
        3, "number of nearest landmarks that each row ties together", least=2, most=NEAR_MAX
    )


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """A client's answer in the stage of the round request.

    Prototypes: at most as many means of rows (p, d) as the request says, and the rows of each (p,).
    Gram matrix: its upper triangle (t,) for the q landmarks, and the sum of the squared distances
    of the rows to the nearest of them.
    """
    d = n_features(params)
    prototype = np.empty((0, d))
    count = np.empty(0)
    triangle = np.empty(0)
    error = 0.0
    epoch = read_int(params, "epoch", 1)
    if read_choice(params, "stage", STAGES) == "prototypes":
        most = read_int(params, "prototypes", 1)
        prototype, count = _prototypes(rows, d, most, read_int(params, "seed", 0))
    else:
        triangle, error = _gram_triangle(params, rows)
    # A client without rows answers for no epoch, so that its zeros are no answer of this one.
    if len(count) == 0 and not triangle.any():
        epoch = 0
    return {
        "epoch": int_array(epoch),
        "prototype": prototype,
        "count": count,
        "gram": triangle,
        "error": float_array(error),
    }


def _gram_triangle(params: Params, rows: Rows) -> tuple[Floats, float]:
    """The upper triangle (t,) of the Gram matrix of the rows' weights on the landmarks.

    -> the triangle, and the sum of the squared distances of the rows to their nearest landmarks.
    """
    check_landmarks(params)
    landmarks = params["landmark"]
    bandwidth = read_float(params, "bandwidth", above=0.0)
    near = read_int(params, "near", 2, NEAR_MAX)
    gram = np.zeros((len(landmarks), len(landmarks)))
    error = 0.0
    for block in row_blocks(rows, n_features(params), max(1, len(landmarks) // BLOCK_SHARE)):
        which, weights, square = nearest_weights(block, landmarks, bandwidth, near)
        add_gram(gram, which, weights)
        error += float(square.sum())
    # Half of a symmetric matrix: an answer of 400 landmarks is 640 KB so, near the largest record.
    return pack_symmetric(gram[None])[0], error


def check_landmarks(params: Params) -> None:
    """Raises `InvalidData` for too many landmarks, or clusters that do not exist.

    In the stage of the Gram matrix, where rows are sorted into them, there must be a landmark.
    """
    if read_choice(params, "stage", STAGES) == "gram":
        require_centres(params, "landmark")
    # A forged request must not make a client fill its memory with a square of landmarks.
    if len(params["landmark"]) > LANDMARKS_MAX:
        raise InvalidData(
            f"parameter landmark must hold at most {LANDMARKS_MAX} rows; "
            "the round request is damaged"
        )
    cluster = params["cluster"]
    if not ((cluster >= NO_CLUSTER) & (cluster < len(params["weight"]))).all():
        raise InvalidData(
            "parameter cluster holds a cluster that does not exist; the round request is damaged"
        )


def _prototypes(rows: Rows, d: int, most: int, seed: int) -> tuple[Floats, Floats]:
    """rows (n, d) -> means (p, d) of at most `most` groups of rows, and the rows in each (p,)."""
    sample = candidates(rows, d)
    if not len(sample):
        return sample, np.empty(0)
    centres, _ = lloyd(sample, sample[kmeans_plusplus(sample, most, seed)], CLIENT_STEPS)
    count, total = count_and_sum(rows, centres)
    # Counts are of all rows, though the centres are found in a sample of them.
    return means(count, total, centres)[count > 0], count[count > 0]


# What travels.

PARAMS: Final = {
    **CENTRES,
    "identity": ArraySpec("<i8", ("k",)),
    "stage": INT,
    "epoch": INT,
    "landmark": ArraySpec("<f8", ("q", "d"), rowlike=True),
    "mass": ArraySpec("<f8", ("q",)),
    "cluster": ArraySpec("<i8", ("q",)),
    "basis": ArraySpec("<f8", ("q", "e")),
    "direction": ArraySpec("<f8", ("k", "e")),
    "bandwidth": FLOAT,
    "error": ArraySpec("<f8", ("t",)),
    "eigenvalue": ArraySpec("<f8", ("v",)),
    "clusters": INT,
    "landmarks": INT,
    "prototypes": INT,
    "near": INT,
    "seed": INT,
}
"""means, masses and lasting numbers of the clusters; the stage; the epoch, its landmarks,
the rows that each stands for, its cluster (-1: none) and its place in the embedding; the clusters'
directions in that; the mean squared distance to landmarks in the first round of the epoch, empty
before; the smallest eigenvalues; the options"""
STATS: Final = {
    "epoch": INT,
    "prototype": ArraySpec("<f8", ("p", "d"), rowlike=True, per_node=True),
    "count": ArraySpec("<f8", ("p",), per_node=True),
    "gram": ArraySpec("<f8", ("t",)),
    "error": FLOAT,
}
"""the epoch that is answered, 0 without rows; prototypes and their rows, or Gram matrix and squared
distances"""

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """Parameters without landmarks, which ask for prototypes. Raises `SettingsError`."""
    chosen = SpectralOptions.parse(options)
    clusters = 0 if chosen.clusters == "eigengap" else chosen.clusters
    return {
        "centre": np.empty((0, d)),
        "weight": np.empty(0),
        "identity": np.empty(0, dtype=np.int64),
        "stage": choice_array("prototypes", STAGES),
        "epoch": int_array(1),
        "landmark": np.empty((0, d)),
        "mass": np.empty(0),
        "cluster": np.empty(0, dtype=np.int64),
        "basis": np.empty((0, 0)),
        "direction": np.empty((0, 0)),
        "bandwidth": float_array(1.0),
        "error": np.empty(0),
        "eigenvalue": np.empty(0),
        "clusters": int_array(clusters),
        "landmarks": int_array(chosen.landmarks),
        "prototypes": int_array(chosen.prototypes),
        "near": int_array(chosen.near),
        "seed": int_array(hint.seed),
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless prototypes, or Gram matrix and distances, can be those of the
    rows.

    The weights of each row add up to 1, so the entries of the Gram matrix add up to the number of
    rows.
    """
    check_at_most("count", len(stats["count"]), read_int(params, "prototypes", 1))
    check_masses("count", stats["count"], claims)
    # The q for which q (q + 1) / 2 is the length of the triangle, if there is one.
    q = (math.isqrt(8 * len(stats["gram"]) + 1) - 1) // 2
    require_possible(
        q * (q + 1) // 2 == len(stats["gram"]) and q <= LANDMARKS_MAX,
        "gram is no triangle of a matrix",
    )
    gram = unpack_symmetric(stats["gram"][None], q)[0]
    check_masses("gram", gram, claims)
    # A sum of outer products has no negative eigenvalue, but for rounding of its sums.
    check_definite((gram + ROUNDING_SHARE * claims.readings * np.eye(q))[None])
    check_between(
        "error", float(stats["error"][0]), 0.0, claims.readings * claims.box.diagonal_squared
    )


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """New landmarks, or the clusters of the graph of landmarks; answers to other epochs do not
    count."""
    q = len(params["landmark"])
    epoch = read_int(params, "epoch", 1)
    for stats in answers:
        check_answer(STATS, stats, n_features(params))
        reject_unless(0 <= stats["epoch"][0] <= epoch, "an epoch that has not begun")
        reject_unless((stats["count"] > 0).all(), "a prototype without rows")
        squares = (stats["gram"] >= 0).all() and stats["error"][0] >= 0
        reject_unless(squares, "a sum of squares below 0")
    # Landmarks change with the epoch: sums on other landmarks have nothing in common with these.
    current = [stats for stats in answers if stats["epoch"][0] == epoch]
    if read_choice(params, "stage", STAGES) == "prototypes":
        with_prototypes = [stats for stats in current if len(stats["count"])]
        if with_prototypes:
            return _with_landmarks(params, with_prototypes)
        return dict(params)
    with_gram = [stats for stats in current if not len(stats["count"])]
    for stats in with_gram:
        reject_unless(
            len(stats["gram"]) == q * (q + 1) // 2,
            "another number of landmarks than the round request has",
        )
    if not with_gram:
        return dict(params)
    triangle = np.sum([stats["gram"] for stats in with_gram], axis=0)
    gram = unpack_symmetric(triangle[None], q)[0]
    # Nobody has rows now: the clusters stay as they are.
    if not (gram.sum(axis=1) > MASS_MIN).any():
        return dict(params)
    error = float(np.sum([stats["error"] for stats in with_gram]))
    return _with_clusters(params, gram, error)


def _with_landmarks(params: Params, answers: Sequence[Stats]) -> Params:
    """New landmarks: weighted k-means of the prototypes and the earlier landmarks.

    Until the graph of the new landmarks is known, each has the cluster that it would have as a row.
    """
    points = np.concatenate([params["landmark"], *(stats["prototype"] for stats in answers)])
    weights = np.concatenate([KEPT_MASS * params["mass"], *(stats["count"] for stats in answers)])
    # Landmarks that no row came near any more would be chosen as starts all the same.
    points = points[weights > 0]
    weights = weights[weights > 0]
    wanted = read_int(params, "landmarks", 2)
    seed = read_int(params, "seed", 0)
    landmark = best_kmeans(points, wanted, seed, STARTS, STEPS, weights)
    q = len(landmark)
    k = len(params["weight"])
    cluster = predict(params, landmark)
    mass = np.zeros(q)
    basis = np.empty((q, 0))
    if k:
        mass = np.ones(q)
        # Each landmark at the direction of its cluster, so that rows near it are labelled so.
        basis = np.eye(k)[cluster]
    return {
        **params,
        "stage": choice_array("gram", STAGES),
        "landmark": landmark,
        "mass": mass,
        "cluster": cluster,
        "basis": basis,
        "direction": np.eye(k),
        "bandwidth": float_array(landmark_bandwidth(landmark, BANDWIDTH_FACTOR)),
        "error": np.empty(0),
    }


def _with_clusters(params: Params, gram: Floats, error: float) -> Params:
    """The clusters of the graph.

    Where the landmarks have become too coarse, the next stage chooses new ones.
    """
    mass = gram.sum(axis=1)
    cut = cut_graph(
        gram, read_int(params, "clusters", 0, CLUSTERS_MAX), read_int(params, "seed", 0)
    )
    live = cut.cluster >= 0
    k = len(cut.direction)
    # Eigenvectors have any sign and rotation, so clusters come in any order; they keep that of
    # those before.
    order, before = follow_clusters(params["cluster"][live], cut.cluster[live], mass[live], k)
    cluster = np.where(live, np.argsort(order)[cut.cluster], NO_CLUSTER)
    fresh = int(params["identity"].max(initial=0)) + np.cumsum(before < 0)
    weight = np.bincount(cluster[live], mass[live], k).astype(np.float64)
    sums = np.zeros((k, n_features(params)))
    np.add.at(sums, cluster[live], params["landmark"][live] * mass[live, None])
    # Landmarks that the rows have left would cut a graph of places where nothing is any more.
    per_row = error / mass.sum()
    first_error = params["error"]
    if len(first_error) == 0:
        first_error = float_array(per_row)
    renew = per_row > RENEW_FACTOR * first_error[0]
    stage = "prototypes" if renew else "gram"
    return {
        **params,
        "centre": means(weight, sums, np.zeros_like(sums)),
        "weight": weight,
        "identity": np.where(before >= 0, np.append(params["identity"], 0)[before], fresh),
        "stage": choice_array(stage, STAGES),
        "epoch": params["epoch"] + renew,
        "mass": mass,
        "cluster": cluster,
        "basis": cut.basis,
        "direction": cut.direction[order],
        "error": first_error,
        "eigenvalue": cut.values,
    }


def shift(before: Params, after: Params) -> float:
    """The share of the mass whose landmark has changed its cluster.

    It is infinite until an epoch has its first clusters, and when a new one begins.
    """
    # Until both have clusters there is nothing to compare, and rounds must go on.
    if not len(before["error"]) or not len(after["error"]):
        return math.inf
    if read_choice(after, "stage", STAGES) == "prototypes":
        return math.inf
    moved = before["cluster"] != after["cluster"]
    return float(after["mass"][moved].sum() / after["mass"].sum())


def predict(params: Params, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) cluster of each, by its direction in the embedding.

    It is -1 before there are any clusters. Raises `InvalidData`.
    """
    live = params["mass"] > MASS_MIN
    # A landmark without rows has no place in the embedding.
    landmarks = params["landmark"][live]
    basis = params["basis"][live]
    bandwidth = read_float(params, "bandwidth", above=0.0)
    near = read_int(params, "near", 2, NEAR_MAX)
    direction = params["direction"]
    if direction.shape != (len(params["weight"]), params["basis"].shape[1]):
        raise InvalidData(
            "parameters basis and direction must have as many columns; the round request is damaged"
        )

    def label(block: Floats) -> Ints:
        if not len(landmarks) or not len(direction):
            return np.full(len(block), NO_CLUSTER, dtype=np.int64)
        which, weights, _ = nearest_weights(block, landmarks, bandwidth, near)
        return nearest(embedded(which, weights, basis), direction)[0]

    return label_rows(rows, n_features(params), max(1, len(landmarks) // BLOCK_SHARE), label)


def view(params: Params) -> ClusteringView:
    """The clustering in which each landmark is a node.

    Clusters keep their identity when landmarks change, by the rows that they share.
    """
    check_landmarks(params)
    epoch = read_int(params, "epoch", 1)
    if read_choice(params, "stage", STAGES) == "prototypes":
        # The number of the epoch is already that of the landmarks to come.
        epoch -= 1
    node_id = epoch * LANDMARKS_MAX + np.arange(len(params["landmark"]))
    return ClusteringView.from_nodes(
        params["landmark"],
        params["mass"],
        params["cluster"],
        node_id=node_id,
        centres=params["centre"],
        centre_mass=params["weight"],
        identity=params["identity"],
        accumulates=False,
    )


SPECTRAL: Final = RoundsAlgorithm(
    name="spectral",
    snapshot=PARAMS,
    update=STATS,
    options=SpectralOptions,
    start=start,
    answer=answer,
    combine=combine,
    check_claims=check_claims,
    robust=(
        "a tie between two landmarks is that of all clients' rows, so there is nothing to compare "
        "between clients"
    ),
    shift=shift,
    predict=predict,
    predictor=None,
    view=view,
)
