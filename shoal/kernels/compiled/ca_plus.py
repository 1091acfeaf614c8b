"""CA+ on a whole chunk of rows in one call, and the competition that it shares with CAEFC.

The steps are those of `shoal.algorithms.fcac.art_network`, with its bits. The nodes are a tuple of
arrays that have room for more: weights (capacity, d), sigmas, counts, stamps and ids. Functions of
every input get arrays one by one: to take them from a tuple costs as much as the arithmetic.

Arguments that many functions have: `ints`, `floats`, `limits` and `factors` hold numbers at the
positions that `shoal.kernels.art_workspace` names. `screen` is a tuple of columns (blocks, d, 16),
bounds (16 blocks,), origin (d,) and point (d,), as in `Workspace`. `loops` are the addresses of
NumPy's loops. `terms` (d,) and `found` (capacity + 1,) are overwritten: the terms of a sum over
features, and the nodes that are compared in full. `newer` and `older` (capacity + 1,) are the nodes
in the order of their stamps, as a circular list, so that finding the most recent ones needs no
sorting: they name the next node in either direction, and their last place stands for both ends.

The bandwidth of the most recent nodes is computed feature by feature in vectors, with NumPy's bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.kernels.art_workspace import (
    BANDWIDTH,
    BLOCK,
    COUNTER,
    FOUND,
    KEPT,
    LAST_SIGMA,
    MARGIN,
    MEAN_SIGMA,
    N_ACTIVE,
    NEIGHBOUR,
    NEWER,
    NODES_MAX,
    OLDER,
    ORIGIN,
    SATURATED,
    SIZE,
    TERMS,
    VIGILANCE,
    Workspace,
)
from shoal.kernels.compiled.intrinsics import (
    CONST_FLOAT64_2D,
    FLOAT32_1D,
    FLOAT32_3D,
    FLOAT64_1D,
    FLOAT64_2D,
    INT64_1D,
    INT64_2D,
    borrowed,
    exp_in_place,
    load,
    splat,
    store,
    total,
)
from shoal.kernels.compiled.screen import (
    LOWEST,
    PART,
    at_least,
    blocks,
    bound,
    just_below,
    least_of_nearest,
    lowest_bit,
    lowest_bound,
    open_screen,
    put,
    reaching,
    set_margin,
)
from shoal.kernels.constants import SIGMA_MIN, ZERO_SPREAD

SORTED_FROM = 700
"""length from which sorting takes less time than comparing all pairs"""


def _squaring(lanes: int) -> Any:
    """The function that takes the sums of `lanes` features side by side.

    They stay in registers, and the weights in the cache for the second pass. Numba's own loop over
    features would read and write them again for every node.
    """
    form = ir.VectorType(ir.DoubleType(), lanes)

    @intrinsic
    def add(context: Any, weights: Any, older: Any, n: Any, first: Any, sums: Any) -> Any:
        """sums[first:][:lanes]: over the n most recent nodes one by one, the squares of what each
        has beyond the newest less the mean of that."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, older, sums = (
                context.make_array(signature.args[place])(context, builder, arguments[place])
                for place in (0, 1, 4)
            )
            n = arguments[2]
            first = arguments[3]
            d = sums.nitems
            newest = builder.load(builder.gep(older.data, [builder.sub(older.nitems, n.type(1))]))

            def weight(node: Any) -> Any:
                return load(builder, weights.data, builder.add(builder.mul(node, d), first), form)

            def added(term: Callable[[Any], Any]) -> Any:
                """The sum of a term of each node."""
                node = cgutils.alloca_once_value(builder, newest)
                terms = cgutils.alloca_once_value(builder, form(None))
                with cgutils.for_range(builder, n):
                    here = builder.load(node)
                    builder.store(builder.fadd(builder.load(terms), term(here)), terms)
                    builder.store(builder.load(builder.gep(older.data, [here])), node)
                return builder.load(terms)

            def squared(number: Any) -> Any:
                return builder.fmul(number, number)

            origin = weight(newest)
            count = splat(builder, builder.sitofp(n, form.element), form)
            mean = builder.fdiv(added(lambda node: builder.fsub(weight(node), origin)), count)
            squares = added(
                lambda node: squared(builder.fsub(builder.fsub(weight(node), origin), mean))
            )
            store(builder, squares, sums.data, first)
            return context.get_dummy_value()

        return types.void(weights, older, types.intp, types.intp, sums), generate

    return add


add_32, add_16, add_4, add_1 = (_squaring(lanes) for lanes in (32, 16, 4, 1))


