"""Federated Gaussian mixture by averaging: each client runs EM alone, and the server averages their
parameters.

Source: M. Uranga, "Federated clustering" (2024), section 4.2, for the plain mean. It works only if
every client holds rows of every component; it is here to be compared with
`shoal.algorithms.rounds.gmm`, which is exact. Two of its weaknesses can be mended by options:
components that come in another order (`match`), and components without rows on a client
(`average`). The weighted average also adds the scatter between the clients' means to the
covariances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import numpy as np

from shoal.algorithms.claims import Claims, check_definite, check_masses, require_possible
from shoal.algorithms.options import Options, option
from shoal.algorithms.rounds import gmm
from shoal.algorithms.rounds.arrays import (
    FLOAT,
    INT,
    Params,
    Stats,
    check_answer,
    check_shape,
    choice_array,
    int_array,
    n_features,
    read_choice,
    read_float,
    read_int,
    reject_unless,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.gmm import GMM, GMMOptions, read_covariance_type
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.kernels.arrays import Floats
from shoal.kernels.gaussian import (
    affinity,
    ensure_positive_definite,
    matrices,
    merge_mixtures,
    spread_shape,
)
from shoal.kernels.matching import assignment

STEPS_MAX: Final = 1000
Average = Literal["unweighted", "weighted"]
Match = Literal["overlap", "place"]
AVERAGES: Final = get_args(Average)
MATCHES: Final = get_args(Match)
CLIENT_TOLERANCE: Final = 1e-3
"""change of the mean log-likelihood that ends a fit, as in scikit-learn"""
VARIANCE_SLACK: Final = 1e-6
"""distance by which a variance may lie beyond its bound, as a part of the bound: rounding widens
flat components"""


class GMMLocalOptions(GMMOptions):
    """Options of gmm_local: those of gmm, and three more."""

    ALGORITHM = "gmm_local"

    average: Average = option(
        "unweighted", "mean of the clients' components: plain, or weighted by the mass of each"
    )
    match: Match = option(
        "overlap",
        "which components are averaged: those that overlap most, or those in the same position",
    )
    steps: int = option(
        100, "steps of EM that each client runs alone, at most", least=1, most=STEPS_MAX
    )


# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """EM on the client's rows, from the parameters received.

    -> masses (p,), means (p, d), spread (q, m); the number of rows (1,) and their log-likelihood
    (1,) under the parameters received.
    """
    sums = gmm.answer(params, rows)
    if not sums["rows"][0] > 0:
        d = n_features(params)
        numbers = spread_shape(read_covariance_type(params), 1, d)[1]
        return {
            "mass": np.zeros(0),
            "mean": np.empty((0, d)),
            "spread": np.empty((0, numbers)),
            "rows": np.zeros(1),
            "likelihood": np.zeros(1),
        }
    own = gmm.combine(params, [sums])
    for _ in range(read_int(params, "steps", 1, STEPS_MAX) - 1):
        before = own
        own = gmm.combine(own, [gmm.answer(own, rows)])
        if gmm.shift(before, own) < CLIENT_TOLERANCE:
            break
    return {
        "mass": own["weight"],
        "mean": own["centre"],
        "spread": own["spread"],
        "rows": sums["rows"],
        "likelihood": sums["likelihood"],
    }


# What travels.

PARAMS: Final = {
    **GMM.snapshot,
    "average": INT,
    "match": INT,
    "steps": INT,
}
STATS: Final = {
    "mass": ArraySpec("<f8", ("p",), per_node=True),
    "mean": ArraySpec("<f8", ("p", "d"), rowlike=True, per_node=True),
    "spread": ArraySpec("<f8", ("q", "m"), per_node=True),
    "rows": FLOAT,
    "likelihood": FLOAT,
}

# Server half.


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first parameters of `gmm`, and the options that clients and server need. Raises
    `SettingsError`."""
    chosen = GMMLocalOptions.parse(options)
    return {
        **gmm.start({name: getattr(chosen, name) for name in GMMOptions.model_fields}, d, hint),
        "average": choice_array(chosen.average, AVERAGES),
        "match": choice_array(chosen.match, MATCHES),
        "steps": int_array(chosen.steps),
    }


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless the components can be those of a fit to the rows.

    No variance is below 0 or wider than the box, which the covariances of the round request keep to
    as well.
    """
    gmm.check_rows_claimed(params, stats, claims)
    check_masses("mass", stats["mass"], claims)
    p, d = stats["mean"].shape
    if not p:
        return
    require_possible(bool(stats["mass"].sum() > 0), "components without mass")
    covariance_type = read_covariance_type(params)
    spread = stats["spread"]
    require_possible(
        spread.shape == spread_shape(covariance_type, p, d),
        "another form of covariance than the round request has",
    )
    covariances = matrices(covariance_type, spread, len(spread), d)
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    # A quarter of the squared extent is the largest variance in the box; the scatter between
    # clients may add as much.
    widest = 0.5 * claims.span**2 + 2.0 * read_float(params, "ridge", above=0.0)
    require_possible(
        bool((variances <= widest * (1.0 + VARIANCE_SLACK)).all()),
        "a variance wider than the bounds",
    )
    check_definite(covariances)


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The mean of the clients' weights, means and covariances."""
    for stats in answers:
        check_answer(STATS, stats, n_features(params))
        reject_unless((stats["mass"] >= 0).all() and stats["rows"][0] >= 0, "a mass below 0")
    fits = [stats for stats in answers if len(stats["mass"])]
    if not fits:
        return dict(params)
    for stats in fits:
        check_shape(stats["mass"], params["weight"], "number of components")
        check_shape(stats["spread"], params["spread"], "form of covariance")
    covariance_type = read_covariance_type(params)
    origin = params["origin"]
    if read_choice(params, "match", MATCHES) == "overlap":
        fits = [_matched(covariance_type, params, stats) for stats in fits]
    rows = np.array([stats["rows"][0] for stats in fits])
    mass = np.stack([stats["mass"] for stats in fits])
    mean = np.stack([stats["mean"] for stats in fits])
    spread = np.stack([stats["spread"] for stats in fits])
    if read_choice(params, "average", AVERAGES) == "unweighted":
        # Each client counts alike, however many rows it has; together they have the mass of all.
        share = np.mean(mass / mass.sum(axis=1, keepdims=True), axis=0)
        centre = mean.mean(axis=0)
        extent = spread.mean(axis=0)
        weight = share * rows.sum()
    else:
        weight = mass.sum(axis=0)
        has_mass = weight > gmm.MASS_MIN
        centre, extent = merge_mixtures(covariance_type, mass, mean - origin, spread)
        centre = np.where(has_mass[:, None], centre + origin, params["centre"])
        if covariance_type != "tied":
            extent = np.where(has_mass[:, None], extent, params["spread"])
    likelihood = sum(float(stats["likelihood"][0]) for stats in fits) / rows.sum()
    # A mean of covariances is positive definite but for rounding.
    extent = ensure_positive_definite(covariance_type, extent, n_features(params))
    return {
        **params,
        "centre": centre,
        "weight": weight,
        "spread": extent,
        "likelihood": np.array([likelihood]),
    }


def _matched(covariance_type: str, params: Params, stats: Stats) -> Stats:
    """An answer with its components in the order of those published.

    They are matched by their overlap (Bhattacharyya).
    """
    origin = params["origin"]
    likeness: Floats = affinity(
        covariance_type,
        params["centre"] - origin,
        params["spread"],
        stats["mean"] - origin,
        stats["spread"],
    )
    order = assignment(1.0 - likeness)
    matched = {**stats, "mass": stats["mass"][order], "mean": stats["mean"][order]}
    if covariance_type != "tied":
        matched["spread"] = stats["spread"][order]
    return matched


GMM_LOCAL: Final = RoundsAlgorithm(
    name="gmm_local",
    snapshot=PARAMS,
    update=STATS,
    options=GMMLocalOptions,
    start=start,
    answer=answer,
    combine=combine,
    check_claims=check_claims,
    robust=(
        "its clients send components in an order of their own, so none can be compared with that "
        "of another"
    ),
    shift=gmm.shift,
    predict=gmm.predict,
    predictor=None,
    paper_only=True,
)
