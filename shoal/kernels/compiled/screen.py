"""An exact screen: which nodes can be near enough to a row, found without an exponential.

In base 2, correntropy is the mean over features of 2^y with y = -(x - w)^2 / (2 sigma^2 ln 2). The
bits of the whole number (y + 127) 2^23, read as a 32-bit float, are the chord of 2^y between whole
numbers y: at least 2^y, which is convex, and at most 1.0615 times it. So a sum of chords bounds d
times the correntropy from above. Only nodes whose bound, plus all that rounding to 32 bits can take
from it, reaches a threshold are compared with 64-bit exponentials.

The inner loop, chords of sixteen nodes at a time, is written as LLVM's instructions on vectors,
which become those of any processor. Numba would have to find the vectors in a loop over nodes,
which reads and writes the sums again for every feature: that took twice as long.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.kernels.art_workspace import BLOCK, FAR, FAR_AT_ALL, KEPT, MARGIN, MEAN_SIGMA, SIZE
from shoal.kernels.compiled.intrinsics import borrowed, load, splat, store

FLOATS = ir.VectorType(ir.FloatType(), BLOCK)
WHOLES = ir.VectorType(ir.IntType(32), BLOCK)
MANTISSA = 2.0**23
ONE = 127 * MANTISSA
LEAST = MANTISSA
"""32-bit floats whose values are the bits of 1.0 and of 2^-126"""


def _all(number: float) -> Any:
    """A vector of one constant."""
    return ir.Constant(FLOATS, [number] * BLOCK)


def _chords(builder: Any, differences: Any, steepness: Any) -> Any:
    """The chords of 2^y, for y = -steepness difference^2 / 2^23; however low y is, a chord is at
    least 2^-126."""
    fall = builder.fmul(
        builder.fmul(differences, steepness, flags=["contract"]), differences, flags=["contract"]
    )
    bits = builder.fsub(_all(ONE), fall, flags=["contract"])
    # Below it lie the bits of denormal floats, and then of negative ones, which are no chords.
    bits = builder.select(builder.fcmp_ordered(">", bits, _all(LEAST)), bits, _all(LEAST))
    return builder.bitcast(builder.fptosi(bits, WHOLES), FLOATS)


@intrinsic
def add_chords(
    context: Any,
    columns: Any,
    block: Any,
    point: Any,
    first: Any,
    end: Any,
    steepness: Any,
    bounds: Any,
) -> Any:
    """columns (blocks, d, 16), point (d,) -> add to bounds[16 block:][:16] the chords of some
    features of each node.

    They are the features from `first` to before `end`; from the first of all on, sums begin at 0.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns, point, bounds = (
            context.make_array(signature.args[place])(context, builder, arguments[place])
            for place in (0, 2, 6)
        )
        first, end = arguments[3:5]
        place = builder.mul(arguments[1], first.type(BLOCK))
        steepness = splat(builder, arguments[5], FLOATS)
        start = builder.mul(place, point.nitems)
        before = load(builder, bounds.data, place, FLOATS)
        is_new = builder.icmp_signed("==", first, first.type(0))
        sums = cgutils.alloca_once_value(builder, builder.select(is_new, _all(0.0), before))

        def chords(feature: Any) -> Any:
            weights = load(
                builder,
                columns.data,
                builder.add(start, builder.mul(feature, first.type(BLOCK))),
                FLOATS,
            )
            here = splat(builder, builder.load(builder.gep(point.data, [feature])), FLOATS)
            return _chords(builder, builder.fsub(here, weights), steepness)

        # Four features first, then their sum to the others: one addition in four waits for the one
        # before.
        rest = builder.srem(builder.sub(end, first), first.type(4))
        middle = builder.sub(end, rest)
        with cgutils.for_range_slice(builder, first, middle, first.type(4), first.type) as (
            four,
            _,
        ):
            terms = [chords(builder.add(four, first.type(number))) for number in range(4)]
            pairs = builder.fadd(terms[0], terms[1]), builder.fadd(terms[2], terms[3])
            builder.store(builder.fadd(builder.load(sums), builder.fadd(*pairs)), sums)
        with cgutils.for_range_slice(builder, middle, end, first.type(1), first.type) as (last, _):
            builder.store(builder.fadd(builder.load(sums), chords(last)), sums)
        store(builder, builder.load(sums), bounds.data, place)
        return context.get_dummy_value()

    return (
        types.void(columns, types.intp, point, types.intp, types.intp, types.float32, bounds),
        generate,
    )


