"""Gaussian components: their densities at rows, and their moments, for four forms of covariance.

The spread of k components of d features is one array (c, m): full (k, d (d+1)/2) and tied (1, d (d+1)/2) hold upper
halves of symmetric matrices row by row, diag (k, d) and spherical (k, 1) hold variances. Second moments have the
same shape. Rows and means are given relative to one origin near them, so that squares do not swallow differences.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from shoal.kernels.distance import ROUNDING, Floats, squared
from shoal.kernels.moments import packed, unpacked

FORMS: Final = ("full", "tied", "diag", "spherical")
FLAT: Final = 1e-12
"""the least share of a component's widest direction that its narrowest one has: below, rounding decides"""
FAR: Final = 1e300
"""squared distances in standard deviations end here, so that none is infinite"""


def spread_shape(form: str, k: int, d: int) -> tuple[int, int]:
    """Shape of the spread, and of second moments."""
    half = d * (d + 1) // 2
    return {"full": (k, half), "tied": (1, half), "diag": (k, d), "spherical": (k, 1)}[form]


def whitening(form: str, spread: Floats, d: int) -> Floats:
    """spread (c, m) -> what turns differences into standard deviations. Raises LinAlgError when one has no extent.

    (c, d, d), to be multiplied from the right, for full and tied; 1 / standard deviation (c, m) for the others.
    """
    if form in ("full", "tied"):
        lower = np.linalg.cholesky(unpacked(spread, d))
        return np.asarray(np.linalg.inv(lower)).transpose(0, 2, 1)
    if not (spread > 0).all():
        raise np.linalg.LinAlgError("a variance is not above 0")
    return np.asarray(1.0 / np.sqrt(spread))


def log_densities(form: str, rows: Floats, means: Floats, whiten: Floats) -> Floats:
    """rows (n, d), means (k, d), whitening -> (n, k) natural logarithms of the densities."""
    k, d = means.shape
    with np.errstate(over="ignore"):
        if form == "full":
            far = np.empty((k, len(rows))).T
            for component in range(k):
                deviations = (rows - means[component]) @ whiten[component]
                np.einsum("ij,ij->i", deviations, deviations, out=far[:, component])
            scale = np.log(np.diagonal(whiten, axis1=1, axis2=2)).sum(axis=1)
        elif form == "tied":
            far = squared(rows @ whiten[0], means @ whiten[0])
            scale = np.log(np.diagonal(whiten[0])).sum()
        elif form == "diag":
            far = np.empty((k, len(rows))).T
            for component in range(k):
                deviations = (rows - means[component]) * whiten[component]
                np.einsum("ij,ij->i", deviations, deviations, out=far[:, component])
            scale = np.log(whiten).sum(axis=1)
        else:
            far = squared(rows, means) * whiten[:, 0] ** 2
            scale = d * np.log(whiten[:, 0])
    np.minimum(far, FAR, out=far)
    return np.asarray(-0.5 * (d * math.log(2 * math.pi) + far) + scale)


def second_moments(form: str, rows: Floats, shares: Floats) -> Floats:
    """rows (n, d), shares (n, k) adding up to 1 per row -> sums of squares and products (c, m) that the form needs."""
    if form == "full":
        return packed(np.stack([(share[:, None] * rows).T @ rows for share in shares.T]))
    if form == "tied":
        return packed((rows.T @ rows)[None])
    if form == "diag":
        return np.asarray(shares.T @ (rows * rows))
    return np.asarray(shares.T @ np.einsum("ij,ij->i", rows, rows))[:, None]


def balls(form: str, variances: Floats, k: int) -> Floats:
    """variances (d,) of each feature -> the spread (c, m) of k components without any other shape."""
    if form == "diag":
        return np.repeat(variances[None], k, axis=0)
    if form == "spherical":
        return np.full((k, 1), variances.mean())
    return np.repeat(packed(np.diag(variances)[None]), k if form == "full" else 1, axis=0)


