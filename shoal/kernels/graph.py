"""Connected components of a graph, and the age above which an edge is removed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from shoal.kernels.arrays import Ints


def components(n: int, edges: Ints) -> Ints:
    """n nodes, edges (e, 2) of positions -> (n,) component of each node, numbered by first node."""
    parent = list(range(n))

    def root(node: int) -> int:
        while parent[node] != node:
            # Halves the path on the way: without it a long chain of edges takes the square of its
            # length.
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in edges.tolist():
        low, high = sorted((root(a), root(b)))
        # The smaller root is kept, so that the root of a component is its first node.
        parent[high] = low
    numbers: dict[int, int] = {}
    return np.array(
        [numbers.setdefault(root(node), len(numbers)) for node in range(n)], dtype=np.int64
    )


def age_threshold(ages: Sequence[int], edge_factor: float) -> float | None:
    """ages of the edges of one node -> q3 + edge_factor * (q3 - q1), or None where it is undefined.

    The quartiles are the medians of the ages strictly below and strictly above the median (FCAC
    paper, eq. 29, as the published programs compute it). Where either group is empty there is no
    threshold, and no edge is too old.
    """
    if not ages:
        return None
    ordered = sorted(ages)
    middle = _median(ordered)
    below = ordered[: bisect_left(ordered, middle)]
    above = ordered[bisect_right(ordered, middle) :]
    if not below or not above:
        return None
    q1 = _median(below)
    q3 = _median(above)
    return q3 + edge_factor * (q3 - q1)


def _median(ordered: Sequence[int]) -> float:
    half = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[half])
    return (ordered[half - 1] + ordered[half]) / 2
