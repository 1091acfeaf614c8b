"""Federated Gaussian mixture by sums: exactly EM on the rows of all clients together.

Clients compute the E-step and send the sums that the M-step needs; the server computes the M-step.
In the source (M. Uranga, "Federated clustering", 2024, sections 3.3 and 4.2) clients run EM alone
and the server averages their parameters: that is `shoal.algorithms.rounds.gmm_local`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from shoal.algorithms.claims import (
    Claims,
    check_between,
    check_masses,
    check_moments,
    check_scatter,
    check_sums,
    check_total_moments,
    require_possible,
)
from shoal.algorithms.options import (
    AlgorithmOptions,
    Clusters,
    Options,
    clusters_max_option,
    clusters_option,
    option,
)
from shoal.algorithms.rounds.arrays import (
    FLOAT,
    INT,
    SOME_CENTRES,
    Params,
    Stats,
    check_shape,
    choice_array,
    float_array,
    label_rows,
    read_choice,
    read_float,
    reject_unless,
    require_centres,
    sum_answers,
    weighted_blocks,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, Ints, unpack_symmetric
from shoal.kernels.gaussian import (
    COVARIANCE_TYPES,
    log_densities,
    mixture_responsibilities,
    second_moments,
    spherical_spread,
    spread_from_moments,
    spread_shape,
    whitening,
)

MASS_GRAIN: Final = 10 * float(np.finfo(np.float64).eps)
"""added to each mass, as scikit-learn does"""
MASS_MIN: Final = 1e-6
"""mass in rows below which a component keeps its mean and covariance"""
CovarianceType = Literal["full", "tied", "diag", "spherical"]
"""forms of covariance, as in `shoal.kernels.gaussian.COVARIANCE_TYPES`"""


class GMMOptions(AlgorithmOptions):
    """Options of gmm."""

    ALGORITHM = "gmm"

    clusters: Clusters | Literal["gap", "silhouette", "bic"] = clusters_option(
        "gap", "silhouette", "bic"
    )
    clusters_max: int = clusters_max_option()
    covariance: CovarianceType = option(
        "full",
        "per component a matrix, one matrix for all, per component a variance by feature, "
        "or one variance",
    )
    ridge: float = option(1e-6, "added to every variance, in unit coordinates squared", above=0.0)


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """The E-step.

    -> mass (k,), sums (k, d) and second moments (c, m) of the rows, weighted by the
    responsibilities of the components and relative to the origin of the round request; the number
    of rows (1,); their log-likelihood (1,).
    """
    return _expected(params, rows, None)


def weigh(params: Params, rows: Rows, weights: Floats) -> Stats:
    """The E-step of rows that count as often as their weights (n,) say."""
    return _expected(params, rows, weights)


def _expected(params: Params, rows: Rows, weights: Floats | None) -> Stats:
    k, d = params["centre"].shape
    covariance_type = read_covariance_type(params)
    mass = np.zeros(k)
    total = np.zeros((k, d))
    second = np.zeros(spread_shape(covariance_type, k, d))
    n_rows = 0.0
    likelihood = 0.0
    mixture = _mixture(params)
    # Each block adds to k matrices (d, d), which takes more time than what it adds if it has fewer
    # rows than features.
    height_min = d if covariance_type == "full" else 1
    for block, own_weights in weighted_blocks(rows, d, k, weights, height_min):
        centred = block - params["origin"]
        responsibilities, block_likelihood = mixture_responsibilities(
            covariance_type, centred, *mixture, own_weights
        )
        block_rows = float(len(block))
        moment_rows = centred
        if own_weights is not None:
            responsibilities = responsibilities * own_weights
            block_rows = float(own_weights.sum())
            if covariance_type == "tied":
                # Its moments are of the rows themselves, whatever component they belong to.
                moment_rows = centred * np.sqrt(own_weights)[:, None]
        mass += responsibilities.sum(axis=1)
        total += responsibilities @ centred
        second += second_moments(covariance_type, moment_rows, responsibilities.T)
        n_rows += block_rows
        likelihood += block_likelihood
    return {
        "mass": mass,
        "sum": total,
        "second": second,
        "rows": float_array(n_rows),
        "likelihood": float_array(likelihood),
    }


def _mixture(params: Params) -> tuple[Floats, Floats, Floats]:
    """The components as kernels take them. Raises `InvalidData`.

    -> means (k, d) relative to the origin, the whitening of the components, and logarithms of their
    weights (k,).
    """
    require_centres(params)
    k, d = params["centre"].shape
    covariance_type = read_covariance_type(params)
    shape = spread_shape(covariance_type, k, d)
    if params["spread"].shape != shape:
        raise InvalidData(
            f"parameter spread must have shape {shape} for {covariance_type}; "
            "the round request is damaged"
        )
    try:
        whiten = whitening(covariance_type, params["spread"], d)
    except np.linalg.LinAlgError:
        raise InvalidData(
            "parameter spread holds a singular covariance; the round request is damaged"
        ) from None
    return params["centre"] - params["origin"], whiten, np.log(mixing_weights(params["weight"]))


def read_covariance_type(params: Params) -> str:
    """One of `COVARIANCE_TYPES`; in a round request it is called `form`."""
    return read_choice(params, "form", COVARIANCE_TYPES)


def mixing_weights(weight: Floats) -> Floats:
    """mass (k,) -> mixing weights (k,), which add up to 1; equal ones when there is no mass yet."""
    if not (weight >= 0).all():
        raise InvalidData("parameter weight holds a mass below 0; the round request is damaged")
    grained = weight + MASS_GRAIN
    return np.asarray(grained / grained.sum())


# What travels.

PARAMS: Final = {
    **SOME_CENTRES,
    "spread": ArraySpec("<f8", ("c", "m")),
    "form": INT,
    "origin": ArraySpec("<f8", ("d",), rowlike=True),
    "ridge": FLOAT,
    "likelihood": ArraySpec("<f8", ("t",)),
}
"""means and masses; `spread`, the covariances (see `shoal.kernels.gaussian`), and their `form`;
`origin`, the fixed point that sums are relative to; `likelihood`, the mean log-likelihood under the
previous parameters, empty at first"""
STATS: Final = {
    "mass": ArraySpec("<f8", ("k",), per_node=True),
    "sum": ArraySpec("<f8", ("k", "d"), per_node=True),
    "second": ArraySpec("<f8", ("c", "m"), per_node=True),
    "rows": FLOAT,
    "likelihood": FLOAT,
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first components, spheres that together fill the box. Raises `SettingsError`."""
    chosen = GMMOptions.parse(options)
    centre = starting_centres(chosen.clusters, d, hint)
    k = len(centre)
    covariance_type = chosen.covariance
    # k boxes of this half width have the volume of the whole one.
    radii = (hint.high - hint.low) / (2.0 * k ** (1.0 / d))
    return {
        "centre": centre,
        "weight": np.zeros(k),
        "spread": spherical_spread(covariance_type, radii * radii + chosen.ridge, k),
        "form": choice_array(covariance_type, COVARIANCE_TYPES),
        "origin": hint.low + (hint.high - hint.low) / 2,
        "ridge": float_array(chosen.ridge),
        "likelihood": np.empty(0),
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless masses, sums, second moments and likelihood can be those of the
    rows."""
    check_rows_claimed(params, stats, claims)
    relative = claims.relative_to(params["origin"])
    mass = stats["mass"]
    sums = stats["sum"]
    second = stats["second"]
    check_masses("mass", mass, claims)
    check_sums("sum", mass, sums, relative)
    k, d = sums.shape
    covariance_type = read_covariance_type(params)
    require_possible(
        second.shape == spread_shape(covariance_type, k, d),
        "another form of covariance than the round request has",
    )
    if covariance_type == "diag":
        check_moments(mass, sums, second, relative)
    elif covariance_type == "spherical":
        check_total_moments(mass, sums, second[:, 0], relative)
    else:
        squares = np.diagonal(unpack_symmetric(second, d), axis1=1, axis2=2)
        if covariance_type == "full":
            check_moments(mass, sums, squares, relative)
        else:
            check_moments(mass.sum()[None], sums.sum(axis=0)[None], squares, relative)
        check_scatter(second, mass, sums, relative)


def check_rows_claimed(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless the number of rows is that of the readings, and the likelihood
    can be theirs.

    Variances are at least about half the ridge, and at most those of rows at the corners of the
    box.
    """
    rows = claims.readings
    d = len(claims.low)
    require_possible(float(stats["rows"][0]) == rows, "another number of rows than readings")
    ridge = read_float(params, "ridge", above=0.0)
    extent = claims.span**2
    # Bounds that hold for any honest answer, and so much wider than most answers.
    narrow = 0.5 * ridge
    wide = float(extent.sum()) + 2 * d * ridge
    most = -0.5 * d * math.log(2 * math.pi * narrow)
    least = (
        -0.5 * d * math.log(2 * math.pi * wide)
        - 0.5 * float(extent.sum()) / narrow
        - math.log(len(params["centre"]))
    )
    check_between("likelihood", float(stats["likelihood"][0]), rows * least, rows * most)


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The M-step.

    A component without mass keeps its mean and covariance, and recovers when rows come near it.
    """
    sums = sum_answers(params, STATS, answers)
    if sums is None or not sums["rows"][0] > 0:
        return dict(params)
    check_shape(sums["mass"], params["weight"], "number of components")
    check_shape(sums["second"], params["spread"], "form of covariance")
    reject_unless((sums["mass"] >= 0).all(), "a mass below 0")
    covariance_type = read_covariance_type(params)
    ridge = read_float(params, "ridge", above=0.0)
    has_mass = sums["mass"] > MASS_MIN
    mass = sums["mass"] + MASS_GRAIN
    # Relative to the origin: the squares of coordinates far from 0 would lose the digits that a
    # variance is made of.
    means = np.where(
        has_mass[:, None], sums["sum"] / mass[:, None], params["centre"] - params["origin"]
    )
    spread = params["spread"].copy()
    if covariance_type == "tied":
        spread = spread_from_moments(
            covariance_type, np.where(has_mass, mass, 0.0), means, sums["second"], ridge
        )
    else:
        spread[has_mass] = spread_from_moments(
            covariance_type, mass[has_mass], means[has_mass], sums["second"][has_mass], ridge
        )
    return {
        **params,
        "centre": np.where(has_mass[:, None], means + params["origin"], params["centre"]),
        "weight": sums["mass"],
        "spread": spread,
        "likelihood": sums["likelihood"] / sums["rows"],
    }


def shift(before: Params, after: Params) -> float:
    """The change of the mean log-likelihood; infinite in the first rounds, where there is nothing
    to compare with."""
    if not len(before["likelihood"]) or not len(after["likelihood"]):
        return math.inf
    return float(abs(after["likelihood"][0] - before["likelihood"][0]))


def predict(params: Params, rows: Rows) -> Ints:
    """rows (n, d) -> (n,) the component with the largest share of each. Raises `InvalidData`."""
    covariance_type = read_covariance_type(params)
    origin = params["origin"]
    means, whiten, log_weights = _mixture(params)

    def label(block: Floats) -> Ints:
        logs = log_densities(covariance_type, block - origin, means, whiten) + log_weights
        return np.asarray(logs.argmax(axis=1))

    return label_rows(rows, means.shape[1], len(means), label)


GMM: Final = RoundsAlgorithm(
    name="gmm",
    snapshot=PARAMS,
    update=STATS,
    options=GMMOptions,
    start=start,
    answer=answer,
    weigh=weigh,
    combine=combine,
    robust=(
        "the mass of a component decides which rows it draws, and where clients hold different "
        "clusters an honest mass cannot be told from a malicious one"
    ),
    additive=True,
    check_claims=check_claims,
    shift=shift,
    predict=predict,
    predictor=None,
)
