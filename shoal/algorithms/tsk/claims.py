"""Whether the claims of one answer of tsk agree: masses, moments and normal equations are sums over the same rows."""

from __future__ import annotations

import numpy as np

from shoal.algorithms.claims import (
    ROUNDING_SHARE,
    Box,
    Claims,
    check_definite,
    check_masses,
    check_moments,
    check_sums,
    require_possible,
)
from shoal.algorithms.rounds.arrays import Params, Stats
from shoal.algorithms.tsk.arrays import empty_sums, has_conditions, standardised_centres, target_of
from shoal.kernels.distance import Floats
from shoal.kernels.fuzzy_rules import expand_gram


def check_claims(params: Params, stats: Stats, claims: Claims) -> None:
    """Raises `InvalidData` unless all sums can be those of so many rows, and those that overlap are equal."""
    for name, expected in empty_sums(params).items():
        require_possible(stats[name].shape == expected.shape, f"another {name} than the round request has")
    standardised_centres(params)
    lowest, highest = ((corner - params["origin"]) / params["scale"] for corner in (claims.low, claims.high))
    box = Claims(claims.readings, Box(lowest, highest))
    mass, total, square = stats["mass"], stats["total"], stats["square"]
    require_possible(float(stats["rows"][0]) == claims.readings, "another number of rows than readings")
    check_masses("mass", mass, claims)
    check_sums("total", mass, total, box)
    check_moments(mass, total, square, box)
    target, rules = target_of(params), len(stats["cross"])
    matrix = expand_gram(stats["gram"], rules, total.shape[1])
    if has_conditions(params):
        # Strengths add up to 1, so the sum over the second rule of each pair leaves the moments of the first.
        moments = matrix.reshape(rules, total.shape[1], rules, total.shape[1]).sum(axis=2)
        _check_overlap(moments, stats, target, box)
    else:
        sums, squares = matrix[target].copy(), matrix.diagonal().copy()
        sums[target], squares[target] = stats["cross"][0, target], stats["energy"][0]
        _check_equal(matrix[target, target], stats["rows"][0], box)
        check_moments(stats["rows"], sums[None], squares[None], box)
    _check_equations(matrix, stats, box)


def _check_overlap(moments: Floats, stats: Stats, target: int, box: Claims) -> None:
    """Raises `InvalidData` unless moments (k, d, d) by the normal equations are those that the answer gives itself."""
    inputs = np.arange(moments.shape[1]) != target
    _check_equal(moments[:, target, target], stats["mass"], box)
    _check_equal(moments[:, target][:, inputs], stats["total"][:, inputs], box)
    _check_equal(np.diagonal(moments, axis1=1, axis2=2)[:, inputs], stats["square"][:, inputs], box)
    _check_equal(stats["cross"][:, target], stats["total"][:, target], box)
    _check_equal(stats["mass"].sum(), stats["rows"][0], box)
    _check_equal(stats["square"][:, target].sum(), stats["energy"][0], box)


def _check_equations(matrix: Floats, stats: Stats, box: Claims) -> None:
    """Raises `InvalidData` unless some regressors and targets have this matrix (p, p), these products and squares."""
    p = len(matrix)
    whole = np.empty((p + 1, p + 1))
    whole[:p, :p], whole[p, p] = matrix, stats["energy"][0]
    whole[p, :p] = whole[:p, p] = stats["cross"].ravel()
    whole[np.diag_indices(p + 1)] += p * _slack(box)
    check_definite(whole)


def _check_equal(one: Floats, other: Floats, box: Claims) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        equal = bool((np.abs(one - other) <= _slack(box)).all())
    require_possible(equal, "sums that overlap and differ")


def _slack(box: Claims) -> float:
    """By how much sums of products of two features may differ because of rounding."""
    return ROUNDING_SHARE * max(box.scale, 1.0) ** 2 * (box.readings + ROUNDING_SHARE)
