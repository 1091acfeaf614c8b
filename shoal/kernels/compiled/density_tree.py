"""Core distances, masses within limits and the tree of mutual reachability, from one table of squared distances.

Each is that of `shoal.kernels.density_tree`, row by row: a row of the table stays in a core's cache meanwhile.
Squared distances are not negative, so they have the order of their bits, read as whole numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types

TABLE = types.Array(types.float32, 2, "C", readonly=True)
SINGLES = types.Array(types.float32, 1, "C", readonly=True)
FLOATS = types.Array(types.float64, 1, "C", readonly=True)
BITS = types.Array(types.int32, 2, "C", readonly=True)
PLACES = types.Array(types.int64, 1, "C", readonly=True)
CORES = types.void(TABLE, BITS, FLOATS, FLOATS, types.int64, types.float32[:, ::1])
AROUND = types.void(TABLE, PLACES, SINGLES, TABLE, types.float32[:, ::1])
TREE = types.void(TABLE, BITS, SINGLES, types.int64[::1], types.int64[:, ::1], types.float32[::1])
LIMIT_MAX = 0x7FFFFFFF
TWICE_AS_FAR = 1 << 24
"""added to the bits of a squared distance, it is four times that distance"""
NEARLY = 1 << 22
"""the same for a distance that is larger by a fifth"""
GAPS = (301, 132, 57, 23, 10, 4, 1)
"""of Shell's sort (Ciura 2001)"""
CHUNK = 64
"""numbers of which the least is found before it is looked for"""


@njit(forceinline=True)
def kept(keys: Any, n: Any, limit: Any) -> Any:
    """Move those of keys[:n] that are at most `limit` to the front, in their order. Returns how many."""
    found = 0
    for at in range(n):
        key = keys[at]
        keys[found] = key
        found += key <= limit
    return found


@njit(forceinline=True)
def nearest_keys(bits: Any, position: Any, limit: Any, least: Any, most: Any, keys: Any) -> Any:
    """Set keys[:n] to the smallest keys of a row, in any order: from `least` to `most` of them. Returns n and a limit.

    A key is a distance with its last bits replaced by the place in the row, so no two are equal. `limit` is a guess of
    the largest one wanted.
    """
    k, n = len(bits), 0
    while True:
        n = 0
        for at in range(k):
            key = (bits[at] & ~position) | np.int32(at)
            keys[n] = key
            n += key <= limit
        if n >= least:
            break
        limit = min(limit + TWICE_AS_FAR, LIMIT_MAX)
    low, high = 0, limit
    while n > most:
        limit = (low + high) // 2
        fewer = 0
        for at in range(n):
            fewer += keys[at] <= limit
        if fewer < least:
            low = limit
            continue
        high, n = limit, kept(keys, n, limit)
    return n, high


@njit(forceinline=True)
def put_in_order(keys: Any, n: Any) -> None:
    """Sort keys[:n]."""
    for gap in GAPS:
        for at in range(gap, n):
            key, place = keys[at], at
            while place >= gap and keys[place - gap] > key:
                keys[place] = keys[place - gap]
                place -= gap
            keys[place] = key


@njit(forceinline=True)
def reached(row: Any, keys: Any, n: Any, position: Any, masses: Any, wanted: Any) -> Any:
    """The squared distance at which the mass `wanted` is reached among the n > 1 nearest.

    -1 where it is not, and there are others.
    """
    held, before, at = 0.0, 0.0, 0
    total = 0.0
    for at in range(n):
        mass = masses[keys[at] & position]
        total += mass
        before, held = held, total - mass / 2
        if at > 0 and held >= wanted:
            break
    if held < wanted and n < len(row):
        return -1.0
    share = min(max((wanted - before) / max(held - before, 1e-300), 0.0), 1.0)
    inner, outer = np.sqrt(row[keys[at - 1] & position]), np.sqrt(row[keys[at] & position])
    core = inner + share * np.float64(outer - inner)
    return core * core


@njit(forceinline=True)
def first_least(bits: Any, rank: Any, own: Any) -> Any:
    """The place of the least number (k,) of those whose rank is below `own`, the first of a tie; 0 if there is none."""
    k, least, chunk = len(bits), np.int32(LIMIT_MAX), 0
    for start in range(0, k, CHUNK):
        part, ranks, lowest = bits[start : start + CHUNK], rank[start : start + CHUNK], np.int32(LIMIT_MAX)
        for at in range(len(part)):
            lowest = min(lowest, part[at] if ranks[at] < own else np.int32(LIMIT_MAX))
        if lowest < least:
            least, chunk = lowest, start
    for at in range(chunk, min(chunk + CHUNK, k)):
        if bits[at] == least and rank[at] < own:
            return at
    return 0


