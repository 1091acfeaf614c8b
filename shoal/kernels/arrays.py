"""The types of arrays, whether all numbers of one are finite, and symmetric matrices stored as
their upper halves."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
"""64 bits each, of hashes and random numbers"""
Words32 = NDArray[np.uint32]
"""32 bits each: masks, and counts under them"""
Bools = NDArray[np.bool_]
Octets = NDArray[np.uint8]
Ints32 = NDArray[np.int32]
Indices = NDArray[np.intp]
"""positions in other arrays, as NumPy gives them"""
AnyInts = NDArray[np.integer[Any]]
Texts = NDArray[np.str_]
Objects = NDArray[np.object_]
Dates = NDArray[np.datetime64]
AnyArray = NDArray[Any]


def all_finite(array: AnyArray) -> bool:
    """Whether an array of any shape and type holds neither an infinity nor NaN.

    The sum of squares is not finite if a number is not, and a product takes less than half of the
    time of a look at each. Only where it is not finite, as it can be for large numbers too, each is
    looked at.
    """
    if array.dtype == np.float64 and math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(array).all())


SPAN_MAX: Final = 1 << 13
"""span of numbers up to which a table of all between them takes less time than sorting them"""


def different(numbers: Ints) -> tuple[Ints, Ints]:
    """numbers (n,) -> (c,) the different ones, ascending, and (n,) the position of each among them:
    as of `numpy.unique`, in a sixth of its time where they span few."""
    low = int(numbers.min(initial=0))
    span = int(numbers.max(initial=0)) - low + 1
    if span > SPAN_MAX:
        found, place = np.unique(numbers, return_inverse=True)
        return found, place
    above = numbers - low
    is_there = np.zeros(span, dtype=np.bool_)
    is_there[above] = True
    return np.flatnonzero(is_there) + low, (np.cumsum(is_there) - 1)[above]


def pack_symmetric(matrices: Floats) -> Floats:
    """symmetric (k, d, d) -> (k, d (d + 1) / 2): the upper halves, row by row."""
    above = np.triu_indices(matrices.shape[-1])
    return np.ascontiguousarray(matrices[:, above[0], above[1]])


def unpack_symmetric(halves: Floats, d: int) -> Floats:
    """(k, d (d + 1) / 2) -> the symmetric matrices (k, d, d) they came from."""
    above = np.triu_indices(d)
    out = np.empty((len(halves), d, d))
    out[:, above[0], above[1]] = halves
    out[:, above[1], above[0]] = halves
    return out


def pair_products(rows: Floats) -> Floats:
    """(k, n) -> (k (k + 1) / 2, n) the products of all pairs of rows, in the order of
    `numpy.triu_indices`."""
    products = np.empty((pair_count(len(rows)), rows.shape[1]))
    first = 0
    for number, row in enumerate(rows):
        last = first + len(rows) - number
        np.multiply(row, rows[number:], out=products[first:last])
        first = last
    return products


def pair_count(n: int) -> int:
    """Pairs of n things, each with itself included."""
    return n * (n + 1) // 2
