"""What Numba has no function for: to call a loop of NumPy by its address, and to read the bits of a whole number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

EXP, ADD = 0, 2
"""where the function of each loop is in `numpy_loops.loops()`; its data follow"""


def _emit_call(
    context: Any, builder: Any, loop: Sequence[Any], arrays: Sequence[Any], steps: Sequence[int], n: Any
) -> None:
    """Emit the call of a loop of NumPy: function and data; addresses; bytes from one element of each to the next."""
    word = context.get_value_type(types.intp)
    places = []
    for values in (arrays, (n,), [ir.Constant(word, step) for step in steps]):
        places.append(cgutils.alloca_once(builder, word, size=len(values)))
        for number, value in enumerate(values):
            builder.store(value, builder.gep(places[-1], [ir.Constant(ir.IntType(32), number)]))
    function, data = loop
    form = ir.FunctionType(ir.VoidType(), [word.as_pointer()] * 3 + [cgutils.voidptr_t])
    builder.call(builder.inttoptr(function, form.as_pointer()), [*places, builder.inttoptr(data, cgutils.voidptr_t)])


@intrinsic
def _exp(context: Any, function: Any, data: Any, values: Any, n: Any) -> Any:
    """Replace n numbers at an address by their exponentials."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, data, values, n = arguments
        _emit_call(context, builder, (function, data), (values, values), (8, 8), n)
        return context.get_dummy_value()

    return types.void(*4 * [types.intp]), generate


@intrinsic
def _sum(context: Any, function: Any, data: Any, values: Any, n: Any) -> Any:
    """The sum of n numbers at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function, data, values, n = arguments
        total = cgutils.alloca_once(builder, ir.DoubleType())
        builder.store(ir.Constant(ir.DoubleType(), 0.0), total)
        place = builder.ptrtoint(total, values.type)
        _emit_call(context, builder, (function, data), (place, values, place), (0, 8, 0), n)
        return builder.load(total)

    return types.float64(*4 * [types.intp]), generate


@intrinsic
def float_of_bits(context: Any, bits: Any) -> Any:
    """A 32-bit float that holds a whole number -> the 32-bit float that has its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = builder.fptosi(arguments[0], ir.IntType(32))
        return builder.bitcast(whole, ir.FloatType())

    return types.float32(types.float32), generate


@njit(forceinline=True)
def exp_in_place(loops: Any, values: Any) -> None:
    """Replace values (n,) by their exponentials, with the bits of `np.exp`."""
    _exp(loops[EXP], loops[EXP + 1], values.ctypes.data, len(values))


@njit(forceinline=True)
def total(loops: Any, values: Any) -> Any:
    """values (n,) -> their sum, with the bits of `values.sum()`."""
    return _sum(loops[ADD], loops[ADD + 1], values.ctypes.data, len(values))
