"""The server half of tsk: what the answers of a round combine to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.algorithms.options import Options
from shoal.algorithms.regression import target_position
from shoal.algorithms.rounds.arrays import (
    Params,
    Stats,
    check_shape,
    choice_array,
    float_array,
    int_array,
    read_choice,
    read_float,
    read_int,
    reject_unless,
    sum_answers,
)
from shoal.algorithms.rounds.base import InitHint
from shoal.algorithms.rounds.initialization import starting_centres
from shoal.algorithms.tsk.client import (
    FORMS,
    STAGES,
    STATS,
    TSKOptions,
    empty_sums,
    epoch,
    has_conditions,
    rules_max,
    standardised_centres,
    target_of,
)
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, unpack_symmetric
from shoal.kernels.fuzzy import expand_gram, merged_rules, solve_ridge, squared_error

WIDTH_MIN: Final = 0.1
"""smallest width of a condition, in standard deviations of all rows"""
STILL: Final = 1e-3
"""the conditions are found when a round moves no centre farther, in standard deviations of all rows
"""
MASS_SHARE_MIN: Final = 0.01
"""share of the rows below which a rule does not tell whether the conditions are outdated"""
CONSTANT: Final = 1e-12
"""a feature whose variance is not above this part of its mean square is constant"""


class Consequents(NamedTuple):
    """The consequents of r rules."""

    solution: Floats
    """(r, d) coefficients of x"""
    error: Floats
    """(1,) mean squared error, standardised"""


def start(options: Options, d: int, hint: InitHint) -> Params:
    """The first centres, standardised by the box. Raises `SettingsError`."""
    chosen = TSKOptions.parse(options)
    target = target_position(chosen.target, d, hint.features)
    most = rules_max(d)
    if chosen.clusters != "auto" and chosen.clusters > most:
        raise SettingsError(
            f"clusters = {chosen.clusters}, must be at most {most} for {d} features"
        )
    centre = starting_centres(chosen.clusters, d, hint)
    if len(centre) > most:
        centre = starting_centres(most, d, hint)
    half = (hint.high - hint.low) / 2
    scale = np.where(half > 0, half, 1.0)
    return {
        "centre": centre,
        "weight": np.zeros(len(centre)),
        "width": np.tile(scale, (len(centre), 1)),
        "consequent": np.zeros_like(centre),
        "baseline": np.zeros_like(centre),
        "origin": hint.low + half,
        "scale": scale,
        "error": np.empty(0),
        "target": int_array(target),
        "stage": choice_array("conditions", STAGES),
        "epoch": int_array(0),
        "steps": int_array(0),
        "form": choice_array(chosen.consequents, FORMS),
        "condition_rounds": int_array(chosen.condition_rounds),
        "fuzzifier": float_array(chosen.fuzzifier),
        "ridge": float_array(chosen.ridge),
        "step": float_array(chosen.step),
        "outdated": float_array(chosen.outdated),
    }


def combine(params: Params, answers: Sequence[Stats]) -> Params:
    """Standardise by the rows of all clients, move the conditions, or fit the consequents."""
    sums = sum_answers(params, STATS, answers)
    if sums is None or not sums["rows"][0] > 0:
        return dict(params)
    for name, expected in empty_sums(params).items():
        check_shape(sums[name], expected, name)
    reject_unless((sums["mass"] >= 0).all(), "a mass below 0")
    squares = (sums["square"] >= 0).all() and sums["energy"][0] >= 0
    reject_unless(squares, "a sum of squares below 0")
    means = _means(params, sums)
    moved = {**params, "weight": sums["mass"], "steps": params["steps"] + 1}
    if has_conditions(params):
        return _next_consequents(moved, sums, means)
    return _next_conditions(moved, sums, means)


def _means(params: Params, sums: Stats) -> Floats:
    """(k, d) the weighted mean row of each rule, standardised; without mass, its centre."""
    mass = sums["mass"][:, None]
    means = sums["total"] / np.where(mass > 0, mass, 1.0)
    return np.where(mass > 0, means, standardised_centres(params))


def _spread(params: Params, sums: Stats, centres: Floats) -> Floats:
    """(k, d) the weighted standard deviation of rows about `centres` (k, d), in row coordinates.

    That of a rule without mass is the deviation of all rows.
    """
    mass = sums["mass"][:, None]
    means = _means(params, sums)
    mean_square = sums["square"] / np.where(mass > 0, mass, 1.0)
    # The mean of (z - c)^2 is that of z^2, less m^2 and plus (m - c)^2, m being the mean of z.
    about_centres = mean_square - means * means + np.square(means - centres)
    variance = np.where(mass > 0, about_centres, 1.0)
    return np.asarray(np.sqrt(np.maximum(variance, WIDTH_MIN**2)) * params["scale"])


def _next_conditions(moved: Params, sums: Stats, means: Floats) -> Params:
    """The centres of fuzzy c-means on the inputs, and in the last round the widths.

    In the first round only the coordinates change. Until the conditions are found, all rules have
    one consequent, that of linear regression, so that predictions do not depend on them.
    """
    linear = _least_squares(moved, sums["gram"], sums["cross"], sums)
    fitted = {
        **moved,
        "consequent": np.repeat(linear.solution, len(means), axis=0),
        "error": linear.error,
    }
    number = int(moved["steps"][0]) - 1
    rounds = read_int(moved, "condition_rounds", 0)
    if number == 0:
        return _restandardised(fitted, sums)
    before = standardised_centres(moved)
    is_input = np.arange(means.shape[1]) != target_of(moved)
    # The round after the last only measures the widths around centres that stay.
    centres = np.where(is_input & (number > rounds), before, means)
    moved_by = np.abs(centres - before)[:, is_input].max(initial=0.0)
    fitted["centre"] = moved["origin"] + centres * moved["scale"]
    if moved_by > STILL and number < rounds:
        return fitted
    return _entered({**fitted, "width": _spread(moved, sums, centres)}, "consequents")


def _restandardised(fitted: Params, sums: Stats) -> Params:
    """The same model in coordinates in which the rows of all clients have mean 0 and variance 1."""
    target = target_of(fitted)
    n = sums["rows"][0]
    moments = unpack_symmetric(sums["gram"], len(fitted["scale"]))[0]
    # The place of the target has the constant 1 in these equations; its own sums are beside them.
    mean = moments[target] / n
    mean[target] = sums["cross"][0, target] / n
    square = moments.diagonal() / n
    square[target] = sums["energy"][0] / n
    variance = square - mean * mean
    ratio = np.where(variance > CONSTANT * square, np.sqrt(np.maximum(variance, 0.0)), 1.0)
    # y = a + b x in the old coordinates, where old = mean + ratio * new.
    consequent = fitted["consequent"] * ratio
    mean_of_x = np.where(np.arange(len(mean)) == target, 1.0, mean)
    consequent[:, target] = fitted["consequent"] @ mean_of_x - mean[target]
    scale = fitted["scale"] * ratio
    return {
        **fitted,
        "consequent": consequent / ratio[target],
        "error": fitted["error"] / ratio[target] ** 2,
        "origin": fitted["origin"] + mean * fitted["scale"],
        "scale": scale,
        "width": np.tile(scale, (len(consequent), 1)),
        "epoch": fitted["epoch"] + 1,
    }


def _next_consequents(moved: Params, sums: Stats, means: Floats) -> Params:
    """The next consequents.

    Where the rows of a rule have moved far, the conditions are to be found again instead.
    """
    is_input = np.arange(means.shape[1]) != target_of(moved)
    fitted = dict(moved)
    if moved["steps"][0] == 1:
        fitted["baseline"] = means
    counted = sums["mass"] > MASS_SHARE_MIN * sums["rows"][0]
    drift = np.abs(means - fitted["baseline"])[counted][:, is_input].max(initial=0.0)
    if drift > read_float(moved, "outdated", above=0.0):
        gram, cross = merged_rules(sums["gram"], sums["cross"])
        linear = _least_squares(moved, gram, cross, sums)
        fitted["consequent"] = np.repeat(linear.solution, len(means), axis=0)
        fitted["error"] = linear.error
        return _entered(fitted, "conditions")
    if read_choice(moved, "form", FORMS) == "gradient":
        consequents = _gradient_step(moved, sums)
    else:
        consequents = _least_squares(moved, sums["gram"], sums["cross"], sums)
    fitted["consequent"] = consequents.solution
    fitted["error"] = consequents.error
    # What is known of the target in each rule is for people: no condition depends on it.
    known = ~is_input & (sums["mass"] > 0)[:, None]
    fitted["centre"] = np.where(known, moved["origin"] + means * moved["scale"], moved["centre"])
    fitted["width"] = np.where(known, _spread(moved, sums, means), moved["width"])
    return fitted


def _least_squares(params: Params, gram: Floats, cross: Floats, sums: Stats) -> Consequents:
    """The solution of the summed normal equations, with the ridge on their diagonal."""
    matrix = expand_gram(gram, *cross.shape)
    solution = solve_ridge(matrix, cross.ravel(), read_float(params, "ridge", above=0.0))
    return _measured(matrix, cross, solution, sums)


def _gradient_step(params: Params, sums: Stats) -> Consequents:
    """Eq. 4 and 5: one step along the gradient of the mean over all rows.

    That is the mean of the steps of all clients, each weighted by its number of rows.
    """
    matrix = expand_gram(sums["gram"], *sums["cross"].shape)
    before = params["consequent"].ravel()
    gradient = (matrix @ before - sums["cross"].ravel()) / sums["rows"][0]
    solution = before - read_float(params, "step", above=0.0) * gradient
    return _measured(matrix, sums["cross"], solution, sums)


def _measured(matrix: Floats, cross: Floats, solution: Floats, sums: Stats) -> Consequents:
    """A solution (r d,) with its mean squared error over the rows of the sums."""
    error = squared_error(matrix, cross.ravel(), float(sums["energy"][0]), solution)
    return Consequents(solution.reshape(cross.shape), float_array(error / sums["rows"][0]))


def _entered(params: Params, stage: str) -> Params:
    """The parameters at the beginning of a stage, which is a new epoch."""
    return {
        **params,
        "stage": choice_array(stage, STAGES),
        "epoch": params["epoch"] + 1,
        "steps": int_array(0),
    }


def shift(before: Params, after: Params) -> float:
    """The greatest change of a coefficient; infinite while conditions are sought."""
    if not has_conditions(before) or epoch(before) != epoch(after):
        return math.inf
    return float(np.abs(after["consequent"] - before["consequent"]).max(initial=0.0))
