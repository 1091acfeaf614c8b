"""Landmark spectral clustering: weights of rows on landmarks, their Gram matrix, and the embedding
of the landmarks.

A row's weights on its nearest landmarks add up to 1, so that the rows of Z'Z, summed over all rows,
add up to the mass of each landmark, and Z'Z is the adjacency matrix of a graph of landmarks that
the rows tie together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import FEW_FEATURES
from shoal.kernels.distance import nearest, squared_distances
from shoal.kernels.lloyd import best_kmeans

SQUARE_MIN: Final = 1e-290
"""smallest squared bandwidth: smaller ones have lost their digits"""
GAP_MIN: Final = 1.5
"""factor by which the best cut through each cluster must be heavier than the one around any of
them. Through a shape without a gap one cut is about as heavy as another"""
VALUE_MIN: Final = 1e-5
"""smaller eigenvalues of the Laplacian count as this: parts that are tied so weakly are apart"""
CLUSTERS_MAX: Final = 20
"""clusters that the eigengap finds at most"""
PART_MIN: Final = 0.01
"""least share of the mass of a cluster that is taken for one: the cut around a landmark or two with
few ties to the others is small, however little they hold"""
DEGREE_ADDED: Final = 0.01
"""times the mean mass of a landmark: added to the mass of each where smaller clusters come apart,
so that a cut around little mass is no light one (regularised Laplacian: Amini, Chen, Bickel and
Levina 2013; Joseph and Yu 2016)"""
STARTS: Final = 5
STEPS: Final = 100
MASS_MIN: Final = 1e-9
"""least mass of a landmark that takes part, in rows"""
SHARE_OF_LEARNING: Final = 0.03
"""time of a row's weights, relative to that in which CA+ learns one: how soon the compiled form is
worth loading"""


def landmark_bandwidth(landmarks: Floats, factor: float) -> float:
    """landmarks (q, d) -> `factor` times the median distance to the nearest other one; 1 where
    there is no other."""
    squared = squared_distances(landmarks, landmarks)
    np.fill_diagonal(squared, np.inf)
    nearest = np.sqrt(squared.min(axis=1, initial=np.inf))
    positive = nearest[(nearest > 0) & np.isfinite(nearest)]
    # Without another landmark any bandwidth gives the same weights, 1 to the only one.
    if len(positive) == 0:
        return 1.0
    return factor * float(np.median(positive))


def nearest_weights(
    rows: Floats, landmarks: Floats, bandwidth: float, near: int
) -> tuple[Ints, Floats, Floats]:
    """rows (n, d), landmarks (q, d) -> (n, r) the r = min(near, q) nearest, (n, r) weights that add
    up to 1, and (n,) the squared distance to the nearest. Of equally near ones the first count."""
    n = len(rows)
    width = min(near, len(landmarks))
    scale = max(2.0 * bandwidth * bandwidth, SQUARE_MIN)
    compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * n)
    which = np.empty((n, width), dtype=np.int64)
    squares = np.empty((n, width))
    if compiled is not None:
        weights = squares
        least = np.empty(n)
        rows = np.ascontiguousarray(rows)
        # Of few features the kernel computes distances by itself; of many, a product of matrices
        # is faster.
        squared = np.empty((0, 0))
        if rows.shape[1] > FEW_FEATURES:
            squared = np.ascontiguousarray(squared_distances(rows, landmarks).T)
        landmarks = np.ascontiguousarray(landmarks)
        compiled.nearest_weights(
            rows, landmarks, squared, scale, which, weights, least, compiled.loops
        )
        return which, weights, least
    squared = np.ascontiguousarray(squared_distances(rows, landmarks))
    at = np.arange(n)
    for place in range(width):
        which[:, place] = squared.argmin(axis=1)
        squares[:, place] = squared[at, which[:, place]]
        squared[at, which[:, place]] = np.inf
    with np.errstate(over="ignore"):
        # Relative to the nearest, so that rows far from all landmarks have weights too.
        weights = np.exp((squares[:, :1] - squares) / scale)
    weights /= weights.sum(axis=1, keepdims=True)
    return which, weights, squares[:, 0]


def add_gram(gram: Floats, which: Ints, weights: Floats) -> None:
    """Add Z'Z of rows with these weights, (n, r) each, to the upper half of `gram` (q, q).

    The products of a pair of places are added up row by row, one pair after the other, and then
    added to `gram`.
    """
    q = len(gram)
    width = which.shape[1]
    compiled = forms.PROCESS.compiled_for()
    if compiled is not None:
        sums = np.zeros((q, q))
        compiled.add_gram(sums, np.ascontiguousarray(which), np.ascontiguousarray(weights))
        gram += sums
        return
    first, second = np.triu_indices(width)
    these = which.T[first]
    those = which.T[second]
    own = weights.T[first]
    other = weights.T[second]
    cells = np.minimum(these, those) * q + np.maximum(these, those)
    gram += np.bincount(cells.ravel(), (own * other).ravel(), q * q).reshape(q, q)


def laplacian_spectrum(gram: Floats, added: float = 0.0) -> tuple[Floats, Floats]:
    """Adjacency (q, q) of landmarks with mass -> eigenvalues (q,) of I - D^-1/2 A D^-1/2, ascending
    from 0, and D^-1/2 times its eigenvectors (q, q), one in each column. The largest entry of each
    is positive.

    D has the mass of each landmark and `added`; with it, no eigenvalue has to be 0.
    """
    root = 1.0 / np.sqrt(gram.sum(axis=1) + added)
    values, vectors = np.linalg.eigh(gram * np.outer(root, root))
    vectors = vectors[:, ::-1]
    vectors = vectors * np.where(
        vectors[np.abs(vectors).argmax(axis=0), np.arange(len(gram))] < 0, -1.0, 1.0
    )
    # Rounding may take an eigenvalue of 1 beyond it; a Laplacian has none below 0.
    return np.clip(1.0 - values[::-1], 0.0, None), vectors * root[:, None]


def eigengap(values: Floats, most: int) -> int:
    """Eigenvalues of the Laplacian, ascending -> the number of clusters that they suggest, 1 to
    `most`: those before the largest factor between two that follow each other. 1 only where there
    is nothing to compare."""
    bounded = np.append(np.maximum(values, VALUE_MIN), 1.0)
    # The first eigenvalue is 0 for any graph, so the factor that it would give means nothing.
    factors = bounded[2 : most + 1] / bounded[1 : min(most, len(values))]
    if len(factors) == 0:
        return 1
    return int(factors.argmax()) + 2


def is_gap(gram: Floats, cluster: Ints) -> bool:
    """Adjacency (q, q), cluster (q,) of each landmark -> whether the clusters are apart: whether
    the best cut through each of them is heavier by `GAP_MIN` than the cut around any of them. Of a
    long shape, the largest factor between eigenvalues is 4 even without any gap, so that alone does
    not show one."""
    members = [cluster == number for number in np.unique(cluster)]
    around = max(float(gram[np.ix_(own, ~own)].sum()) for own in members)
    return min(lightest_cut(gram[np.ix_(own, own)]) for own in members) > GAP_MIN * around


def lightest_cut(gram: Floats) -> float:
    """Adjacency (q, q) -> the weight of its best cut: of those along its second eigenvector, that
    of least normalised weight (Shi and Malik 2000). For one landmark, the weight of its tie to
    itself."""
    if len(gram) < 2:
        return float(gram[0, 0])
    # Stable: landmarks with equal entries keep their order, so that the best cut is the same on
    # every processor.
    order = np.argsort(laplacian_spectrum(gram)[1][:, 1], kind="stable")
    sums = gram[np.ix_(order, order)].cumsum(axis=0).cumsum(axis=1)
    volume = sums[:-1, -1]
    inside = np.diagonal(sums)[:-1]
    weight = volume - inside
    return float(weight[(weight / volume + weight / (sums[-1, -1] - volume)).argmin()])


def directions(points: Floats) -> Floats:
    """points (n, e) -> the same at length 1; points of length 0 stay."""
    length = np.sqrt(np.square(points).sum(axis=1, keepdims=True))
    return points / np.where(length > 0, length, 1.0)


def embedded(which: Ints, weights: Floats, basis: Floats) -> Floats:
    """Nearest landmarks (n, r) with their weights, basis (q, e) -> the directions (n, e) of the
    rows."""
    return directions(np.einsum("nr,nre->ne", weights, basis[which]))


class Cut(NamedTuple):
    """Landmarks in clusters."""

    values: Floats
    """the smallest eigenvalues of the Laplacian, ascending"""
    basis: Floats
    """(q, k) the embedding of the landmarks, 0 for those without mass"""
    direction: Floats
    """(k, k) the direction of each cluster in the embedding; there are at most k"""
    cluster: Ints
    """(q,) cluster of each landmark, numbered by their first landmarks; -1 for landmarks without
    mass"""


def cut_graph(gram: Floats, clusters: int, seed: int) -> Cut:
    """Normalised spectral clustering (Ng, Jordan, Weiss 2001) of the graph of landmarks (q, q),
    weighted by their mass.

    `clusters` is their number, 0 to find it by the eigengap; there are no more than landmarks with
    mass.
    """
    mass = gram.sum(axis=1)
    live = mass > MASS_MIN
    gram = gram[np.ix_(live, live)]
    values, vectors = laplacian_spectrum(gram)
    k = min(clusters, len(values)) or eigengap(values, CLUSTERS_MAX)
    direction, found = _in_clusters(vectors, k, mass[live], seed)
    # A number that is found counts parts that are apart, however small they are.
    if clusters and np.bincount(found, mass[live]).min() < PART_MIN * mass.sum():
        vectors = laplacian_spectrum(gram, DEGREE_ADDED * float(mass[live].mean()))[1]
        direction, found = _in_clusters(vectors, k, mass[live], seed)
    if not clusters and k > 1 and not is_gap(gram, found):
        k = 1
        direction, found = _in_clusters(vectors, k, mass[live], seed)
    cluster = np.full(len(mass), -1, dtype=np.int64)
    basis = np.zeros((len(mass), k))
    cluster[live] = found
    basis[live] = vectors[:, :k]
    return Cut(values[: CLUSTERS_MAX + 1], basis, direction, cluster)


def _in_clusters(vectors: Floats, k: int, mass: Floats, seed: int) -> tuple[Floats, Ints]:
    """k-means of the directions of landmarks -> the direction of each cluster, and the cluster of
    each landmark."""
    points = directions(vectors[:, :k])
    direction = best_kmeans(points, k, seed, STARTS, STEPS, mass)
    found = nearest(points, direction)[0]
    # In the order of their first landmarks: the eigenvectors of equal eigenvalues are any rotation
    # of each other.
    hits = found[:, None] == np.arange(len(direction))
    order = np.argsort(np.where(hits.any(axis=0), hits.argmax(axis=0), len(found)), kind="stable")
    return direction[order], np.argsort(order)[found]