@intrinsic
def reaching(context: Any, bounds: Any, block: Any, lowest: Any) -> Any:
    """The nodes of a block whose bounds are at least `lowest`: bit i for node 16 block + i."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bounds = context.make_array(signature.args[0])(context, builder, arguments[0])
        first = builder.mul(arguments[1], ir.Constant(arguments[1].type, BLOCK))
        reached = builder.fcmp_ordered(
            ">=", load(builder, bounds.data, first, FLOATS), splat(builder, arguments[2], FLOATS)
        )
        return builder.zext(builder.bitcast(reached, ir.IntType(BLOCK)), ir.IntType(64))

    return types.int64(bounds, types.intp, types.float32), generate


@intrinsic
def lowest_bit(context: Any, bits: Any) -> Any:
    """The place of the lowest bit that is set; one must be."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate


CHORD_RATIO = 1.0616
"""more than the largest ratio of chord and curve, 1.06148"""
HALF_LOG2_E = 0.5 / math.log(2.0)
FURTHEST = 1e18
"""largest distance of a coordinate from the origin of the screen, so that no square overflows in 32
bits"""
STEEPEST = 1e30
"""largest 1 / (2 sigma^2 ln 2), so that it is finite in 32 bits"""
PART = 32
"""features after which a block may be left"""
LOWEST = np.float32(-1.0)
"""a bound that every node reaches"""
FAR_KEPT = 30.0
"""largest distance of a coordinate from an origin that is kept, times the root of the slope: it
adds as much to the margin as y does"""


@njit(error_model="numpy")
def open_screen(rows: Any, weights: Any, screen: Any, ints: Any, floats: Any) -> None:
    """Make columns, origin and margin a screen of the nodes for rows (n, d).

    What the workspace has kept stays, unless the rows are so far from its origin that they would
    take from the margin.
    """
    _, _, origin, _ = screen
    if ints[KEPT]:
        set_furthest(rows, weights, origin, ints, floats)
        if floats[FAR] * math.sqrt(slope(floats)) <= FAR_KEPT:
            set_margin(len(origin), floats)
            return
    origin[:] = rows[0]
    put_all(screen, weights, ints)
    set_furthest(rows, weights, origin, ints, floats)
    set_margin(len(origin), floats)


@njit
def set_furthest(rows: Any, weights: Any, origin: Any, ints: Any, floats: Any) -> None:
    """Set the largest |coordinate| of rows and nodes relative to the origin, and at all."""
    lowest = origin.copy()
    highest = origin.copy()
    add_extremes(rows, len(rows), borrowed(lowest), borrowed(highest))
    add_extremes(weights, ints[SIZE], borrowed(lowest), borrowed(highest))
    floats[FAR] = max((highest - origin).max(), (origin - lowest).max())
    floats[FAR_AT_ALL] = max(np.abs(highest).max(), np.abs(lowest).max())


@njit(forceinline=True)
def add_extremes(rows: Any, n: Any, lowest: Any, highest: Any) -> None:
    """Lower lowest (d,) and raise highest (d,) to the extremes of each feature in the first n
    rows."""
    for i in range(n):
        row = rows[i]
        for j in range(len(lowest)):
            lowest[j] = row[j] if row[j] < lowest[j] else lowest[j]
            highest[j] = row[j] if row[j] > highest[j] else highest[j]


@njit(forceinline=True, error_model="numpy")
def slope(floats: Any) -> Any:
    """1 / (2 sigma^2 ln 2): y is minus this times the square of a difference. Infinite where
    sigma^2 underflows."""
    return HALF_LOG2_E / (floats[MEAN_SIGMA] * floats[MEAN_SIGMA])