@njit(forceinline=True)
def add_squares(weights: Any, older: Any, n: Any, sums: Any) -> None:
    """Set sums (d,) to those of the squares of what the n most recent nodes have beyond their
    mean."""
    first = 0
    d = len(sums)
    while d - first >= 32:
        add_32(weights, older, n, first, sums)
        first += 32
    while d - first >= 16:
        add_16(weights, older, n, first, sums)
        first += 16
    while d - first >= 4:
        add_4(weights, older, n, first, sums)
        first += 4
    while d - first >= 1:
        add_1(weights, older, n, first, sums)
        first += 1


@njit(error_model="numpy")
def recent_bandwidth(weights: Any, older: Any, n: Any, factor: Any, loops: Any) -> Any:
    """The bandwidth of the n most recent nodes, as `shoal.kernels.correntropy`; its `factor` is
    given.

    Sums are taken as NumPy takes them: row by row, but those of a single column as of one array.
    """
    d = weights.shape[1]
    newest = older[len(older) - 1]
    spread = np.empty(d)
    if d == 1:
        column = np.empty(n)
        k = newest
        for i in range(n):
            column[i] = weights[k, 0] - weights[newest, 0]
            k = older[k]
        column -= total(loops, column) / n
        column *= column
        spread[0] = total(loops, column)
    else:
        add_squares(weights, older, n, spread)
    for j in range(d):
        spread[j] = math.sqrt(spread[j] / (n - 1))
        if spread[j] == 0.0:
            spread[j] = ZERO_SPREAD
    return max(factor * median(spread), SIGMA_MIN)


@njit(forceinline=True, error_model="numpy")
def median(numbers: Any) -> Any:
    """The median of numbers, at least one; it may change their order.

    The number at place p in ascending order is the largest of those with at most p smaller numbers.
    All pairs are compared, some vectors at a time: in sorting no branch can be foretold, which
    takes six times as long.
    """
    n = len(numbers)
    below = (n - 1) // 2
    above = n // 2
    if n > SORTED_FROM:
        numbers.sort()
        return 0.5 * (numbers[below] + numbers[above])
    low = -math.inf
    high = -math.inf
    low_known = False
    high_known = False
    for i in range(n):
        number = numbers[i]
        smaller = 0
        for j in range(n):
            smaller += numbers[j] < number
        if smaller <= below:
            low = max(low, number)
        if smaller <= above:
            high = max(high, number)
        # With exactly that many smaller ones it is at that place. With ties there may be no such
        # number.
        low_known |= smaller == below
        high_known |= smaller == above
        if low_known and high_known:
            break
    return 0.5 * (low + high)


@njit
def order_by_stamp(stamps: Any, size: Any, newer: Any, older: Any) -> None:
    """Make the list anew from the stamps."""
    end = len(stamps)
    newer[end] = older[end] = end
    for k in np.argsort(stamps[:size]):
        put_first(k, newer, older)


@njit(forceinline=True)
def put_first(k: Any, newer: Any, older: Any) -> None:
    """Make a node that is not in the list the most recent one."""
    end = len(newer) - 1
    newer[k] = end
    older[k] = older[end]
    newer[older[end]] = k
    older[end] = k


@njit(forceinline=True)
def make_first(k: Any, newer: Any, older: Any) -> None:
    """Make a node of the list the most recent one."""
    older[newer[k]] = older[k]
    newer[older[k]] = newer[k]
    put_first(k, newer, older)


EXCLUDED = np.float32(-2.0)
"""a bound below all others"""


@njit(forceinline=True, error_model="numpy")
def distance(row: Any, weights: Any, k: Any, scale: Any, loops: Any, terms: Any) -> Any:
    """row (d,) -> its CIM to node k, as `shoal.kernels.correntropy.cim`; `scale` is -1 / (2
    sigma^2)."""
    for j in range(len(row)):
        difference = row[j] - weights[k, j]
        terms[j] = difference * (difference * scale)
    exp_in_place(loops, terms)
    return math.sqrt(1.0 - total(loops, terms) / len(row))


