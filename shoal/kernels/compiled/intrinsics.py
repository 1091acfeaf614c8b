"""Numba's types of the arrays that kernels take, and what Numba has no function for.

That is: vectors of numbers in LLVM's instructions, loops of NumPy called by their address, and
arrays without an owner. The types are of arrays in C order with all elements. What is `CONST_` a
kernel only reads, and the array may be one that may not be written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT32_1D = types.float32[::1]
FLOAT32_2D = types.float32[:, ::1]
FLOAT32_3D = types.float32[:, :, ::1]
FLOAT64_1D = types.float64[::1]
FLOAT64_2D = types.float64[:, ::1]
INT32_2D = types.int32[:, ::1]
INT64_1D = types.int64[::1]
INT64_2D = types.int64[:, ::1]
UINT64_2D = types.uint64[:, ::1]
UINT8_1D = types.uint8[::1]
CONST_FLOAT32_1D = types.Array(types.float32, 1, "C", readonly=True)
CONST_FLOAT32_2D = types.Array(types.float32, 2, "C", readonly=True)
CONST_FLOAT64_1D = types.Array(types.float64, 1, "C", readonly=True)
CONST_FLOAT64_2D = types.Array(types.float64, 2, "C", readonly=True)
CONST_FLOAT64_3D = types.Array(types.float64, 3, "C", readonly=True)
CONST_INT32_1D = types.Array(types.int32, 1, "C", readonly=True)
CONST_INT32_2D = types.Array(types.int32, 2, "C", readonly=True)
CONST_INT64_1D = types.Array(types.int64, 1, "C", readonly=True)
CONST_INT64_2D = types.Array(types.int64, 2, "C", readonly=True)
CONST_UINT32_1D = types.Array(types.uint32, 1, "C", readonly=True)
CONST_UINT64_1D = types.Array(types.uint64, 1, "C", readonly=True)
CONST_UINT64_2D = types.Array(types.uint64, 2, "C", readonly=True)


def splat(builder: Any, number: Any, form: Any) -> Any:
    """A vector all of whose numbers are this one."""
    none = ir.Constant(form, ir.Undefined)
    alone = builder.insert_element(none, number, ir.IntType(32)(0))
    return builder.shuffle_vector(
        alone, none, ir.Constant(ir.VectorType(ir.IntType(32), form.count), None)
    )


def load(builder: Any, numbers: Any, first: Any, form: Any) -> Any:
    """A vector of the numbers of an array from a place on."""
    place = builder.bitcast(builder.gep(numbers, [first]), form.as_pointer())
    return builder.load(place, align=_bytes(form))


def store(builder: Any, vector: Any, numbers: Any, first: Any) -> None:
    """Put a vector into an array from a place on."""
    place = builder.bitcast(builder.gep(numbers, [first]), vector.type.as_pointer())
    builder.store(vector, place, align=_bytes(vector.type))


def _bytes(form: Any) -> int:
    """The size of a vector's element: where an array begins is not known any better."""
    return 8 if isinstance(form.element, ir.DoubleType) else 4


EXP = 0
ADD = 2
"""position of the function of each loop in `numpy_loops.numpy_loops()`; its data follow"""


def _emit_call(
    context: Any,
    builder: Any,
    loop: Sequence[Any],
    arrays: Sequence[Any],
    steps: Sequence[int],
    n: Any,
) -> None:
    """Emit the call of a loop of NumPy: function and data; addresses; bytes from one element of
    each to the next."""
    word = context.get_value_type(types.intp)
    places = []
    for values in (arrays, (n,), [ir.Constant(word, step) for step in steps]):
        # Once, at the entry of the function: in a loop every turn would take more of the stack.
        places.append(cgutils.alloca_once(builder, word, size=len(values)))
        for number, value in enumerate(values):
            builder.store(value, builder.gep(places[-1], [ir.Constant(ir.IntType(32), number)]))
    function, data = loop
    form = ir.FunctionType(ir.VoidType(), [word.as_pointer()] * 3 + [cgutils.voidptr_t])
    builder.call(
        builder.inttoptr(function, form.as_pointer()),
        [*places, builder.inttoptr(data, cgutils.voidptr_t)],
    )


def _numbers(context: Any, builder: Any, form: Any, value: Any) -> tuple[Any, Any]:
    """The address and the length of a one-dimensional array."""
    array = context.make_array(form)(context, builder, value)
    return builder.ptrtoint(array.data, context.get_value_type(types.intp)), array.nitems


@intrinsic
def _exp(context: Any, function: Any, data: Any, values: Any) -> Any:
    """Replace values (n,) by their exponentials."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, n = _numbers(context, builder, signature.args[2], arguments[2])
        _emit_call(context, builder, arguments[:2], (place, place), (8, 8), n)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, values), generate


@intrinsic
def _sum(context: Any, function: Any, data: Any, values: Any) -> Any:
    """The sum of values (n,)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, n = _numbers(context, builder, signature.args[2], arguments[2])
        total = cgutils.alloca_once(builder, ir.DoubleType())
        builder.store(ir.Constant(ir.DoubleType(), 0.0), total)
        result = builder.ptrtoint(total, place.type)
        # The result is the first operand too, and neither moves on: by this NumPy's loop knows a
        # sum, and adds by pairs.
        _emit_call(context, builder, arguments[:2], (result, place, result), (0, 8, 0), n)
        return builder.load(total)

    return types.float64(types.intp, types.intp, values), generate


@intrinsic
def borrowed(context: Any, array: Any) -> Any:
    """The same array without its owner, which must outlive it: an argument of the kernel, say.

    Numba counts the references to an owner at every use of an array, with two locked operations of
    the processor. In loops over rows they took a third of the time; without an owner there is
    nothing to count.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        own = context.make_array(array)(context, builder, arguments[0])
        own.meminfo = cgutils.get_null_value(own.meminfo.type)
        own.parent = cgutils.get_null_value(own.parent.type)
        return own._getvalue()

    return array(array), generate


@njit(forceinline=True)
def exp_in_place(loops: Any, values: Any) -> None:
    """Replace values (n,) by their exponentials, with the bits of `np.exp`."""
    _exp(loops[EXP], loops[EXP + 1], values)


@njit(forceinline=True)
def total(loops: Any, values: Any) -> Any:
    """values (n,) -> their sum, with the bits of `values.sum()`."""
    return _sum(loops[ADD], loops[ADD + 1], values)
