"""Fuzzy memberships of rows in centres (Bezdek), and Takagi-Sugeno rules with Gaussian conditions.

Memberships do not overflow for any fuzzifier above 1. Of the rules: how strongly they fire, and the
normal equations of their consequents. Their columns are standardised: (d, n) with a feature in each
row and n last, so that every operation runs over long rows. The constant of a consequent takes the
place of the target, whose column is replaced by ones: a consequent has d coefficients, and the
regressors of rule j are its firing strength times the columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Floats, unpack_symmetric
from shoal.kernels.constants import FEW_FEATURES
from shoal.kernels.distance import column_sums, squared_distances

SHARE_OF_LEARNING: Final = 0.01
"""time of a row's weights, relative to that in which CA+ learns one: how soon the compiled form is
worth loading"""


def fuzzy_weights(rows: Floats, centres: Floats, fuzzifier: float) -> Floats:
    """rows (n, d), centres (k, d), fuzzifier > 1 -> (k, n) the memberships of the rows to the power
    of the fuzzifier.

    The compiled form is for a fuzzifier of 2 and few features. With any other, powers take most of
    the time, and with more features a product of matrices does; both are NumPy's in either form.
    """
    compiled = None
    if fuzzifier == 2.0 and rows.shape[1] <= FEW_FEATURES:
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows))
    if compiled is None:
        return powers(memberships(squared_distances(rows, centres), fuzzifier), fuzzifier).T
    weights = np.empty((len(centres), len(rows)))
    compiled.fuzzy_weights(np.ascontiguousarray(rows), np.ascontiguousarray(centres), weights)
    return weights


def memberships(squared_distances: Floats, fuzzifier: float) -> Floats:
    """distances² (n, k), fuzzifier > 1 -> (n, k), rows adding up to 1 (federated FCM, eq. 9; FFCM,
    eq. 5).

    A row that equals a centre belongs to it alone, or in equal parts to all centres it equals.
    Distances are relative to the row's smallest one, so no power can overflow however near the
    fuzzifier is to 1.
    """
    # A centre in each line: NumPy is slow at many short rows.
    squared = np.ascontiguousarray(squared_distances.T)
    least = squared.min(axis=0)
    # A row on a centre divides 0 by 0; its shares are set below.
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.divide(least, squared)
    on_centre = np.flatnonzero(least == 0.0)
    if len(on_centre):
        shares[:, on_centre] = squared[:, on_centre] == 0.0
    if fuzzifier != 2.0:
        np.power(shares, 1.0 / (fuzzifier - 1.0), out=shares)
    # Times the inverse, as in the compiled form: a quotient has other last bits.
    shares *= 1.0 / column_sums(shares)
    return np.asarray(shares.T)


def powers(shares: Floats, fuzzifier: float) -> Floats:
    """memberships (n, k) -> their powers by the fuzzifier, in place: the weight of each row in each
    centre."""
    # A product is many times as fast as a power; the usual fuzzifier is 2.
    if fuzzifier == 2.0:
        return np.multiply(shares, shares, out=shares)
    return np.power(shares, fuzzifier, out=shares)


SMALLEST: Final = float(np.finfo(np.float64).tiny)


def firing_strengths(columns: Floats, centres: Floats, precision: Floats) -> Floats:
    """columns (d, n), centres (k, d), precision (k, d) -> (k, n).

    The precision is 1 / width², or 0 where a rule does not depend on a feature. The strengths of a
    row add up to 1 (F2LS, eq. 2 and 3). They are computed from logarithms, relative to the row's
    strongest rule: a product of many Gaussians would underflow.
    """
    strengths = (-0.5 * precision) @ (columns * columns)
    strengths += (precision * centres) @ columns
    strengths -= 0.5 * (precision * centres * centres).sum(axis=1)[:, None]
    strengths -= strengths.max(axis=0)
    np.exp(strengths, out=strengths)
    strengths /= strengths.sum(axis=0)
    return strengths


def expand_gram(gram: Floats, k: int, d: int) -> Floats:
    """gram (q, m) -> the symmetric matrix (k d, k d) of the normal equations.

    Entry (pair of rules, pair of columns) of `gram` is the sum over rows of both strengths times
    both columns: the matrix has each of these numbers up to four times, and only they travel.
    """
    first, second = np.triu_indices(k)
    blocks = np.empty((k, k, d, d))
    blocks[first, second] = blocks[second, first] = unpack_symmetric(gram, d)
    return blocks.transpose(0, 2, 1, 3).reshape(k * d, k * d)


def merged_rules(gram: Floats, cross: Floats) -> tuple[Floats, Floats]:
    """gram (q, m), cross (k, d) -> those of one rule that always holds, (1, m) and (1, d):
    strengths add up to 1."""
    first, second = np.triu_indices(len(cross))
    times = np.where(first == second, 1.0, 2.0)
    return times[None] @ gram, cross.sum(axis=0, keepdims=True)


def solve_ridge(matrix: Floats, right: Floats, ridge: float) -> Floats:
    """matrix (p, p) positive semidefinite, right (p,), ridge > 0 -> the solution of (matrix + ridge
    I) a = right."""
    matrix = matrix.copy()
    matrix[np.diag_indices(len(matrix))] += ridge
    # Equations of equal size: an entry far above the others would otherwise take their digits.
    size = np.sqrt(np.maximum(matrix.diagonal(), SMALLEST))
    matrix /= size[:, None] * size
    try:
        return np.asarray(np.linalg.solve(matrix, right / size) / size)
    except np.linalg.LinAlgError:
        # The ridge is lost beside the sums: of all solutions, the shortest.
        return np.asarray(np.linalg.lstsq(matrix, right / size, rcond=None)[0] / size)


def squared_error(matrix: Floats, right: Floats, energy: float, solution: Floats) -> float:
    """The sum of squared errors of a solution, by the normal equations and the sum of squares of
    the target."""
    # Where the rules fit exactly, rounding of three large numbers may leave less than 0.
    return max(0.0, energy - 2.0 * float(right @ solution) + float(solution @ matrix @ solution))
