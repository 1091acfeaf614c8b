"""DPM from a clone of its repository on the readings of the benchmark of masked sums.

`python -m benchmarks.privacy.peers --dpm FOLDER`, with `fast_histogram`, `diffprivlib` and scikit-learn before 1.7
on the path of Python. It sees all readings in one place, and its epsilon is for one of them.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.privacy.masked import REPORTING, SHAPES, Clusters, Scheme
from shoal.estimators.counting_federation import SumBudget


def agreement(seed: int, d: int, k: int, epsilon: float, clients: int) -> float:
    """Adjusted Rand index of what DPM finds in one window of each client, with the options of its demonstration."""
    stream = Clusters(seed, d, k, Scheme("DPM", clients, SumBudget(None)))
    rows = np.concatenate([stream.round()[0], stream.test[0]])
    learner = importlib.import_module("dpm").DPM(
        data=rows.copy(), bounds=(0, 1), epsilon=epsilon, delta=len(rows) ** -1.5
    )
    labels = np.full(len(rows), -1)
    for number, own in enumerate(learner.perform_clustering()[1]):
        labels[own] = number
    return float(adjusted_rand_score(stream.test[1], labels[-len(stream.test[1]) :]))


@click.command()
@click.option("--dpm", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True, help="The clone.")
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="Of one reading.")
@click.option("--clients", type=int, default=50, show_default=True, help="Each has one window of 400 readings.")
@click.option("--seeds", type=click.IntRange(1), default=len(REPORTING), show_default=True)
def main(dpm: Path, epsilon: float, clients: int, seeds: int) -> None:
    """Print the adjusted Rand index of DPM for each number of features."""
    sys.path.insert(0, str(dpm))
    warnings.simplefilter("ignore")
    for d, k in SHAPES:
        found = [agreement(seed, d, k, epsilon, clients) for seed in REPORTING[:seeds]]
        click.echo(
            f"DPM, epsilon {epsilon:g}, d={d} K={k}: {np.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})"
        )


if __name__ == "__main__":
    main()
