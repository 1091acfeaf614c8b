"""How F2LS finds its rules: fuzzy c-means on each client, the number of clusters by an index, and merged centres.

Source: A. Wilbik, P. Grefen, "Towards a federated fuzzy learning system" (2021), algorithm 1 and section IV; the index
is that of M. Popescu and others, "A cluster validity framework based on induced partition dissimilarity" (2013).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.distance import squared_by_differences, squared_distances
from shoal.kernels.membership import memberships

Floats = NDArray[np.float64]

FUZZIFIER: Final = 2.0
CLUSTERS: Final = range(2, 11)
"""numbers of clusters that a client tries; the paper's clients found 6 and 8"""
STEPS_MAX: Final = 300
STILL: Final = 1e-5
PAIRED_ROWS_MAX: Final = 500
"""rows whose pairs are compared by the index; of more, as many are drawn"""
WIDTH_MIN: Final = 0.1
MERGE_DISTANCE: Final = 1.5
"""greatest distance of two centres that are merged, in standard deviations; the paper does not give it"""


class Rules(NamedTuple):
    """The conditions of k rules on d inputs."""

    centres: Floats
    """(k, d)"""
    widths: Floats
    """(k, d)"""


def local_rules(inputs: Floats, generator: np.random.Generator) -> Rules:
    """inputs (n, d) of one client -> a rule for each of its clusters, whose number has the greatest index."""
    chosen = np.sort(generator.permutation(len(inputs))[:PAIRED_ROWS_MAX])
    above = np.triu_indices(len(chosen), 1)
    distances = _ranks(squared_by_differences(inputs[chosen], inputs[chosen])[above])
    best, found = -np.inf, inputs[:1]
    for clusters in CLUSTERS:
        centres = fuzzy_centres(inputs, inputs[generator.choice(len(inputs), clusters, replace=False)])
        shares = memberships(squared_distances(inputs[chosen], centres), FUZZIFIER)
        similar = (shares @ shares.T)[above]
        index = float(np.corrcoef(distances, _ranks(-similar))[0, 1])
        if index > best:
            best, found = index, centres
    return Rules(found, widths(inputs, found))


def fuzzy_centres(inputs: Floats, centres: Floats) -> Floats:
    """Fuzzy c-means from `centres` (k, d) to convergence."""
    for _ in range(STEPS_MAX):
        weights = memberships(squared_distances(inputs, centres), FUZZIFIER) ** FUZZIFIER
        before, centres = centres, (weights.T @ inputs) / weights.sum(axis=0)[:, None]
        if np.abs(centres - before).max() < STILL:
            break
    return centres


def widths(inputs: Floats, centres: Floats) -> Floats:
    """The standard deviations (k, d) of Gaussians with the memberships as values, the mean over a cluster's own rows.

    u = exp(-(x - c)² / (2 width²)) solved for the width, for each row and input.
    """
    shares = memberships(squared_distances(inputs, centres), FUZZIFIER)
    own = shares.argmax(axis=1)
    found = np.ones_like(centres)
    for cluster in range(len(centres)):
        rows = (own == cluster) & (shares[:, cluster] < 1.0)
        if rows.any():
            logs = -2.0 * np.log(shares[rows, cluster])[:, None]
            found[cluster] = (np.abs(inputs[rows] - centres[cluster]) / np.sqrt(logs)).mean(axis=0)
    return np.maximum(found, WIDTH_MIN)


def merged_rules(each: Sequence[Rules], distance: float = MERGE_DISTANCE) -> Rules:
    """The rules of all clients, those near each other replaced by their mean; two rules of one client stay two.

    Agglomerative clustering with complete linkage: of two groups the distance is that of their farthest members.
    """
    centres, spreads = np.concatenate([one.centres for one in each]), np.concatenate([one.widths for one in each])
    owner = np.repeat(np.arange(len(each)), [len(one.centres) for one in each])
    gaps = np.sqrt(squared_by_differences(centres, centres))
    gaps[owner[:, None] == owner] = np.inf
    groups = [[place] for place in range(len(centres))]
    while len(groups) > 1:
        apart, first, second = min(
            (float(gaps[np.ix_(groups[i], groups[j])].max()), i, j) for i, j in combinations(range(len(groups)), 2)
        )
        if apart > distance:
            break
        groups[first] += groups.pop(second)
    return Rules(
        np.array([centres[group].mean(axis=0) for group in groups]),
        np.array([spreads[group].mean(axis=0) for group in groups]),
    )


def _ranks(values: Floats) -> Floats:
    """values (n,) -> their ranks, for Spearman's correlation; ties in the order of the values."""
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks
