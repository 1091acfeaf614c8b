"""The addresses of NumPy's own loops, which the compiled kernels call where bits depend on how
something is computed.

NumPy has several versions of `exp` and of sums and takes the one that suits the processor; their
last bits differ. Compiled code that calls the very loop that NumPy has chosen gets NumPy's bits on
every machine.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np

from shoal.errors import ShoalError
from shoal.kernels.arrays import Floats, Ints


class LoopsNotFound(ShoalError):
    """This NumPy does not keep its loops where the C interface says: there are no compiled kernels
    with it."""


class _UFunc(ctypes.Structure):
    """The fields of `PyUFuncObject` behind the object header (numpy/ufuncobject.h)."""

    _fields_ = (
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
    )


class Loop(NamedTuple):
    """A loop over 64-bit floats: what to call, and the last argument of the call."""

    function: int
    data: int


def loop_of(ufunc: np.ufunc, types: str) -> Loop:
    """The loop of a ufunc for types such as "d->d". Raises `LoopsNotFound`."""
    fields = _UFunc.from_address(id(ufunc) + object.__basicsize__)
    found = (fields.nin, fields.nout, fields.nargs, fields.ntypes)
    if found != (ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes) or types not in ufunc.types:
        raise LoopsNotFound(f"NumPy {np.__version__} keeps its loops in another form")
    place = ufunc.types.index(types)
    function = fields.functions[place]
    if not function:
        raise LoopsNotFound(f"NumPy {np.__version__} has no loop {types} of {ufunc.__name__}")
    return Loop(function, (fields.data[place] if fields.data else 0) or 0)


def numpy_loops() -> Ints:
    """(4,) function and data of the loop of `exp`, then of `add`. Raises `LoopsNotFound`.

    Both are compared with what NumPy computes, as the kernels call them: exponentials are computed
    in place. Out of place they are too, because NumPy does that.
    """
    exp = loop_of(np.exp, "d->d")
    add = loop_of(np.add, "dd->d")
    # NumPy adds fewer than 8 numbers one by one, up to 128 in eight sums, and more by halves;
    # exponentials it computes by vectors of up to 8, with a rest.
    for n in (1, 7, 8, 9, 127, 129, 1000):
        terms = np.linspace(-30.0, 0.0, n) ** 3
        exponentials = np.empty(n)
        total = np.zeros(1)
        in_place = terms.copy()
        _call(exp, (terms, exponentials), (8, 8), n)
        _call(exp, (in_place, in_place), (8, 8), n)
        _call(add, (total, exponentials, total), (0, 8, 0), n)
        expected = np.exp(terms)
        same = exponentials.tobytes() == in_place.tobytes() == expected.tobytes()
        if not same or total[0] != expected.sum():
            raise LoopsNotFound(
                f"the loops of NumPy {np.__version__} do not compute what its functions do"
            )
    return np.array([*exp, *add], dtype=np.int64)


def _call(loop: Loop, arrays: tuple[Floats, ...], steps: tuple[int, ...], n: int) -> None:
    """Call a loop on arrays, with the bytes from one element of each to the next."""
    words = ctypes.c_ssize_t * len(arrays)
    function = ctypes.CFUNCTYPE(None, *4 * [ctypes.c_void_p])(loop.function)
    places = words(*(array.ctypes.data for array in arrays))
    lengths = ctypes.c_ssize_t(n)
    strides = words(*steps)
    function(*map(ctypes.addressof, (places, lengths, strides)), loop.data)
