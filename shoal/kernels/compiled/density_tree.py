"""Core distances, masses within limits and the tree of mutual reachability, from one table of
squared distances.

Each is that of `shoal.kernels.density_tree`, row by row: a row of the table stays in a core's cache
meanwhile. Squared distances are not negative, so they have the order of their bits, read as whole
numbers. The groups of points, while edges are added, have their members in lists linked by places.
The deepest valley of each histogram is that of `shoal.kernels.density_tree`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.cpython.unsafe.numbers import trailing_zeros

from shoal.kernels.compiled.intrinsics import (
    CONST_FLOAT32_1D,
    CONST_FLOAT32_2D,
    CONST_FLOAT64_1D,
    CONST_FLOAT64_2D,
    CONST_INT32_2D,
    CONST_INT64_1D,
    CONST_INT64_2D,
    FLOAT32_1D,
    FLOAT32_2D,
    FLOAT64_1D,
    FLOAT64_2D,
    INT32_2D,
    INT64_1D,
    INT64_2D,
)
from shoal.kernels.constants import (
    PEAK_SIGNIFICANCE,
    SHALLOW,
    VALLEY_SIGNIFICANCE_MIN,
    VALLEY_WIDTHS,
)

CORES = types.void(
    CONST_FLOAT32_2D,
    CONST_INT32_2D,
    CONST_FLOAT64_1D,
    CONST_FLOAT64_1D,
    types.int64,
    INT32_2D,
    INT64_1D,
    FLOAT32_2D,
)
AROUND = types.void(
    CONST_FLOAT32_2D, CONST_INT64_1D, CONST_FLOAT32_1D, CONST_FLOAT32_2D, FLOAT32_2D
)
TREE = types.void(
    CONST_FLOAT32_2D, CONST_INT32_2D, CONST_FLOAT32_1D, INT64_1D, INT64_2D, FLOAT32_1D
)
# The greatest whole number of 32 bits, above the bits of every distance: infinity is 0x7F800000.
LIMIT_MAX = 0x7FFFFFFF
# The exponent of a single begins at bit 23.
TWICE_AS_FAR = 1 << 24
"""added to the bits of a squared distance, it is four times that distance"""
NEARLY = 1 << 22
"""the difference of bits for a distance that is larger by a fifth"""
COUNTED_MAX = 128
"""keys up to which each is compared with all others to sort them"""
GAPS = (301, 132, 57, 23, 10, 4, 1)
"""gaps of Shell's sort of more keys (Ciura 2001)"""
CHUNK = 64
"""keys in a chunk, of which the least is kept"""


@njit(forceinline=True)
def keep_within(keys: Any, n: Any, limit: Any) -> Any:
    """Move those of keys[:n] that are at most `limit` to the front, in their order. Returns how
    many."""
    found = 0
    for at in range(n):
        key = keys[at]
        # Written always, kept only if it counts: a branch that cannot be foretold would cost more.
        keys[found] = key
        found += key <= limit
    return found


@njit(forceinline=True)
def keys_within(bits: Any, position: Any, limit: Any, hits: Any, keys: Any) -> Any:
    """Set keys[:n] to the keys of a row that are at most `limit`, in the order of their places.
    Returns n.

    All are compared first, many at a time, and eight that lie beyond the limit are passed over at
    once.
    """
    k = len(bits)
    n = 0
    # Eight answers of one byte are read as one number, which is 0 where all lie beyond the limit.
    eights = hits.view(np.uint64)
    for at in range(k):
        hits[at] = ((bits[at] & ~position) | np.int32(at)) <= limit
    for eight in range(len(eights)):
        left = eights[eight]
        while left:
            at = 8 * eight + (trailing_zeros(left) >> 3)
            keys[n] = (bits[at] & ~position) | np.int32(at)
            n += 1
            # Clears the lowest bit that is set, the one that was just read.
            left &= left - np.uint64(1)
    return n


