"""`shoal reproduce pictures`: every algorithm on the same two data sets, for
reproduction/gallery/README.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import numpy as np

from reproduction import report
from reproduction.experiment import Figure, Result, python_format, require_scikit_learn, scores
from reproduction.report import (
    TABLE,
    Chapter,
    Picture,
    ReportOptions,
    Study,
    Table,
    panels,
    save_small,
)
from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.registry import (
    algorithm_names,
    load_algorithm,
    rounds_algorithm,
    streaming_algorithm,
)
from shoal.algorithms.rounds.base import RoundsAlgorithm
from shoal.algorithms.streaming import Arrays, Contribution
from shoal.algorithms.view import ClusteringView
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.simulation.rounds import bounding_box, kfed_hint, run_rounds

CLIENTS: Final = 5
PORTION: Final = 100
"""rows that a client learns between two updates, for algorithms that learn a stream"""
READINGS_OF_A_ROW: Final = 8
ROUNDS_MAX: Final = 100
CURVE_POINTS: Final = 201
TOLERANCE: Final = 1e-6
FORMATS: Final = {"rounds": python_format(".0f"), "ari": python_format(".2f")}
SHOWN: Final = tuple(
    name for name in algorithm_names() if name not in {"states", "states_from_counts"}
)
"""algorithms of the pictures: all but those that find states in time, since these rows
have no order"""
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    **{
        name: {"grow_readings": CLIENTS * PORTION}
        for name in ("density_tree", "kmeans_from_counts", "fcm_from_counts", "gmm_from_counts")
    },
    # The paper's server, as elsewhere among the reports.
    "kfed": {"pick": "farthest", "average": "unweighted"},
    "gmm": {"covariance": "full"},
    "gmm_local": {"covariance": "full"},
}


@dataclass(frozen=True)
class DataSet:
    """Rows in the unit square, the true cluster of each and the client that holds it."""

    name: str
    rows: Floats
    """(n, 2)"""
    classes: Ints
    """(n,)"""
    owner: Ints
    """(n,)"""

    @property
    def clusters(self) -> int:
        """Number of true clusters."""
        return len(np.unique(self.classes))

    @property
    def clients(self) -> list[Floats]:
        """One table for each client."""
        return [self.rows[self.owner == client] for client in range(CLIENTS)]


class Clustering(NamedTuple):
    """The clustering that an algorithm finds in a data set."""

    labels: Ints
    """(n,) cluster of each row, -1 where it has none"""
    view: ClusteringView
    rounds: int | None
    """rounds until the algorithm converged; None for algorithms that learn a stream"""
    ari: float
    curve: Floats | None = None
    """(m, 2) the predictions of an algorithm that predicts the second feature from the first"""


def blobs(seed: int = 0) -> DataSet:
    """Five round clusters of one size; every client holds rows of each."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.2, 0.2], [0.8, 0.2], [0.5, 0.5], [0.2, 0.8], [0.8, 0.8]])
    classes = np.repeat(np.arange(5), 240)
    rows = centres[classes] + rng.normal(0.0, 0.06, (len(classes), 2))
    return _shuffled("blobs", rng, rows, classes, rng.integers(0, CLIENTS, len(classes)))


def skewed(seed: int = 0) -> DataSet:
    """Four clusters of different sizes and shapes; each client holds rows of two, and clients
    differ in size."""
    rng = np.random.default_rng(seed)
    shapes = [
        (500, (0.25, 0.72), ((0.0049, 0.0), (0.0, 0.0049))),
        (60, (0.55, 0.80), ((0.0004, 0.0), (0.0, 0.0004))),
        (400, (0.35, 0.25), ((0.0225, 0.0), (0.0, 0.0006))),
        (240, (0.78, 0.52), ((0.0060, 0.0055), (0.0055, 0.0060))),
    ]
    rows = np.concatenate(
        [rng.multivariate_normal(centre, spread, n) for n, centre, spread in shapes]
    )
    classes = np.repeat(np.arange(len(shapes)), [n for n, _, _ in shapes])
    holders = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 3], [3, 0, 0]])
    owner = holders[classes, rng.choice(3, len(classes), p=(0.6, 0.3, 0.1))]
    return _shuffled("skewed", rng, rows, classes, owner)


DATA_SETS: Final[tuple[Callable[[int], DataSet], ...]] = (blobs, skewed)


def cluster(algorithm: str, data: DataSet, seed: int = 0) -> Clustering:
    """Run one algorithm of the registry over the clients of a data set. Raises `MissingExtra`
    without scikit-learn."""
    if not load_algorithm(algorithm).family.in_rounds:
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
    # as in the paper
    server = algorithm.server({"client_share_max": 1.0} if name == "fcac" else {}, 2)
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
    """An algorithm that learns from counts, here without noise: it is the clustering that is to be
    seen.

    Counts need more readings than the pictures have rows, so clients read their rows
    `READINGS_OF_A_ROW` times.
    """
    options = {"window_readings": PORTION, **OPTIONS.get(algorithm.name, {})}
    server = algorithm.server(options, 2)
    counter = algorithm.counter(options, 2)
    repeated = [np.tile(rows, (READINGS_OF_A_ROW, 1)) for rows in data.clients]
    for number, start in enumerate(range(0, max(map(len, repeated)), PORTION)):
        for client, rows in enumerate(repeated):
            window = rows[start : start + PORTION]
            counted = counter.count(
                window, np.ones(len(window), dtype=np.bool_), str(client).encode(), number
            )
            server.absorb(
                [Contribution(str(client), number + 1, counted.update(counted.counts))], b""
            )
            counter.adopt(server.snapshot())
    snapshot = server.snapshot()
    labels = algorithm.predict(snapshot, data.rows)
    return Clustering(labels, algorithm.view(snapshot), None, scores(data.classes, labels)["ari"])


