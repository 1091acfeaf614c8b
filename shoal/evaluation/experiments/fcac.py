"""FCAC as its paper ran it (section 5.3): split, CA+ on every client, CAEFC on their nodes, scores.

This is the protocol of the published program: raw feature values, clients that learn their rows in the order of the
classes, a server that absorbs nodes in an order shuffled by numpy's legacy generator from seed 0 in every trial, and
prediction of all rows without noise. Published: tables 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.fcac import CAEFC, CAPlus
from shoal.algorithms.fcac.feed_order import legacy_permutation
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.evaluation import published
from shoal.evaluation.datasets import FCAC_DATASETS
from shoal.evaluation.experiment import Experiment, Setting, clients_of, data_of
from shoal.evaluation.results import Figure, half_up
from shoal.evaluation.scores import scores
from shoal.evaluation.splits import FCAC_SPLITS

FORMATS: Final = {
    **dict.fromkeys(("ari", "ami", "nmi"), half_up(4)),
    **dict.fromkeys(("nodes", "clusters"), half_up(1)),
}


def federated(clients: Sequence[NDArray[np.float64]]) -> CAEFC:
    """rows (n_i, d) of each client, in the order in which they are learnt -> the server that has absorbed them all."""
    contributions = [Contribution(f"client-{number}", 0, contribution(rows)) for number, rows in enumerate(clients)]
    server = CAEFC()
    server.absorb_in_order(contributions, legacy_permutation(seed=0))
    server.flush()
    return server


def contribution(rows: NDArray[np.float64]) -> Arrays:
    """rows (n, d) of one client -> the nodes that CA+ makes of them, in the order of their creation."""
    if len(rows) < 2:
        # A single row has no spread for CA+ to learn from; the node it would become is the row itself.
        return {"weight": rows, "count": np.ones(len(rows), dtype=np.int64)}
    client = CAPlus()
    client.learn(rows)
    client.flush()
    return {"weight": client.weights, "count": client.counts}


def run(setting: Setting, trial: int) -> dict[str, float]:
    """One trial: scores of the server's clusters over all rows, and the size of its network. Raises `InvalidData`."""
    dataset = data_of(setting)
    server = federated(clients_of(setting, dataset, trial))
    clusters = server.clusters()
    return {
        **scores(dataset.labels, server.predict(dataset.rows)),
        "nodes": len(clusters),
        "clusters": int(clusters.max()) + 1,
    }


def _published(setting: Setting) -> Mapping[str, Figure]:
    return published.FCAC[setting.split][setting.fcac_name] if setting.in_fcac_paper else {}


def same_digits(setting: Setting, measure: str, measured: Figure, printed: Figure) -> bool:
    """Whether mean and deviation, written with the paper's digits, are those that it printed."""
    return measured.written(FORMATS[measure]) == printed.written(FORMATS[measure])


EXPERIMENT: Final = Experiment(
    name="fcac",
    title="Run FCAC as its paper did and compare with its tables 3 and 4, to the last digit.",
    trials=published.TRIALS,
    splits=FCAC_SPLITS,
    datasets=tuple(FCAC_DATASETS),
    variants=((),),
    formats=FORMATS,
    run=run,
    published=_published,
    agrees=same_digits,
)