@njit(forceinline=True, error_model="numpy")
def two_nearest(
    row: Any,
    weights: Any,
    ints: Any,
    floats: Any,
    screen: Any,
    least: Any,
    furthest: Any,
    loops: Any,
    terms: Any,
    found: Any,
) -> Any:
    """The nearest two nodes, each -1 if its CIM is above `furthest`, whose sum of correntropies
    then is below `least`.

    row (d,), weights (capacity, d); `least`: the sum of the correntropies of a row and a node at
    `furthest`, or less. The bounds of the screen, which `bound` has set for this row, are right to
    within the margin; where that is negative, all nodes are compared. `terms` and `found` are
    overwritten.
    """
    _, bounds, _, _ = screen
    first = -1
    second = -1
    nearest = math.inf
    next_nearest = math.inf
    d = len(row)
    scale = -0.5 / (floats[MEAN_SIGMA] * floats[MEAN_SIGMA])
    lowest = lowest_bound(least, floats)
    n = find_reaching(bounds, lowest, ints, found)
    # A single node needs no exponential where its bound shows that it is near enough.
    if n == 1 and (furthest == math.inf or at_least(bounds[found[0]], floats) >= least):
        return found[0], -1
    for number in range(n):
        i = found[number]
        if bounds[i] < lowest:
            continue
        here = distance(row, weights, i, scale, loops, terms)
        if here < nearest:
            second = first
            next_nearest = nearest
            first = i
            nearest = here
        elif here < next_nearest:
            second = i
            next_nearest = here
        # Only a node nearer than the second nearest can still change the result.
        if floats[MARGIN] >= 0.0 and second >= 0:
            lowest = max(
                lowest, just_below((1.0 - next_nearest * next_nearest) * d - floats[MARGIN])
            )
    return first if nearest <= furthest else -1, second if next_nearest <= furthest else -1


@njit(forceinline=True)
def find_reaching(bounds: Any, lowest: Any, ints: Any, found: Any) -> Any:
    """Set found[:n] to the nodes whose bounds are at least `lowest`, in ascending order.
    Returns n."""
    n = 0
    for block in range(blocks(ints)):
        bits = reaching(bounds, block, lowest)
        while bits:
            i = block * BLOCK + lowest_bit(bits)
            bits &= bits - 1
            # The last block has columns without nodes.
            if i < ints[SIZE]:
                found[n] = i
                n += 1
    return n


@njit(forceinline=True)
def least_within(floats: Any, d: Any) -> Any:
    """The sum of correntropies that a node within the vigilance has at least."""
    return (1.0 - floats[VIGILANCE] * floats[VIGILANCE]) * d


@njit
def nearest_of_all(
    row: Any, weights: Any, ints: Any, floats: Any, screen: Any, loops: Any, terms: Any, found: Any
) -> Any:
    """The nearest node at any distance, for a row that would be a new node in a network that is
    full."""
    ints[SATURATED] += 1
    if len(row) > PART:
        # Bounds of nodes beyond the vigilance were left early.
        bound(row, screen, ints, floats, LOWEST)
    least = least_of_nearest(screen, ints, floats)
    return two_nearest(row, weights, ints, floats, screen, least, math.inf, loops, terms, found)[0]


@njit
def add_node(row: Any, nodes: Any, ints: Any, floats: Any) -> None:
    """Make a row a node with the bandwidth computed last."""
    weights, sigmas, counts, stamps, ids = nodes
    k = ints[SIZE]
    weights[k] = row
    sigmas[k] = floats[LAST_SIGMA]
    counts[k] = 1
    stamps[k] = ints[COUNTER]
    ids[k] = ids[k - 1] + 1 if k else 0
    ints[SIZE] = k + 1


@njit
def set_bandwidth(
    nodes: Any,
    ints: Any,
    floats: Any,
    limits: Any,
    factors: Any,
    loops: Any,
    older: Any,
    everywhere: Any,
) -> None:
    """Give the newest node the bandwidth of the most recent nodes, or give it to all nodes."""
    weights, sigmas, _, _, _ = nodes
    k = ints[SIZE]
    floats[LAST_SIGMA] = recent_bandwidth(
        weights, older, limits[N_ACTIVE], factors[BANDWIDTH], loops
    )
    for i in range(0 if everywhere else k - 1, k):
        sigmas[i] = floats[LAST_SIGMA]
    set_mean_bandwidth(sigmas, ints, floats, loops)


@njit(error_model="numpy")
def set_mean_bandwidth(sigmas: Any, ints: Any, floats: Any, loops: Any) -> None:
    """Compute the mean bandwidth again; 0 without nodes."""
    floats[MEAN_SIGMA] = total(loops, sigmas[: ints[SIZE]]) / ints[SIZE] if ints[SIZE] else 0.0