def _cluster_in_rounds(algorithm: RoundsAlgorithm, data: DataSet, seed: int) -> Clustering:
    box = bounding_box(data.clients, seed)
    init = box if algorithm.one_shot else kfed_hint(data.clusters, data.clients, box)
    asked = {"clusters": data.clusters} if algorithm.takes("clusters") else {}
    options = {**asked, **OPTIONS.get(algorithm.name, {})}
    params: Arrays = algorithm.start(options, 2, init)
    done = run_rounds(
        algorithm, params, data.clients, rounds_max=ROUNDS_MAX, tolerance=TOLERANCE, seed=seed
    )
    labels = algorithm.predict(done.params, data.rows)
    ari = scores(data.classes, labels)["ari"]
    curve = None
    if algorithm.regression is not None:
        across = np.linspace(0.0, 1.0, CURVE_POINTS)
        line = algorithm.regression.predict(
            done.params, np.column_stack([across, np.zeros(CURVE_POINTS)])
        )
        curve = np.column_stack([across, line])
    return Clustering(labels, algorithm.view(done.params), len(done.shifts), ari, curve)


def _shuffled(
    name: str, rng: np.random.Generator, rows: Floats, classes: Ints, owner: Ints
) -> DataSet:
    order = rng.permutation(len(rows))
    return DataSet(name, rows[order], classes[order], owner[order])


TITLE: Final = (
    "Run every algorithm on two small synthetic data sets: clients that are alike, and clients that"
    " are not."
)
TEXT: Final = """\
Not from a paper. In *blobs* every client has rows of each of five round clusters; in *skewed* there
are four clusters of different sizes and shapes, and each client has rows of two of them. Seed 0.
"""


@click.command(help=TITLE)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw one PNG for each into this folder.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the data and the algorithms.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def pictures(out: Path | None, seed: int, as_json: bool) -> None:
    """The subcommand."""
    if out is not None and not out.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    require_scikit_learn()
    found = _drawn(out, seed)
    report.show(results(found), FORMATS, json_only=as_json)


def _drawn(out: Path | None, seed: int) -> dict[tuple[str, str], Clustering]:
    """All clusterings by algorithm and data set, drawn into a folder if there is one."""
    data = [make(seed) for make in DATA_SETS]
    if out is not None:
        draw_data(data, out / "data.png")
    found: dict[tuple[str, str], Clustering] = {}
    for name in SHOWN:
        for data_set in data:
            found[name, data_set.name] = cluster(name, data_set, seed)
        if out is not None:
            clusterings = [found[name, data_set.name] for data_set in data]
            draw_clusterings(data, clusterings, out / f"{name}.png")
    return found


def _chapter(options: ReportOptions) -> Chapter:
    found = _drawn(options.out, 0)
    names = ["data", *dict.fromkeys(name for name, _ in found)]
    drawn = [Picture(options.out / f"{name}.png", name) for name in names]
    return Chapter("pictures", TITLE, TEXT, [Table(results(found), FORMATS)], drawn)


NO_CLUSTER_COLOUR = "#c8c8c8"


def draw_data(data: Sequence[DataSet], path: Path) -> None:
    """The rows of each data set, coloured by client, as a PNG. Raises `MissingExtra`."""
    figure, axes = panels(1, len(data), (4.2 * len(data), 3.6))
    for axis, data_set in zip(axes, data, strict=True):
        _rows(axis, data_set, data_set.owner)
        axis.set_title(f"{data_set.name}: colours are clients")
    save_small(figure, path)


def draw_clusterings(
    data: Sequence[DataSet], clusterings: Sequence[Clustering], path: Path
) -> None:
    """The clusters that one algorithm finds in each data set, as a PNG. Raises `MissingExtra`."""
    figure, axes = panels(1, len(data), (4.2 * len(data), 3.6))
    for axis, data_set, clustering in zip(axes, data, clusterings, strict=True):
        _rows(axis, data_set, clustering.labels)
        nodes = clustering.view.nodes
        edges = clustering.view.edges
        for pair in edges:
            axis.plot(*nodes[pair].T, color="black", linewidth=0.7)
        if len(edges):
            axis.scatter(*nodes.T, s=5, c="black", marker="o", zorder=3)
        else:
            axis.scatter(*clustering.view.centres.T, s=70, c="black", marker="x", zorder=3)
        clusters = len(np.unique(clustering.labels[clustering.labels >= 0]))
        rounds = (
            ""
            if clustering.rounds is None
            else f", {clustering.rounds} round{'s' * (clustering.rounds > 1)}"
        )
        if clustering.curve is None:
            axis.set_title(
                f"{data_set.name}: {clusters} clusters{rounds}, ARI {clustering.ari:.2f}"
            )
        else:
            axis.plot(*clustering.curve.T, color="black", linewidth=1.5)
            axis.set_title(f"{data_set.name}: {clusters} rules{rounds}")
    save_small(figure, path)


def _rows(axis: Any, data: DataSet, labels: Ints) -> None:
    known = labels >= 0
    axis.scatter(*data.rows[~known].T, s=4, color=NO_CLUSTER_COLOUR, linewidths=0)
    axis.scatter(*data.rows[known].T, s=4, c=labels[known] % 10, **TABLE, linewidths=0)
    axis.set_aspect("equal")
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    axis.title.set_fontsize(10)


STUDY: Final = Study("pictures", TITLE, pictures, _chapter)
