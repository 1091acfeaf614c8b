"""One trial of the FCAC paper (section 5.3): split, CA+ on every client, CAEFC on their nodes, scores.

This is the published program's protocol to the digit: raw feature values, clients that learn their rows in
the order of the classes, a server feed shuffled by the legacy generator from seed 0 in every trial, and
prediction of all rows without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.feed_order import legacy
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.evaluation import datasets
from shoal.evaluation.datasets import Dataset, Fill
from shoal.evaluation.published import Split
from shoal.evaluation.scores import scores
from shoal.evaluation.splits import dealt


@dataclass(frozen=True)
class Trial:
    """One trial to be run; `number` is its seed."""

    path: Path
    fill: Fill
    split: Split
    clients: int
    number: int
    epsilon: float | None

    @property
    def key(self) -> tuple[str, Split]:
        return datasets.stem(self.path), self.split


@dataclass(frozen=True)
class Outcome:
    """Scores of the server's clusters over all rows, and the size of its network."""

    ari: float
    ami: float
    nmi: float
    nodes: int
    clusters: int


def run(trial: Trial) -> Outcome:
    """Read the data set, if this process has not just read it, and run the trial. Raises `InvalidData`."""
    dataset = _read(trial.path, trial.fill)
    parts = dealt(dataset.labels, trial.clients, trial.split, trial.number)
    rows = [dataset.rows[part] for part in parts]
    if trial.epsilon is not None:
        rows = [noised(part, trial.epsilon, trial.number) for part in rows]
    return judged(dataset, federated(rows))


def federated(clients: Sequence[NDArray[np.float64]]) -> CAEFC:
    """rows (n_i, d) of each client, in the order they are learnt -> the server that has absorbed them all."""
    said = [Contribution(f"client-{number}", 0, contribution(rows)) for number, rows in enumerate(clients)]
    server = CAEFC()
    server.absorb_in_order(said, legacy(seed=0))
    server.flush()
    return server


def contribution(rows: NDArray[np.float64]) -> Arrays:
    """rows (n, d) of one client -> the nodes CA+ makes of them, in the order of their creation."""
    if len(rows) < 2:
        # A single row has no spread for CA+ to learn from; the node it would become is the row itself.
        return {"weight": rows, "count": np.ones(len(rows), dtype=np.int64)}
    client = CAPlus()
    client.learn(rows)
    client.flush()
    return {"weight": client.weights, "count": client.counts}


def noised(rows: NDArray[np.float64], epsilon: float, seed: int) -> NDArray[np.float64]:
    """rows (n, d) with the paper's Laplace noise (equations 2-4): scale = a client's own range / epsilon, per feature.

    The seed is the trial's for every client, as in the published program. That and the range make this an
    experiment and no protection; `shoal.privacy` is for readings that are private.
    """
    if not len(rows):
        return rows
    scale = np.ptp(rows, axis=0) / epsilon
    return rows + np.random.default_rng(seed).laplace(scale=scale, size=rows.shape)


def judged(dataset: Dataset, server: CAEFC) -> Outcome:
    """The server's clusters of all rows against the labels."""
    ari, ami, nmi = scores(dataset.labels, server.predict(dataset.rows))
    clusters = server.clusters()
    return Outcome(ari, ami, nmi, len(clusters), int(clusters.max()) + 1)


@lru_cache(maxsize=1)
def _read(path: Path, fill: Fill) -> Dataset:
    return datasets.read(path, fill)
