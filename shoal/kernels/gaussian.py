"""Gaussian mixtures: densities at rows, and moments, for four forms of covariance.

The spread of k components of d features is one array (c, m): full (k, d (d+1)/2) and tied (1, d (d+1)/2) hold upper
halves of symmetric matrices row by row, diag (k, d) and spherical (k, 1) hold variances. Second moments have the
same shape. Rows and means are given relative to one origin near them, so that squares do not cancel differences.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shoal.kernels import forms
from shoal.kernels.distance import BLOCK_ELEMENTS, ROUNDING, Floats, column_sums, squared_distances
from shoal.kernels.distance import FLAT as FEW_FEATURES
from shoal.kernels.moments import pack_symmetric, pair_count, pair_products, unpack_symmetric

FORMS: Final = ("full", "tied", "diag", "spherical")
FLAT: Final = 1e-12
"""smallest ratio of the variances of a component's narrowest and widest direction; below it, rounding decides"""
FAR: Final = 1e300
"""upper limit of squared distances in standard deviations, so that none is infinite"""
PAIRS_MAX: Final = 256
"""pairs of features up to which the products of all pairs are computed once for all components"""
SHARE_OF_LEARNING: Final = 0.005
"""time of a row's shares, relative to that in which CA+ learns one: how soon the compiled form is worth loading"""


def spread_shape(form: str, k: int, d: int) -> tuple[int, int]:
    """Shape of the spread, and of second moments."""
    half = d * (d + 1) // 2
    return {"full": (k, half), "tied": (1, half), "diag": (k, d), "spherical": (k, 1)}[form]


def whitening(form: str, spread: Floats, d: int) -> Floats:
    """spread (c, m) -> the factors that turn differences into standard deviations.

    (c, d, d), to be multiplied from the right, for full and tied; 1 / standard deviation (c, m) for the others.
    Raises LinAlgError when a variance is 0.
    """
    if form in ("full", "tied"):
        lower = np.linalg.cholesky(unpack_symmetric(spread, d))
        return np.asarray(np.linalg.inv(lower)).transpose(0, 2, 1)
    if not (spread > 0).all():
        raise np.linalg.LinAlgError("a variance is not above 0")
    return np.asarray(1.0 / np.sqrt(spread))


def log_densities(form: str, rows: Floats, means: Floats, whiten: Floats) -> Floats:
    """rows (n, d), means (k, d), whitening -> (n, k) natural logarithms of the densities."""
    k, d = means.shape
    with np.errstate(over="ignore"):
        if form == "full" and d <= FEW_FEATURES:
            far = _squared_deviations(rows, means, whiten).T
            scale = _log_scales(whiten)
        elif form == "full":
            far = np.empty((k, len(rows))).T
            for component in range(k):
                deviations = (rows - means[component]) @ whiten[component]
                np.einsum("ij,ij->i", deviations, deviations, out=far[:, component])
            scale = _log_scales(whiten)
        elif form == "tied":
            far = squared_distances(rows @ whiten[0], means @ whiten[0])
            scale = np.log(np.diagonal(whiten[0])).sum()
        elif form == "diag":
            far = np.empty((k, len(rows))).T
            for component in range(k):
                deviations = (rows - means[component]) * whiten[component]
                np.einsum("ij,ij->i", deviations, deviations, out=far[:, component])
            scale = np.log(whiten).sum(axis=1)
        else:
            far = squared_distances(rows, means) * whiten[:, 0] ** 2
            scale = d * np.log(whiten[:, 0])
    np.minimum(far, FAR, out=far)
    return np.asarray(-0.5 * (d * math.log(2 * math.pi) + far) + scale)


def _log_scales(whiten: Floats) -> Floats:
    """whitening (k, d, d) of the full form -> (k,) natural logarithms of its determinants."""
    return np.asarray(np.log(np.diagonal(whiten, axis1=1, axis2=2)).sum(axis=1))


