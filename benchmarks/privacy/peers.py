"""Other private clusterings from clones of their repositories, on the readings of the benchmark of
masked sums.

`python -m benchmarks privacy.peers --dpm FOLDER --fastlloyd FOLDER`. Both need `diffprivlib` and
scikit-learn before 1.7 on the path of Python, DPM `fast_histogram`, FastLloyd `matplotlib` and
`tqdm`. The epsilon of each is for one reading, and so is that of density_tree beside them, whose
noise is added by every client to its own counts.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from pathlib import Path
from typing import Final

import click
import numpy as np
from sklearn.metrics import adjusted_rand_score

from benchmarks.privacy.masked import OPTIONS, REPORTING, SHAPES, WINDOW, Clusters, Scheme
from shoal.kernels.arrays import Floats, Ints
from shoal.simulation.counting import CountingFederation
from shoal.simulation.masked import SumBudget

Peer = Callable[[Floats, Ints, Floats, int, float, int], Ints]
"""(rows (n, d) that are learnt, client (n,) of each, others (m, d), number of clusters, epsilon,
seed) -> cluster (m,) of each of the others; rows and others lie in the unit cube"""


def dpm(rows: Floats, owner: Ints, others: Floats, k: int, epsilon: float, seed: int) -> Ints:
    """DPM, with the options of its demonstration. It labels what it has learnt only, so it learns
    the others too."""
    rows = np.concatenate([rows, others])
    learner = importlib.import_module("dpm").DPM(
        data=rows.copy(), bounds=(0, 1), epsilon=epsilon, delta=len(rows) ** -1.5
    )
    labels = np.full(len(rows), -1)
    for number, own in enumerate(learner.perform_clustering()[1]):
        labels[own] = number
    return labels[-len(others) :]


def fastlloyd(rows: Floats, owner: Ints, others: Floats, k: int, epsilon: float, seed: int) -> Ints:
    """FastLloyd, all parties in one process, with the defaults of its experiments; others belong to
    the nearest centre.

    The cube is scaled by its bounds, where its experiments take the least and the greatest reading.
    """
    with tempfile.TemporaryDirectory() as folder, chdir(folder), open(os.devnull, "w") as nowhere:
        Path("data").mkdir()  # listed when it is imported
        protocols = importlib.import_module("utils.protocols")
        data_io = importlib.import_module("data_io")
        values = [data_io.to_fixed(2 * rows[owner == client] - 1) for client in np.unique(owner)]
        params = importlib.import_module("configs").Params(
            num_clients=len(values),
            k=k,
            dim=rows.shape[1],
            data_size=len(rows),
            dp="gaussiananalytic",
            eps=epsilon,
            method="diagonal_then_frac",
            post="fold",
            alpha=0.8,
            seed=seed,
        )
        params.calculate_iters()
        with redirect_stderr(nowhere):  # a bar of progress
            centres = data_io.unscale(protocols.local_proto(values, params)[0])
    distances = np.linalg.norm(2 * others[:, None] - 1 - centres, axis=2)
    return np.asarray(distances.argmin(axis=1))


def ours(rows: Floats, owner: Ints, others: Floats, k: int, epsilon: float, seed: int) -> Ints:
    """density_tree from counts with the noise of each client; it is not told the number of
    clusters."""
    federation = CountingFederation(OPTIONS, rows.shape[1], 1, seed, epsilon, WINDOW)
    federation.learn(rows, owner, is_last=True)
    return federation.predict(others)


PEERS: Final[dict[str, Peer]] = {"DPM": dpm, "FastLloyd": fastlloyd, "density_tree": ours}


def agreement(peer: Peer, seed: int, d: int, k: int, epsilon: float, clients: int) -> float:
    """Adjusted Rand index of what is found in one window of each client, on readings that are not
    of it."""
    stream = Clusters(seed, d, k, Scheme("peers", clients, SumBudget(None)))
    return float(
        adjusted_rand_score(stream.test[1], peer(*stream.round(), stream.test[0], k, epsilon, seed))
    )


_CLONE = click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True)


@click.command()
@click.option("--dpm", "dpm_folder", type=_CLONE, help="The clone of DPM; left out without it.")
@click.option(
    "--fastlloyd",
    "fastlloyd_folder",
    type=_CLONE,
    help="The clone of FastLloyd; left out without it.",
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="Of one reading.")
@click.option(
    "--clients",
    type=int,
    default=50,
    show_default=True,
    help="Each has one window of 400 readings.",
)
@click.option("--seeds", type=click.IntRange(1), default=len(REPORTING), show_default=True)
def main(
    dpm_folder: Path | None, fastlloyd_folder: Path | None, epsilon: float, clients: int, seeds: int
) -> None:
    """Print the adjusted Rand index of each for each number of features."""
    folders = {"DPM": dpm_folder, "FastLloyd": fastlloyd_folder}
    sys.path[:0] = [str(folder) for folder in folders.values() if folder]
    warnings.simplefilter("ignore")
    for name, peer in PEERS.items():
        if name in folders and folders[name] is None:
            continue
        for d, k in SHAPES:
            found = [agreement(peer, seed, d, k, epsilon, clients) for seed in REPORTING[:seeds]]
            click.echo(
                f"{name}, epsilon {epsilon:g}, d={d} K={k}: {np.mean(found):.2f} ({min(found):.2f}"
                f" to {max(found):.2f})"
            )