def spread_of(form: str, mass: Floats, means: Floats, second: Floats, ridge: float) -> Floats:
    """mass (k,), means (k, d), second moments (c, m) -> spread (c, m) of components with mass, `ridge` added.

    A direction in which a component has no extent to speak of gets as much as calculating with it takes.
    """
    d = means.shape[1]
    if form == "full":
        squares = unpacked(second / mass[:, None], d)
        return _widened(squares - means[:, :, None] * means[:, None, :], ridge, _noise(squares))
    if form == "tied":
        squares = unpacked(second / mass.sum(), d)
        return _widened(squares - (means.T * (mass / mass.sum())) @ means, ridge, _noise(squares))
    if form == "diag":
        variances = second / mass[:, None] - means**2
    else:
        variances = (second[:, 0] / mass - np.einsum("ij,ij->i", means, means))[:, None] / d
    return np.asarray(np.maximum(variances, 0.0) + ridge)


def widened(form: str, spread: Floats, d: int) -> Floats:
    """spread (c, m) that was averaged -> the same, with extent in every direction as far as calculating takes it."""
    return _widened(unpacked(spread, d), 0.0, np.zeros(len(spread))) if form in ("full", "tied") else spread


def _noise(squares: Floats) -> Floats:
    """(c, d, d) mean squares -> (c,) what rounding alone can leave of their difference to squares of means."""
    return np.asarray(ROUNDING * np.trace(squares, axis1=1, axis2=2))


def _widened(covariances: Floats, ridge: float, noise: Floats) -> Floats:
    d = covariances.shape[1]
    covariances = (covariances + covariances.transpose(0, 2, 1)) / 2 + ridge * np.eye(d)
    for matrix, grain in zip(covariances, noise, strict=True):
        values, directions = np.linalg.eigh(matrix)
        trusted = max(FLAT * float(values[-1]), float(grain))
        if values[0] < max(0.5 * ridge, trusted):
            matrix[...] = (directions * np.maximum(values, max(ridge, trusted))) @ directions.T
    return packed(covariances)


def matrices(form: str, spread: Floats, k: int, d: int) -> Floats:
    """spread (c, m) -> covariances (k, d, d), whatever the form."""
    if form in ("full", "tied"):
        return np.broadcast_to(unpacked(spread, d), (k, d, d))
    return np.asarray(np.broadcast_to(spread, (k, d))[:, :, None] * np.eye(d))


def affinity(form: str, means: Floats, spread: Floats, other_means: Floats, other_spread: Floats) -> Floats:
    """Two mixtures of k components (k, d), (c, m) -> how much each of one overlaps each of the other (k, k), 0 to 1.

    The Bhattacharyya coefficient; 1 - Hellinger distance².
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


def joined(form: str, mass: Floats, means: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Mixtures of clients: mass (m, k), means (m, k, d), spread (m, c, m') -> means (k, d), spread (c, m') of all their
    rows, the scatter between clients included. Where there is no mass, what comes out means nothing."""
    held = np.maximum(mass.sum(axis=0), np.finfo(np.float64).tiny)
    centre = np.einsum("ck,ckd->kd", mass, means) / held[:, None]
    gaps = means - centre
    if form == "tied":
        between = np.einsum("ck,ckd,cke->de", mass, gaps, gaps)[None]
        inside = np.einsum("c,cqm->qm", mass.sum(axis=1), spread)
        return centre, np.asarray((inside + packed(between)) / mass.sum())
    if form == "full":
        between = packed(np.einsum("ck,ckd,cke->kde", mass, gaps, gaps))
    elif form == "diag":
        between = np.einsum("ck,ckd->kd", mass, gaps * gaps)
    else:
        between = np.einsum("ck,ckd->k", mass, gaps * gaps)[:, None] / means.shape[2]
    return centre, np.asarray((np.einsum("ck,ckm->km", mass, spread) + between) / held[:, None])
