"""Every algorithm of the registry on the same two data sets, for the pictures of docs/explanation/gallery.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import is_in_rounds, rounds_algorithm, streaming_algorithm
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.rounds.simulation import bounding_box, kfed_hint, run_rounds
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.algorithms.view import ClusteringView
from shoal.evaluation.results import Figure, Result, python_format
from shoal.evaluation.scores import scores

Rows = NDArray[np.float64]

CLIENTS: Final = 5
PORTION: Final = 100
"""rows that a client learns between two updates, for algorithms that learn a stream"""
READINGS_OF_A_ROW: Final = 8
ROUNDS_MAX: Final = 100
CURVE_POINTS: Final = 201
TOLERANCE: Final = 1e-6
FORMATS: Final = {"rounds": python_format(".0f"), "ari": python_format(".2f")}
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{
        name: {"grow_readings": CLIENTS * PORTION}
        for name in ("density_tree", "kmeans_from_counts", "fcm_from_counts", "gmm_from_counts")
    },
    "gmm": {"covariance": "full"},
    "gmm_local": {"covariance": "full"},
}


@dataclass(frozen=True)
class DataSet:
    """Rows in the unit square, the true cluster of each and the client that holds it."""

    name: str
    rows: Rows
    """(n, 2)"""
    classes: NDArray[np.int64]
    """(n,)"""
    owner: NDArray[np.int64]
    """(n,)"""

    @property
    def clusters(self) -> int:
        """Number of true clusters."""
        return len(np.unique(self.classes))

    @property
    def clients(self) -> list[Rows]:
        """One table for each client."""
        return [self.rows[self.owner == client] for client in range(CLIENTS)]


class Clustering(NamedTuple):
    """The clustering that an algorithm finds in a data set."""

    labels: NDArray[np.int64]
    """(n,) cluster of each row, -1 where it has none"""
    view: ClusteringView
    rounds: int | None
    """rounds until the algorithm converged; None for algorithms that learn a stream"""
    ari: float
    curve: Rows | None = None
    """(m, 2) the predictions of an algorithm that predicts the second feature from the first"""


def blobs(seed: int = 0) -> DataSet:
    """Five round clusters of one size; every client holds rows of each."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.2, 0.2], [0.8, 0.2], [0.5, 0.5], [0.2, 0.8], [0.8, 0.8]])
    classes = np.repeat(np.arange(5), 240)
    rows = centres[classes] + rng.normal(0.0, 0.06, (len(classes), 2))
    return _shuffled("blobs", rng, rows, classes, rng.integers(0, CLIENTS, len(classes)))


def skewed(seed: int = 0) -> DataSet:
    """Four clusters of different sizes and shapes; each client holds rows of two, and clients differ in size."""
    rng = np.random.default_rng(seed)
    shapes = [
        (500, (0.25, 0.72), ((0.0049, 0.0), (0.0, 0.0049))),
        (60, (0.55, 0.80), ((0.0004, 0.0), (0.0, 0.0004))),
        (400, (0.35, 0.25), ((0.0225, 0.0), (0.0, 0.0006))),
        (240, (0.78, 0.52), ((0.0060, 0.0055), (0.0055, 0.0060))),
    ]
    rows = np.concatenate([rng.multivariate_normal(centre, spread, n) for n, centre, spread in shapes])
    classes = np.repeat(np.arange(len(shapes)), [n for n, _, _ in shapes])
    holders = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 3], [3, 0, 0]])
    owner = holders[classes, rng.choice(3, len(classes), p=(0.6, 0.3, 0.1))]
    return _shuffled("skewed", rng, rows, classes, owner)


DATA_SETS: Final[tuple[Callable[[int], DataSet], ...]] = (blobs, skewed)


def cluster(algorithm: str, data: DataSet, seed: int = 0) -> Clustering:
    """Run one algorithm of the registry over the clients of a data set. Raises `MissingExtra` without scikit-learn."""
    if not is_in_rounds(algorithm):
        return _cluster_stream(algorithm, data, seed)
    return _cluster_in_rounds(rounds_algorithm(algorithm), data, seed)


