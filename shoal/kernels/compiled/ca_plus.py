"""CA+ on a whole chunk of rows in one call."""

from __future__ import annotations

from typing import Any

from numba import njit, types

from shoal.kernels.compiled.array_types import (
    CONST_FLOAT64_2D,
    FLOAT32_1D,
    FLOAT32_3D,
    FLOAT64_1D,
    FLOAT64_2D,
    INT64_1D,
    INT64_2D,
)
from shoal.kernels.compiled.art import add_node, least_within, move, nearest_of_all, set_bandwidth, two_nearest, win
from shoal.kernels.compiled.intrinsics import borrowed
from shoal.kernels.compiled.recency import make_first, order_by_stamp, put_first
from shoal.kernels.compiled.screen import bound, lowest_bound, open_screen, put, set_margin
from shoal.kernels.scalars import COUNTER, KEPT, NEIGHBOUR, NODES_MAX, SIZE, VIGILANCE
from shoal.kernels.workspace import FOUND, NEWER, OLDER, ORIGIN, TERMS, Workspace

NODES = types.Tuple((FLOAT64_2D, FLOAT64_1D, INT64_1D, INT64_1D, INT64_1D))
WORKSPACE = types.NamedTuple((FLOAT32_3D, FLOAT32_1D, FLOAT32_1D, FLOAT64_2D, INT64_2D), Workspace)
SIGNATURE = types.int64(CONST_FLOAT64_2D, NODES, WORKSPACE, INT64_1D, FLOAT64_1D, INT64_1D, FLOAT64_1D, INT64_1D)


@njit(forceinline=True)
def borrow_nodes(nodes: Any) -> Any:
    """The arrays of nodes, borrowed."""
    weights, sigmas, counts, stamps, ids = nodes
    return borrowed(weights), borrowed(sigmas), borrowed(counts), borrowed(stamps), borrowed(ids)


@njit(forceinline=True)
def borrow_workspace(workspace: Any) -> Any:
    """The parts of a workspace, borrowed: the screen, the terms of a sum, and the lists newer, older and found."""
    features, lists = borrowed(workspace.features), borrowed(workspace.lists)
    screen = borrowed(workspace.columns), borrowed(workspace.bounds), features[ORIGIN], borrowed(workspace.point)
    return screen, features[TERMS], lists[NEWER], lists[OLDER], lists[FOUND]


@njit(forceinline=True, error_model="numpy")
def learn_rows(
    rows: Any, nodes: Any, workspace: Any, ints: Any, floats: Any, limits: Any, factors: Any, loops: Any
) -> Any:
    """Learn rows (n, d) in order, up to one that needs more room than the nodes have. Returns how many were learnt."""
    weights, _, counts, stamps, _ = nodes
    d, capacity = rows.shape[1], len(weights)
    screen, terms, newer, older, found = workspace
    open_screen(rows, weights, screen, ints, floats)
    if not ints[KEPT]:
        order_by_stamp(stamps, ints[SIZE], newer, older)
    for i in range(len(rows)):
        row = rows[i]
        least, vigilance = least_within(floats, d), floats[VIGILANCE]
        bound(row, screen, ints, floats, lowest_bound(least, floats))
        first, second = two_nearest(row, weights, ints, floats, screen, least, vigilance, loops, terms, found)
        if first < 0 and ints[SIZE] == limits[NODES_MAX]:
            first = nearest_of_all(row, weights, ints, floats, screen, loops, terms, found)
        if first < 0:
            if ints[SIZE] == capacity:
                return i
            ints[COUNTER] += 1
            add_node(row, nodes, ints, floats)
            put_first(ints[SIZE] - 1, newer, older)
            set_bandwidth(nodes, ints, floats, limits, factors, loops, older, False)
            set_margin(d, floats)
            put(screen, ints[SIZE] - 1, weights)
            continue
        ints[COUNTER] += 1
        win(row, weights, counts, stamps, first, ints[COUNTER])
        make_first(first, newer, older)
        put(screen, first, weights)
        if second >= 0:
            move(row, weights, second, factors[NEIGHBOUR] / counts[second])
            put(screen, second, weights)
    return len(rows)


def kernel(sources: str) -> Any:
    """`learn_rows`, compiled or from Numba's cache; `sources` is what it was made from (`digest_of_sources`)."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def learn(
        rows: Any, nodes: Any, workspace: Any, ints: Any, floats: Any, limits: Any, factors: Any, loops: Any
    ) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        return learn_rows(
            borrowed(rows),
            borrow_nodes(nodes),
            borrow_workspace(workspace),
            borrowed(ints),
            borrowed(floats),
            borrowed(limits),
            borrowed(factors),
            borrowed(loops),
        )

    return learn
