"""Every algorithm of the registry on the same two data sets, for the pictures of docs/explanation/gallery.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.registry import is_in_rounds, rounds_algorithm, streaming_algorithm
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.rounds.simulation import bounding_box, kfed_hint, run_rounds
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.evaluation.scores import scores

Rows = NDArray[np.float64]

CLIENTS: Final = 5
PORTION: Final = 100
"""rows a client learns between two updates, where it learns a stream"""
ROUNDS_MAX: Final = 100
TOLERANCE: Final = 1e-6
OPTIONS: Final[dict[str, dict[str, Any]]] = {"gmm": {"covariance": "full"}, "gmm_local": {"covariance": "full"}}


@dataclass(frozen=True)
class DataSet:
    """Rows in the unit square, whose cluster each one is of, and which client holds it."""

    name: str
    rows: Rows
    """(n, 2)"""
    truth: NDArray[np.int64]
    """(n,)"""
    owner: NDArray[np.int64]
    """(n,)"""

    @property
    def clusters(self) -> int:
        """How many there are."""
        return len(np.unique(self.truth))

    @property
    def clients(self) -> list[Rows]:
        """One table for each client."""
        return [self.rows[self.owner == client] for client in range(CLIENTS)]


class Found(NamedTuple):
    """What an algorithm makes of a data set."""

    labels: NDArray[np.int64]
    """(n,) -1 where there is no cluster"""
    centres: Rows
    """(c, 2) centres, or nodes where a cluster is made of many"""
    edges: NDArray[np.int64]
    """(m, 2) pairs of nodes that are joined; none where a centre is a cluster"""
    rounds: int | None
    ari: float


def blobs(seed: int = 0) -> DataSet:
    """Five round clusters of one size, their rows dealt to all clients."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.2, 0.2], [0.8, 0.2], [0.5, 0.5], [0.2, 0.8], [0.8, 0.8]])
    truth = np.repeat(np.arange(5), 240)
    rows = centres[truth] + rng.normal(0.0, 0.06, (len(truth), 2))
    return _shuffled("blobs", rng, rows, truth, rng.integers(0, CLIENTS, len(truth)))


def skewed(seed: int = 0) -> DataSet:
    """Four clusters of other sizes and shapes; each client holds rows of two of them, some many and some few."""
    rng = np.random.default_rng(seed)
    shapes = [
        (500, (0.25, 0.72), ((0.0049, 0.0), (0.0, 0.0049))),
        (60, (0.55, 0.80), ((0.0004, 0.0), (0.0, 0.0004))),
        (400, (0.35, 0.25), ((0.0225, 0.0), (0.0, 0.0006))),
        (240, (0.78, 0.52), ((0.0060, 0.0055), (0.0055, 0.0060))),
    ]
    rows = np.concatenate([rng.multivariate_normal(centre, spread, n) for n, centre, spread in shapes])
    truth = np.repeat(np.arange(len(shapes)), [n for n, _, _ in shapes])
    holders = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 3], [3, 0, 0]])
    owner = holders[truth, rng.choice(3, len(truth), p=(0.6, 0.3, 0.1))]
    return _shuffled("skewed", rng, rows, truth, owner)


DATA_SETS: Final[tuple[Callable[[int], DataSet], ...]] = (blobs, skewed)


def found_by(algorithm: str, data: DataSet, seed: int = 0) -> Found:
    """Run one algorithm of the registry over the clients of a data set. Raises `MissingExtra` without scikit-learn."""
    if not is_in_rounds(algorithm):
        return _streamed(algorithm, data, seed)
    return _in_rounds(rounds_algorithm(algorithm), data, seed)


def _streamed(name: str, data: DataSet, seed: int) -> Found:
    algorithm = streaming_algorithm(name)
    server = algorithm.server({}, 2)
    clients = [algorithm.client({}, 2) for _ in range(CLIENTS)]
    for start in range(0, max(map(len, data.clients)), PORTION):
        for number, (client, rows) in enumerate(zip(clients, data.clients, strict=True)):
            client.learn(rows[start : start + PORTION])
            said = Contribution(str(number), start // PORTION + 1, client.contribute())
            server.absorb([said], f"{seed} {start} {number}".encode())
    arrays = server.snapshot()
    return _scored(data, algorithm.predict(arrays, data.rows), arrays["weight"], arrays["edge"], None)


def _in_rounds(algorithm: RoundsAlgorithm, data: DataSet, seed: int) -> Found:
    box = bounding_box(data.clients, seed)
    begin = box if algorithm.one_shot else kfed_hint(rounds_algorithm("kfed"), data.clusters, data.clients, box)
    options = {"clusters": data.clusters, **OPTIONS.get(algorithm.name, {})}
    params: Arrays = algorithm.start(options, 2, begin)
    done = run_rounds(algorithm, params, data.clients, rounds_max=ROUNDS_MAX, tolerance=TOLERANCE, seed=seed)
    labels = algorithm.predict(done.params, data.rows)
    none = np.empty((0, 2), dtype=np.int64)
    return _scored(data, labels, done.params["centre"], none, len(done.shifts))


def _scored(
    data: DataSet, labels: NDArray[np.int64], centres: Rows, edges: NDArray[np.int64], rounds: int | None
) -> Found:
    return Found(labels, centres, edges, rounds, scores(data.truth, labels)[0])


def _shuffled(
    name: str, rng: np.random.Generator, rows: Rows, truth: NDArray[np.int64], owner: NDArray[np.int64]
) -> DataSet:
    order = rng.permutation(len(rows))
    return DataSet(name, rows[order], truth[order], owner[order])
