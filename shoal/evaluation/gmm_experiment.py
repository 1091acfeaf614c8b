"""Gaussian mixtures in rounds beside scikit-learn's on all rows in one place, for clients that hold different clusters.

The thesis (M. Uranga, "Federated clustering", 2024) prints silhouettes of data without seeds, so its figures can only
be compared as relations; the measures here are the agreement with the truth and with scikit-learn.
"""

from __future__ import annotations

import warnings
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.rounds.base import Params
from shoal.algorithms.rounds.gmm import GMM, covariance_form
from shoal.algorithms.rounds.gmm_local import GMM_LOCAL
from shoal.algorithms.rounds.kfed import KFED
from shoal.algorithms.rounds.simulation import bounding_box, kfed_hint, run_rounds
from shoal.errors import MissingExtra
from shoal.evaluation.datasets import Dataset
from shoal.evaluation.experiments import (
    Asked,
    Experiment,
    Setting,
    chosen_files,
    chosen_splits,
    clients_for,
    clients_of,
    data_of,
    read,
)
from shoal.evaluation.published import Figure
from shoal.evaluation.scores import scores
from shoal.kernels.gaussian import FORMS, matrices
from shoal.kernels.matching import matched_distance

Floats = NDArray[np.float64]

BLOBS_CLIENTS: Final = 5
BLOBS_ROWS: Final = 500
BLOBS_SD: Final = 0.85
BLOBS_CENTRES: Final = ((0.0, 0.0), (5.0, 0.0), (0.0, 5.0), (5.0, 5.0))
ROUNDS: Final = 30
SAME: Final = 1e-6
VARIANTS: Final = (
    *(("sums", form, "-") for form in FORMS),
    ("unweighted", "full", "fit"),
    ("weighted", "full", "fit"),
    ("weighted", "full", "step"),
)


def blobs(seed: int) -> Dataset:
    """Four clusters of 500 rows in the plane; the best possible agreement with the truth is about .99."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), BLOBS_ROWS)
    rows = np.array(BLOBS_CENTRES)[labels] + generator.normal(size=(len(labels), 2)) * BLOBS_SD
    return Dataset("blobs", rows, labels, ("0", "1", "2", "3"))


def _dataset(setting: Setting, trial: int) -> Dataset:
    return blobs(trial) if setting.path is None else data_of(setting)


def _run(setting: Setting, trial: int) -> dict[str, float]:
    dataset = _dataset(setting, trial)
    clients = clients_of(setting, dataset, trial)
    k, d = len(dataset.classes), dataset.rows.shape[1]
    local = int(np.sqrt(k)) + 1 if setting.split == "kp" else 0
    begin = kfed_hint(KFED, k, clients, bounding_box(clients, trial), local)
    options = {"clusters": k, "covariance": setting["covariance"]}
    exact = GMM.start(options, d, begin)
    if setting["average"] == "sums":
        found = run_rounds(GMM, exact, clients, rounds_max=ROUNDS).params
    else:
        steps = {"fit": 100, "step": 1}[setting["local"]]
        start = GMM_LOCAL.start({**options, "average": setting["average"], "steps": steps}, d, begin)
        found = run_rounds(GMM_LOCAL, start, clients, rounds_max=ROUNDS).params
    pooled = by_scikit_learn(exact, np.concatenate(clients), ROUNDS).means
    ari, ami, nmi = scores(dataset.labels, GMM.predict(found, dataset.rows))
    return {"ari": ari, "ami": ami, "nmi": nmi, "difference": matched_distance(pooled, found["centre"])}


class Mixture(NamedTuple):
    """Weights (k,), means (k, d) and covariances (k, d, d)."""

    weights: Floats
    means: Floats
    covariances: Floats


def by_scikit_learn(params: Params, rows: Floats, steps: int) -> Mixture:
    """What scikit-learn's mixture is after `steps` from the same start. Raises `MissingExtra`."""
    try:
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - the edge never needs it
        from sklearn.mixture import GaussianMixture  # noqa: PLC0415 - the edge never needs it
    except ImportError:
        raise MissingExtra("comparing with scikit-learn", "evaluate") from None
    k, d = params["centre"].shape
    form = covariance_form(params)
    precisions = np.linalg.inv(matrices(form, params["spread"], k, d))
    given = {
        "full": precisions,
        "tied": precisions[0],
        "diag": np.diagonal(precisions, axis1=1, axis2=2),
        "spherical": precisions[:, 0, 0],
    }[form]
    mixture = GaussianMixture(
        k,
        covariance_type=form,
        tol=0.0,
        reg_covar=float(params["ridge"][0]),
        max_iter=steps,
        weights_init=np.full(k, 1 / k) if not params["weight"].any() else params["weight"] / params["weight"].sum(),
        means_init=params["centre"],
        precisions_init=given,
        init_params="random",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(rows)
    found = mixture.covariances_
    # As many as there are components, each a matrix, whatever the form keeps.
    whole = found[:, None, None] * np.eye(d) if form == "spherical" else found
    whole = found[:, :, None] * np.eye(d) if form == "diag" else whole
    return Mixture(mixture.weights_, mixture.means_, np.broadcast_to(whole, (k, d, d)))


def _settings(asked: Asked) -> list[Setting]:
    found = []
    files = tuple(name for name in asked.names if name != "blobs")
    for split in chosen_splits(asked, EXPERIMENT.splits):
        if not asked.names or "blobs" in asked.names:
            found += _variants("blobs", split, asked.clients or BLOBS_CLIENTS, asked)
    if files:
        for path in chosen_files(Asked(**{**vars(asked), "names": files}), ()):
            dataset = read(path, asked.fill)
            for split in chosen_splits(asked, EXPERIMENT.splits):
                made = _variants(dataset.name, split, clients_for(asked, dataset, split), asked)
                found += [Setting(**{**vars(setting), "path": path}) for setting in made]
    return found


def _variants(name: str, split: str, clients: int, asked: Asked) -> list[Setting]:
    return [
        Setting(
            "gmm",
            name,
            split,
            clients,
            (("average", average), ("covariance", form), ("local", local)),
            fill=asked.fill,
            epsilon=asked.epsilon,
        )
        for average, form, local in VARIANTS
    ]


def _printed(setting: Setting) -> dict[str, Figure]:
    """Nothing of the thesis; that sums are EM on all rows is the claim to be held."""
    return {"difference": Figure(0.0, 0.0)} if setting["average"] == "sums" else {}


EXPERIMENT: Final = Experiment(
    "gmm",
    "Run Gaussian mixtures, by sums and by both averages, beside scikit-learn's on all rows in one place.",
    20,
    ("iid", "niid", "kp"),
    {"ari": ".4f", "ami": ".4f", "nmi": ".4f", "difference": ".2g"},
    _settings,
    _run,
    _printed,
    lambda setting, measure, found: SAME if measure == "difference" else None,
    extra={"blobs": "four clusters in the plane, five clients"},
)