def _squared_deviations(rows: Floats, means: Floats, whiten: Floats) -> Floats:
    """rows (n, d), means (k, d), whitening (k, d, d) of the full form -> (k, n) squared distances in standard
    deviations, summed feature by feature: for few features that takes less time than products of matrices."""
    columns, far = np.ascontiguousarray(rows.T), np.zeros((len(means), len(rows)))
    for component, (mean, factors) in enumerate(zip(means, whiten, strict=True)):
        gaps = columns - mean[:, None]
        for feature in range(len(mean)):
            deviation = gaps[0] * factors[0, feature]
            for other in range(1, feature + 1):
                deviation += gaps[other] * factors[other, feature]
            far[component] += np.multiply(deviation, deviation, out=deviation)
    return far


def mixture_shares(form: str, rows: Floats, means: Floats, whiten: Floats, log_weights: Floats) -> tuple[Floats, float]:
    """rows (n, d), means (k, d), whitening, logarithms of the weights (k,) -> (k, n) the shares of the components in
    each row, which add up to 1, and the log-likelihood of the rows.

    Both forms compute the same bits: of many features, from the same products of matrices.
    """
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows))
    if compiled is None:
        shares = np.ascontiguousarray(log_densities(form, rows, means, whiten).T)
        shares += log_weights[:, None]
        peak = shares.max(axis=0)
        np.exp(np.subtract(shares, peak, out=shares), out=shares)
        totals = column_sums(shares)
        shares *= 1.0 / totals
    else:
        n, d = rows.shape
        peak, totals = np.empty(n), np.empty(n)
        if form == "full" and d <= FEW_FEATURES:
            shares, factors, scale = np.empty((len(means), n)), np.ascontiguousarray(whiten), _log_scales(whiten)
        else:
            shares = np.ascontiguousarray(log_densities(form, rows, means, whiten).T)
            factors, scale = np.empty((0, d, d)), np.empty(0)
        rows, means = np.ascontiguousarray(rows), np.ascontiguousarray(means)
        compiled.mixture_shares(rows, means, factors, scale, log_weights, shares, peak, totals, compiled.loops)
    return shares, float(peak.sum() + np.log(totals).sum())


def second_moments(form: str, rows: Floats, shares: Floats) -> Floats:
    """rows (n, d), shares (n, k) adding up to 1 per row -> the second moments (c, m) of the form, as sums."""
    d, k = rows.shape[1], shares.shape[1]
    if form == "full" and (d <= FEW_FEATURES or (k > d and pair_count(d) <= PAIRS_MAX)):
        total, height = np.zeros((k, pair_count(d))), BLOCK_ELEMENTS // pair_count(d)
        for first in range(0, len(rows), height):
            part = slice(first, first + height)
            total += shares[part].T @ pair_products(np.ascontiguousarray(rows[part].T)).T
        return total
    if form == "full":
        return pack_symmetric(np.stack([(share[:, None] * rows).T @ rows for share in shares.T]))
    if form == "tied":
        return pack_symmetric((rows.T @ rows)[None])
    if form == "diag":
        return np.asarray(shares.T @ (rows * rows))
    return np.asarray(shares.T @ np.einsum("ij,ij->i", rows, rows))[:, None]


def spherical_spread(form: str, variances: Floats, k: int) -> Floats:
    """variances (d,) of each feature -> the spread (c, m) of k components without correlations."""
    if form == "diag":
        return np.repeat(variances[None], k, axis=0)
    if form == "spherical":
        return np.full((k, 1), variances.mean())
    return np.repeat(pack_symmetric(np.diag(variances)[None]), k if form == "full" else 1, axis=0)


def spread_from_moments(form: str, mass: Floats, means: Floats, second: Floats, ridge: float) -> Floats:
    """mass (k,), means (k, d), second moments (c, m) -> spread (c, m) of components with mass, `ridge` added.

    A direction in which a component has almost no variance gets the smallest one that can be computed with.
    """
    d = means.shape[1]
    if form == "full":
        squares = unpack_symmetric(second / mass[:, None], d)
        return _positive_definite(squares - means[:, :, None] * means[:, None, :], ridge, _noise(squares))
    if form == "tied":
        squares = unpack_symmetric(second / mass.sum(), d)
        return _positive_definite(squares - (means.T * (mass / mass.sum())) @ means, ridge, _noise(squares))
    if form == "diag":
        variances = second / mass[:, None] - means**2
    else:
        variances = (second[:, 0] / mass - np.einsum("ij,ij->i", means, means))[:, None] / d
    return np.asarray(np.maximum(variances, 0.0) + ridge)


