"""Sums of float64 arrays that are exact, so that no order of the additions changes them.

A sum is a whole number, in limbs, of the smallest number that a float64 can be a multiple of. It is
rounded once, when its value is taken: a tree of sums over workers has the bits of a single sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

import numpy as np

from shoal.kernels.arrays import Floats, Ints

LIMB_BITS: Final = 32
MASK: Final = np.int64(2**LIMB_BITS - 1)
MANTISSA_BITS: Final = 53
LEAST_EXPONENT: Final = 1074 + MANTISSA_BITS
"""exponent: 2 to the power of minus this divides every float64, also after its mantissa was made a
whole number; the smallest float64 is 2 to the power of -1074"""
LIMBS: Final = (LEAST_EXPONENT + 1024) // LIMB_BITS + 3
"""number of limbs of a sum; the last one has the sign, and room for 2^62 terms"""

TERMS_MAX: Final = 2**28
"""terms after which limbs are reduced to 32 bits again; a term adds less than 2^34 to a limb"""


class ExactSum:
    """The sum of float64 arrays of one shape. Limb j of an entry counts multiples of 2^(32 j -
    `LEAST_EXPONENT`)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._terms = 0
        self._limbs: Ints = np.zeros((LIMBS, int(np.prod(shape))), dtype=np.int64)

    def add(self, array: Floats) -> None:
        """Add an array of finite numbers."""
        mantissa, exponent = np.frexp(array.ravel())
        whole = np.ldexp(mantissa, MANTISSA_BITS).astype(np.int64)
        limb, shift = np.divmod(
            exponent.astype(np.int64) - MANTISSA_BITS + LEAST_EXPONENT, LIMB_BITS
        )
        # Unsigned: 32 bits, shifted by up to 31, have 63. The sign is in `high`, whose 21 bits have
        # room in 64 when they are shifted.
        low = (whole & MASK).astype(np.uint64) << shift.astype(np.uint64)
        high = (whole >> LIMB_BITS) << shift
        entries = np.arange(whole.size)
        # Each entry occurs once in every line, so these are plain additions.
        self._limbs[limb, entries] += (low & np.uint64(MASK)).astype(np.int64)
        self._limbs[limb + 1, entries] += (low >> np.uint64(LIMB_BITS)).astype(np.int64) + (
            high & MASK
        )
        self._limbs[limb + 2, entries] += high >> LIMB_BITS
        self._terms += 1
        if self._terms == TERMS_MAX:
            self._limbs = _carried(self._limbs)
            # Its limbs are as small as those of a single term now.
            self._terms = 1

    def merge(self, other: Self) -> None:
        """Add another sum, which stays as it is."""
        # Both reduced first: limbs after 2^28 terms have up to 62 bits, and their sum could
        # overflow.
        self._limbs = _carried(self._limbs) + _carried(other._limbs)
        self._terms = 1

    def value(self) -> Floats:
        """The float64 nearest to each sum."""
        scale = 1 << LEAST_EXPONENT
        # A quotient of two whole numbers of Python is rounded once, and correctly.
        values = [_whole(limbs) / scale for limbs in _carried(self._limbs).T]
        return np.array(values, dtype=np.float64).reshape(self.shape)


class ExactSums:
    """The sums of additive answers: an `ExactSum` for each of their arrays."""

    def __init__(self) -> None:
        self._sums: dict[str, ExactSum] = {}
        self.answers = 0

    def add(self, answer: Mapping[str, Floats]) -> None:
        """Add one answer; all have the same names and shapes."""
        self.answers += 1
        for name, array in answer.items():
            self._sums.setdefault(name, ExactSum(array.shape)).add(array)

    def merge(self, others: Iterable[Self]) -> Self:
        """Add other sums; returns itself."""
        for other in others:
            self.answers += other.answers
            for name, array_sum in other._sums.items():
                self._sums.setdefault(name, ExactSum(array_sum.shape)).merge(array_sum)
        return self

    def value(self) -> dict[str, Floats]:
        """The nearest float64 of every sum, by the names of the arrays; none without answers."""
        return {name: array_sum.value() for name, array_sum in self._sums.items()}


def _carried(limbs: Ints) -> Ints:
    """The same numbers with all limbs but the last one in 0..2^32 - 1."""
    carried = limbs.copy()
    for place in range(LIMBS - 1):
        carried[place + 1] += carried[place] >> LIMB_BITS
        carried[place] &= MASK
    return carried


def _whole(limbs: Ints) -> int:
    """The whole number that limbs (LIMBS,) stand for."""
    total = 0
    for place, limb in enumerate(limbs.tolist()):
        total += limb << (LIMB_BITS * place)
    return total