@njit(forceinline=True)
def nearest_keys(
    bits: Any, position: Any, limit: Any, least: Any, most: Any, hits: Any, keys: Any
) -> Any:
    """Set keys[:n] to the smallest keys of a row, in any order: from `least` to `most` of them.
    Returns n and a limit.

    A key is a distance with its last bits replaced by the place in the row, so no two are equal.
    `limit` is a guess of the largest one wanted.
    """
    n = keys_within(bits, position, limit, hits, keys)
    # Too low a guess costs another pass over the row, too high a one only more keys to sort.
    while n < least:
        limit = min(limit + TWICE_AS_FAR, LIMIT_MAX)
        n = keys_within(bits, position, limit, hits, keys)
    # Bisection between a limit that too few keys are within and one that enough are. It ends, as no
    # two keys are equal.
    low = 0
    high = limit
    while n > most:
        limit = (low + high) // 2
        fewer = 0
        for at in range(n):
            fewer += keys[at] <= limit
        if fewer < least:
            low = limit
            continue
        high = limit
        n = keep_within(keys, n, limit)
    return n, high


@njit(forceinline=True)
def sort_keys(keys: Any, n: Any, ordered: Any) -> None:
    """Set ordered[:n] to keys[:n], sorted. No two are equal, so the number of smaller keys is the
    place of each.

    Few are counted faster, many at a time, than they are moved one by one.
    """
    if n <= COUNTED_MAX:
        for at in range(n):
            key = keys[at]
            before = np.int32(0)
            for other in range(n):
                before += np.int32(keys[other] < key)
            ordered[before] = key
        return
    ordered[:n] = keys[:n]
    for gap in GAPS:
        for at in range(gap, n):
            key = ordered[at]
            place = at
            while place >= gap and ordered[place - gap] > key:
                ordered[place] = ordered[place - gap]
                place -= gap
            ordered[place] = key


@njit(forceinline=True, error_model="numpy")
def reached(row: Any, keys: Any, n: Any, position: Any, masses: Any, wanted: Any) -> Any:
    """The squared distance at which the mass `wanted` is reached among the n > 1 nearest.

    -1 where it is not, and there are others.
    """
    held = 0.0
    before = 0.0
    at = 0
    total = 0.0
    for at in range(n):
        # Half of a point's own mass lies within its distance, half beyond it.
        mass = masses[keys[at] & position]
        total += mass
        before = held
        held = total - mass / 2
        if at > 0 and held >= wanted:
            break
    if held < wanted and n < len(row):
        # The caller looks for more neighbours. With all of them, the farthest is the answer.
        return -1.0
    # Neighbours of mass 0 hold no more than those before them.
    share = min(max((wanted - before) / max(held - before, 1e-300), 0.0), 1.0)
    inner = np.sqrt(row[keys[at - 1] & position])
    outer = np.sqrt(row[keys[at] & position])
    core = inner + share * np.float64(outer - inner)
    return core * core


@njit(forceinline=True)
def first_least(bits: Any, rank: Any, own: Any) -> Any:
    """The place of the least number (k,) of those whose rank is below `own`, the first of a tie; 0
    if there is none."""
    k = len(bits)
    least = np.int32(LIMIT_MAX)
    chunk = 0
    # The least of each chunk without its place, which takes several numbers at a time; the place is
    # looked for in one chunk only.
    for start in range(0, k, CHUNK):
        part = bits[start : start + CHUNK]
        ranks = rank[start : start + CHUNK]
        lowest = np.int32(LIMIT_MAX)
        for at in range(len(part)):
            lowest = min(lowest, part[at] if ranks[at] < own else np.int32(LIMIT_MAX))
        # Not at most: of equal numbers the first counts, so that both kernels join the same points.
        if lowest < least:
            least = lowest
            chunk = start
    for at in range(chunk, min(chunk + CHUNK, k)):
        if bits[at] == least and rank[at] < own:
            return at
    return 0


@njit(forceinline=True)
def trees_of_denser(
    squared: Any, bits: Any, cores: Any, order: Any, roots: Any, edges: Any, lengths: Any
) -> Any:
    """Join each point to the nearest denser one within its core distance. Sets edges and lengths,
    and the root of each point's tree; returns the number of edges. `order` (k,): the points from
    the densest on."""
    k = len(cores)
    n = 0
    rank = np.empty(k, np.int32)
    for place in range(k):
        rank[order[place]] = place
    for at in range(k):
        above = first_least(bits[at], rank, rank[at])
        roots[at] = at
        # Its own core distance is the least that any edge of this point can have, so the edge is
        # one of a shortest tree, and Prim's algorithm below has fewer to find.
        if rank[at] > 0 and squared[at, above] <= cores[at]:
            roots[at] = above
            edges[n, 0] = above
            edges[n, 1] = at
            lengths[n] = cores[at]
            n += 1
    # A point above has a lower rank, so in this order its root is known.
    for place in range(k):
        roots[order[place]] = roots[roots[order[place]]]
    return n


