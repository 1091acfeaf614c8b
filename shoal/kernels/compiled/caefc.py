"""CAEFC on a whole chunk of inputs in one call: as CA+, with edges, their ages, and removals.

The edges are a tuple of arrays: degrees (capacity,), and for each node its neighbours (capacity, width) and the ages
(capacity, width) of the edges to them, the first `degree` of each row, in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.art import (
    add_node,
    least_within,
    move,
    nearest_of_all,
    set_bandwidth,
    set_mean_bandwidth,
    set_vigilance,
    two_nearest,
    win,
)
from shoal.kernels.compiled.ca_plus import NODES, REAL, ROWS, WHOLE, WORKSPACE, borrow_nodes, borrow_workspace
from shoal.kernels.compiled.intrinsics import borrowed
from shoal.kernels.compiled.places import (
    COUNTER,
    DELETED_AGE_SUM,
    EDGE,
    KEPT,
    N_ACTIVE,
    N_DELETED,
    NEIGHBOUR,
    NODES_MAX,
    SIZE,
    VIGILANCE,
)
from shoal.kernels.compiled.recency import make_first, order_by_stamp, put_first
from shoal.kernels.compiled.screen import bound, lowest_bound, open_screen, put, put_all, set_margin

EDGES = types.Tuple((WHOLE, types.int64[:, ::1], types.int64[:, ::1]))
SIGNATURE = types.int64(ROWS, NODES, EDGES, WORKSPACE, WHOLE, REAL, WHOLE, REAL, WHOLE)


@njit
def become_node(
    row: Any,
    nodes: Any,
    degrees: Any,
    whole: Any,
    real: Any,
    limits: Any,
    factors: Any,
    loops: Any,
    newer: Any,
    older: Any,
) -> Any:
    """Make a row a node, in Case I or because nodes are too few. Whether it was the last one of these, which sets the
    vigilance."""
    direct = whole[SIZE] < limits[N_ACTIVE]
    degrees[whole[SIZE]] = 0
    add_node(row, nodes, whole, real)
    put_first(whole[SIZE] - 1, newer, older)
    if not direct or whole[SIZE] == limits[N_ACTIVE]:
        set_bandwidth(nodes, whole, real, limits, factors, loops, older, direct)
        return direct
    set_mean_bandwidth(nodes[1], whole, real, loops)
    return False


@njit(forceinline=True)
def lacks_room(first: Any, second: Any, whole: Any, capacity: Any, degrees: Any, width: Any) -> Any:
    """Whether an input needs a node or an edge for which the arrays have no room."""
    if first < 0:
        return whole[SIZE] == capacity
    return second >= 0 and (degrees[first] == width or degrees[second] == width)


@njit(forceinline=True)
def place_of(other: Any, node: Any, degrees: Any, neighbours: Any) -> Any:
    """The place of `other` among the neighbours of `node`, -1 if it is none."""
    for place in range(degrees[node]):
        if neighbours[node, place] == other:
            return place
    return -1


@njit(forceinline=True)
def link(a: Any, b: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Give node a an edge of age 1 to node b, or reset the age of the one it has (eq. 26)."""
    place = place_of(b, a, degrees, neighbours)
    if place < 0:
        place = degrees[a]
        degrees[a] += 1
        neighbours[a, place] = b
    ages[a, place] = 1


