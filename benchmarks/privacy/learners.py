"""What is compared: density_tree on private counts, and others on noisy rows or with a trusted
curator."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.privacy.counting import learn
from benchmarks.privacy.families import Stream
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import load_algorithm
from shoal.estimators.density_tree import DensityTree
from shoal.estimators.fcac import FCAC
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy.base import Bounds
from shoal.privacy.formal import Formal
from shoal.privacy.keyed import SOURCE_BYTES

try:
    from sklearn.cluster import KMeans
except ImportError as missing:
    sys.exit(f"{missing.name} is not installed; the peers come with: pip install -e '.[bench]'")

UPDATE_ROWS = 1000
FCAC_READINGS_MAX = 5000
"""readings that FCAC learns, the first ones: with noise it soon has nodes_max nodes, and each row
takes long"""
OBLIQUE_AXES = 6
GRID_ALGORITHM = "cluster_tree_from_counts"

Epsilon = float | None


@dataclass(frozen=True)
class Learner:
    """One way to cluster with the guarantee `epsilon` for every reading."""

    name: str
    label: Callable[[Stream, Epsilon, int], Ints]
    """(stream, epsilon, seed) -> (n,) the cluster of each row without noise, by what was learnt
    from all of them"""
    parameters: str
    seeds: int
    """number of the seeds on which it is run; the slower the fewer"""
    given_k: bool = False
    features_max: int = 1000
    """streams of more features are left out"""
    families: tuple[str, ...] = ()
    """the only families that it is run on; none: all"""
    epsilons: tuple[Epsilon, ...] = (1.0, 2.0, 4.0, 8.0, None)

    def takes(self, stream: Stream) -> bool:
        """Whether it is run on this stream: those given the number of clusters only where it is
        known."""
        fits = stream.rows.shape[1] <= self.features_max and (stream.known or not self.given_k)
        return fits and (not self.families or stream.family in self.families)


def density_tree(stream: Stream, epsilon: Epsilon, seed: int, oblique_axes: int = 0) -> Ints:
    """Private counts of windows of 400 readings."""
    model = DensityTree(epsilon=epsilon, random_state=seed, oblique_axes=oblique_axes)
    return np.asarray(model.fit(stream.rows, clients=stream.owner).predict(stream.rows))


def fcac(stream: Stream, epsilon: Epsilon, seed: int) -> Ints:
    """Noise on every reading, then FCAC as published."""
    rows = noisy_rows(stream, epsilon, seed)
    model = FCAC(random_state=seed, nodes_max=2000)
    for first in range(0, min(len(rows), FCAC_READINGS_MAX), UPDATE_ROWS):
        part = slice(first, first + UPDATE_ROWS)
        model.partial_fit(rows[part], clients=stream.owner[part] % 10)
    return np.asarray(model.predict(stream.rows))


def k_means(stream: Stream, epsilon: Epsilon, seed: int) -> Ints:
    """Noise on every reading, then k-means on all noisy rows in one place."""
    model = KMeans(stream.k_told, n_init=3, random_state=seed).fit(
        noisy_rows(stream, epsilon, seed)
    )
    return np.asarray(model.predict(stream.rows), dtype=np.int64)


def noisy_rows(stream: Stream, epsilon: Epsilon, seed: int) -> Floats:
    """(n, d) rows as the mode `formal` releases them."""
    if epsilon is None:
        return stream.rows
    n, d = stream.rows.shape
    mode = Formal(Bounds(np.zeros(d), np.ones(d)), {"epsilon_per_reading": epsilon})
    mechanism = mode.mechanism(
        np.random.default_rng(seed).bytes(32), "benchmark", bytes(SOURCE_BYTES)
    )
    places = np.stack([np.zeros(n, dtype=np.int64), np.arange(n)], axis=1)
    return mechanism.privatise(stream.rows, places).rows


class Central:
    """diffprivlib's k-means, given K, by one party that sees all readings without noise.

    It runs in a process of its own, because diffprivlib does not run with every version of
    scikit-learn.
    """

    def __init__(self, python: Path) -> None:
        script = Path(__file__).with_name("central.py")
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [python, "-W", "ignore", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.version = self._answer()

    def label(self, stream: Stream, epsilon: Epsilon, seed: int) -> Ints:
        """(n,) the cluster of each row."""
        file = Path(self._folder.name) / "stream.npz"
        np.savez(
            file,
            rows=stream.rows,
            k=stream.k_told,
            epsilon=np.inf if epsilon is None else epsilon,
            seed=seed,
        )
        assert self._process.stdin is not None
        print(file, file=self._process.stdin, flush=True)
        return np.asarray(np.load(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("diffprivlib has failed; its error is above")
        return answer


@cache
def running(python: Path) -> Central:
    """diffprivlib run by this Python, one process for each of ours. It ends when its input does."""
    return Central(python)


def on_a_grid(stream: Stream, epsilon: Epsilon, seed: int) -> Ints:
    """Private counts on a grid over the whole space, from which cluster_tree learns."""
    algorithm = load_algorithm(GRID_ALGORITHM)
    assert isinstance(algorithm, CountingAlgorithm)
    return np.asarray(
        algorithm.predict(learn(algorithm, stream, epsilon, seed).snapshot, stream.rows)
    )


OURS = Learner("density_tree", density_tree, "default options, windows of 400 readings", 5)
OBLIQUE = Learner(
    "density_tree with oblique axes",
    partial(density_tree, oblique_axes=OBLIQUE_AXES),
    f"oblique_axes {OBLIQUE_AXES}",
    2,
    families=("bars",),
    epsilons=(1.0, 2.0, 4.0),
)
ON_A_GRID = Learner(
    "cluster_tree on a grid of private counts",
    on_a_grid,
    f"{GRID_ALGORITHM} with default options; two features",
    5,
    features_max=2,
    families=("hard", "moons", "bars"),
    epsilons=(1.0, 2.0, 4.0),
)
FCAC_ROWS = Learner(
    "FCAC on noisy rows",
    fcac,
    f"formal noise on every reading, nodes_max 2000, 10 clients, the first {FCAC_READINGS_MAX}"
    " readings",
    1,
    epsilons=(4.0,),
)
K_MEANS_ROWS = Learner(
    "k-means on noisy rows, given K",
    k_means,
    "formal noise on every reading, n_init 3, all rows in one place",
    1,
    given_k=True,
    epsilons=(1.0, 4.0, None),
)


def central(process: Central) -> Learner:
    """diffprivlib as a learner."""
    parameters = f"diffprivlib {process.version}, one party that sees all readings; bounds given"
    return Learner(
        "diffprivlib k-means, central, given K",
        process.label,
        parameters,
        1,
        given_k=True,
        epsilons=(1.0, 4.0),
    )