@njit(error_model="numpy")
def set_margin(d: Any, floats: Any) -> None:
    """Set the margin: what rounding can take from a sum of d chords, or -1 where 32-bit floats do
    not hold the numbers.

    For each term: 3.8e-6 from y + 127 and 1e-7 from the products, for which 1.2e-5 is allowed; from
    the coordinates, of 24 bits each, 2.5e-7 max|x| sqrt(slope), for which 4e-7 is allowed, and
    rounding in 64 bits; and d + 3 roundings of the sum. The largest coordinates are of a whole
    chunk: moving nodes never leave them, as they move towards rows. Without nodes there is no
    bandwidth, and nothing to bound.
    """
    if floats[MEAN_SIGMA] > 0.0 and slope(floats) <= STEEPEST and floats[FAR] <= FURTHEST:
        coordinates = (4e-7 * floats[FAR] + 1e-15 * floats[FAR_AT_ALL]) * math.sqrt(slope(floats))
        floats[MARGIN] = d * (1.2e-5 + coordinates + 6e-8 * (d + 3))
    else:
        floats[MARGIN] = -1.0


@njit(forceinline=True)
def put(screen: Any, k: Any, weights: Any) -> None:
    """Set the column of node k to its weight."""
    columns, _, origin, _ = screen
    for j in range(len(origin)):
        # From the origin before it is rounded, so that 32 bits hold what tells near nodes apart.
        columns[k // BLOCK, j, k % BLOCK] = np.float32(weights[k, j] - origin[j])


@njit(forceinline=True)
def put_all(screen: Any, weights: Any, ints: Any) -> None:
    """Set the columns of all nodes."""
    for k in range(ints[SIZE]):
        put(screen, k, weights)


@njit
def least_of_nearest(screen: Any, ints: Any, floats: Any) -> Any:
    """The least that the sum of the nearest node can be."""
    _, bounds, _, _ = screen
    return at_least(largest(bounds[: ints[SIZE]]), floats)


@njit(fastmath={"nnan", "nsz", "reassoc"}, forceinline=True)
def largest(bounds: Any) -> Any:
    """The largest of some bounds; all are at least -2."""
    found = np.float32(-2.0)
    # In any order: that does not change a maximum, and many can be compared at a time.
    for bound in bounds:
        found = max(found, bound)
    return found


@njit(forceinline=True)
def lowest_bound(least: Any, floats: Any) -> Any:
    """What the bound of a node whose sum is at least `least` is at least; without a screen, a bound
    that all reach."""
    return just_below(least - floats[MARGIN]) if floats[MARGIN] >= 0.0 else LOWEST


@njit(forceinline=True)
def just_below(number: Any) -> Any:
    """A 32-bit float that is not above a number."""
    # More than rounding to 32 bits can add, 6e-8 of the number.
    return np.float32(number - 1e-6 * abs(number))


@njit(forceinline=True)
def at_least(bound: Any, floats: Any) -> Any:
    """What the sum of a node with this bound is at least."""
    return (bound - floats[MARGIN]) / CHORD_RATIO


@njit(forceinline=True)
def blocks(ints: Any) -> Any:
    """Blocks that hold all nodes."""
    return -(-ints[SIZE] // BLOCK)


@njit(forceinline=True)
def bound(row: Any, screen: Any, ints: Any, floats: Any, lowest: Any) -> None:
    """row (d,) -> the bounds of the screen: of d times the correntropy of the row and each node,
    from above.

    A block is left as soon as none of its nodes can reach `lowest`, as no chord is above 1; its
    bounds then are below.
    """
    columns, bounds, origin, point = screen
    if floats[MARGIN] < 0.0:
        return
    for j in range(len(point)):
        point[j] = np.float32(row[j] - origin[j])
    steepness = np.float32(slope(floats) * MANTISSA)
    d = len(point)
    for block in range(blocks(ints)):
        for first in range(0, d, PART):
            end = min(first + PART, d)
            add_chords(columns, block, point, first, end, steepness, bounds)
            if end < d and not reaching(bounds, block, just_below(lowest - (d - end))):
                break