@njit(forceinline=True)
def connect(a: Any, b: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Connect two nodes by an edge of age 1, or reset the age of their edge."""
    link(a, b, degrees, neighbours, ages)
    link(b, a, degrees, neighbours, ages)


@njit(forceinline=True)
def age_edges(node: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Increment the ages of all edges of a node (eq. 25)."""
    for place in range(degrees[node]):
        other = neighbours[node, place]
        ages[node, place] += 1
        ages[other, place_of(node, other, degrees, neighbours)] += 1


@njit(forceinline=True)
def move_neighbours(
    row: Any,
    first: Any,
    weights: Any,
    counts: Any,
    degrees: Any,
    neighbours: Any,
    factors: Any,
    screen: Any,
) -> None:
    """Move the neighbours of the nearest node towards the row (eq. 27)."""
    for place in range(degrees[first]):
        other = neighbours[first, place]
        move(row, weights, other, factors[NEIGHBOUR] / counts[other])
        put(screen, other, weights)


@njit(forceinline=True)
def unlink(a: Any, place: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Remove the edge at a place of node a's list; the last one takes its place."""
    degrees[a] -= 1
    neighbours[a, place] = neighbours[a, degrees[a]]
    ages[a, place] = ages[a, degrees[a]]


@njit(forceinline=True)
def remove_old_edges(node: Any, degrees: Any, neighbours: Any, ages: Any, factors: Any, whole: Any, room: Any) -> None:
    """Delete the edges of a node that are too old, as `Edges.remove_old_edges` (eq. 28, 29). `room` has room for
    its degree."""
    n = degrees[node]
    if n < 2:
        return
    ordered = room[:n]
    put_in_order(ages, node, ordered)
    middle = median(ordered)
    below, above = 0, n
    while ordered[below] < middle:
        below += 1
    while ordered[above - 1] > middle:
        above -= 1
    if below == 0 or above == n:
        return
    q1, q3 = median(ordered[:below]), median(ordered[above:])
    share = whole[N_DELETED] / (whole[N_DELETED] + n)
    mean_deleted = whole[DELETED_AGE_SUM] / whole[N_DELETED] if whole[N_DELETED] else 0.0
    age_max = mean_deleted * share + (q3 + factors[EDGE] * (q3 - q1)) * (1 - share)
    for place in range(n - 1, -1, -1):
        age = ages[node, place]
        if age > age_max:
            other = neighbours[node, place]
            whole[N_DELETED] += 1
            whole[DELETED_AGE_SUM] += age
            unlink(node, place, degrees, neighbours, ages)
            unlink(other, place_of(node, other, degrees, neighbours), degrees, neighbours, ages)


@njit(forceinline=True)
def put_in_order(ages: Any, node: Any, ordered: Any) -> None:
    """Set `ordered` (degree,) to the ages of a node's edges in ascending order, by insertion: they are few."""
    for place in range(len(ordered)):
        age, at = ages[node, place], place
        while at > 0 and ordered[at - 1] > age:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = age


@njit(forceinline=True)
def median(ordered: Any) -> Any:
    """The median of numbers in order, at least one."""
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@njit
def remove_isolated(nodes: Any, edges: Any, whole: Any) -> Any:
    """Remove nodes without edges, if there are two nodes or more (lines 38-39). Returns whether any was removed."""
    weights, sigmas, counts, stamps, ids = nodes
    degrees, neighbours, ages = edges
    size = whole[SIZE]
    position = np.empty(size, np.int64)
    left = 0
    for k in range(size):
        position[k] = left
        left += degrees[k] > 0
    if size < 2 or left == size:
        return False
    for k in range(size):
        if degrees[k] == 0:
            continue
        to = position[k]
        weights[to] = weights[k]
        sigmas[to], counts[to], stamps[to], ids[to] = sigmas[k], counts[k], stamps[k], ids[k]
        degrees[to] = degrees[k]
        for place in range(degrees[to]):
            neighbours[to, place] = position[neighbours[k, place]]
            ages[to, place] = ages[k, place]
    whole[SIZE] = left
    return True


@njit(forceinline=True)
def borrow_edges(edges: Any) -> Any:
    """The arrays of edges, borrowed."""
    degrees, neighbours, ages = edges
    return borrowed(degrees), borrowed(neighbours), borrowed(ages)


@njit(forceinline=True, error_model="numpy")
def learn_rows(
    rows: Any, nodes: Any, edges: Any, workspace: Any, whole: Any, real: Any, limits: Any, factors: Any, loops: Any
) -> Any:
    """Learn rows (n, d) in order, up to one that needs more room than the arrays have. Returns how many were learnt."""
    weights, sigmas, counts, stamps, _ = nodes
    degrees, neighbours, ages = edges
    d, capacity, width = rows.shape[1], len(weights), neighbours.shape[1]
    screen, terms, newer, older, found = workspace
    open_screen(rows, weights, screen, whole, real)
    if not whole[KEPT]:
        order_by_stamp(stamps, whole[SIZE], newer, older)
    for i in range(len(rows)):
        row, first, second = rows[i], -1, -1
        if whole[SIZE] >= limits[N_ACTIVE]:
            least, far = least_within(real, d), real[VIGILANCE]
            bound(row, screen, whole, real, lowest_bound(least, real))
            first, second = two_nearest(row, weights, whole, real, screen, least, far, loops, terms, found)
            if first < 0 and whole[SIZE] == limits[NODES_MAX]:
                first = nearest_of_all(row, weights, whole, real, screen, loops, terms, found)
        if lacks_room(first, second, whole, capacity, degrees, width):
            return i
        whole[COUNTER] += 1
        if first < 0:
            last_needed = become_node(row, nodes, degrees, whole, real, limits, factors, loops, newer, older)
            set_margin(d, real)
            put(screen, whole[SIZE] - 1, weights)
            if last_needed:
                set_vigilance(weights, whole, real, screen, loops, terms, found)
        else:
            win(row, weights, counts, stamps, first, whole[COUNTER])
            make_first(first, newer, older)
            put(screen, first, weights)
            age_edges(first, degrees, neighbours, ages)
            if second >= 0:
                connect(first, second, degrees, neighbours, ages)
                move_neighbours(row, first, weights, counts, degrees, neighbours, factors, screen)
            remove_old_edges(first, degrees, neighbours, ages, factors, whole, found)
        if whole[COUNTER] % (2 * limits[N_ACTIVE]) == 0 and remove_isolated(nodes, edges, whole):
            order_by_stamp(stamps, whole[SIZE], newer, older)
            set_mean_bandwidth(sigmas, whole, real, loops)
            set_margin(d, real)
            put_all(screen, weights, whole)
    return len(rows)


def kernel(sources: str) -> Any:
    """`learn_rows`, compiled or from Numba's cache; `sources` is what it was made from (`digest_of_sources`)."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def learn(
        rows: Any, nodes: Any, edges: Any, workspace: Any, whole: Any, real: Any, limits: Any, factors: Any, loops: Any
    ) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        return learn_rows(
            borrowed(rows),
            borrow_nodes(nodes),
            borrow_edges(edges),
            borrow_workspace(workspace),
            borrowed(whole),
            borrowed(real),
            borrowed(limits),
            borrowed(factors),
            borrowed(loops),
        )

    return learn
