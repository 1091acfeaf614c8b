"""Federated Gaussian mixture by averaging: each client runs EM alone, and the parameters reached are averaged.

Source: M. Uranga, "Federated clustering" (2024), section 4.2, for the plain mean. It needs every client to hold rows
of every component, which is why `shoal.algorithms.rounds.gmm` exists; this is here to be compared with. Three things
that it breaks on are choices: means that swap places (`match`), components without rows on a client (`average`), and
the scatter between the clients' means, which the plain mean of covariances leaves out and the weighted one has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shoal.algorithms.rounds import gmm
from shoal.algorithms.rounds.arrays import (
    FLOAT,
    INT,
    Params,
    Stats,
    check_answer,
    choice_array,
    int_array,
    n_features,
    read_choice,
    read_int,
    reject_unless,
)
from shoal.algorithms.rounds.base import InitHint, RoundsAlgorithm
from shoal.algorithms.rounds.gmm import GMM, form_of
from shoal.algorithms.rounds.options import Option, Options, choice, is_int, resolve_options
from shoal.algorithms.streaming import ArraySpec, Rows
from shoal.kernels.distance import Floats
from shoal.kernels.gaussian import affinity, ensure_positive_definite, merge_mixtures, spread_shape
from shoal.kernels.matching import assignment

AVERAGES: Final = ("unweighted", "weighted")
MATCHES: Final = ("overlap", "place")
LOCAL_TOLERANCE: Final = 1e-3
"""of the mean log-likelihood, as scikit-learn's"""
OPTIONS: Final = {
    **GMM.options,
    "average": choice(AVERAGES, "every client as one; or each component by the rows behind it"),
    "match": choice(MATCHES, "which components are one: those that overlap most, or those of one number"),
    "steps": Option(100, lambda value: is_int(value, 1, 1000), "a whole number, 1 to 1000", "of EM, alone"),
}

# Client half.


def answer(params: Params, rows: Rows) -> Stats:
    """EM from the call's parameters, alone: masses (p,), means (p, d), spread (q, m), and the rows (1,) and their
    log-likelihood (1,) under the call."""
    sums = gmm.answer(params, rows)
    if not sums["rows"][0] > 0:
        k, d = 0, n_features(params)
        empty = np.empty((0, spread_shape(form_of(params), 1, d)[1]))
        zero = np.zeros(1)
        return {"mass": np.zeros(k), "mean": np.empty((k, d)), "spread": empty, "rows": zero, "likelihood": zero.copy()}
    own = gmm.combine(params, [sums])
    for _ in range(read_int(params, "steps", 1, 1000) - 1):
        before, own = own, gmm.combine(own, [gmm.answer(own, rows)])
        if gmm.shift(before, own) < LOCAL_TOLERANCE:
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
    """The first parameters, as of `gmm`, and how clients step and the server averages. Raises `SettingsError`."""
    option = resolve_options("gmm_local", OPTIONS, options)
    return {
        **gmm.start({name: option[name] for name in GMM.options}, d, hint),
        "average": choice_array(option["average"], AVERAGES),
        "match": choice_array(option["match"], MATCHES),
        "steps": int_array(option["steps"]),
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """The mean of the clients' weights, means and covariances."""
    for each in answers:
        check_answer(STATS, each, n_features(params))
        reject_unless((each["mass"] >= 0).all() and each["rows"][0] >= 0, "a mass below 0")
    answers = [each for each in answers if len(each["mass"])]
    if not answers:
        return dict(params)
    form, origin = form_of(params), params["origin"]
    for each in answers:
        reject_unless(each["mass"].shape == params["weight"].shape, "of another number of components than the call")
        reject_unless(each["spread"].shape == params["spread"].shape, "of another form of covariance than the call")
    if read_choice(params, "match", MATCHES) == "overlap":
        answers = [_matched(form, params, each) for each in answers]
    rows = np.array([each["rows"][0] for each in answers])
    mass, mean, spread = (np.stack([each[name] for each in answers]) for name in ("mass", "mean", "spread"))
    if read_choice(params, "average", AVERAGES) == "unweighted":
        share = np.mean(mass / mass.sum(axis=1, keepdims=True), axis=0)
        centre, extent, weight = mean.mean(axis=0), spread.mean(axis=0), share * rows.sum()
    else:
        weight = mass.sum(axis=0)
        has_mass = weight > gmm.ALIVE
        centre, extent = merge_mixtures(form, mass, mean - origin, spread)
        centre = np.where(has_mass[:, None], centre + origin, params["centre"])
        if form != "tied":
            extent = np.where(has_mass[:, None], extent, params["spread"])
    likelihood = np.array([sum(float(each["likelihood"][0]) for each in answers) / rows.sum()])
    extent = ensure_positive_definite(form, extent, n_features(params))
    return {**params, "centre": centre, "weight": weight, "spread": extent, "likelihood": likelihood}


def _matched(form: str, params: Params, answer: Stats) -> Stats:
    """The answer's components in the order of the call's that they overlap most with (Bhattacharyya)."""
    origin = params["origin"]
    likeness: Floats = affinity(
        form, params["centre"] - origin, params["spread"], answer["mean"] - origin, answer["spread"]
    )
    order = assignment(1.0 - likeness)
    matched = {**answer, "mass": answer["mass"][order], "mean": answer["mean"][order]}
    return matched if form == "tied" else {**matched, "spread": answer["spread"][order]}


GMM_LOCAL: Final = RoundsAlgorithm(
    name="gmm_local",
    snapshot=PARAMS,
    update=STATS,
    options=OPTIONS,
    start=start,
    answer=answer,
    combine=combine,
    shift=gmm.shift,
    predict=gmm.predict,
    paper_only=True,
)
