"""Sums of float64 arrays without rounding: equal for every order and every tree of additions.

A sum of floats depends on the order of its terms. Here each term is added to a number of fixed point that is wide
enough for every float64, so additions are exact, and only the final result is rounded: it is the float nearest to the
true sum, as `math.fsum` gives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

LIMB_BITS: Final = 32
MASK: Final = np.int64(2**LIMB_BITS - 1)
MANTISSA_BITS: Final = 53
LEAST_EXPONENT: Final = 1074 + MANTISSA_BITS
"""2 to the power of minus this divides every float64, also after its mantissa was made a whole number"""
LIMBS: Final = (LEAST_EXPONENT + 1024) // LIMB_BITS + 3
"""the last one has the sign, and room for 2^62 terms"""

TERMS_MAX: Final = 2**28
"""terms after which limbs are reduced to 32 bits again; a term adds less than 2^34 to a limb"""


class ExactSum:
    """The sum of float64 arrays of one shape. Limb j of an entry counts multiples of 2^(32 j - `LEAST_EXPONENT`)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._terms = 0
        self._limbs: NDArray[np.int64] = np.zeros((LIMBS, int(np.prod(shape))), dtype=np.int64)

    def add(self, array: NDArray[np.float64]) -> None:
        """Add an array of finite numbers."""
        mantissa, exponent = np.frexp(array.ravel())
        whole = np.ldexp(mantissa, MANTISSA_BITS).astype(np.int64)
        limb, shift = np.divmod(exponent.astype(np.int64) - MANTISSA_BITS + LEAST_EXPONENT, LIMB_BITS)
        low, high = (whole & MASK).astype(np.uint64) << shift.astype(np.uint64), (whole >> LIMB_BITS) << shift
        entries = np.arange(whole.size)
        # Each entry occurs once in every line, so these are plain additions.
        self._limbs[limb, entries] += (low & np.uint64(MASK)).astype(np.int64)
        self._limbs[limb + 1, entries] += (low >> np.uint64(LIMB_BITS)).astype(np.int64) + (high & MASK)
        self._limbs[limb + 2, entries] += high >> LIMB_BITS
        self._terms += 1
        if self._terms == TERMS_MAX:
            self._limbs, self._terms = _carried(self._limbs), 1

    def merge(self, other: Self) -> None:
        """Add another sum, which stays as it is."""
        self._limbs = _carried(self._limbs) + _carried(other._limbs)
        self._terms = 1

    def value(self) -> NDArray[np.float64]:
        """The float64 nearest to each sum."""
        scale = 1 << LEAST_EXPONENT
        totals = [
            sum(int(limb) << (LIMB_BITS * place) for place, limb in enumerate(limbs) if limb)
            for limbs in _carried(self._limbs).T
        ]
        return np.array([total / scale for total in totals], dtype=np.float64).reshape(self.shape)


class ExactSums:
    """The sums of additive answers: an `ExactSum` for each of their arrays."""

    def __init__(self) -> None:
        self._sums: dict[str, ExactSum] = {}
        self.answers = 0

    def add(self, answer: Mapping[str, NDArray[np.float64]]) -> None:
        """Add one answer; all have the same names and shapes."""
        self.answers += 1
        for name, array in answer.items():
            self._sums.setdefault(name, ExactSum(array.shape)).add(array)

    def merge(self, others: Iterable[Self]) -> Self:
        """Add other sums; returns itself."""
        for other in others:
            self.answers += other.answers
            for name, one in other._sums.items():
                self._sums.setdefault(name, ExactSum(one.shape)).merge(one)
        return self

    def value(self) -> dict[str, NDArray[np.float64]]:
        """The nearest float64 of every sum, by the names of the arrays; none without answers."""
        return {name: one.value() for name, one in self._sums.items()}


def _carried(limbs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same numbers with all limbs but the last one in 0..2^32 - 1."""
    carried = limbs.copy()
    for place in range(LIMBS - 1):
        carried[place + 1] += carried[place] >> LIMB_BITS
        carried[place] &= MASK
    return carried
