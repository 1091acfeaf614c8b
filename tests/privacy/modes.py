"""What the tests of privacy share: modes with small terms, readings, places, and mechanisms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.privacy import Bounds, Mechanism, PrivacyMode
from shoal.privacy.formal import Formal
from shoal.privacy.paper import Paper

KEY = bytes(range(32))
SOURCE = bytes(range(100, 116))


def wide_bounds(d: int) -> Bounds:
    """Feature j is declared between -j and j + 10."""
    return Bounds(-np.arange(d, dtype=np.float64), np.arange(d, dtype=np.float64) + 10.0)


def formal_mode(d: int, epsilon: float, shares: tuple[float, ...] | None = None) -> Formal:
    return Formal(wide_bounds(d), {"epsilon_per_reading": epsilon}, shares)


def paper_mode(d: int, epsilon: float = 15.0) -> Paper:
    return Paper(wide_bounds(d), {"epsilon_nominal_per_feature": epsilon})


def readings_of(mode: PrivacyMode, n: int, seed: int = 0) -> NDArray[np.float64]:
    """(n, d) uniform readings within the bounds."""
    return mode.bounds.from_unit(np.random.default_rng(seed).random((n, mode.bounds.d)))


def places(n: int, first: int = 0, partition: int = 0) -> NDArray[np.int64]:
    """(n, 2) consecutive offsets of one partition."""
    return np.column_stack(
        [np.full(n, partition, dtype=np.int64), np.arange(first, first + n, dtype=np.int64)]
    )


def build(
    mode: PrivacyMode, key: bytes = KEY, client: str = "attic", source: bytes = SOURCE
) -> Mechanism:
    return mode.mechanism(key, client, source)
