"""CAEFC on a whole chunk of inputs in one call: as CA+, with edges, their ages, and removals.

The edges are a tuple of arrays: degrees (capacity,), and for each node its neighbours (capacity,
width) and the ages (capacity, width) of the edges to them, the first `degree` of each row, in any
order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.art_workspace import (
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
from shoal.kernels.compiled.ca_plus import (
    NODES,
    WORKSPACE,
    add_node,
    borrow_nodes,
    borrow_workspace,
    least_within,
    make_first,
    move,
    nearest_of_all,
    order_by_stamp,
    put_first,
    set_bandwidth,
    set_mean_bandwidth,
    set_vigilance,
    two_nearest,
    win,
)
from shoal.kernels.compiled.intrinsics import (
    CONST_FLOAT64_2D,
    FLOAT64_1D,
    INT64_1D,
    INT64_2D,
    borrowed,
)
from shoal.kernels.compiled.screen import bound, lowest_bound, open_screen, put, put_all, set_margin

EDGES = types.Tuple((INT64_1D, INT64_2D, INT64_2D))
SIGNATURE = types.int64(
    CONST_FLOAT64_2D,
    NODES,
    EDGES,
    WORKSPACE,
    INT64_1D,
    FLOAT64_1D,
    INT64_1D,
    FLOAT64_1D,
    INT64_1D,
    INT64_1D,
)


@njit
def become_node(
    row: Any,
    nodes: Any,
    degrees: Any,
    ints: Any,
    floats: Any,
    limits: Any,
    factors: Any,
    loops: Any,
    newer: Any,
    older: Any,
) -> Any:
    """Make a row a node, in Case I or because nodes are too few. Whether it was the last one of
    these, which sets the vigilance."""
    direct = ints[SIZE] < limits[N_ACTIVE]
    # The place may be that of a node that was removed, with its old degree.
    degrees[ints[SIZE]] = 0
    add_node(row, nodes, ints, floats)
    put_first(ints[SIZE] - 1, newer, older)
    if not direct or ints[SIZE] == limits[N_ACTIVE]:
        set_bandwidth(nodes, ints, floats, limits, factors, loops, older, direct)
        return direct
    set_mean_bandwidth(nodes[1], ints, floats, loops)
    return False


@njit(forceinline=True)
def lacks_room(first: Any, second: Any, ints: Any, capacity: Any, degrees: Any, width: Any) -> Any:
    """Whether an input needs a node or an edge for which the arrays have no room."""
    if first < 0:
        return ints[SIZE] == capacity
    return second >= 0 and (degrees[first] == width or degrees[second] == width)


@njit(forceinline=True)
def index_of(other: Any, node: Any, degrees: Any, neighbours: Any) -> Any:
    """The index of `other` among the neighbours of `node`, -1 if it is none."""
    for index in range(degrees[node]):
        if neighbours[node, index] == other:
            return index
    return -1


@njit(forceinline=True)
def link(a: Any, b: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Give node a an edge of age 1 to node b, or reset the age of the one it has (eq. 26)."""
    index = index_of(b, a, degrees, neighbours)
    if index < 0:
        index = degrees[a]
        degrees[a] += 1
        neighbours[a, index] = b
    ages[a, index] = 1


