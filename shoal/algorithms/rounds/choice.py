"""The number of clusters, chosen by a criterion on landmarks: weighted points that stand for the
rows of all clients.

Landmarks are what a federation has anyway: the nodes of a streaming model, or the local centres of
one round of k-FED. So the choice costs no message, and it reveals nothing that has not been sent.

Sources: gap, R. Tibshirani, G. Walther, T. Hastie, "Estimating the number of clusters in a data set
via the gap statistic" (2001), with their reference (b), by its second difference: M. Yan, K. Ye,
"Determining the number of clusters using the weighted gap statistic" (2007), there DDGap;
silhouette, P. Rousseeuw (1987); BIC, G. Schwarz (1978), and C. Fraley, A. Raftery, "How many
clusters? Which clustering method?" (1998); the partitions that they judge: fast global k-means, A.
Likas, N. Vlassis, J. Verbeek, "The global k-means clustering algorithm" (2003).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import nearest, squared_by_differences
from shoal.kernels.gaussian import log_densities, second_moments, spread_from_moments, whitening
from shoal.kernels.lloyd import assign, kmeans_plusplus, lloyd, means

LANDMARKS_MAX: Final = 400
"""more are merged first, to bound the work"""
PER_CLUSTER: Final = 4
"""landmarks for each cluster that is looked for, at least"""
REFERENCES: Final = 10
"""reference sets of the gap statistic"""
STEPS: Final = 100
EM_STEPS: Final = 60
EM_STILL: Final = 1e-4
PATIENCE: Final = 3
"""numbers of clusters in a row without a better BIC after which no larger one is tried"""
BIC_MARGIN: Final = 10.0
"""difference of two BICs that is very strong evidence (R. Kass, A. Raftery, 1995): a number is kept
that lacks less"""
SILHOUETTE_MARGIN: Final = 0.02
"""difference of two mean silhouettes below which a number is kept"""


class Landmarks(NamedTuple):
    """Weighted points."""

    points: Floats
    """(q, d)"""
    mass: Floats
    """(q,) rows that each stands for, above 0"""


class Choice(NamedTuple):
    """The number of clusters chosen, and where they are."""

    centres: Floats
    """(k, d)"""
    mass: Floats
    """(k,) rows of each"""
    is_most: bool
    """whether the criterion is best at the largest number that was tried: there may be more"""


def choose_clusters(
    criterion: str,
    landmarks: Landmarks,
    most: int,
    seed: int = 0,
    covariance_type: str = "full",
    present: int | None = None,
) -> Choice:
    """The number of clusters, 1 to `most`, that the criterion prefers; silhouettes cannot tell 1
    from 2 and give 2.

    `covariance_type` is for "bic". `present` is the number at present, if there is one: it is kept
    unless another one is clearly better, so that the number does not change with every few rows.
    The same landmarks give the same choice. Raises `InvalidData` without landmarks.
    """
    held = landmarks.mass > 0
    if not held.any():
        raise InvalidData("there is no landmark to choose a number of clusters from")
    # Distances between all of them are kept, and every criterion goes through them for each k.
    merged = _merged(Landmarks(landmarks.points[held], landmarks.mass[held]), seed)
    # With a cluster for every few landmarks each criterion follows single landmarks.
    most = max(1, min(most, len(merged.points) // PER_CLUSTER))
    partitions = Partitions(merged)
    if criterion == "gap":
        k = _by_gap(partitions, most, seed, present)
    elif criterion == "silhouette":
        k = _by_silhouette(partitions, most, present)
    else:
        k = _by_bic(partitions, most, covariance_type, present)
    centres = partitions.centres(k)
    mass = assign(merged.points, centres, merged.mass)[0]
    # Silhouettes give 2 where 2 is all that was tried, and few landmarks are at most a cluster or
    # two: more were not looked for.
    return Choice(centres, mass, is_most=most > 2 and k == most)


class Partitions:
    """Fast global k-means: from the partition into k - 1 the one into k, by the new centre that
    promises most.

    Nothing in it is random, and a larger k never has a larger inertia.
    """

    def __init__(self, landmarks: Landmarks) -> None:
        self.landmarks = landmarks
        self.between = squared_by_differences(landmarks.points, landmarks.points)
        """(q, q) squared distances"""
        self._centres = [np.average(landmarks.points, axis=0, weights=landmarks.mass)[None]]

    def centres(self, k: int) -> Floats:
        """(<= k, d); fewer where fewer landmarks differ."""
        points, mass = self.landmarks
        while len(self._centres) < k:
            before = self._centres[-1]
            least = nearest(points, before)[1]
            # What the inertia loses at least if this landmark becomes a centre (Likas, Vlassis,
            # Verbeek 2003).
            promise = mass @ np.maximum(least[:, None] - self.between, 0.0)
            new = points[int(promise.argmax())][None]
            # Where every landmark is a centre already, one more would be a centre twice.
            grown = np.concatenate([before, new]) if promise.max() > 0 else before
            self._centres.append(lloyd(points, grown, STEPS, 0.0, mass)[0])
        return self._centres[k - 1]

    def inertia(self, k: int) -> float:
        """The mean squared distance of a row to its centre."""
        points, mass = self.landmarks
        return float(mass @ nearest(points, self.centres(k))[1] / mass.sum())

    def labels(self, k: int) -> Ints:
        """(q,) the centre of each landmark."""
        return nearest(self.landmarks.points, self.centres(k))[0]


def _merged(landmarks: Landmarks, seed: int) -> Landmarks:
    """Merge landmarks until there are at most `LANDMARKS_MAX`."""
    points, mass = landmarks
    if len(points) <= LANDMARKS_MAX:
        return landmarks
    first = points[kmeans_plusplus(points, LANDMARKS_MAX, seed, mass)]
    count, total, _ = assign(points, first, mass)
    held = count > 0
    return Landmarks(means(count, total, first)[held], count[held])


def _by_gap(partitions: Partitions, most: int, seed: int, present: int | None) -> int:
    """The k at which the gap bends most: what it wins with k less what it wins with k + 1.

    The greatest gap itself is no rule where clusters are not round: it rises slowly without an end,
    as each long cluster is better cut. 1 where the gap of one cluster is within an error of the
    greatest; the largest number where there are more.
    """
    if most < 2:
        return 1
    tried = range(1, most + 2)
    drawn = [Partitions(landmarks) for landmarks in _references(partitions.landmarks, seed)]
    # (references, most + 1)
    logs = np.array([[_log(reference.inertia(k)) for k in tried] for reference in drawn])
    gaps = logs.mean(axis=0) - np.array([_log(partitions.inertia(k)) for k in tried])
    # With the error of the mean over the references itself (Tibshirani, Walther, Hastie 2001).
    widened = math.sqrt(1 + 1 / REFERENCES)
    greatest = int(gaps.argmax())
    if gaps[0] >= gaps[greatest] - float(logs[:, greatest].std()) * widened:
        return 1
    bends = _bends(gaps)
    # Where one more than the largest number wins more than any of them bends, there are more.
    if gaps[-1] - gaps[-2] > bends.max():
        return most
    # Of equal bends the smallest number: `argmax` takes the first.
    best = int(bends.argmax()) + 2
    error = float(_bends(logs).std(axis=0)[best - 2]) * widened
    if present is None or present not in tried[1:-1]:
        return best
    return present if bends[present - 2] >= bends[best - 2] - error else best


def _bends(curve: Floats) -> Floats:
    """What a curve over 1, 2, ... wins with k less what it wins with k + 1, of k from 2 on."""
    return 2 * curve[..., 1:-1] - curve[..., :-2] - curve[..., 2:]


def _references(landmarks: Landmarks, seed: int) -> Iterator[Landmarks]:
    """Landmarks without clusters: uniform in the box along the main directions, with the same
    masses."""
    points, mass = landmarks
    middle = np.average(points, axis=0, weights=mass)
    centred = points - middle
    directions = np.linalg.eigh((centred.T * mass) @ centred)[1]
    along = centred @ directions
    low = along.min(axis=0)
    high = along.max(axis=0)
    for number in range(REFERENCES):
        generator = np.random.default_rng([seed, number])
        # By number and seed: the same references at every start, and independent of the order of k.
        drawn = generator.uniform(low, high, size=points.shape) @ directions.T + middle
        yield Landmarks(drawn, generator.permutation(mass))


def _by_silhouette(partitions: Partitions, most: int, present: int | None) -> int:
    """The k of 2 or more with the greatest mean silhouette; 1 with too few landmarks for 2."""
    if most < 2:
        return 1
    widths = {k: _silhouette(partitions, k) for k in range(2, most + 1)}
    # Of equal silhouettes the least k, which comes first.
    best = max(widths, key=widths.__getitem__)
    if present in widths and widths[present] >= widths[best] - SILHOUETTE_MARGIN:
        return present
    return best


def _silhouette(partitions: Partitions, k: int) -> float:
    mass = partitions.landmarks.mass
    own = np.eye(len(partitions.centres(k)))[partitions.labels(k)]
    """(q, k) 1 at the cluster of each landmark"""
    totals = mass @ own
    far = np.sqrt(partitions.between) @ (own * mass[:, None])
    """(q, k) sums of the distances to the rows of each cluster"""
    # A row is no neighbour of itself: its own mass is left out of its own cluster.
    others = np.where(own > 0, totals - mass[:, None], totals)
    # A cluster of one row divides 0 by 0; nansum leaves it out.
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = far / others
    inside = np.nansum(np.where(own > 0, mean, 0.0), axis=1)
    outside = np.where((own > 0) | (totals <= 0), np.inf, mean).min(axis=1)
    alone = (others * own).sum(axis=1) <= 0
    known = ~alone & np.isfinite(outside)
    width = np.zeros(len(mass))
    # Where all rows are equal both distances are 0, and so is the width.
    width[known] = (outside - inside)[known] / np.maximum(inside, outside)[known].clip(1e-300)
    return float(mass @ width / mass.sum())


def _by_bic(partitions: Partitions, most: int, covariance_type: str, present: int | None) -> int:
    """The k with the least BIC of a mixture whose rows are the landmarks."""
    bics: dict[int, float] = {}
    for k in range(1, most + 1):
        bics[k] = _mixture_bic(partitions, k, covariance_type)
        # The BIC has small local minima, so some further numbers are tried before the search ends.
        if k - min(bics, key=bics.__getitem__) >= PATIENCE:
            break
    best = min(bics, key=bics.__getitem__)
    if present in bics and bics[present] <= bics[best] + BIC_MARGIN:
        return present
    return best


def bic(likelihood: float, rows: float, k: int, d: int, covariance_type: str) -> float:
    """-2 log-likelihood + parameters log(rows), of a mixture of k components of d features."""
    numbers_of_spread = {
        "full": k * d * (d + 1) / 2,
        "tied": d * (d + 1) / 2,
        "diag": k * d,
        "spherical": k,
    }
    spread = numbers_of_spread[covariance_type]
    return -2.0 * likelihood + (k - 1 + k * d + spread) * math.log(max(rows, 2.0))


def _mixture_bic(partitions: Partitions, k: int, covariance_type: str) -> float:
    """EM on the landmarks from the partition; the rows that they stand for are the observations."""
    points, mass = partitions.landmarks
    d = points.shape[1]
    observations = float(mass.sum())
    rows = points - np.average(points, axis=0, weights=mass)
    shares = np.eye(len(partitions.centres(k)))[partitions.labels(k)]
    # A landmark stands for rows around it: half-way to its nearest neighbour.
    apart = partitions.between + np.diag(np.full(len(points), np.inf))
    extent = float(np.median(apart.min(axis=1))) / (4 * d) if len(points) > 1 else 0.0
    ridge = max(extent, 1e-12 * float(rows.var()), 1e-24)
    likelihood = -math.inf
    for _ in range(EM_STEPS):
        weighted = shares * mass[:, None]
        # A component without members goes to the middle of all rows instead of dividing by 0.
        held = np.maximum(weighted.sum(axis=0), 1e-10)
        centres = (weighted.T @ rows) / held[:, None]
        # `second_moments` takes each row once for the tied form, so the masses go into the rows:
        # by their roots, as moments are squares.
        moments = second_moments(covariance_type, rows * np.sqrt(mass)[:, None], shares)
        spread = spread_from_moments(covariance_type, held, centres, moments, ridge)
        logs = log_densities(covariance_type, rows, centres, whitening(covariance_type, spread, d))
        logs += np.log(held / held.sum())
        peak = logs.max(axis=1, keepdims=True)
        shares = np.exp(logs - peak)
        totals = shares.sum(axis=1, keepdims=True)
        shares /= totals
        before = likelihood
        likelihood = float(mass @ (peak + np.log(totals))[:, 0])
        if likelihood - before < EM_STILL * observations:
            break
    return bic(likelihood, observations, len(shares.T), d, covariance_type)


def _log(value: float) -> float:
    # The logarithm of 0 would end the search; so small a number loses against every other one.
    return math.log(max(value, 1e-300))
