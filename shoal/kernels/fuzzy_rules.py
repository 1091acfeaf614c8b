"""Takagi-Sugeno rules with Gaussian conditions: how strongly rules fire, and the normal equations of their consequents.

Columns are standardised: (d, n) with a feature in each row and n last, so that every operation runs over long rows. The
constant of a consequent takes the place of the target, whose column is replaced by ones: a consequent has d
coefficients, and the regressors of rule j are its firing strength times the columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.kernels.distance import Floats
from shoal.kernels.moments import unpack_symmetric

SMALLEST: Final = float(np.finfo(np.float64).tiny)


def firing_strengths(columns: Floats, centres: Floats, precision: Floats) -> Floats:
    """columns (d, n), centres (k, d), precision (k, d) -> (k, n).

    The precision is 1 / width², or 0 where a rule does not depend on a feature. The strengths of a row add up to 1
    (F2LS, eq. 2 and 3). They are computed from logarithms, relative to the row's strongest rule: a product of many
    Gaussians would underflow.
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

    Entry (pair of rules, pair of columns) of `gram` is the sum over rows of both strengths times both columns: the
    matrix has each of these numbers up to four times, and only they travel.
    """
    first, second = np.triu_indices(k)
    blocks = np.empty((k, k, d, d))
    blocks[first, second] = blocks[second, first] = unpack_symmetric(gram, d)
    return blocks.transpose(0, 2, 1, 3).reshape(k * d, k * d)


def merged_rules(gram: Floats, cross: Floats) -> tuple[Floats, Floats]:
    """gram (q, m), cross (k, d) -> those of one rule that always holds, (1, m) and (1, d): strengths add up to 1."""
    first, second = np.triu_indices(len(cross))
    times = np.where(first == second, 1.0, 2.0)
    return times[None] @ gram, cross.sum(axis=0, keepdims=True)


def solve_ridge(matrix: Floats, right: Floats, ridge: float) -> Floats:
    """matrix (p, p) positive semidefinite, right (p,), ridge > 0 -> the solution of (matrix + ridge I) a = right."""
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
    """The sum of squared errors of a solution, by the normal equations and the sum of squares of the target."""
    return max(0.0, energy - 2.0 * float(right @ solution) + float(solution @ matrix @ solution))
