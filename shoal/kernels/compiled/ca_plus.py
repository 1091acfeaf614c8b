"""CA+ on a whole chunk of rows in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.art import add_node, least_within, move, nearest_of_all, set_bandwidth, two_nearest, win
from shoal.kernels.compiled.places import COUNTER, NEIGHBOUR, NODES_MAX, SIZE, VIGILANCE
from shoal.kernels.compiled.recency import make_first, open_recency, put_first
from shoal.kernels.compiled.screen import bound, open_screen, put, set_margin

WHOLE, REAL = types.int64[::1], types.float64[::1]
ROWS = types.Array(types.float64, 2, "C", readonly=True)
NODES = types.Tuple((types.float64[:, ::1], REAL, WHOLE, WHOLE, WHOLE))
SIGNATURE = types.int64(ROWS, NODES, WHOLE, REAL, WHOLE, REAL, WHOLE)


@njit(forceinline=True, error_model="numpy")
def learn_rows(rows: Any, nodes: Any, whole: Any, real: Any, limits: Any, factors: Any, loops: Any) -> Any:
    """Learn rows (n, d) in order, up to one that needs more room than the nodes have. Returns how many were learnt."""
    weights, _, counts, stamps, _ = nodes
    d, capacity = rows.shape[1], len(weights)
    origin, columns, bounds, margin = open_screen(rows, weights, whole, real)
    newer, older = open_recency(stamps, whole[SIZE])
    terms, found = np.empty(d), np.empty(capacity + 1, np.int64)
    for i in range(len(rows)):
        row = rows[i]
        bound(row, origin, columns, whole, real, margin, bounds)
        least, vigilance = least_within(real, d), real[VIGILANCE]
        first, second = two_nearest(row, weights, whole, real, bounds, margin, least, vigilance, loops, terms, found)
        if first < 0 and whole[SIZE] == limits[NODES_MAX]:
            first = nearest_of_all(row, weights, whole, real, bounds, margin, loops, terms, found)
        if first < 0:
            if whole[SIZE] == capacity:
                return i
            whole[COUNTER] += 1
            add_node(row, nodes, whole, real)
            put_first(whole[SIZE] - 1, newer, older)
            set_bandwidth(nodes, whole, real, limits, factors, loops, older, False)
            set_margin(margin, d, real)
            put(columns, origin, whole[SIZE] - 1, weights)
            continue
        whole[COUNTER] += 1
        win(row, weights, counts, stamps, first, whole[COUNTER])
        make_first(first, newer, older)
        put(columns, origin, first, weights)
        if second >= 0:
            move(row, weights, second, factors[NEIGHBOUR] / counts[second])
            put(columns, origin, second, weights)
    return len(rows)


def kernel(sources: str) -> Any:
    """`learn_rows`, compiled or from Numba's cache; `sources` is what it was made from (`digest_of_sources`)."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def learn(rows: Any, nodes: Any, whole: Any, real: Any, limits: Any, factors: Any, loops: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        return learn_rows(rows, nodes, whole, real, limits, factors, loops)

    return learn
