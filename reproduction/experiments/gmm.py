"""Gaussian mixtures by sums and by averages, beside scikit-learn's on all rows in one place.

The thesis (M. Uranga, "Federated clustering", 2024) prints silhouettes of data without seeds, so
its figures can be compared as relations only; the measures here are the agreement with the true
classes and with scikit-learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from reproduction.datasets import Dataset, Split
from reproduction.experiment import (
    Experiment,
    Figure,
    Setting,
    Synthetic,
    clients_of,
    data_of,
    scores,
    within,
)
from reproduction.experiments.one_shot import FORMATS
from shoal.algorithms.rounds.base import Params
from shoal.algorithms.rounds.gmm import GMM, read_covariance_type
from shoal.algorithms.rounds.gmm_local import GMM_LOCAL
from shoal.errors import MissingExtra
from shoal.kernels.arrays import Floats
from shoal.kernels.gaussian import COVARIANCE_TYPES, matrices
from shoal.kernels.matching import matched_distance
from shoal.simulation.rounds import bounding_box, kfed_hint, run_rounds

BLOBS_CLIENTS: Final = 5
BLOBS_ROWS: Final = 500
BLOBS_SD: Final = 0.85
BLOBS_CENTRES: Final = ((0.0, 0.0), (5.0, 0.0), (0.0, 5.0), (5.0, 5.0))
SPLITS: Final[tuple[Split, ...]] = ("iid", "niid", "kp")
ROUNDS: Final = 30
SAME: Final = 1e-6
"""largest distance between means that differ by rounding only"""
VARIANTS: Final = tuple(
    (("average", average), ("covariance", covariance_type), ("local", local))
    for average, covariance_type, local in (
        *(("sums", covariance_type, "-") for covariance_type in COVARIANCE_TYPES),
        ("unweighted", "full", "fit"),
        ("weighted", "full", "fit"),
        ("weighted", "full", "step"),
    )
)


def blobs(seed: int) -> Dataset:
    """Four clusters of 500 rows in the plane; the best possible agreement with the truth is about
    .99."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), BLOBS_ROWS)
    rows = np.array(BLOBS_CENTRES)[labels] + generator.normal(size=(len(labels), 2)) * BLOBS_SD
    return Dataset("blobs", rows, labels, ("0", "1", "2", "3"))


def _run(setting: Setting, trial: int) -> dict[str, float]:
    dataset = blobs(trial) if setting.path is None else data_of(setting)
    clients = clients_of(setting, dataset, trial)
    k = len(dataset.classes)
    d = dataset.rows.shape[1]
    local = int(np.sqrt(k)) + 1 if setting.split == "kp" else 0
    init = kfed_hint(k, clients, bounding_box(clients, trial), local)
    options = {"clusters": k, "covariance": setting["covariance"]}
    by_sums = GMM.start(options, d, init)
    if setting["average"] == "sums":
        params = run_rounds(GMM, by_sums, clients, rounds_max=ROUNDS).params
    else:
        steps = {"fit": 100, "step": 1}[setting["local"]]
        by_averages = GMM_LOCAL.start(
            {**options, "average": setting["average"], "steps": steps}, d, init
        )
        params = run_rounds(GMM_LOCAL, by_averages, clients, rounds_max=ROUNDS).params
    pooled = by_scikit_learn(by_sums, np.concatenate(clients), ROUNDS).means
    difference = matched_distance(pooled, params["centre"])
    return {**scores(dataset.labels, GMM.predict(params, dataset.rows)), "difference": difference}


class Mixture(NamedTuple):
    """Weights (k,), means (k, d) and covariances (k, d, d)."""

    weights: Floats
    means: Floats
    covariances: Floats


def by_scikit_learn(params: Params, rows: Floats, steps: int) -> Mixture:
    """scikit-learn's mixture of rows (n, d) after `steps` of EM from `params`. Raises
    `MissingExtra`."""
    try:
        from sklearn.exceptions import (  # noqa: PLC0415 - an extra that edge clients do without
            ConvergenceWarning,
        )
        from sklearn.mixture import (  # noqa: PLC0415 - an extra that edge clients do without
            GaussianMixture,
        )
    except ImportError:
        raise MissingExtra("comparing with scikit-learn", "evaluate") from None
    k, d = params["centre"].shape
    covariance_type = read_covariance_type(params)
    precisions = np.linalg.inv(matrices(covariance_type, params["spread"], k, d))
    initial = {
        "full": precisions,
        "tied": precisions[0],
        "diag": np.diagonal(precisions, axis1=1, axis2=2),
        "spherical": precisions[:, 0, 0],
    }[covariance_type]
    mixture = GaussianMixture(
        k,
        covariance_type=covariance_type,
        tol=0.0,
        reg_covar=float(params["ridge"][0]),
        max_iter=steps,
        weights_init=np.full(k, 1 / k)
        if not params["weight"].any()
        else params["weight"] / params["weight"].sum(),
        means_init=params["centre"],
        precisions_init=initial,
        init_params="random",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(rows)
    kept = mixture.covariances_
    # One matrix for each component, whatever the form keeps.
    full = kept[:, None, None] * np.eye(d) if covariance_type == "spherical" else kept
    full = kept[:, :, None] * np.eye(d) if covariance_type == "diag" else full
    return Mixture(mixture.weights_, mixture.means_, np.broadcast_to(full, (k, d, d)))


def _published(setting: Setting) -> Mapping[str, Figure]:
    """No figure of the thesis; 0 for the difference between sums and EM on all rows, which is what
    is claimed."""
    return {"difference": Figure(0.0, 0.0)} if setting["average"] == "sums" else {}


TEXT: Final = """\
The thesis (M. Uranga, "Federated clustering", 2024) prints silhouettes of data without seeds, which
can be compared as relations only. What is checked is the claim of the sums: `difference`, the
distance of the means from those of scikit-learn's `GaussianMixture` on all rows from the same
start, is at most 1e-6. Weights and covariances agree as closely
(`tests/reproduction/test_rounds_protocols.py`). Averages of local fits are measured beside them.
"""
EXPERIMENT: Final = Experiment(
    name="gmm",
    title="Run Gaussian mixtures, by sums and by both averages, beside scikit-learn's on all "
    "rows in one place.",
    trials=20,
    splits=SPLITS,
    datasets=(),
    variants=VARIANTS,
    formats=FORMATS,
    run=_run,
    published=_published,
    agrees=within(lambda setting, measure, measured: SAME if measure == "difference" else None),
    synthetic={
        "blobs": Synthetic(
            "four clusters in the plane, five clients", BLOBS_CLIENTS, SPLITS, VARIANTS
        )
    },
    text=TEXT,
)
