"""What the tests of this room share: small federations' terms, readings, places, and mechanisms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shoal.privacy import Bounds, Mechanism, PrivacyTerms, mechanism_for

KEY = bytes(range(32))
SOURCE = bytes(range(100, 116))


def wide_bounds(d: int) -> Bounds:
    """Feature j is declared between -j and j + 10."""
    return Bounds(-np.arange(d, dtype=np.float64), np.arange(d, dtype=np.float64) + 10.0)


def formal_terms(d: int, epsilon: float, shares: tuple[float, ...] | None = None) -> PrivacyTerms:
    return PrivacyTerms("formal", wide_bounds(d), epsilon_per_reading=epsilon, shares=shares)


def paper_terms(d: int, epsilon: float = 15.0) -> PrivacyTerms:
    return PrivacyTerms("paper", wide_bounds(d), epsilon_nominal_per_feature=epsilon)


def readings_of(terms: PrivacyTerms, n: int, seed: int = 0) -> NDArray[np.float64]:
    """(n, d) uniform readings within the bounds."""
    return terms.bounds.from_unit(np.random.default_rng(seed).random((n, terms.bounds.d)))


def places(n: int, first: int = 0, partition: int = 0) -> NDArray[np.int64]:
    """(n, 2) consecutive offsets of one partition."""
    return np.column_stack([np.full(n, partition, dtype=np.int64), np.arange(first, first + n, dtype=np.int64)])


def build(terms: PrivacyTerms, key: bytes = KEY, client: str = "attic", source: bytes = SOURCE) -> Mechanism:
    return mechanism_for(terms, key, client, source)
