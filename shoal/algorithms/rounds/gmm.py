"""Federated Gaussian mixture by sums: exactly EM on the rows of all clients together.

Source: M. Uranga, "Federated clustering" (2024), sections 3.3 and 4.2, where clients average what EM has brought
each of them to (`gmm_local`). Here they send what the M-step needs, and the server takes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.rounds.arrays import (
    CENTRES,
    FLOAT,
    INT,
    Params,
    Stats,
    choice_array,
    float_array,
    label_rows,
    read_choice,
    read_float,
    reject_unless,
    row_blocks,
    sum_answers,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.rounds.options import CLUSTERS, Option, Options, choice, is_number, resolve_options
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.errors import InvalidData
from shoal.kernels.distance import Floats
from shoal.kernels.gaussian import (
    FORMS,
    log_densities,
    second_moments,
    spherical_spread,
    spread_from_moments,
    spread_shape,
    whitening,
)

GRAIN: Final = 10 * float(np.finfo(np.float64).eps)
"""added to each mass, as scikit-learn does"""
ALIVE: Final = 1e-6
"""rows' worth of mass below which a component keeps its place and extent"""
RIDGE: Final = Option(
    1e-6, lambda value: is_number(value, 0.0), "above 0", "added to every variance, in the square of its unit"
)
OPTIONS: Final = {
    "clusters": CLUSTERS,
    "covariance": choice(FORMS, "one matrix each, one for all, variances by feature each, one variance each"),
    "ridge": RIDGE,
}

# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """The E-step: mass (k,), sums (k, d) and second moments (c, m) of the rows by their shares in the components,
    all relative to the origin of the call; the number of rows (1,) and their log-likelihood (1,)."""
    k, d = params["centre"].shape
    form = form_of(params)
    mass, total, second = np.zeros(k), np.zeros((k, d)), np.zeros(spread_shape(form, k, d))
    seen, likelihood = 0, 0.0
    densities = _densities(params)
    for block in row_blocks(rows, d, k):
        near, shares = densities(block)
        peak = shares.max(axis=1, keepdims=True)
        np.exp(np.subtract(shares, peak, out=shares), out=shares)
        heights = shares.sum(axis=1, keepdims=True)
        shares /= heights
        mass += shares.sum(axis=0)
        total += shares.T @ near
        second += second_moments(form, near, shares)
        seen += len(block)
        likelihood += float(peak.sum() + np.log(heights).sum())
    return {
        "mass": mass,
        "sum": total,
        "second": second,
        "rows": float_array(seen),
        "likelihood": float_array(likelihood),
    }


def _densities(params: Params) -> Callable[[Floats], tuple[Floats, Floats]]:
    """-> a function of rows (n, d): the rows relative to the origin, and (n, k) log of weight times density."""
    k, d = params["centre"].shape
    form, origin = form_of(params), params["origin"]
    if params["spread"].shape != spread_shape(form, k, d):
        raise InvalidData(
            f"parameter spread must have shape {spread_shape(form, k, d)} for {form}; the call is damaged"
        )
    try:
        whiten = whitening(form, params["spread"], d)
    except np.linalg.LinAlgError:
        raise InvalidData("parameter spread holds a covariance without extent; the call is damaged") from None
    means, log_weights = params["centre"] - origin, np.log(mixing(params["weight"]))

    def densities(block: Floats) -> tuple[Floats, Floats]:
        near = block - origin
        logs = log_densities(form, near, means, whiten)
        logs += log_weights
        return near, logs

    return densities


def form_of(params: Params) -> str:
    """The form of the covariances."""
    return read_choice(params, "form", FORMS)


def mixing(weight: Floats) -> Floats:
    """mass (k,) -> mixing weights (k,), equal ones where there is no mass yet."""
    if not (weight >= 0).all():
        raise InvalidData("parameter weight holds a mass below 0; the call is damaged")
    grained = weight + GRAIN
    return np.asarray(grained / grained.sum())


# What travels.

PARAMS: Final = {
    **CENTRES,
    "spread": ArraySpec("<f8", ("c", "m")),
    "form": INT,
    "origin": ArraySpec("<f8", ("d",), rowlike=True),
    "ridge": FLOAT,
    "likelihood": ArraySpec("<f8", ("t",)),
}
"""means, masses, covariances (see `shoal.kernels.gaussian`) and their form, the point that sums are relative to, which
never moves, what is added to variances, and the mean log-likelihood under the parameters before, empty before any"""
STATS: Final = {
    "mass": ArraySpec("<f8", ("k",), per_node=True),
    "sum": ArraySpec("<f8", ("k", "d"), per_node=True),
    "second": ArraySpec("<f8", ("c", "m"), per_node=True),
    "rows": FLOAT,
    "likelihood": FLOAT,
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The components begin as balls that fill the box between them."""
    option = resolve_options("gmm", OPTIONS, options)
    centre = starting_centres(option["clusters"], d, hint)
    k, form = len(centre), option["covariance"]
    radii = (hint.high - hint.low) / (2.0 * k ** (1.0 / d))
    return {
        "centre": centre,
        "weight": np.zeros(k),
        "spread": spherical_spread(form, radii * radii + option["ridge"], k),
        "form": choice_array(form, FORMS),
        "origin": hint.low + (hint.high - hint.low) / 2,
        "ridge": float_array(option["ridge"]),
        "likelihood": np.empty(0),
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The M-step. A component without mass keeps its place and its extent, and comes back when rows come to it."""
    sums = sum_answers(params, STATS, answers)
    if sums is None or not sums["rows"][0] > 0:
        return dict(params)
    reject_unless(sums["mass"].shape == params["weight"].shape, "of another number of components than the call has")
    reject_unless(sums["second"].shape == params["spread"].shape, "of another form of covariance than the call has")
    reject_unless((sums["mass"] >= 0).all(), "a mass below 0")
    form, ridge = form_of(params), read_float(params, "ridge", above=0.0)
    alive = sums["mass"] > ALIVE
    mass = sums["mass"] + GRAIN
    means = np.where(alive[:, None], sums["sum"] / mass[:, None], params["centre"] - params["origin"])
    spread = params["spread"].copy()
    if form == "tied":
        spread = spread_from_moments(form, np.where(alive, mass, 0.0), means, sums["second"], ridge)
    else:
        spread[alive] = spread_from_moments(form, mass[alive], means[alive], sums["second"][alive], ridge)
    return {
        **params,
        "centre": np.where(alive[:, None], means + params["origin"], params["centre"]),
        "weight": sums["mass"],
        "spread": spread,
        "likelihood": sums["likelihood"] / sums["rows"],
    }


def shift(before: Params, after: Params) -> float:
    """How much the mean log-likelihood rose; infinite in the first round, which has nothing to compare with."""
    if not len(before["likelihood"]) or not len(after["likelihood"]):
        return math.inf
    return float(abs(after["likelihood"][0] - before["likelihood"][0]))


def predict(params: Params, rows: Rows) -> NDArray[np.int64]:
    """rows (n, d) -> (n,) the component with the largest share of each. Raises `InvalidData`."""
    densities = _densities(params)
    k, d = params["centre"].shape
    return label_rows(rows, d, k, lambda block: densities(block)[1].argmax(axis=1))


GMM: Final = RoundsAlgorithm(
    name="gmm",
    snapshot=PARAMS,
    update=STATS,
    additive=True,
    options=OPTIONS,
    start=start,
    answer=answer,
    combine=combine,
    shift=shift,
    predict=predict,
)