@njit(forceinline=True)
def trees_of_denser(squared: Any, bits: Any, cores: Any, order: Any, roots: Any, edges: Any, lengths: Any) -> Any:
    """Join each point to the nearest denser one within its core distance. Sets edges and lengths, and the root of each
    point's tree; returns the number of edges. `order` (k,): the points from the densest on."""
    k, n = len(cores), 0
    rank = np.empty(k, np.int32)
    for place in range(k):
        rank[order[place]] = place
    for at in range(k):
        above = first_least(bits[at], rank, rank[at])
        roots[at] = at
        if rank[at] > 0 and squared[at, above] <= cores[at]:
            roots[at] = above
            edges[n, 0], edges[n, 1], lengths[n] = above, at, cores[at]
            n += 1
    # A point above has a lower rank, so in this order its root is known.
    for place in range(k):
        roots[order[place]] = roots[roots[order[place]]]
    return n


@njit(forceinline=True)
def nearest_of_tree(squared: Any, cores: Any, roots: Any, tree: Any, reach: Any, nearest: Any) -> None:
    """Set reach[j] to the least max(core, distance) of the points of a tree from point j, and nearest[j] to which."""
    k = len(cores)
    reach[:] = math.inf
    for own in range(k):
        if roots[own] == tree:
            row, core, place = squared[own], cores[own], np.int32(own)
            for at in range(k):
                far = row[at] if row[at] > core else core
                nearer = far < reach[at]
                reach[at] = far if nearer else reach[at]
                nearest[at] = place if nearer else nearest[at]


def tree_kernel(sources: str) -> Any:
    """squared (k, k), its bits, cores (k,), order (k,) -> sets edges (k - 1, 2) and lengths (k - 1,)."""

    @njit(TREE, cache=True, error_model="numpy")
    def spanning_tree(squared: Any, bits: Any, cores: Any, order: Any, edges: Any, lengths: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        k = len(cores)
        roots, nearest = np.empty(k, np.int64), np.zeros(k, np.int32)
        reach, best = np.empty(k, np.float32), np.full(k, np.float32(math.inf))
        parent, is_in = np.zeros(k, np.int64), np.zeros(k, np.bool_)
        n = trees_of_denser(squared, bits, cores, order, roots, edges, lengths)
        tree = roots[order[0]]
        for edge in range(n, k - 1):
            nearest_of_tree(squared, cores, roots, tree, reach, nearest)
            there, least = 0, np.float32(math.inf)
            for at in range(k):
                is_in[at] |= roots[at] == tree
                far = max(reach[at], cores[at])
                if not is_in[at] and far < best[at]:
                    best[at], parent[at] = far, nearest[at]
                if not is_in[at] and best[at] < least:
                    there, least = at, best[at]
            edges[edge, 0], edges[edge, 1], lengths[edge] = parent[there], there, least
            tree = roots[there]

    return spanning_tree


def cores_kernel(sources: str) -> Any:
    """squared (k, k), its bits, masses (k,), masses wanted (w,), neighbours to look at first -> sets cores (w, k)."""

    @njit(CORES, cache=True, error_model="numpy")
    def core_distances(squared: Any, bits: Any, masses: Any, wanted: Any, first: Any, cores: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        k = len(masses)
        position = np.int32(1)
        while position < k - 1:
            position = np.int32(2 * position + 1)
        keys, guesses = np.empty(k + 1, np.int32), np.zeros(k, np.int32)
        limit = LIMIT_MAX
        for at in range(k):
            least, number = min(first, k), 0
            limit = guesses[at] if guesses[at] > 0 else limit
            while number < len(wanted):
                n, limit = nearest_keys(bits[at], position, limit, least, least + least // 2, keys)
                put_in_order(keys, n)
                while number < len(wanted):
                    core = reached(squared[at], keys, n, position, masses, wanted[number])
                    if core < 0.0:
                        break
                    cores[number, at] = core
                    number += 1
                least = min(3 * least, k)
            # Near points have about the same number of points within a limit.
            for near in range(n):
                guesses[keys[near] & position] = min(limit + NEARLY, LIMIT_MAX)

    return core_distances


def around_kernel(sources: str) -> Any:
    """squared (n, k), rows (m,), limits (m,), masses of w kinds (w, k) -> sets the masses within (w, m).

    The sums must be exact in 32 bits: they are taken in any order.
    """

    @njit(AROUND, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})
    def mass_around(squared: Any, rows: Any, within: Any, masses: Any, held: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        for at in range(len(rows)):
            row, limit = squared[rows[at]], within[at]
            for kind in range(len(masses)):
                mass, total = masses[kind], np.float32(0.0)
                for other in range(len(row)):
                    total += mass[other] if row[other] <= limit else np.float32(0.0)
                held[kind, at] = total

    return mass_around
