"""How well the nearest rows know the class of a row: where they know nothing, no clustering by
density can agree."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.results import folder_option, table
from benchmarks.steadiness.sensors import Table, read
from shoal.kernels.arrays import Floats, Ints

TABLES = {
    "hill_valley": Table("hill_valley"),
    "ozone": Table("ozone_8hr", ("date",)),
    "phoneme": Table("phoneme"),
    "pendigits": Table("pendigits"),
    "optdigits": Table("optdigits"),
}
NEIGHBOURS = 10
FOLDS = 5


def known_by_neighbours(rows: Floats, classes: Ints) -> tuple[float, float, float]:
    """-> the share of the rows whose class most of the nearest other rows have, the share of the
    largest class, and the adjusted Rand index between the classes and those of the nearest rows.
    Every feature is scaled to its range."""
    spans = np.ptp(rows, axis=0)
    scaled = (rows - rows.min(axis=0)) / np.where(spans > 0.0, spans, 1.0)
    found = cross_val_predict(KNeighborsClassifier(NEIGHBOURS), scaled, classes, cv=FOLDS)
    largest = np.bincount(classes).max() / len(classes)
    return (
        float((found == classes).mean()),
        float(largest),
        float(adjusted_rand_score(classes, found)),
    )


@click.command()
@folder_option("--data", "Folder of NAME.csv.gz files.", required=True)
def main(data: Path) -> None:
    """Print how well the ten nearest rows know the class of a row, for some tables of the FCAC
    paper."""
    lines = []
    for name, file in TABLES.items():
        right, largest, agreement = known_by_neighbours(*read(data, file))
        lines.append([name, f"{right:.1%}", f"{largest:.1%}", f"{agreement:.3f}"])
    click.echo(
        table(
            ["table", "class known by the nearest rows", "share of the largest class", "ARI"], lines
        )
    )