@njit(error_model="numpy")
def set_vigilance(
    weights: Any, ints: Any, floats: Any, screen: Any, loops: Any, terms: Any, found: Any
) -> None:
    """The mean over nodes of the CIM to the nearest other one, as `mean_nearest_other` (eq. 15)."""
    _, bounds, _, _ = screen
    size = ints[SIZE]
    scale = -0.5 / (floats[MEAN_SIGMA] * floats[MEAN_SIGMA])
    smallest = np.ones(size)
    for k in range(size):
        row = weights[k]
        bound(row, screen, ints, floats, LOWEST)
        # A node must not be its own nearest one.
        bounds[k] = EXCLUDED
        least = least_of_nearest(screen, ints, floats)
        other = two_nearest(
            row, weights, ints, floats, screen, least, math.inf, loops, terms, found
        )[0]
        # For without a screen the bounds are not computed again.
        bounds[k] = LOWEST
        smallest[k] = distance(row, weights, other, scale, loops, terms)
        if smallest[k] == 0.0:
            smallest[k] = nearest_not_copy(row, weights, size, scale, loops, terms)
    floats[VIGILANCE] = total(loops, smallest) / size


@njit
def nearest_not_copy(row: Any, weights: Any, size: Any, scale: Any, loops: Any, terms: Any) -> Any:
    """The CIM of a row to the nearest node that is not at a distance of 0; 1 without one."""
    nearest = 1.0
    for i in range(size):
        here = distance(row, weights, i, scale, loops, terms)
        if here > 0.0:
            nearest = min(nearest, here)
    return nearest


@njit(forceinline=True, error_model="numpy")
def win(row: Any, weights: Any, counts: Any, stamps: Any, first: Any, counter: Any) -> None:
    """Move the nearest node to the mean of the rows that it has won."""
    counts[first] += 1
    stamps[first] = counter
    for j in range(len(row)):
        # A quotient, as in NumPy's form: times the inverse it would have other last bits.
        weights[first, j] += (row[j] - weights[first, j]) / counts[first]


@njit(forceinline=True)
def move(row: Any, weights: Any, k: Any, share: Any) -> None:
    """Move node k by a share of its way to a row."""
    for j in range(len(row)):
        weights[k, j] += (row[j] - weights[k, j]) * share


NODES = types.Tuple((FLOAT64_2D, FLOAT64_1D, INT64_1D, INT64_1D, INT64_1D))
WORKSPACE = types.NamedTuple((FLOAT32_3D, FLOAT32_1D, FLOAT32_1D, FLOAT64_2D, INT64_2D), Workspace)
SIGNATURE = types.int64(
    CONST_FLOAT64_2D, NODES, WORKSPACE, INT64_1D, FLOAT64_1D, INT64_1D, FLOAT64_1D, INT64_1D
)


@njit(forceinline=True)
def borrow_nodes(nodes: Any) -> Any:
    """The arrays of nodes, borrowed."""
    weights, sigmas, counts, stamps, ids = nodes
    return borrowed(weights), borrowed(sigmas), borrowed(counts), borrowed(stamps), borrowed(ids)


@njit(forceinline=True)
def borrow_workspace(workspace: Any) -> Any:
    """The parts of a workspace, borrowed: the screen, the terms of a sum, and the lists newer,
    older and found."""
    features = borrowed(workspace.features)
    lists = borrowed(workspace.lists)
    screen = (
        borrowed(workspace.columns),
        borrowed(workspace.bounds),
        features[ORIGIN],
        borrowed(workspace.point),
    )
    return screen, features[TERMS], lists[NEWER], lists[OLDER], lists[FOUND]


@njit(forceinline=True, error_model="numpy")
def learn_rows(
    rows: Any,
    nodes: Any,
    workspace: Any,
    ints: Any,
    floats: Any,
    limits: Any,
    factors: Any,
    loops: Any,
) -> Any:
    """Learn rows (n, d) in order, up to one that needs more room than the nodes have. Returns how
    many were learnt."""
    weights, _, counts, stamps, _ = nodes
    d = rows.shape[1]
    capacity = len(weights)
    screen, terms, newer, older, found = workspace
    open_screen(rows, weights, screen, ints, floats)
    if not ints[KEPT]:
        order_by_stamp(stamps, ints[SIZE], newer, older)
    for i in range(len(rows)):
        row = rows[i]
        least = least_within(floats, d)
        vigilance = floats[VIGILANCE]
        bound(row, screen, ints, floats, lowest_bound(least, floats))
        first, second = two_nearest(
            row, weights, ints, floats, screen, least, vigilance, loops, terms, found
        )
        if first < 0 and ints[SIZE] == limits[NODES_MAX]:
            first = nearest_of_all(row, weights, ints, floats, screen, loops, terms, found)
        if first < 0:
            # Before anything is counted: the caller makes room, and comes back with the same row.
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
    """`learn_rows`, compiled or from Numba's cache; `sources` is what it was made from
    (`digest_of_sources`)."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def learn(
        rows: Any,
        nodes: Any,
        workspace: Any,
        ints: Any,
        floats: Any,
        limits: Any,
        factors: Any,
        loops: Any,
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
