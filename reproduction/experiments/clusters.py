"""Frequency with which a criterion finds the true number of clusters, in eight data sets whose
number is known.

Every criterion sees what the service would: landmarks of five clients, from nodes of cluster_tree
(as in a federation) or from one round of k-FED (as in the estimators), or the sums of rounds of a
mixture. Beside them, the numbers that cluster_tree and FCAC find without a criterion, which
`clusters = "auto"` takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from reproduction.datasets import Dataset, Split, deal
from reproduction.experiment import Experiment, Keys, Setting, Synthetic, data_of, python_format
from reproduction.experiments import gallery
from shoal.algorithms.registry import streaming_algorithm
from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.choice import Landmarks, choose_clusters
from shoal.algorithms.streaming import Contribution
from shoal.algorithms.view import ClusteringView
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.simulation.rounds import kfed_landmarks

CLIENTS: Final = 5
MOST: Final = 20
TRIALS: Final = 10
UPDATE_READINGS: Final = 500
ROWS: Final = 3000
SPLITS: Final[tuple[Split, ...]] = ("iid", "kp")
METHODS: Final = (
    ("auto", "cluster_tree"),
    ("auto", "fcac"),
    *((criterion, "cluster_tree nodes") for criterion in ("gap", "silhouette", "bic")),
    *((criterion, "k-FED centres") for criterion in ("gap", "silhouette")),
    ("bic", "sums of rounds"),
)
"""(how the number is chosen, from what)"""
VARIANTS: Final[tuple[Keys, ...]] = tuple(
    (("clusters", how), ("source", source)) for how, source in METHODS
)
TEXT: Final = f"""\
Not from a paper. Eight data sets whose number of clusters is known, scaled to 0..1 and dealt to
{CLIENTS} clients: rows of every cluster on each (IID), or of few clusters. `right` is the share of
{TRIALS} trials with the true number, `found` the mean number; at most {MOST} are looked for. `auto`
is what `clusters = "auto"` takes over from a streaming model; `gap`, `silhouette` and `bic` choose
from the nodes of cluster_tree in a federation, and in the estimators from one round of k-FED or,
for `bic`, from the likelihoods that sums of rounds give. The rule of gap and the weights of BIC on
nodes were chosen with some of these data sets in sight: on others they may be right less often.

- *one*: a single round cluster. A silhouette does not exist for one cluster, so it is always wrong
  there.
- *blobs*, *skewed*: five round clusters, and four of different sizes and shapes (the data of
  `shoal reproduce pictures`). Gap and silhouette take two of the four for one, and mixtures do not.
