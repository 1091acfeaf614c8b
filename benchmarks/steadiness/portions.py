"""`ClusterTree.fit` beside the same table learnt in portions, what halves of the table say of each,
and four difficulties that this algorithm has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from benchmarks.results import folder_option, table
from benchmarks.steadiness.field_streams import Drawn, bursts, three_rings
from benchmarks.steadiness.sensors import Table, read
from shoal.estimators.cluster_tree import ClusterTree
from shoal.estimators.fcac import FCAC
from shoal.kernels.arrays import Floats, Ints

ROWS_MAX: Final = 2_500
"""rows of a table that are used, drawn at random"""
SEED: Final = 7
SEEDS: Final = (9301, 9302)
"""seeds of the streams with a difficulty: those of the published figures of `steadiness.field`"""
WARM_ROWS: Final = 1000
"""rows whose labels are not judged"""
PORTION_ROWS: Final = 100
LOADED: Final = {
    "iris": load_iris,
    "wine": load_wine,
    "breast_cancer": load_breast_cancer,
    "digits": load_digits,
}
FILES: Final = ("optdigits", "pendigits", "phoneme", "s_set1", "xclara", "wall_robot")


def whole(rows: Floats) -> ClusterTree:
    """The model of `fit`, whose client publishes every 500 rows."""
    return ClusterTree().fit(rows)


def in_portions(portion: int) -> Callable[[Floats], ClusterTree]:
    """What learns rows portion by portion: the client publishes after each."""

    def learn(rows: Floats) -> ClusterTree:
        model = ClusterTree()
        for first in range(0, len(rows), portion):
            model.partial_fit(rows[first : first + portion])
        return model

    return learn


FORMS: Final[Mapping[str, Callable[[Floats], ClusterTree]]] = {
    "fit": whole,
    "portions of 100": in_portions(100),
    "portions of 20": in_portions(20),
}


def halves(learn: Callable[[Floats], ClusterTree], rows: Floats) -> float:
    """The agreement on all rows of the models of two random halves of them; 1 where both find one
    cluster."""
    order = np.random.default_rng(SEED).permutation(len(rows))
    first, second = (learn(rows[np.sort(order[start::2])]) for start in (0, 1))
    return float(adjusted_rand_score(first.predict(rows), second.predict(rows)))


def tables(data: Path | None) -> Iterator[tuple[str, Floats, Ints]]:
    """Name, rows with each feature from 0 to 1, and classes."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, load in LOADED.items():
        found[name] = load(return_X_y=True)
    if data is not None:
        for name in FILES:
            found[name] = read(data, Table(name))
    for name, (rows, classes) in found.items():
        drawn = np.random.default_rng(SEED).permutation(len(rows))[:ROWS_MAX]
        spans = np.ptp(rows, axis=0)
        scaled = (rows - rows.min(axis=0)) / np.where(spans > 0.0, spans, 1.0)
        yield name, scaled[drawn], np.asarray(classes)[drawn]


def overlap(generator: np.random.Generator) -> Drawn:
    """Four blobs in a row, each three standard deviations from the next."""
    truth = generator.integers(4, size=6_000)
    rows = generator.standard_normal((6_000, 2))
    rows[:, 0] += 3.0 * truth
    return rows, truth


def dominated(generator: np.random.Generator) -> Drawn:
    """Five blobs in four features, the first of them in units a thousand times smaller."""
    truth = generator.integers(5, size=4_000)
    rows = generator.uniform(size=(5, 4))[truth] + 0.05 * generator.standard_normal((4_000, 4))
    rows[:, 0] *= 1000.0
    return rows, truth


STREAMS: Final[Mapping[str, Callable[[np.random.Generator], Drawn]]] = {
    "three rings": three_rings,
    "bursts of 30": lambda generator: bursts(generator, 30),
    "bursts of 100": lambda generator: bursts(generator, 100),
    "bursts of 300": lambda generator: bursts(generator, 300),
    "overlap, 3 standard deviations": overlap,
    "one feature a thousand times as wide": dominated,
}


def of_stream(rows: Floats, truth: Ints) -> tuple[float, float, int]:
    """ARI of the labels as given, after the first 1,000 rows; at the end; and clusters then."""
    model = ClusterTree()
    given = []
    for first in range(0, len(rows), PORTION_ROWS):
        portion = rows[first : first + PORTION_ROWS]
        given.append(model.partial_fit(portion).labels_)
    labelled = np.concatenate(given)
    return (
        float(adjusted_rand_score(truth[WARM_ROWS:], labelled[WARM_ROWS:])),
        float(adjusted_rand_score(truth, model.predict(rows))),
        model.n_clusters_,
    )


@click.command()
@folder_option("--data", "Folder of NAME.csv.gz files, for more tables.")
def main(data: Path | None) -> None:
    """Print the agreement with the classes of tables, by `fit` and in portions, with that of the
    models of their halves, and with the truth of four difficulties."""
    lines = []
    for name, rows, classes in tables(data):
        line = [name]
        for learn in FORMS.values():
            labels = learn(rows).predict(rows)
            agreement = adjusted_rand_score(classes, labels)
            clusters = len(np.unique(labels))
            line.append(f"{agreement:.2f} ({clusters}; {halves(learn, rows):.2f})")
        lines.append(line)
    click.echo(table(["table: ARI (clusters; halves)", *FORMS], lines))
    lines = []
    for name, make in STREAMS.items():
        for seed in SEEDS:
            rows, truth = make(np.random.default_rng(seed))
            labelled, at_the_end, clusters = of_stream(rows, truth)
            scaled = ClusterTree(scale="bounds").fit(rows).predict(rows)
            peer = FCAC().fit(rows).predict(rows)
            line = [f"{name}, {seed}", f"{labelled:.3f}", f"{at_the_end:.3f}", str(clusters)]
            line += [f"{adjusted_rand_score(truth, labels):.3f}" for labels in (scaled, peer)]
            lines.append(line)
    head = ["stream", "as labelled", "at the end", "clusters", 'fit, scale="bounds"', "FCAC"]
    click.echo("\n" + table(head, lines))


if __name__ == "__main__":
    main()
