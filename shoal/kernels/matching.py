"""Matching of two sets: the assignment of least cost, and centres in the order of earlier ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.distance import squared_by_differences


def assignment(cost: Floats) -> Ints:
    """cost (n, m), n <= m -> (n,) the column of each row, no column twice, of least total cost.

    The Hungarian method with potentials, one shortest augmenting path per row: O(n² m). Raises
    `ValueError` for more rows than columns, some of which would have none.
    """
    n, m = cost.shape
    if n > m:
        # Without a free column the search for one would never end.
        raise ValueError(f"{n} rows cannot have a column each, there are {m}")
    of_row = np.zeros(n + 1)
    of_column = np.zeros(m + 1)
    # rows and columns count from 1; column 0 is the row to assign
    taken_by = np.zeros(m + 1, dtype=np.int64)
    for row in range(1, n + 1):
        taken_by[0] = row
        column = 0
        least = np.full(m + 1, np.inf)
        came_from = np.zeros(m + 1, dtype=np.int64)
        used = np.zeros(m + 1, dtype=bool)
        while taken_by[column]:
            used[column] = True
            # Less the potentials no cost is below 0, so that the nearest column is final, as in
            # Dijkstra's algorithm.
            slack = cost[taken_by[column] - 1] - of_row[taken_by[column]] - of_column[1:]
            better = ~used[1:] & (slack < least[1:])
            least[1:][better] = slack[better]
            came_from[1:][better] = column
            nearest = int(np.where(used, np.inf, least)[1:].argmin()) + 1
            step = least[nearest]
            of_row[taken_by[used]] += step
            of_column[used] -= step
            least[~used] -= step
            column = nearest
        while column:
            taken_by[column] = taken_by[came_from[column]]
            column = int(came_from[column])
    found = np.empty(n, dtype=np.int64)
    placed = np.flatnonzero(taken_by[1:])
    found[taken_by[1:][placed] - 1] = placed
    return found


def match_order(before: Floats, after: Floats) -> Ints:
    """centres (k, d), (k, d) -> (k,) the match in `after` of each in `before`, at least total
    distance."""
    return assignment(np.sqrt(squared_by_differences(before, after)))


def matched_distance(before: Floats, after: Floats) -> float:
    """The Frobenius norm of the difference of two sets of centres in the order that makes it
    least."""
    cost = squared_by_differences(before, after)
    return float(np.sqrt(cost[np.arange(len(cost)), assignment(cost)].sum()))


def moved_share(before: Ints, now: Ints, mass: Floats) -> float:
    """Clusters of the same things before (m,), -1 for none, and now (m,), mass (m,) -> the share of
    mass that moved.

    A cluster goes on as the one now with which it shares most mass, if that shares most with it.
    """
    k_before = int(before.max(initial=-1)) + 1
    k = int(now.max(initial=-1)) + 1
    if not k or not k_before:
        return float(k != k_before)
    known = before >= 0
    shared = np.bincount(now[known] * k_before + before[known], mass[known], k * k_before).reshape(
        k, k_before
    )
    best = shared.argmax(axis=1)
    same = shared.argmax(axis=0)[best] == np.arange(k)
    # Where nothing has moved, the rounding of two sums may leave less than 0.
    return max(0.0, 1.0 - float(shared[np.arange(k), best][same].sum() / mass.sum()))


class Followed(NamedTuple):
    """Clusters in the order of those before that they go on as, new ones last."""

    order: Ints
    """(k,) the clusters"""
    before: Ints
    """(k,) the number before of each, -1 for a new one"""


def follow_clusters(before: Ints, now: Ints, mass: Floats, k: int) -> Followed:
    """Clusters of the same things before (m,), -1 for none, and now (m,), 0 to k - 1, with mass
    (m,).

    Each goes on as one cluster at most, so that most mass stays where it was.
    """
    size = max(k, int(before.max(initial=-1)) + 1)
    # Square, so that a cluster that shares nothing with any may keep a column to itself.
    shared = np.zeros((size, size))
    known = before >= 0
    np.add.at(shared, (now[known], before[known]), mass[known])
    match = assignment(-shared)
    match = np.where(shared[np.arange(size), match] > 0, match, -1)[:k]
    # Stable: new clusters, all at `size`, keep their order.
    order = np.argsort(np.where(match >= 0, match, size), kind="stable")
    return Followed(order, match[order])