@njit(forceinline=True)
def connect(a: Any, b: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Connect two nodes by an edge of age 1, or reset the age of their edge."""
    link(a, b, degrees, neighbours, ages)
    link(b, a, degrees, neighbours, ages)


@njit(forceinline=True)
def age_edges(node: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Increment the ages of all edges of a node (eq. 25)."""
    # An edge is stored at both of its nodes, with one age.
    for index in range(degrees[node]):
        other = neighbours[node, index]
        ages[node, index] += 1
        ages[other, index_of(node, other, degrees, neighbours)] += 1


@njit(forceinline=True, error_model="numpy")
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
    for index in range(degrees[first]):
        other = neighbours[first, index]
        move(row, weights, other, factors[NEIGHBOUR] / counts[other])
        # The screen has a copy of every node, which must follow it.
        put(screen, other, weights)


@njit(forceinline=True)
def unlink(a: Any, index: Any, degrees: Any, neighbours: Any, ages: Any) -> None:
    """Remove the edge at an index of node a's list; the last one moves there."""
    degrees[a] -= 1
    neighbours[a, index] = neighbours[a, degrees[a]]
    ages[a, index] = ages[a, degrees[a]]


@njit(forceinline=True, error_model="numpy")
def remove_old_edges(
    node: Any, degrees: Any, neighbours: Any, ages: Any, factors: Any, ints: Any, room: Any
) -> None:
    """Delete the edges of a node that are too old, as `Edges.remove_old_edges` (eq. 28, 29). `room`
    has room for its degree."""
    n = degrees[node]
    # Quartiles need an age on either side of the median.
    if n < 2:
        return
    ordered = room[:n]
    insertion_sort(ages, node, ordered)
    middle = median(ordered)
    below = 0
    above = n
    while ordered[below] < middle:
        below += 1
    while ordered[above - 1] > middle:
        above -= 1
    if below == 0 or above == n:
        return
    q1 = median(ordered[:below])
    q3 = median(ordered[above:])
    share = ints[N_DELETED] / (ints[N_DELETED] + n)
    mean_deleted = ints[DELETED_AGE_SUM] / ints[N_DELETED] if ints[N_DELETED] else 0.0
    age_max = mean_deleted * share + (q3 + factors[EDGE] * (q3 - q1)) * (1 - share)
    # From the end, because an edge that is removed is replaced by the last one.
    for index in range(n - 1, -1, -1):
        age = ages[node, index]
        if age > age_max:
            other = neighbours[node, index]
            ints[N_DELETED] += 1
            ints[DELETED_AGE_SUM] += age
            unlink(node, index, degrees, neighbours, ages)
            unlink(other, index_of(node, other, degrees, neighbours), degrees, neighbours, ages)


@njit(forceinline=True)
def insertion_sort(ages: Any, node: Any, ordered: Any) -> None:
    """Set `ordered` (degree,) to the ages of a node's edges in ascending order, by insertion: they
    are few."""
    for index in range(len(ordered)):
        age = ages[node, index]
        at = index
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
def remove_isolated(nodes: Any, edges: Any, ints: Any) -> Any:
    """Remove nodes without edges, if there are two nodes or more (lines 38-39). Returns whether any
    was removed."""
    weights, sigmas, counts, stamps, ids = nodes
    degrees, neighbours, ages = edges
    size = ints[SIZE]
    # Where each node goes: those that stay keep their order, which is that of the paper's lists.
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
        # Not above k: what is written over has been moved already, or goes.
        to = position[k]
        weights[to] = weights[k]
        sigmas[to] = sigmas[k]
        counts[to] = counts[k]
        stamps[to] = stamps[k]
        ids[to] = ids[k]
        degrees[to] = degrees[k]
        for index in range(degrees[to]):
            neighbours[to, index] = position[neighbours[k, index]]
            ages[to, index] = ages[k, index]
    ints[SIZE] = left
    return True


@njit(forceinline=True)
def borrow_edges(edges: Any) -> Any:
    """The arrays of edges, borrowed."""
    degrees, neighbours, ages = edges
    return borrowed(degrees), borrowed(neighbours), borrowed(ages)


@njit(forceinline=True, error_model="numpy")
def learn_rows(
    rows: Any,
    nodes: Any,
    edges: Any,
    workspace: Any,
    ints: Any,
    floats: Any,
    limits: Any,
    factors: Any,
    loops: Any,
    winners: Any,
) -> Any:
    """Learn rows (n, d) in order, up to one that needs more room than the arrays have. Returns how
    many were learnt.

    `winners` (n,) gets the position of the node that each row has made or moved, as it was then.
    """
    weights, sigmas, counts, stamps, _ = nodes
    degrees, neighbours, ages = edges
    d = rows.shape[1]
    capacity = len(weights)
    width = neighbours.shape[1]
    screen, terms, newer, older, found = workspace
    open_screen(rows, weights, screen, ints, floats)
    # A workspace that holds these nodes from the chunk before has their order already.
    if not ints[KEPT]:
        order_by_stamp(stamps, ints[SIZE], newer, older)
    for i in range(len(rows)):
        row = rows[i]
        first = -1
        second = -1
        if ints[SIZE] >= limits[N_ACTIVE]:
            least = least_within(floats, d)
            vigilance = floats[VIGILANCE]
            bound(row, screen, ints, floats, lowest_bound(least, floats))
            first, second = two_nearest(
                row, weights, ints, floats, screen, least, vigilance, loops, terms, found
            )
            # A full memory makes no node: the nearest learns, however far it is.
            if first < 0 and ints[SIZE] == limits[NODES_MAX]:
                first = nearest_of_all(row, weights, ints, floats, screen, loops, terms, found)
        # Before anything is changed: the caller gives more room and comes back with the same row.
        if lacks_room(first, second, ints, capacity, degrees, width):
            return i
        ints[COUNTER] += 1
        winners[i] = first if first >= 0 else ints[SIZE]
        if first < 0:
            last_needed = become_node(
                row, nodes, degrees, ints, floats, limits, factors, loops, newer, older
            )
            set_margin(d, floats)
            put(screen, ints[SIZE] - 1, weights)
            if last_needed:
                set_vigilance(weights, ints, floats, screen, loops, terms, found)
        else:
            win(row, weights, counts, stamps, first, ints[COUNTER])
            make_first(first, newer, older)
            put(screen, first, weights)
            age_edges(first, degrees, neighbours, ages)
            if second >= 0:
                connect(first, second, degrees, neighbours, ages)
                move_neighbours(row, first, weights, counts, degrees, neighbours, factors, screen)
            remove_old_edges(first, degrees, neighbours, ages, factors, ints, found)
        if ints[COUNTER] % (2 * limits[N_ACTIVE]) == 0 and remove_isolated(nodes, edges, ints):
            order_by_stamp(stamps, ints[SIZE], newer, older)
            set_mean_bandwidth(sigmas, ints, floats, loops)
            set_margin(d, floats)
            put_all(screen, weights, ints)
    return len(rows)


def kernel(sources: str) -> Any:
    """`learn_rows`, compiled or from Numba's cache; `sources` is what it was made from
    (`digest_of_sources`)."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def learn(
        rows: Any,
        nodes: Any,
        edges: Any,
        workspace: Any,
        ints: Any,
        floats: Any,
        limits: Any,
        factors: Any,
        loops: Any,
        winners: Any,
    ) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        return learn_rows(
            borrowed(rows),
            borrow_nodes(nodes),
            borrow_edges(edges),
            borrow_workspace(workspace),
            borrowed(ints),
            borrowed(floats),
            borrowed(limits),
            borrowed(factors),
            borrowed(loops),
            borrowed(winners),
        )

    return learn
