"""The golden ratio in 64 bits, for what is to be spread evenly."""

from __future__ import annotations

from typing import Final

GOLDEN_RATIO: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd. Its multiples fill a circle more evenly than those of any other number; the
upper bits of a product with it depend on all bits of the other factor, and products of neighbours lie far apart
(Knuth, volume 3, 6.4)"""