@njit(forceinline=True)
def nearest_of_tree(
    squared: Any, cores: Any, roots: Any, tree: Any, reach: Any, nearest: Any
) -> None:
    """Set reach[j] to the least max(core, distance) of the points of a tree from point j, and
    nearest[j] to which."""
    k = len(cores)
    reach[:] = math.inf
    for own in range(k):
        if roots[own] == tree:
            row = squared[own]
            core = cores[own]
            place = np.int32(own)
            for at in range(k):
                far = row[at] if row[at] > core else core
                nearer = far < reach[at]
                reach[at] = far if nearer else reach[at]
                nearest[at] = place if nearer else nearest[at]


def tree_kernel(sources: str) -> Any:
    """squared (k, k), its bits, cores (k,), order (k,) -> sets edges (k - 1, 2) and lengths (k -
    1,)."""

    @njit(TREE, cache=True, error_model="numpy")
    def spanning_tree(
        squared: Any, bits: Any, cores: Any, order: Any, edges: Any, lengths: Any
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        k = len(cores)
        roots = np.empty(k, np.int64)
        nearest = np.zeros(k, np.int32)
        reach = np.empty(k, np.float32)
        best = np.full(k, np.float32(math.inf))
        parent = np.zeros(k, np.int64)
        is_in = np.zeros(k, np.bool_)
        n = trees_of_denser(squared, bits, cores, order, roots, edges, lengths)
        # Prim's algorithm, whose vertices are these trees.
        tree = roots[order[0]]
        for edge in range(n, k - 1):
            nearest_of_tree(squared, cores, roots, tree, reach, nearest)
            there = 0
            least = np.float32(math.inf)
            for at in range(k):
                is_in[at] |= roots[at] == tree
                far = max(reach[at], cores[at])
                if not is_in[at] and far < best[at]:
                    best[at] = far
                    parent[at] = nearest[at]
                if not is_in[at] and best[at] < least:
                    there = at
                    least = best[at]
            edges[edge, 0] = parent[there]
            edges[edge, 1] = there
            lengths[edge] = least
            tree = roots[there]

    return spanning_tree


@njit(forceinline=True)
def reached_by(
    row: Any, keys: Any, n: Any, position: Any, masses: Any, wanted: Any, number: Any, cores: Any
) -> Any:
    """Set cores[number:] (w,) as far as the n nearest hold the masses wanted. Returns the first
    that they do not."""
    while number < len(wanted):
        core = reached(row, keys, n, position, masses, wanted[number])
        if core < 0.0:
            break
        cores[number] = core
        number += 1
    return number


def cores_kernel(sources: str) -> Any:
    """squared (k, k), its bits, masses (k,), masses wanted (w,), neighbours to look at first ->
    sets cores (k, w).

    `listed` (k, q) and `n_listed` (k,), at first 0: the keys of the nearest of each point, in
    order, as far as they are known. Those that are looked for first are put there.
    """

    @njit(CORES, cache=True, error_model="numpy")
    def core_distances(
        squared: Any,
        bits: Any,
        masses: Any,
        wanted: Any,
        first: Any,
        listed: Any,
        n_listed: Any,
        cores: Any,
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        k = len(masses)
        position = np.int32(1)
        while position < k - 1:
            position = np.int32(2 * position + 1)
        keys = np.empty(k + 1, np.int32)
        ordered = np.empty(k + 1, np.int32)
        guesses = np.zeros(k, np.int32)
        # Whole eights, as they are read so; those beyond the row stay 0, which is no hit.
        hits = np.zeros((k + 7) // 8 * 8, np.uint8)
        limit = LIMIT_MAX
        for at in range(k):
            n = n_listed[at]
            number = 0
            least = min(first, k)
            # What was found for a smaller mass is the start of what is found for a larger one.
            if n > 0:
                number = reached_by(
                    squared[at], listed[at], n, position, masses, wanted, 0, cores[at]
                )
                least = min(max(first, 2 * n), k)
            limit = guesses[at] if guesses[at] > 0 else limit
            n = 0
            while number < len(wanted):
                n, limit = nearest_keys(
                    bits[at], position, limit, least, least + least // 2, hits, keys
                )
                sort_keys(keys, n, ordered)
                if n_listed[at] == 0 and n <= listed.shape[1]:
                    listed[at, :n] = ordered[:n]
                    n_listed[at] = n
                number = reached_by(
                    squared[at], ordered, n, position, masses, wanted, number, cores[at]
                )
                least = min(3 * least, k)
            # Near points have about the same number of points within a limit.
            for near in range(n):
                guesses[keys[near] & position] = min(limit + NEARLY, LIMIT_MAX)

    return core_distances


def around_kernel(sources: str) -> Any:
    """squared (n, k), rows (m,), limits (m,), masses of w kinds (w, k) -> sets the masses within
    (w, m).

    The sums must be exact in 32 bits: they are taken in any order.
    """

    @njit(AROUND, cache=True, error_model="numpy", fastmath={"reassoc", "nsz"})
    def mass_around(squared: Any, rows: Any, within: Any, masses: Any, held: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        for at in range(len(rows)):
            row = squared[rows[at]]
            limit = within[at]
            for kind in range(len(masses)):
                mass = masses[kind]
                total = np.float32(0.0)
                for other in range(len(row)):
                    total += mass[other] if row[other] <= limit else np.float32(0.0)
                held[kind, at] = total

    return mass_around


SHARES = types.void(
    CONST_FLOAT32_2D,
    CONST_INT64_1D,
    CONST_FLOAT32_1D,
    types.float32,
    types.int64,
    CONST_FLOAT64_1D,
    FLOAT64_1D,
)
RADIUS = types.UniTuple(types.float64, 2)(
    CONST_FLOAT32_2D,
    CONST_INT64_1D,
    CONST_FLOAT64_1D,
    CONST_FLOAT32_1D,
    types.float64,
    types.float64,
    types.boolean,
)
FEW_SHARE = 16
"""how many times smaller than all a group is of which the points are looked up one by one, and not
all passed over many at a time"""


@njit(forceinline=True)
def sort_whole(numbers: Any, n: Any) -> None:
    """Sort numbers[:n], no two of which are equal."""
    for gap in GAPS:
        for at in range(gap, n):
            number = numbers[at]
            place = at
            while place >= gap and numbers[place - gap] > number:
                numbers[place] = numbers[place - gap]
                place -= gap
            numbers[place] = number


@njit(forceinline=True, fastmath={"reassoc", "nsz"})
def mass_of_all(row: Any, masses: Any, limit: Any) -> Any:
    """The sum of masses (k,) within a limit, which must be exact in 32 bits."""
    total = np.float32(0.0)
    for other in range(len(row)):
        total += masses[other] if row[other] <= limit else np.float32(0.0)
    return total


def shares_kernel(sources: str) -> Any:
    """squared (k, k), a group (m,), exact masses (k,), a limit, every how many points of the group
    are looked at, shares (s,) -> sets `held` (s,): the mass of the group within the limit around
    the point up to which each share of the readings has less around it."""

    @njit(SHARES, cache=True, error_model="numpy")
    def masses_at_shares(
        squared: Any, own: Any, masses: Any, limit: Any, step: Any, shares: Any, held: Any
    ) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n = (len(own) + step - 1) // step
        around = np.empty(n, np.float32)
        keys = np.empty(n, np.int64)
        bits = around.view(np.int32)
        is_small = FEW_SHARE * len(own) < len(masses)
        counted = np.zeros(0 if is_small else len(masses), np.float32)
        if not is_small:
            for at in own:
                counted[at] = masses[at]
        for place in range(n):
            row = squared[own[place * step]]
            if is_small:
                total = np.float32(0.0)
                for at in own:
                    total += masses[at] if row[at] <= limit else np.float32(0.0)
                around[place] = total
            else:
                around[place] = mass_of_all(row, counted, limit)
            # Equal masses are in the order of their places; those that are not negative have the
            # order of their bits.
            keys[place] = (np.int64(bits[place]) << 32) | place
        sort_whole(keys, n)
        reached = np.empty(n)
        total_mass = 0.0
        for at in range(n):
            total_mass += np.float64(masses[own[(keys[at] & 0xFFFFFFFF) * step]])
            reached[at] = total_mass
        for number in range(len(shares)):
            wanted = total_mass * shares[number]
            at = 0
            while at < n - 1 and reached[at] < wanted:
                at += 1
            held[number] = around[keys[at] & 0xFFFFFFFF]

    return masses_at_shares


def radius_kernel(sources: str) -> Any:
    """squared (k, k), a group (n,), n > 1, its masses (n,), core distances (k,), readings, half of
    the group's, whether a radius reaches as far as `readings` of the group, or is the core distance
    -> the median radius, and the distance from its point to the nearest other one of the group."""

    @njit(RADIUS, cache=True, error_model="numpy")
    def median_radius(
        squared: Any, group: Any, mass: Any, cores: Any, readings: Any, half: Any, is_light: Any
    ) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n = len(group)
        radius = np.empty(n, np.float32)
        bits = radius.view(np.int32)
        apart = np.empty(n, np.float32)
        apart_bits = apart.view(np.int32)
        keys = np.empty(n, np.int64)
        for own in range(n):
            radius[own] = cores[group[own]]
            if is_light:
                row = squared[group[own]]
                for other in range(n):
                    apart[other] = row[group[other]]
                    keys[other] = (np.int64(apart_bits[other]) << 32) | other
                sort_whole(keys, n)
                total = 0.0
                last = 0
                for at in range(n):
                    total += mass[keys[at] & 0xFFFFFFFF]
                    if total < readings:
                        last = at + 1
                last = min(max(last, 1), n - 1)
                radius[own] = apart[keys[last] & 0xFFFFFFFF]
        for own in range(n):
            # With the place below: of equal radii the first comes first, as in the stable sort of
            # NumPy.
            keys[own] = (np.int64(bits[own]) << 32) | own
        sort_whole(keys, n)
        total = 0.0
        at = -1
        while at < n - 1 and (at < 0 or total < half):
            at += 1
            total += mass[keys[at] & 0xFFFFFFFF]
        median = keys[at] & 0xFFFFFFFF
        row = squared[group[median]]
        next_point = np.float32(math.inf)
        for other in range(n):
            if other != median:
                next_point = min(next_point, row[group[other]])
        return np.float64(radius[median]), np.float64(next_point)

    return median_radius


STATE = types.Tuple((FLOAT64_1D, CONST_FLOAT32_1D, INT64_1D, INT64_2D))
JOIN = types.UniTuple(types.int64, 3)(
    CONST_INT64_2D, types.int64, types.int64, FLOAT64_1D, STATE, INT64_2D
)


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
    # Two circular lists become one when the successors of their last members are exchanged.
    ends = last[longer], last[shorter]
    after[ends[0]], after[ends[1]] = after[ends[1]], after[ends[0]]
    last[root] = ends[1]
    size[root] += size[other]


def join_kernel(sources: str) -> Any:
    """edges (e, 2), the first to add, one to add whatever its groups weigh or -1, (e,) the mass
    from which an edge's groups are heavy; masses, core distances, roots (k,), lists (3, k) -> the
    edge that is not added, or e, and the roots of its groups.

    Sets the first places of `members` (2, k) to the members of these.
    """

    @njit(JOIN, cache=True, error_model="numpy")
    def join_groups(
        edges: Any, first: Any, forced_edge: Any, heavy: Any, state: Any, members: Any
    ) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        mass, core, root, links = state
        lists = links[0], links[1], links[2]
        for number in range(first, len(edges)):
            a = root_of(root, edges[number, 0])
            b = root_of(root, edges[number, 1])
            # The root of a group is its densest point.
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


SIGNATURE = types.void(CONST_FLOAT64_2D, CONST_FLOAT64_2D, types.float64, FLOAT64_2D)
FOUND, POSITION, HINT = range(3)
"""the rows of what is found"""


@njit(forceinline=True)
def sum_places(values: Any, width: Any, sums: Any, summed: Any) -> None:
    """values (n,) -> sets summed[:n - width + 1] to the sums of `width` of them, as differences of
    running sums."""
    n = len(values)
    total = 0.0
    sums[0] = 0.0
    for at in range(n):
        total += values[at]
        sums[at + 1] = total
    for at in range(n - width + 1):
        summed[at] = sums[at + width] - sums[at]


@njit(forceinline=True)
def lower_peaks(height: Any, variance: Any, width: Any, top: Any, top_variance: Any) -> None:
    """heights (k,), variances (k,) -> sets the lower of the highest places left and right of each,
    and its variance."""
    k = len(height)
    top[:] = 0.0
    top_variance[:] = 0.0
    highest = -math.inf
    of_highest = 0.0
    # A place and its peak must not overlap: sums of one width share readings up to that distance.
    for at in range(width, k):
        if height[at - width] >= highest:
            highest = height[at - width]
            of_highest = variance[at - width]
        top[at] = max(highest, 0.0)
        top_variance[at] = of_highest
    highest = -math.inf
    of_highest = 0.0
    for at in range(k - 1, -1, -1):
        right = 0.0
        of_right = 0.0
        if at + width < k:
            if height[at + width] >= highest:
                highest = height[at + width]
                of_highest = variance[at + width]
            right = max(highest, 0.0)
            of_right = of_highest
        if not top[at] < right:
            top[at] = right
            top_variance[at] = of_right


@njit(forceinline=True)
def middle(height: Any, variance: Any, top: Any, at: Any) -> Any:
    """The middle of the places around `at` that are as low as it, as far as noise can tell."""
    # One standard error of noise and counting; without both, a twentieth of the peak, so that the
    # cut of a broad empty valley lies in its middle and not at its first place.
    limit = height[at] + math.sqrt(variance[at] + max(height[at], 0.0)) + 0.05 * top[at]
    first = at
    last = at
    while first > 0 and height[first - 1] <= limit:
        first -= 1
    while last < len(height) - 1 and height[last + 1] <= limit:
        last += 1
    return (first + last) / 2.0


@njit(forceinline=True, error_model="numpy")
def look_at_width(
    height: Any, variance: Any, peaks: Any, width: Any, depth: Any, found: Any
) -> None:
    """Compare the places of one width with what is found in the narrower ones: `found` (3,)."""
    top, top_variance = peaks
    lower_peaks(height, variance, width, top, top_variance)
    deepest = 0
    best = -math.inf
    for at in range(len(height)):
        score = -1.0
        if top[at] > PEAK_SIGNIFICANCE * math.sqrt(top_variance[at]):
            # Without noise and without readings the error would be 0.
            error = math.sqrt(
                variance[at] + top_variance[at] + max(height[at], 0.0) + top[at] + 1e-9
            )
            score = (top[at] - height[at]) / error
        if height[at] <= SHALLOW * top[at]:
            found[HINT] = max(found[HINT], score)
        if height[at] > depth * top[at]:
            score = -1.0
        if score > best:
            deepest = at
            best = score
    if best > max(found[FOUND], VALLEY_SIGNIFICANCE_MIN):
        found[FOUND] = best
        found[POSITION] = middle(height, variance, top, deepest) + width / 2


def valleys_kernel(sources: str) -> Any:
    """counts (A, n), variances (A, n), depth -> sets `found` (A, 3): significance, position and
    hint."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def find_valleys(counts: Any, variances: Any, depth: Any, found: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        n = counts.shape[1]
        sums = np.empty(n + 1)
        places = np.empty((4, n))
        for axis in range(len(counts)):
            found[axis, FOUND] = -1.0
            found[axis, POSITION] = 0.0
            found[axis, HINT] = -1.0
            for width in VALLEY_WIDTHS:
                if 4 * width > n:
                    break
                height = places[0, : n - width + 1]
                variance = places[1, : n - width + 1]
                sum_places(counts[axis], width, sums, height)
                sum_places(variances[axis], width, sums, variance)
                peaks = places[2, : n - width + 1], places[3, : n - width + 1]
                look_at_width(height, variance, peaks, width, depth, found[axis])

    return find_valleys