- *corners*, *eight*, *ten*: 4, 8 and 10 round clusters of equal spread in 2, 4 and 8 features.
- *xclara*, *s_set1*: 3 and 15 clusters (files; not run without them).
"""


def _separate(clusters: int, d: int) -> Callable[[int], Dataset]:
    """Round clusters of standard deviation 1 whose centres are at least 6 apart."""

    def draw(seed: int) -> Dataset:
        generator = np.random.default_rng([seed, clusters, d])
        centres: list[Floats] = []
        side = 8.0 * clusters ** (1 / d)
        while len(centres) < clusters:
            new = generator.uniform(0, side, d)
            if all(np.linalg.norm(new - other) >= 6 for other in centres):
                centres.append(new)
        labels = generator.integers(0, clusters, ROWS)
        return _dataset(
            "separate", np.array(centres)[labels] + generator.normal(size=(ROWS, d)), labels
        )

    return draw


def _of_gallery(make: Callable[[int], gallery.DataSet]) -> Callable[[int], Dataset]:
    def draw(seed: int) -> Dataset:
        made = make(seed)
        return _dataset(made.name, made.rows, made.classes)

    return draw


def _dataset(name: str, rows: Floats, labels: Ints) -> Dataset:
    return Dataset(name, rows, labels, tuple(map(str, np.unique(labels))))


DRAWN: Final[dict[str, Callable[[int], Dataset]]] = {
    "one": _separate(1, 2),
    "blobs": _of_gallery(gallery.blobs),
    "skewed": _of_gallery(gallery.skewed),
    "corners": _separate(4, 2),
    "eight": _separate(8, 4),
    "ten": _separate(10, 8),
}


def _run(setting: Setting, trial: int) -> dict[str, float]:
    dataset = data_of(setting) if setting.path is not None else DRAWN[setting.dataset](trial)
    span = np.ptp(dataset.rows, axis=0)
    rows = (dataset.rows - dataset.rows.min(axis=0)) / np.where(span > 0, span, 1.0)
    generator = np.random.default_rng(trial)
    if len(dataset.classes) == 1:
        parts = np.array_split(generator.permutation(len(rows)), setting.clients)
    else:
        parts = deal(dataset.labels, setting.clients, setting.split, trial)
    # Clients learn rows in random order: in the order of the classes, each class would come once
    # and never again.
    found = number_of_clusters(
        setting["clusters"], setting["source"], [generator.permutation(rows[p]) for p in parts]
    )
    return {"right": float(found == len(dataset.classes)), "found": float(found)}


def number_of_clusters(how: str, source: str, clients: Sequence[Floats]) -> int:
    """The number of clusters that one of `METHODS` finds in the rows of clients, which lie in the
    unit box."""
    # With scikit-learn they load for a second, in which `shoal --help` would be late.
    from shoal.estimators.federated import (  # noqa: PLC0415 - scikit-learn takes a second to load
        FederatedGMM,
    )
    from shoal.estimators.rounds import (  # noqa: PLC0415 - scikit-learn takes a second to load
        PER_CLIENT,
    )

    if source == "sums of rounds":
        return int(FederatedGMM(how, max_clusters=MOST).fit(list(clients)).n_clusters_)
    d = clients[0].shape[1]
    if source == "k-FED centres":
        box = InitHint(np.zeros(d), np.ones(d))
        landmarks = kfed_landmarks(PER_CLIENT * MOST, clients, box)
    else:
        view = _streamed(source.removesuffix(" nodes"), clients)
        if how == "auto":
            return len(view.centres)
        landmarks = Landmarks(view.nodes, view.mass.astype(np.float64))
    return len(choose_clusters(how, landmarks, MOST).centres)


def _streamed(name: str, clients: Sequence[Floats]) -> ClusteringView:
    """The view of a streaming model after clients have published every 500 rows, in turn."""
    algorithm = streaming_algorithm(name)
    d = clients[0].shape[1]
    options = {"client_share_max": 1.0} if name == "fcac" else {}  # as in the paper
    server = algorithm.server(options, d)
    halves = [algorithm.client(options, d) for _ in clients]
    for first in range(0, max(map(len, clients)), UPDATE_READINGS):
        for number, (half, rows) in enumerate(zip(halves, clients, strict=True)):
            part: Any = rows[first : first + UPDATE_READINGS]
            if len(part):
                half.learn(part)
                server.absorb(
                    [Contribution(str(number), first + 1, half.contribute())],
                    f"{first} {number}".encode(),
                )
    view = algorithm.view(server.snapshot())
    if not len(view.nodes):
        raise SettingsError(f"{name} has found no node in these rows; more rows are needed")
    return view


EXPERIMENT: Final = Experiment(
    name="clusters",
    title="Measure how often gap, silhouette, BIC and the streaming algorithms find the true "
    "number of clusters.",
    trials=TRIALS,
    splits=SPLITS,
    datasets=("xclara", "s_set1"),
    variants=VARIANTS,
    formats={"right": python_format(".2f"), "found": python_format(".1f")},
    run=_run,
    published=lambda setting: {},
    agrees=lambda setting, measure, measured, printed: None,
    synthetic={
        name: Synthetic("drawn anew for each trial", CLIENTS, SPLITS, VARIANTS) for name in DRAWN
    },
    iid_clients=CLIENTS,
    text=TEXT,
)
