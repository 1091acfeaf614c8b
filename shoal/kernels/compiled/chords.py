"""The inner loop of the screen, in vectors: chords of sixteen nodes at a time, and which of their sums reach a limit.

It is written as LLVM's instructions on vectors, which become those of any processor. Numba would have to find the
vectors in a loop over nodes, which reads and writes the sums again for every feature: that took twice as long.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.kernels.compiled.vectors import load, splat, store
from shoal.kernels.workspace import BLOCK

FLOATS, WHOLES = ir.VectorType(ir.FloatType(), BLOCK), ir.VectorType(ir.IntType(32), BLOCK)
MANTISSA = 2.0**23
ONE, LEAST = 127 * MANTISSA, MANTISSA
"""32-bit floats whose values are the bits of 1.0 and of 2^-126"""


def _all(number: float) -> Any:
    """A vector of one constant."""
    return ir.Constant(FLOATS, [number] * BLOCK)


def _chords(builder: Any, differences: Any, steepness: Any) -> Any:
    """The chords of 2^y, for y = -steepness difference^2 / 2^23; however low y is, a chord is at least 2^-126."""
    fall = builder.fmul(builder.fmul(differences, steepness, flags=["contract"]), differences, flags=["contract"])
    bits = builder.fsub(_all(ONE), fall, flags=["contract"])
    bits = builder.select(builder.fcmp_ordered(">", bits, _all(LEAST)), bits, _all(LEAST))
    return builder.bitcast(builder.fptosi(bits, WHOLES), FLOATS)


@intrinsic
def add_chords(
    context: Any, columns: Any, block: Any, point: Any, first: Any, end: Any, steepness: Any, bounds: Any
) -> Any:
    """columns (blocks, d, 16), point (d,) -> add to bounds[16 block:][:16] the chords of some features of each node.

    They are the features from `first` to before `end`; from the first of all on, sums begin at 0.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns, point, bounds = (
            context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 2, 6)
        )
        first, end = arguments[3:5]
        place, steepness = builder.mul(arguments[1], first.type(BLOCK)), splat(builder, arguments[5], FLOATS)
        start = builder.mul(place, point.nitems)
        before = load(builder, bounds.data, place, FLOATS)
        is_new = builder.icmp_signed("==", first, first.type(0))
        sums = cgutils.alloca_once_value(builder, builder.select(is_new, _all(0.0), before))

        def chords(feature: Any) -> Any:
            weights = load(builder, columns.data, builder.add(start, builder.mul(feature, first.type(BLOCK))), FLOATS)
            here = splat(builder, builder.load(builder.gep(point.data, [feature])), FLOATS)
            return _chords(builder, builder.fsub(here, weights), steepness)

        # Four features first, then their sum to the others: one addition in four waits for the one before.
        rest = builder.srem(builder.sub(end, first), first.type(4))
        middle = builder.sub(end, rest)
        with cgutils.for_range_slice(builder, first, middle, first.type(4), first.type) as (four, _):
            terms = [chords(builder.add(four, first.type(number))) for number in range(4)]
            pairs = builder.fadd(terms[0], terms[1]), builder.fadd(terms[2], terms[3])
            builder.store(builder.fadd(builder.load(sums), builder.fadd(*pairs)), sums)
        with cgutils.for_range_slice(builder, middle, end, first.type(1), first.type) as (last, _):
            builder.store(builder.fadd(builder.load(sums), chords(last)), sums)
        store(builder, builder.load(sums), bounds.data, place)
        return context.get_dummy_value()

    return types.void(columns, types.intp, point, types.intp, types.intp, types.float32, bounds), generate


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