def ensure_positive_definite(form: str, spread: Floats, d: int) -> Floats:
    """spread (c, m) that was averaged -> the same, with extent in every direction as far as calculating takes it."""
    return (
        _positive_definite(unpack_symmetric(spread, d), 0.0, np.zeros(len(spread)))
        if form in ("full", "tied")
        else spread
    )


def _noise(squares: Floats) -> Floats:
    """(c, d, d) mean squares -> (c,) the size of rounding errors in their difference to squares of means."""
    return np.asarray(ROUNDING * np.trace(squares, axis1=1, axis2=2))


def _positive_definite(covariances: Floats, ridge: float, noise: Floats) -> Floats:
    d = covariances.shape[1]
    covariances = (covariances + covariances.transpose(0, 2, 1)) / 2 + ridge * np.eye(d)
    for matrix, grain in zip(covariances, noise, strict=True):
        values, directions = np.linalg.eigh(matrix)
        trusted = max(FLAT * float(values[-1]), float(grain))
        if values[0] < max(0.5 * ridge, trusted):
            matrix[...] = (directions * np.maximum(values, max(ridge, trusted))) @ directions.T
    return pack_symmetric(covariances)


def matrices(form: str, spread: Floats, k: int, d: int) -> Floats:
    """spread (c, m) -> covariances (k, d, d), whatever the form."""
    if form in ("full", "tied"):
        return np.broadcast_to(unpack_symmetric(spread, d), (k, d, d))
    return np.asarray(np.broadcast_to(spread, (k, d))[:, :, None] * np.eye(d))


def affinity(form: str, means: Floats, spread: Floats, other_means: Floats, other_spread: Floats) -> Floats:
    """Two mixtures of k components (k, d), (c, m) -> (k, k) overlaps of the components of one with those of the other.

    The Bhattacharyya coefficient, 1 - Hellinger distance²: from 0 to 1.
    """
    k, d = means.shape
    ours, theirs = matrices(form, spread, k, d), matrices(form, other_spread, k, d)
    our_size, their_size = np.linalg.slogdet(ours)[1], np.linalg.slogdet(theirs)[1]
    out = np.empty((k, k))
    for component in range(k):
        between = (ours[component] + theirs) / 2
        gap = other_means - means[component]
        far = np.einsum("kd,kd->k", gap, np.linalg.solve(between, gap[:, :, None])[:, :, 0])
        size = np.linalg.slogdet(between)[1] - (our_size[component] + their_size) / 2
        out[component] = np.exp(np.minimum(-far / 8 - size / 2, 0.0))
    return out


def merge_mixtures(form: str, mass: Floats, means: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Mixtures of clients: mass (m, k), means (m, k, d), spread (m, c, m') -> means (k, d), spread (c, m') of all their
    rows, the scatter between clients included. Where a component has no mass, the result is undefined."""
    held = np.maximum(mass.sum(axis=0), np.finfo(np.float64).tiny)
    centre = np.einsum("ck,ckd->kd", mass, means) / held[:, None]
    gaps = means - centre
    if form == "tied":
        between = np.einsum("ck,ckd,cke->de", mass, gaps, gaps)[None]
        inside = np.einsum("c,cqm->qm", mass.sum(axis=1), spread)
        return centre, np.asarray((inside + pack_symmetric(between)) / mass.sum())
    if form == "full":
        between = pack_symmetric(np.einsum("ck,ckd,cke->kde", mass, gaps, gaps))
    elif form == "diag":
        between = np.einsum("ck,ckd->kd", mass, gaps * gaps)
    else:
        between = np.einsum("ck,ckd->k", mass, gaps * gaps)[:, None] / means.shape[2]
    return centre, np.asarray((np.einsum("ck,ckm->km", mass, spread) + between) / held[:, None])
