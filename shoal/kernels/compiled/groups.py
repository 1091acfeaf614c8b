"""Groups of points while edges are added, as in `shoal.kernels.groups`: their members are lists linked by places."""

from __future__ import annotations

from typing import Any

from numba import njit, types

from shoal.kernels.compiled.array_types import CONST_FLOAT32_1D, CONST_INT64_2D, FLOAT64_1D, INT64_1D, INT64_2D

STATE = types.Tuple((FLOAT64_1D, CONST_FLOAT32_1D, INT64_1D, INT64_2D))
SIGNATURE = types.UniTuple(types.int64, 3)(CONST_INT64_2D, types.int64, types.int64, FLOAT64_1D, STATE, INT64_2D)


@njit(forceinline=True)
def root_of(root: Any, at: Any) -> Any:
    """The root of a point's group; the way there becomes shorter."""
    while root[at] != at:
        root[at] = root[root[at]]
        at = root[at]
    return at


@njit(forceinline=True)
def list_members(root: Any, lists: Any, members: Any) -> None:
    """Set members[:n] to the members of a root's group. The last one is followed by the first."""
    size, last, after = lists
    at = last[root]
    for place in range(size[root]):
        at = after[at]
        members[place] = at


@njit(forceinline=True)
def put_together(root: Any, other: Any, lists: Any) -> None:
    """Make the members of `other` members of `root`, those of the larger group first."""
    size, last, after = lists
    longer, shorter = (root, other) if size[root] > size[other] else (other, root)
    ends = last[longer], last[shorter]
    after[ends[0]], after[ends[1]] = after[ends[1]], after[ends[0]]
    last[root] = ends[1]
    size[root] += size[other]


def kernel(sources: str) -> Any:
    """edges (e, 2), the first to add, one to add whatever its groups weigh or -1, (e,) the mass from which an edge's
    groups are heavy; masses, core distances, roots (k,), lists (3, k) -> the edge that is not added, or e, and the
    roots of its groups.

    Sets the first places of `members` (2, k) to the members of these.
    """

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def join_groups(edges: Any, first: Any, forced_edge: Any, heavy: Any, state: Any, members: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        mass, core, root, links = state
        lists = links[0], links[1], links[2]
        for number in range(first, len(edges)):
            a, b = root_of(root, edges[number, 0]), root_of(root, edges[number, 1])
            if core[a] > core[b]:
                a, b = b, a
            if number != forced_edge and mass[a] >= heavy[number] and mass[b] >= heavy[number]:
                list_members(a, lists, members[0])
                list_members(b, lists, members[1])
                return number, a, b
            root[b] = a
            mass[a] += mass[b]
            put_together(a, b, lists)
        return len(edges), 0, 0

    return join_groups
