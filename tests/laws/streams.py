"""Streams of rows of many difficult kinds, for the laws."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from shoal.kernels.arrays import Floats

KINDS = [
    "blobs",
    "lattice",
    "equal",
    "heavy tails",
    "drift",
    "huge and tiny",
    "one feature constant",
]


def stream(kind: str, seed: int, n: int, d: int) -> Floats:
    """n rows of d features; the same for the same arguments."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(n, d))
    if kind == "lattice":
        return generator.integers(0, 4, size=(n, d)).astype(float)
    if kind == "equal":
        return np.full((n, d), 0.1)
    if kind == "heavy tails":
        return generator.standard_cauchy(size=(n, d))
    if kind == "drift":
        return noise * 0.1 + np.linspace(0, 5, n)[:, None]
    if kind == "huge and tiny":
        return noise * 10.0 ** generator.integers(-140, 140, size=(n, 1))
    rows = generator.normal(size=(6, d))[generator.integers(0, 6, size=n)] + noise * 0.05
    if kind == "one feature constant":
        rows[:, 0] = 0.3
    return rows


@st.composite
def streams(draw: st.DrawFn, n_min: int = 0, n_max: int = 200) -> Floats:
    # Most laws are about what happens after a long beginning, so short streams are drawn on
    # purpose, not by habit.
    n = draw(st.one_of(st.integers(n_min, n_max), st.integers((n_min + n_max) // 2, n_max)))
    return stream(
        draw(st.sampled_from(KINDS)), draw(st.integers(0, 10**6)), n, draw(st.integers(1, 4))
    )


def cut(rows: Floats, places: list[int]) -> list[Floats]:
    """The rows in consecutive batches, some empty."""
    return np.split(rows, sorted(place % (len(rows) + 1) for place in places))
