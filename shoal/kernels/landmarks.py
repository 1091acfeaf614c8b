"""Landmark spectral clustering: weights of rows on landmarks, their Gram matrix, and the embedding of the landmarks.

A row's weights on its nearest landmarks add up to 1, so that the rows of Z'Z, summed over all rows, add up to the mass
of each landmark, and Z'Z is the adjacency matrix of a graph of landmarks that the rows tie together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import Floats, nearest, squared_distances
from shoal.kernels.lloyd import best_kmeans

Ints = NDArray[np.int64]

SQUARE_MIN: Final = 1e-290
"""smallest squared bandwidth: smaller ones have lost their digits"""
GAP_MIN: Final = 4.5
"""by which factor an eigenvalue of the Laplacian must exceed the one before to be a gap. Those of a chain without any
gap are as the squares of 1, 2, 3, ..., so that their largest factor is 4; the rest is for chance"""
VALUE_MIN: Final = 1e-5
"""smaller eigenvalues of the Laplacian count as this: parts that are tied so weakly are apart"""
CLUSTERS_MAX: Final = 20
"""clusters that the eigengap finds at most"""
STARTS: Final = 5
STEPS: Final = 100
MASS_MIN: Final = 1e-9
"""in rows; a landmark with less takes no part"""


def landmark_bandwidth(landmarks: Floats, factor: float) -> float:
    """landmarks (q, d) -> `factor` times the median distance to the nearest other one; 1 where there is no other."""
    far = squared_distances(landmarks, landmarks)
    np.fill_diagonal(far, np.inf)
    nearest = np.sqrt(far.min(axis=1, initial=np.inf))
    positive = nearest[(nearest > 0) & np.isfinite(nearest)]
    return factor * float(np.median(positive)) if len(positive) else 1.0


def nearest_weights(rows: Floats, landmarks: Floats, bandwidth: float, near: int) -> tuple[Ints, Floats, Floats]:
    """rows (n, d), landmarks (q, d) -> (n, r) the r = min(near, q) nearest, (n, r) weights that add up to 1, and (n,)
    the squared distance to the nearest. Of equally near ones the first count."""
    far = np.ascontiguousarray(squared_distances(rows, landmarks))
    at, width = np.arange(len(rows)), min(near, len(landmarks))
    which, squares = np.empty((len(rows), width), dtype=np.int64), np.empty((len(rows), width))
    for place in range(width):
        which[:, place] = far.argmin(axis=1)
        squares[:, place] = far[at, which[:, place]]
        far[at, which[:, place]] = np.inf
    with np.errstate(over="ignore"):
        # Relative to the nearest, so that rows far from all landmarks have weights too.
        weights = np.exp((squares[:, :1] - squares) / max(2.0 * bandwidth * bandwidth, SQUARE_MIN))
    weights /= weights.sum(axis=1, keepdims=True)
    return which, weights, squares[:, 0]


def add_gram(gram: Floats, which: Ints, weights: Floats) -> None:
    """Add Z'Z of rows with these weights, (n, r) each, to `gram` (q, q), of which only [i, j] with i <= j is used."""
    q, width = len(gram), which.shape[1]
    for a in range(width):
        for b in range(a, width):
            low, high = np.minimum(which[:, a], which[:, b]), np.maximum(which[:, a], which[:, b])
            gram += np.bincount(low * q + high, weights[:, a] * weights[:, b], q * q).reshape(q, q)


def packed(gram: Floats) -> Floats:
    """(q, q) -> (q (q + 1) / 2,) its upper triangle, row by row."""
    return np.asarray(gram[np.triu_indices(len(gram))])


def unpacked(triangle: Floats, q: int) -> Floats:
    """(q (q + 1) / 2,) -> (q, q) symmetric."""
    gram = np.zeros((q, q))
    gram[np.triu_indices(q)] = triangle
    return np.asarray(gram + np.triu(gram, 1).T)


def laplacian_spectrum(gram: Floats) -> tuple[Floats, Floats]:
    """Adjacency (q, q) of landmarks with mass -> eigenvalues (q,) of I - D^-1/2 A D^-1/2, ascending from 0, and D^-1/2
    times its eigenvectors (q, q), one in each column. The largest entry of each is positive."""
    root = 1.0 / np.sqrt(gram.sum(axis=1))
    values, vectors = np.linalg.eigh(gram * np.outer(root, root))
    vectors = vectors[:, ::-1]
    vectors = vectors * np.where(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(gram))] < 0, -1.0, 1.0)
    return np.clip(1.0 - values[::-1], 0.0, None), vectors * root[:, None]


def eigengap(values: Floats, most: int) -> int:
    """Eigenvalues of the Laplacian, ascending -> the number of clusters: those before the largest factor between two
    that follow each other, 1 to `most`; 1 if no factor exceeds `GAP_MIN`."""
    bounded = np.append(np.maximum(values, VALUE_MIN), 1.0)
    factors = bounded[2 : most + 1] / bounded[1 : min(most, len(values))]
    return int(factors.argmax()) + 2 if len(factors) and factors.max() > GAP_MIN else 1


def directions(points: Floats) -> Floats:
    """points (n, e) -> the same at length 1; points of length 0 stay."""
    length = np.sqrt(np.square(points).sum(axis=1, keepdims=True))
    return points / np.where(length > 0, length, 1.0)


def embedded(which: Ints, weights: Floats, basis: Floats) -> Floats:
    """Nearest landmarks (n, r) with their weights, basis (q, e) -> the directions (n, e) of the rows."""
    return directions(np.einsum("nr,nre->ne", weights, basis[which]))


class Cut(NamedTuple):
    """Landmarks in clusters."""

    values: Floats
    """the smallest eigenvalues of the Laplacian, ascending"""
    basis: Floats
    """(q, k) the embedding of the landmarks, 0 for those without mass"""
    direction: Floats
    """(k, k) of each cluster in it"""
    cluster: Ints
    """(q,) of each landmark, numbered by their first ones; -1 for those without mass"""


def cut_graph(gram: Floats, clusters: int, seed: int) -> Cut:
    """Normalised spectral clustering (Ng, Jordan, Weiss 2001) of the graph of landmarks (q, q), weighted by their mass.

    `clusters` is their number, 0 to find it by the eigengap; there are no more than landmarks with mass.
    """
    mass = gram.sum(axis=1)
    live = mass > MASS_MIN
    values, vectors = laplacian_spectrum(gram[np.ix_(live, live)])
    k = min(clusters, len(values)) or eigengap(values, CLUSTERS_MAX)
    points = directions(vectors[:, :k])
    direction = best_kmeans(points, k, seed, STARTS, STEPS, mass[live])
    found = nearest(points, direction)[0]
    # In the order of their first landmarks: the eigenvectors of equal eigenvalues are any rotation of each other.
    first = np.where(found[:, None] == np.arange(len(direction)), np.arange(len(found))[:, None], len(found)).min(
        axis=0
    )
    order = np.argsort(first, kind="stable")
    cluster, basis = np.full(len(mass), -1, dtype=np.int64), np.zeros((len(mass), k))
    cluster[live], basis[live] = np.argsort(order)[found], vectors[:, :k]
    return Cut(values[: CLUSTERS_MAX + 1], basis, direction[order], cluster)