def results(clusterings: Mapping[tuple[str, str], Clustering]) -> list[Result]:
    """One result for each clustering, by algorithm and data set."""
    return [
        Result(
            {"algorithm": algorithm, "dataset": data},
            1,
            {
                **({} if found.rounds is None else {"rounds": Figure(found.rounds)}),
                "ari": Figure(found.ari),
            },
            {},
            {},
        )
        for (algorithm, data), found in clusterings.items()
    ]


def _cluster_stream(name: str, data: DataSet, seed: int) -> Clustering:
    algorithm = streaming_algorithm(name)
    if isinstance(algorithm, CountingAlgorithm):
        return _cluster_counts(algorithm, data)
    server = algorithm.server({}, 2)
    clients = [algorithm.client({}, 2) for _ in range(CLIENTS)]
    for start in range(0, max(map(len, data.clients)), PORTION):
        for number, (client, rows) in enumerate(zip(clients, data.clients, strict=True)):
            client.learn(rows[start : start + PORTION])
            contribution = Contribution(str(number), start // PORTION + 1, client.contribute())
            server.absorb([contribution], f"{seed} {start} {number}".encode())
    snapshot = server.snapshot()
    labels = algorithm.predict(snapshot, data.rows)
    return Clustering(labels, algorithm.view(snapshot), None, scores(data.classes, labels)["ari"])


def _cluster_counts(algorithm: CountingAlgorithm, data: DataSet) -> Clustering:
    """An algorithm that learns from counts, here without noise: it is the clustering that is to be seen.

    Counts need more readings than the pictures have rows, so clients read their rows `READINGS_OF_A_ROW` times.
    """
    options = {"window_readings": PORTION, **OPTIONS.get(algorithm.name, {})}
    server, counter = algorithm.server(options, 2), algorithm.counter(options, 2)
    repeated = [np.tile(rows, (READINGS_OF_A_ROW, 1)) for rows in data.clients]
    for number, start in enumerate(range(0, max(map(len, repeated)), PORTION)):
        for client, rows in enumerate(repeated):
            window = rows[start : start + PORTION]
            counted = counter.count(window, np.ones(len(window), dtype=np.bool_), str(client).encode(), number)
            server.absorb([Contribution(str(client), number + 1, counted.update(counted.counts))], b"")
            counter.adopt(server.snapshot())
    snapshot = server.snapshot()
    labels = algorithm.predict(snapshot, data.rows)
    return Clustering(labels, algorithm.view(snapshot), None, scores(data.classes, labels)["ari"])


def _cluster_in_rounds(algorithm: RoundsAlgorithm, data: DataSet, seed: int) -> Clustering:
    box = bounding_box(data.clients, seed)
    init = box if algorithm.one_shot else kfed_hint(rounds_algorithm("kfed"), data.clusters, data.clients, box)
    asked = {"clusters": data.clusters} if "clusters" in algorithm.options else {}
    options = {**asked, **OPTIONS.get(algorithm.name, {})}
    params: Arrays = algorithm.start(options, 2, init)
    done = run_rounds(algorithm, params, data.clients, rounds_max=ROUNDS_MAX, tolerance=TOLERANCE, seed=seed)
    labels = algorithm.predict(done.params, data.rows)
    ari, curve = scores(data.classes, labels)["ari"], None
    if algorithm.regression is not None:
        across = np.linspace(0.0, 1.0, CURVE_POINTS)
        line = algorithm.regression.predict(done.params, np.column_stack([across, np.zeros(CURVE_POINTS)]))
        curve = np.column_stack([across, line])
    return Clustering(labels, algorithm.view(done.params), len(done.shifts), ari, curve)


def _shuffled(
    name: str, rng: np.random.Generator, rows: Rows, classes: NDArray[np.int64], owner: NDArray[np.int64]
) -> DataSet:
    order = rng.permutation(len(rows))
    return DataSet(name, rows[order], classes[order], owner[order])
