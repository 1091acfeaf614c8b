"""The algorithms whose ranks `shoal reproduce ranks` compares, each run as the FCAC paper runs its
own (section 5.3).

All get the same raw rows with the same split and noise. Those that need a number of clusters get
the number of classes. Those of the paper's tables 3 and 4 run as their own experiments do. Every
other installed algorithm runs with its defaults, so that a new one is ranked without a change here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from reproduction.experiments import fcac
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.fcac import CAEFC
from shoal.algorithms.registry import (
    algorithm_names,
    load_algorithm,
    rounds_algorithm,
    streaming_algorithm,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.streaming import Contribution
from shoal.kernels.arrays import Floats, Ints
from shoal.simulation.rounds import bounding_box, kfed_hint, run_rounds

UPDATE_READINGS: Final = 500
"""rows that a client of a streaming algorithm learns between two updates, as in a federation with
default settings"""
ROUNDS: Final = 100
TOLERANCE: Final = 1e-4
"""relative to the range of the rows: rounds end when the centres move less"""
FULL_FEATURES_MAX: Final = 100
"""features beyond which mixtures have variances only: a covariance matrix would have more numbers
than the rows"""


@dataclass(frozen=True)
class Task:
    """One trial: the rows of the clients, and the rows to label afterwards."""

    clients: Sequence[Floats]
    """rows (n_i, d) of each client, with noise if there is any, in the order in which it learns
    them"""
    rows: Floats
    """(n, d), without noise"""
    clusters: int
    """number of classes"""
    trial: int

    @property
    def box(self) -> InitHint:
        """The smallest box of all clients' rows."""
        return bounding_box(self.clients, self.trial)


Labelling = Callable[[Task], Ints]
"""-> (n,) cluster of each row. Raises `SettingsError` for data that the algorithm does not take"""


def _fcac(task: Task) -> Ints:
    return fcac.federated(task.clients).predict(task.rows)


def _cae(task: Task) -> Ints:
    """The network that CAEFC extends, on all rows in one place; as k-means in the paper it is not
    federated."""
    network = CAEFC(similarity="cae")
    network.learn(np.random.default_rng(task.trial).permutation(np.concatenate(task.clients)))
    network.flush()
    return network.predict(task.rows)


def _one_shot(name: str, **more: Any) -> Labelling:
    def labels(task: Task) -> Ints:
        algorithm = rounds_algorithm(name)
        options = {"clusters": task.clusters, **more}
        if name == "mufc":
            # The authors' cells are 1 / sqrt(number of rows) of the range wide.
            options["cells"] = max(1, round(np.sqrt(len(task.rows))))
        return _after_rounds(algorithm, options, task, task.box)

    return labels


def _ffcm(task: Task) -> Ints:
    """The column FedFCM: centres that start in 0..1, whatever the range of the rows is, as in the
    published program."""
    d = task.rows.shape[1]
    start = InitHint(np.zeros(d), np.ones(d), task.trial)
    options = {"clusters": task.clusters, "average": "avg1", "local": "fit"}
    algorithm = rounds_algorithm("ffcm")
    params = algorithm.start(options, d, start)
    done = run_rounds(algorithm, params, task.clients, rounds_max=ROUNDS, tolerance=1e-4)
    return algorithm.predict(done.params, task.rows)


def _gmm(task: Task) -> Ints:
    form = "full" if task.rows.shape[1] <= FULL_FEATURES_MAX else "diag"
    return _after_rounds(
        rounds_algorithm("gmm"), {"clusters": task.clusters, "covariance": form}, task, _start(task)
    )


def _in_rounds(algorithm: RoundsAlgorithm) -> Labelling:
    """Any algorithm in rounds, started from one round of k-FED if it can be told a number of
    clusters."""

    def labels(task: Task) -> Ints:
        options = {"clusters": task.clusters} if algorithm.takes("clusters") else {}
        hint = task.box if algorithm.one_shot else _start(task)
        return _after_rounds(algorithm, options, task, hint)

    return labels


