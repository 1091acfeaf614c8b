"""Whether no column of a table can be coarse, without sorting it, for `shoal.kernels.spreading`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from shoal.kernels.compiled.array_types import CONST_UINT64_2D, UINT8_1D
from shoal.kernels.golden_ratio import GOLDEN_RATIO

SIGNATURE = types.boolean(CONST_UINT64_2D, types.float64, UINT8_1D)
FACTOR = np.uint64(GOLDEN_RATIO)
"""multiplies the bits of a value, so that the highest ones of the product depend on all of them"""


def kernel(sources: str) -> Any:
    """The bits of values (n, d), a number, room for 2^s marks -> whether each column has more different values.

    Every value marks a place that follows from its bits, so there are at least as many values as marks. True is
    certain; where values meet in a place, or a column has few, it is False.
    """

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def all_exceed(bits: Any, values: Any, marks: Any) -> Any:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        shift = np.uint64(64)
        while 1 << (64 - shift) < len(marks):
            shift -= np.uint64(1)
        for column in range(bits.shape[1]):
            marks[:] = 0
            # 0 and -0 are equal and have other bits: one of the marks may not count.
            found, row = -1, 0
            while found <= values and row < len(bits):
                place = (bits[row, column] * FACTOR) >> shift
                found += 1 - marks[place]
                marks[place] = 1
                row += 1
            if found <= values:
                return False
        return True

    return all_exceed
