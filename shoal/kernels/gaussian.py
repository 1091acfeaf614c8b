"""Gaussian mixtures: densities at rows, and moments, for four types of covariance.

The spread of k components of d features is one array (c, m): full (k, d (d+1)/2) and tied (1, d
(d+1)/2) hold upper halves of symmetric matrices row by row, diag (k, d) and spherical (k, 1) hold
variances. Second moments have the same shape. Rows and means are given relative to one origin near
them, so that squares do not cancel differences.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Floats, pack_symmetric, pair_count, pair_products, unpack_symmetric
from shoal.kernels.constants import FEW_FEATURES, SQUARED_MAX
from shoal.kernels.distance import BLOCK_ELEMENTS, ROUNDING, column_sums, squared_distances

COVARIANCE_TYPES: Final = ("full", "tied", "diag", "spherical")
CONDITION_MIN: Final = 1e-12
"""smallest ratio of the variances of a component's narrowest and widest direction; below it,
rounding decides"""
PAIRS_MAX: Final = 256
"""pairs of features up to which the products of all pairs are computed once for all components"""
SHARE_OF_LEARNING: Final = 0.005
"""time to find a row's responsibilities, relative to that in which CA+ learns one: how soon the
compiled form is worth loading"""


def spread_shape(covariance_type: str, k: int, d: int) -> tuple[int, int]:
    """Shape of the spread, and of second moments."""
    pairs = pair_count(d)
    return {"full": (k, pairs), "tied": (1, pairs), "diag": (k, d), "spherical": (k, 1)}[
        covariance_type
    ]


def whitening(covariance_type: str, spread: Floats, d: int) -> Floats:
    """spread (c, m) -> the factors that turn differences into standard deviations.

    scikit-learn calls them `precisions_cholesky`: (c, d, d), to be multiplied from the right, for
    full and tied; 1 / standard deviation (c, m) for the others.
    Raises LinAlgError when a variance is 0.
    """
    if covariance_type in ("full", "tied"):
        lower = np.linalg.cholesky(unpack_symmetric(spread, d))
        return np.asarray(np.linalg.inv(lower)).transpose(0, 2, 1)
    if not (spread > 0).all():
        raise np.linalg.LinAlgError("a variance is not above 0")
    return np.asarray(1.0 / np.sqrt(spread))


def log_densities(covariance_type: str, rows: Floats, means: Floats, whiten: Floats) -> Floats:
    """rows (n, d), means (k, d), whitening -> (n, k) natural logarithms of the densities."""
    k, d = means.shape
    # The square of a far row overflows to infinity: its density is 0, as it should be.
    with np.errstate(over="ignore"):
        if covariance_type == "full" and d <= FEW_FEATURES:
            squared = _squared_deviations(rows, means, whiten).T
            log_determinants = _log_determinants(whiten)
        elif covariance_type == "full":
            # A component in each line of memory: NumPy is slow at many short rows.
            squared = np.empty((k, len(rows))).T
            for component in range(k):
                deviations = (rows - means[component]) @ whiten[component]
                np.einsum("ij,ij->i", deviations, deviations, out=squared[:, component])
            log_determinants = _log_determinants(whiten)
        elif covariance_type == "tied":
            squared = squared_distances(rows @ whiten[0], means @ whiten[0])
            log_determinants = np.log(np.diagonal(whiten[0])).sum()
        elif covariance_type == "diag":
            squared = np.empty((k, len(rows))).T
            for component in range(k):
                deviations = (rows - means[component]) * whiten[component]
                np.einsum("ij,ij->i", deviations, deviations, out=squared[:, component])
            log_determinants = np.log(whiten).sum(axis=1)
        else:
            squared = squared_distances(rows, means) * whiten[:, 0] ** 2
            log_determinants = d * np.log(whiten[:, 0])
    # A row that is infinitely far from all components would have the logarithm -inf for each, and
    # their differences to the largest would be no numbers.
    np.minimum(squared, SQUARED_MAX, out=squared)
    return np.asarray(-0.5 * (d * math.log(2 * math.pi) + squared) + log_determinants)


def _log_determinants(whiten: Floats) -> Floats:
    """whitening (k, d, d) of type full -> (k,) natural logarithms of its determinants."""
    return np.asarray(np.log(np.diagonal(whiten, axis1=1, axis2=2)).sum(axis=1))


def _squared_deviations(rows: Floats, means: Floats, whiten: Floats) -> Floats:
    """rows (n, d), means (k, d), whitening (k, d, d) of type full -> (k, n) squared distances in
    standard deviations, summed feature by feature: for few features that takes less time than
    products of matrices."""
    columns = np.ascontiguousarray(rows.T)
    squared = np.zeros((len(means), len(rows)))
    for component, (mean, factors) in enumerate(zip(means, whiten, strict=True)):
        gaps = columns - mean[:, None]
        for feature in range(len(mean)):
            deviation = gaps[0] * factors[0, feature]
            for other in range(1, feature + 1):
                deviation += gaps[other] * factors[other, feature]
            squared[component] += np.multiply(deviation, deviation, out=deviation)
    return squared


def mixture_responsibilities(
    covariance_type: str,
    rows: Floats,
    means: Floats,
    whiten: Floats,
    log_weights: Floats,
    row_weights: Floats | None = None,
) -> tuple[Floats, float]:
    """rows (n, d), means (k, d), whitening, logarithms of the weights (k,) -> (k, n) the
    responsibilities of the components for each row, which add up to 1, and the log-likelihood of
    the rows, each of which counts as often as its weight (n,) says.

    The compiled form is for full covariances of few features. Of many features, and of other
    covariances, products of matrices and exponentials take the time, and these are NumPy's in
    either form.
    """
    log_max = np.empty(len(rows))
    totals = np.empty(len(rows))
    compiled = None
    if covariance_type == "full" and rows.shape[1] <= FEW_FEATURES:
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows))
    if compiled is not None:
        responsibilities = np.empty((len(means), len(rows)))
        arrays = [
            np.ascontiguousarray(array)
            for array in (rows, means, whiten, _log_determinants(whiten), log_weights)
        ]
        compiled.mixture_responsibilities(
            *arrays, responsibilities, log_max, totals, compiled.loops
        )
    else:
        responsibilities = np.ascontiguousarray(
            log_densities(covariance_type, rows, means, whiten).T
        )
        responsibilities += log_weights[:, None]
        responsibilities.max(axis=0, out=log_max)
        np.exp(np.subtract(responsibilities, log_max, out=responsibilities), out=responsibilities)
        totals = column_sums(responsibilities)
        # Times the inverse, as in the compiled form: a quotient has other last bits.
        responsibilities *= 1.0 / totals
    if row_weights is not None:
        return responsibilities, float(row_weights @ log_max + row_weights @ np.log(totals))
    return responsibilities, float(log_max.sum() + np.log(totals).sum())


def second_moments(covariance_type: str, rows: Floats, responsibilities: Floats) -> Floats:
    """rows (n, d), responsibilities (n, k) -> the second moments (c, m) of this type, as sums."""
    d = rows.shape[1]
    k = responsibilities.shape[1]
    if covariance_type == "full" and (d <= FEW_FEATURES or (k > d and pair_count(d) <= PAIRS_MAX)):
        total = np.zeros((k, pair_count(d)))
        height = BLOCK_ELEMENTS // pair_count(d)
        for first in range(0, len(rows), height):
            part = slice(first, first + height)
            total += responsibilities[part].T @ pair_products(np.ascontiguousarray(rows[part].T)).T
        return total
    if covariance_type == "full":
        return pack_symmetric(
            np.stack([(own[:, None] * rows).T @ rows for own in responsibilities.T])
        )
    if covariance_type == "tied":
        return pack_symmetric((rows.T @ rows)[None])
    if covariance_type == "diag":
        return np.asarray(responsibilities.T @ (rows * rows))
    return np.asarray(responsibilities.T @ np.einsum("ij,ij->i", rows, rows))[:, None]


def spherical_spread(covariance_type: str, variances: Floats, k: int) -> Floats:
    """variances (d,) of each feature -> the spread (c, m) of k components without correlations."""
    if covariance_type == "diag":
        return np.repeat(variances[None], k, axis=0)
    if covariance_type == "spherical":
        return np.full((k, 1), variances.mean())
    # The components of "tied" share one covariance.
    matrices = k if covariance_type == "full" else 1
    return np.repeat(pack_symmetric(np.diag(variances)[None]), matrices, axis=0)


def spread_from_moments(
    covariance_type: str, mass: Floats, means: Floats, second: Floats, ridge: float
) -> Floats:
    """mass (k,), means (k, d), second moments (c, m) -> spread (c, m) of components with mass,
    `ridge` added.

    A direction in which a component has almost no variance gets the smallest one that can be
    computed with.
    """
    d = means.shape[1]
    if covariance_type == "full":
        squares = unpack_symmetric(second / mass[:, None], d)
        return _positive_definite(
            squares - means[:, :, None] * means[:, None, :], ridge, _noise(squares)
        )
    if covariance_type == "tied":
        squares = unpack_symmetric(second / mass.sum(), d)
        return _positive_definite(
            squares - (means.T * (mass / mass.sum())) @ means, ridge, _noise(squares)
        )
    if covariance_type == "diag":
        variances = second / mass[:, None] - means**2
    else:
        variances = (second[:, 0] / mass - np.einsum("ij,ij->i", means, means))[:, None] / d
    # The mean of squares less the square of the mean may come out below 0 by rounding.
    return np.asarray(np.maximum(variances, 0.0) + ridge)


def ensure_positive_definite(covariance_type: str, spread: Floats, d: int) -> Floats:
    """spread (c, m) that was averaged -> the same, with extent in every direction as far as
    calculating takes it."""
    # Variances alone are averages of positive numbers, and so positive; only a matrix can become
    # singular by rounding.
    if covariance_type not in ("full", "tied"):
        return spread
    return _positive_definite(unpack_symmetric(spread, d), 0.0, np.zeros(len(spread)))


def _noise(squares: Floats) -> Floats:
    """(c, d, d) mean squares -> (c,) the size of rounding errors in their difference to squares of
    means."""
    return np.asarray(ROUNDING * np.trace(squares, axis1=1, axis2=2))


def _positive_definite(covariances: Floats, ridge: float, noise: Floats) -> Floats:
    d = covariances.shape[1]
    covariances = (covariances + covariances.transpose(0, 2, 1)) / 2 + ridge * np.eye(d)
    for matrix, grain in zip(covariances, noise, strict=True):
        values, directions = np.linalg.eigh(matrix)
        trusted = max(CONDITION_MIN * float(values[-1]), float(grain))
        # Others keep their bits: put together again, a matrix differs in its last digits.
        if values[0] < max(0.5 * ridge, trusted):
            matrix[...] = (directions * np.maximum(values, max(ridge, trusted))) @ directions.T
    return pack_symmetric(covariances)


def matrices(covariance_type: str, spread: Floats, k: int, d: int) -> Floats:
    """spread (c, m) -> covariances (k, d, d), whatever the type."""
    if covariance_type in ("full", "tied"):
        return np.broadcast_to(unpack_symmetric(spread, d), (k, d, d))
    return np.asarray(np.broadcast_to(spread, (k, d))[:, :, None] * np.eye(d))


def affinity(
    covariance_type: str, means: Floats, spread: Floats, other_means: Floats, other_spread: Floats
) -> Floats:
    """Two mixtures of k components (k, d), (c, m) -> (k, k) overlaps of the components of one with
    those of the other.

    The Bhattacharyya coefficient, 1 - Hellinger distance²: from 0 to 1.
    """
    k, d = means.shape
    ours = matrices(covariance_type, spread, k, d)
    theirs = matrices(covariance_type, other_spread, k, d)
    our_size = np.linalg.slogdet(ours)[1]
    their_size = np.linalg.slogdet(theirs)[1]
    out = np.empty((k, k))
    for component in range(k):
        between = (ours[component] + theirs) / 2
        gap = other_means - means[component]
        squared = np.einsum("kd,kd->k", gap, np.linalg.solve(between, gap[:, :, None])[:, :, 0])
        size = np.linalg.slogdet(between)[1] - (our_size[component] + their_size) / 2
        # Rounding could leave an overlap of more than 1.
        out[component] = np.exp(np.minimum(-squared / 8 - size / 2, 0.0))
    return out


def merge_mixtures(
    covariance_type: str, mass: Floats, means: Floats, spread: Floats
) -> tuple[Floats, Floats]:
    """Mixtures of clients: mass (m, k), means (m, k, d), spread (m, c, m') -> means (k, d), spread
    (c, m') of all their rows, the scatter between clients included. Where a component has no mass,
    the result is undefined."""
    # The smallest float: it divides by no zero and changes no mass.
    held = np.maximum(mass.sum(axis=0), np.finfo(np.float64).tiny)
    centre = np.einsum("ck,ckd->kd", mass, means) / held[:, None]
    # Within and between: the scatter of all rows is the mean scatter of clients and that of their
    # means.
    gaps = means - centre
    if covariance_type == "tied":
        between = np.einsum("ck,ckd,cke->de", mass, gaps, gaps)[None]
        inside = np.einsum("c,cqm->qm", mass.sum(axis=1), spread)
        return centre, np.asarray((inside + pack_symmetric(between)) / mass.sum())
    if covariance_type == "full":
        between = pack_symmetric(np.einsum("ck,ckd,cke->kde", mass, gaps, gaps))
    elif covariance_type == "diag":
        between = np.einsum("ck,ckd->kd", mass, gaps * gaps)
    else:
        between = np.einsum("ck,ckd->k", mass, gaps * gaps)[:, None] / means.shape[2]
    return centre, np.asarray((np.einsum("ck,ckm->km", mass, spread) + between) / held[:, None])
