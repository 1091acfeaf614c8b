"""The learners that are judged: cluster_tree, FCAC and peers from scikit-learn and river."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.steadiness.judge import Learner
from benchmarks.steadiness.streams import Stream
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.fcac import FCAC
from shoal.kernels.arrays import Floats, Ints

try:
    from river.cluster import DBSTREAM, CluStream, DenStream
    from sklearn.cluster import HDBSCAN, Birch, MiniBatchKMeans
except ImportError as missing:
    sys.exit(f"{missing.name} is not installed; the peers come with: pip install -e '.[bench]'")

CLIENTS = 5
RECENT_ROWS = 2000
"""rows that HDBSCAN is given at each check"""


@dataclass(frozen=True)
class Peer:
    """One learner, and the streams that it is run on."""

    name: str
    make: Callable[[Stream], Learner]
    parameters: str
    """parameters in words"""
    features_max: int = 1000
    """streams of more features are left out, because it would take minutes for each"""
    rows_max: int = 1_000_000
    """... and those of more rows"""
    named: str = ""
    """... and those whose name does not contain this"""

    def takes(self, stream: Stream) -> bool:
        """Whether it is run on this stream."""
        n, d = stream.rows.shape
        return d <= self.features_max and n <= self.rows_max and self.named in stream.name


class Shoal:
    """`ClusterTree` or `FCAC` with default options and five clients, each an update per check."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def learn(self, rows: Floats) -> None:
        self.model.partial_fit(rows, clients=np.arange(len(rows)) % CLIENTS)

    def predict(self, rows: Floats) -> Ints:
        return np.asarray(self.model.predict(rows))

    def count(self) -> int:
        return int(self.model.n_clusters_)


class River:
    """A learner of river, one reading at a time."""

    def __init__(self, model: Any, count: Callable[[Any], int]) -> None:
        self._model = model
        self._count = count

    def learn(self, rows: Floats) -> None:
        for row in rows.tolist():
            self._model.learn_one(dict(enumerate(row)))

    def predict(self, rows: Floats) -> Ints:
        return np.array(
            [self._model.predict_one(dict(enumerate(row))) or 0 for row in rows.tolist()],
            dtype=np.int64,
        )

    def count(self) -> int:
        return self._count(self._model)


class KMeans:
    """MiniBatchKMeans with the true number of clusters."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._model = MiniBatchKMeans(n_clusters=k, random_state=0, n_init=3)

    def learn(self, rows: Floats) -> None:
        self._model.partial_fit(rows)

    def predict(self, rows: Floats) -> Ints:
        return np.asarray(self._model.predict(rows), dtype=np.int64)

    def count(self) -> int:
        return self._k


class Recent:
    """HDBSCAN on the last rows; a row has the label of the nearest of them that has one."""

    def __init__(self) -> None:
        self._rows: Floats | None = None

    def learn(self, rows: Floats) -> None:
        self._rows = (
            rows if self._rows is None else np.concatenate([self._rows, rows])[-RECENT_ROWS:]
        )
        model = HDBSCAN(min_cluster_size=20, copy=True).fit(self._rows)
        inside = model.labels_ >= 0
        self._known = self._rows[inside]
        self._labels = model.labels_[inside]

    def predict(self, rows: Floats) -> Ints:
        if not len(self._known):
            return np.full(len(rows), -1)
        far = (rows**2).sum(1)[:, None] - 2.0 * rows @ self._known.T + (self._known**2).sum(1)
        return np.asarray(self._labels[far.argmin(axis=1)], dtype=np.int64)

    def count(self) -> int:
        return len(np.unique(self._labels))


class Tree:
    """Birch without a second clustering: its subclusters are its clusters."""

    def __init__(self, threshold: float) -> None:
        self._model = Birch(threshold=threshold, n_clusters=None)

    def learn(self, rows: Floats) -> None:
        self._model.partial_fit(rows)

    def predict(self, rows: Floats) -> Ints:
        return np.asarray(self._model.predict(rows), dtype=np.int64)

    def count(self) -> int:
        return len(self._model.subcluster_centers_)


def radius(stream: Stream) -> float:
    """A tenth of the root mean square distance from the middle, of the first 500 rows: a first
    guess of a user."""
    first = stream.rows[:500]
    return max(0.1 * math.sqrt(float(first.var(axis=0).sum())), 1e-6)


def true_count(stream: Stream) -> int:
    return len(np.unique(stream.truth[stream.truth >= 0]))


OURS = Peer(
    "cluster_tree",
    lambda stream: Shoal(ClusterTree(clients=CLIENTS)),
    f"default options, {CLIENTS} clients",
)
PEERS = (
    Peer(
        "FCAC",
        lambda stream: Shoal(FCAC(clients=CLIENTS, nodes_max=2000)),
        f"nodes_max 2000, {CLIENTS} clients",
    ),
    Peer(
        "MiniBatchKMeans, K given",
        lambda stream: KMeans(true_count(stream)),
        "n_clusters the true number, n_init 3",
    ),
    Peer(
        "HDBSCAN, last 2 000 rows",
        lambda stream: Recent(),
        "min_cluster_size 20, anew at each check; streams of at most 16 features",
        features_max=16,
    ),
    Peer(
        "Birch",
        lambda stream: Tree(radius(stream)),
        "threshold a tenth of the spread of 500 rows, n_clusters None",
    ),
    Peer(
        "DBSTREAM",
        lambda stream: River(
            DBSTREAM(
                clustering_threshold=radius(stream), fading_factor=1e-4, cleanup_interval=1000
            ),
            lambda model: len(model.clusters),
        ),
        "river; clustering_threshold a tenth of the spread of 500 rows, fading_factor 1e-4,"
        " cleanup_interval 1000; streams of at most 4 features and 10 000 rows",
        features_max=4,
        rows_max=10_000,
    ),
    Peer(
        "DenStream",
        lambda stream: River(
            DenStream(epsilon=radius(stream), decaying_factor=0.01, n_samples_init=500),
            lambda model: model.n_clusters,
        ),
        "river; epsilon a tenth of the spread of 500 rows, decaying_factor 0.01, n_samples_init"
        " 500; streams of blobs with at most 2 features",
        features_max=2,
        rows_max=10_000,
        named="blobs",
    ),
    Peer(
        "CluStream, K given",
        lambda stream: River(
            CluStream(
                n_macro_clusters=true_count(stream),
                max_micro_clusters=100,
                time_window=1000,
                seed=0,
            ),
            lambda model: len(model.centers),
        ),
        "river; n_macro_clusters the true number, max_micro_clusters 100, time_window 1000; streams"
        " of at most 4 features and 10 000 rows",
        features_max=4,
        rows_max=10_000,
    ),
)