def _streaming(name: str) -> Labelling:
    """Any streaming algorithm: clients learn their rows in random order and publish every 500, in
    turn.

    The paper's text has random order; the order of classes of its program would be a stream in
    which each class comes once and never again.
    """

    def labels(task: Task) -> Ints:
        algorithm = streaming_algorithm(name)
        d = task.rows.shape[1]
        generator = np.random.default_rng(task.trial)
        tables = [generator.permutation(rows) for rows in task.clients]
        server = algorithm.server({}, d)
        halves = [algorithm.client({}, d) for _ in tables]
        for first in range(0, max(map(len, tables)), UPDATE_READINGS):
            for number, (half, rows) in enumerate(zip(halves, tables, strict=True)):
                part = rows[first : first + UPDATE_READINGS]
                if len(part):
                    half.learn(part)
                    contribution = Contribution(
                        f"{number:06}", first // UPDATE_READINGS + 1, half.contribute()
                    )
                    server.absorb([contribution], f"{task.trial} {first} {number}".encode())
        return algorithm.predict(server.snapshot(), task.rows)

    return labels


def _density_tree(task: Task) -> Ints:
    """Clients count their rows in random order, without noise of its own: the rows have that of the
    task.

    The bounds are those of all rows; a constant feature is 1 wide.
    """
    # scikit-learn takes a second to load.
    from shoal.estimators.density_tree import DensityTree  # noqa: PLC0415 - slow

    low = task.box.low
    high = task.box.high
    rows = np.concatenate(task.clients)
    client = np.repeat(np.arange(len(task.clients)), [len(own) for own in task.clients])
    order = np.random.default_rng(task.trial).permutation(len(rows))
    tree = DensityTree(epsilon=None, low=low, high=np.where(high > low, high, low + 1.0))
    return tree.fit(rows[order], clients=client[order]).predict(task.rows)


def _start(task: Task) -> InitHint:
    return kfed_hint(task.clusters, task.clients, task.box)


def _after_rounds(
    algorithm: RoundsAlgorithm, options: dict[str, Any], task: Task, hint: InitHint
) -> Ints:
    params = algorithm.start(options, task.rows.shape[1], hint)
    # A mixture's measure is a likelihood, which has no unit; that of the others is a distance in
    # the unit of the rows.
    tolerance = 1e-3 if algorithm.name == "gmm" else TOLERANCE * float(np.max(hint.high - hint.low))
    done = run_rounds(algorithm, params, task.clients, rounds_max=ROUNDS, tolerance=tolerance)
    return algorithm.predict(done.params, task.rows)


PUBLISHED: Final[dict[str, Labelling]] = {
    "kmeans": _in_rounds(rounds_algorithm("kmeans")),
    "kfed": _one_shot("kfed", pick="farthest", average="unweighted"),
    "ffcm": _ffcm,
    "mufc": _one_shot("mufc"),
    "fcac": _fcac,
}
"""algorithms in the order of the columns of tables 3 and 4; ffcm is the column FedFCM"""
OTHERS: Final[dict[str, Labelling]] = {"cae": _cae, "gmm": _gmm, "density_tree": _density_tree}
"""those that need more than their defaults"""


def contestants() -> dict[str, Labelling]:
    """Labellings by name: those of the paper, then every other installed algorithm that is not for
    comparison only.

    Of those that learn from counts density_tree alone: the others make rows from private counts and
    give them to an algorithm that is ranked anyway. None that labels sequences: rows of these data
    have no order in time, so there is nothing for it to find.
    """
    found = {**PUBLISHED, **OTHERS}
    for name in algorithm_names():
        algorithm = load_algorithm(name)
        if (
            name in found
            or algorithm.regression is not None
            or isinstance(algorithm, CountingAlgorithm)
        ):
            continue
        if not isinstance(algorithm, RoundsAlgorithm):
            if not algorithm.labels_sequences:
                found[name] = _streaming(name)
        elif not algorithm.paper_only:
            found[name] = _in_rounds(algorithm)
    return found
