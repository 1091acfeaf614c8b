"""Rows of many kinds, on which the two forms of a kernel are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from shoal.kernels.arrays import Floats

N: Final = 300
"""rows of each kind: more than two tiles of the compiled forms, and not a whole number of them"""


def blobs(generator: np.random.Generator, d: int) -> Floats:
    """Rows (N, d) around six centres."""
    return np.asarray(
        generator.random((6, d))[generator.integers(6, size=N)] + generator.normal(0, 0.1, (N, d))
    )


KINDS: Final[dict[str, Callable[[np.random.Generator, int], Floats]]] = {
    "blobs": blobs,
    # Most rows are as far from one centre as from another, and many are on a centre.
    "lattice": lambda generator, d: generator.integers(0, 3, size=(N, d)) / 7.0 + 0.3,
    "all equal": lambda generator, d: np.full((N, d), 0.3),
    "offset": lambda generator, d: blobs(generator, d) + 1000.0,
    "far offset": lambda generator, d: blobs(generator, d) + 1e9,
    "heavy tails": lambda generator, d: generator.standard_cauchy((N, d)) ** 3,
    "tiny": lambda generator, d: blobs(generator, d) * 1e-140,
    "denormal squares": lambda generator, d: blobs(generator, d) * 1e-160,
    "below 32 bits": lambda generator, d: blobs(generator, d) * 1e-40,
    "beyond 32 bits": lambda generator, d: blobs(generator, d) * 1e25,
    "huge": lambda generator, d: blobs(generator, d) * 1e140,
    "every size": lambda generator, d: (
        blobs(generator, d) * 10.0 ** generator.integers(-30, 30, size=(N, 1))
    ),
    "signed zeros": lambda generator, d: np.where(generator.random((N, d)) < 0.9, -0.0, 1.0),
}
"""each makes rows (N, d)"""
