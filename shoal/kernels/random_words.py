"""Pseudo-random words of 64 bits: hashes of the bits of rows, and words looked up in a table of running sums.

A lookup finds what `searchsorted` does, with a guide to where a word belongs (Chen and Asau 1974): it has the answer
for the first word of each of 2^b equal parts of all words. Where a part holds one sum at most, one comparison decides
the rest.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.kernels.arrays import Ints, Words

WORD_BITS: Final = 63
"""bits of a word that is looked up, and of the sum of all weights"""
GUIDE_BITS: Final = (10, 16)
"""fewest and most: the guide to a table of many entries has two parts for each, on average"""
LEFT_OUT: Final = np.uint64(2**64 - 1)
"""the entry after the last sum: no word reaches it"""


class Lookup:
    """A table of values 0..m, drawn by words of 63 bits: word w gives the number of `sums` (m,) that are at most w."""

    def __init__(self, sums: Words) -> None:
        """`sums`: ascending, below 2^63."""
        self.sums: Words = np.append(sums, LEFT_OUT)
        """(m + 1,) with `LEFT_OUT` at the end"""
        bits = min(max(GUIDE_BITS[0], (2 * len(sums)).bit_length()), GUIDE_BITS[1])
        self.shift = WORD_BITS - bits
        edges = np.arange(2**bits + 1, dtype=np.uint64) << np.uint64(self.shift)
        found = np.searchsorted(sums, edges, side="right")
        self.guide: NDArray[np.int32] = found[:-1].astype(np.int32)
        """(2^b,) the value of the first word of each part"""
        # A sum that is the first word of the next part does not count.
        inside = np.searchsorted(sums, edges[1:], side="left") - found[:-1]
        self._is_crowded = inside > 1
        self._any_crowded = bool(self._is_crowded.any())

    def find(self, words: Words) -> Ints:
        """words (...) below 2^63 -> (...) values."""
        parts = (words >> np.uint64(self.shift)).view(np.int64)
        values = self.guide.take(parts).astype(np.int64)
        values += self.sums.take(values) <= words
        if self._any_crowded:
            crowded = self._is_crowded.take(parts)
            if crowded.any():
                values[crowded] = np.searchsorted(self.sums, words[crowded], side="right")
        return values
