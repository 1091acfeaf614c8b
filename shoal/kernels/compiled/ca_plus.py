"""CA+ on a whole chunk of rows in one call."""

from __future__ import annotations

from typing import Any

from numba import njit, types

from shoal.kernels.compiled.art import add_node, least_within, move, nearest_of_all, set_bandwidth, two_nearest, win
from shoal.kernels.compiled.intrinsics import borrowed
from shoal.kernels.compiled.places import COUNTER, KEPT, NEIGHBOUR, NODES_MAX, SIZE, VIGILANCE
from shoal.kernels.compiled.recency import make_first, order_by_stamp, put_first
from shoal.kernels.compiled.screen import bound, lowest_bound, open_screen, put, set_margin
from shoal.kernels.workspace import FOUND, NEWER, OLDER, ORIGIN, TERMS, Workspace

WHOLE, REAL = types.int64[::1], types.float64[::1]
ROWS = types.Array(types.float64, 2, "C", readonly=True)
NODES = types.Tuple((types.float64[:, ::1], REAL, WHOLE, WHOLE, WHOLE))
SINGLES = types.float32[::1]
WORKSPACE = types.NamedTuple(
    (types.float32[:, :, ::1], SINGLES, SINGLES, types.float64[:, ::1], types.int64[:, ::1]), Workspace
)
SIGNATURE = types.int64(ROWS, NODES, WORKSPACE, WHOLE, REAL, WHOLE, REAL, WHOLE)


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
    rows: Any, nodes: Any, workspace: Any, whole: Any, real: Any, limits: Any, factors: Any, loops: Any
) -> Any:
    """Learn rows (n, d) in order, up to one that needs more room than the nodes have. Returns how many were learnt."""
    weights, _, counts, stamps, _ = nodes
    d, capacity = rows.shape[1], len(weights)
    screen, terms, newer, older, found = workspace
    open_screen(rows, weights, screen, whole, real)
    if not whole[KEPT]:
        order_by_stamp(stamps, whole[SIZE], newer, older)
    for i in range(len(rows)):
        row = rows[i]
        least, vigilance = least_within(real, d), real[VIGILANCE]
        bound(row, screen, whole, real, lowest_bound(least, real))
        first, second = two_nearest(row, weights, whole, real, screen, least, vigilance, loops, terms, found)
        if first < 0 and whole[SIZE] == limits[NODES_MAX]:
            first = nearest_of_all(row, weights, whole, real, screen, loops, terms, found)
        if first < 0:
            if whole[SIZE] == capacity:
                return i
            whole[COUNTER] += 1
            add_node(row, nodes, whole, real)
            put_first(whole[SIZE] - 1, newer, older)
            set_bandwidth(nodes, whole, real, limits, factors, loops, older, False)
            set_margin(d, real)
            put(screen, whole[SIZE] - 1, weights)
            continue
        whole[COUNTER] += 1
        win(row, weights, counts, stamps, first, whole[COUNTER])
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
        rows: Any, nodes: Any, workspace: Any, whole: Any, real: Any, limits: Any, factors: Any, loops: Any
    ) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        return learn_rows(
            borrowed(rows),
            borrow_nodes(nodes),
            borrow_workspace(workspace),
            borrowed(whole),
            borrowed(real),
            borrowed(limits),
            borrowed(factors),
            borrowed(loops),
        )

    return learn
