"""Discrete Laplace noise from random words, as `shoal.privacy.laplace` describes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types, uint64

from shoal.kernels.compiled.array_types import (
    CONST_INT32_1D,
    CONST_INT64_1D,
    CONST_UINT64_1D,
    CONST_UINT64_2D,
    INT64_1D,
)

SIGNATURE = types.void(
    CONST_INT64_1D,
    CONST_UINT64_2D,
    types.Tuple((CONST_UINT64_1D, CONST_INT32_1D, CONST_INT64_1D, CONST_INT64_1D, CONST_INT64_1D, CONST_INT64_1D)),
    CONST_INT64_1D,
    INT64_1D,
)
ESCAPE, STEPS, EDGE = range(3)
"""in `limits`: the value that means "more"; the largest value of a reading; how far a result may be beyond"""


@njit(forceinline=True)
def look_up(word: Any, digit: Any, tables: Any) -> Any:
    """What `shoal.kernels.lookup.Lookup.find` gives for the upper 63 bits of a word."""
    sums, guides, _, sums_at, guides_at, shifts = tables
    word >>= uint64(1)
    value = np.int64(guides[guides_at[digit] + np.int64(word >> uint64(shifts[digit]))])
    # As a number, since no processor foresees a branch on a random word; more than one sum in a part is rare.
    value += np.int64(sums[sums_at[digit] + value] <= word)
    while sums[sums_at[digit] + value] <= word:
        value += 1
    return value


@njit(forceinline=True)
def release_values(values: Any, words: Any, tables: Any, limits: Any, released: Any) -> None:
    """values (n,) in 0..steps, words (n, w) -> released (n,) in half steps.

    `tables`: of all digits, the scales last, one after the other: running sums; guides; the worth of each digit in
    steps; where its sums begin, and its guide; its shift.
    """
    strides, edge = tables[2], limits[EDGE]
    scales = len(strides) - 1
    for i in range(len(values)):
        noise = 0
        for digit in range(scales):
            noise += strides[digit] * look_up(words[i, digit], digit, tables)
        number = look_up(words[i, scales], scales, tables)
        for level in range(1, words.shape[1] - scales):
            if number != level * limits[ESCAPE]:
                break
            number += look_up(words[i, scales + level], scales, tables)
        sign = 2 * np.int64(words[i, 0] & uint64(1)) - 1
        noise = sign * (2 * (noise + strides[scales] * number) + 1)
        released[i] = min(max(2 * values[i] + noise, -edge), 2 * limits[STEPS] + edge)


def kernel(sources: str) -> Any:
    """`release_values`, compiled or from Numba's cache; `sources` is what it was made from (`digest_of_sources`)."""

    @njit(SIGNATURE, cache=True, error_model="numpy")
    def release(values: Any, words: Any, tables: Any, limits: Any, released: Any) -> None:
        sources  # noqa: B018  # in the closure, and so in the key of Numba's cache
        release_values(values, words, tables, limits, released)

    return release
