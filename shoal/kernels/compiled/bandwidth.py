"""The bandwidth of the most recent nodes: sums over them, feature by feature in vectors, with NumPy's bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from shoal.kernels.compiled.intrinsics import load, splat, store, total
from shoal.kernels.constants import SIGMA_MIN, ZERO_SPREAD

SORTED_FROM = 700
"""length from which sorting takes less time than comparing all pairs"""


def _squaring(lanes: int) -> Any:
    """The function that takes the sums of `lanes` features side by side.

    They stay in registers, and the weights in the cache for the second pass. Numba's own loop over features would read
    and write them again for every node.
    """
    form = ir.VectorType(ir.DoubleType(), lanes)

    @intrinsic
    def add(context: Any, weights: Any, older: Any, n: Any, first: Any, sums: Any) -> Any:
        """sums[first:][:lanes]: over the n most recent nodes one by one, the squares of what each has beyond the newest
        less the mean of that."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, older, sums = (
                context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 1, 4)
            )
            n, first, d = arguments[2], arguments[3], sums.nitems
            newest = builder.load(builder.gep(older.data, [builder.sub(older.nitems, n.type(1))]))

            def weight(node: Any) -> Any:
                return load(builder, weights.data, builder.add(builder.mul(node, d), first), form)

            def added(term: Callable[[Any], Any]) -> Any:
                """The sum of a term of each node."""
                node, terms = cgutils.alloca_once_value(builder, newest), cgutils.alloca_once_value(builder, form(None))
                with cgutils.for_range(builder, n):
                    here = builder.load(node)
                    builder.store(builder.fadd(builder.load(terms), term(here)), terms)
                    builder.store(builder.load(builder.gep(older.data, [here])), node)
                return builder.load(terms)

            def squared(number: Any) -> Any:
                return builder.fmul(number, number)

            origin, count = weight(newest), splat(builder, builder.sitofp(n, form.element), form)
            mean = builder.fdiv(added(lambda node: builder.fsub(weight(node), origin)), count)
            squares = added(lambda node: squared(builder.fsub(builder.fsub(weight(node), origin), mean)))
            store(builder, squares, sums.data, first)
            return context.get_dummy_value()

        return types.void(weights, older, types.intp, types.intp, sums), generate

    return add


add_32, add_16, add_4, add_1 = (_squaring(lanes) for lanes in (32, 16, 4, 1))


@njit(forceinline=True)
def add_squares(weights: Any, older: Any, n: Any, sums: Any) -> None:
    """Set sums (d,) to those of the squares of what the n most recent nodes have beyond their mean."""
    first, d = 0, len(sums)
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
    """The bandwidth of the n most recent nodes, as `shoal.kernels.correntropy`; its `factor` is given.

    Sums are taken as NumPy takes them: row by row, but those of a single column as of one array.
    """
    d, newest = weights.shape[1], older[len(older) - 1]
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
    All pairs are compared, some vectors at a time: in sorting no branch can be foretold, which takes six times as long.
    """
    n = len(numbers)
    below, above = (n - 1) // 2, n // 2
    if n > SORTED_FROM:
        numbers.sort()
        return 0.5 * (numbers[below] + numbers[above])
    low, high, low_known, high_known = -math.inf, -math.inf, False, False
    for i in range(n):
        number, smaller = numbers[i], 0
        for j in range(n):
            smaller += numbers[j] < number
        if smaller <= below:
            low = max(low, number)
        if smaller <= above:
            high = max(high, number)
        # With exactly that many smaller ones it is at that place. With ties there may be no such number.
        low_known |= smaller == below
        high_known |= smaller == above
        if low_known and high_known:
            break
    return 0.5 * (low + high)
