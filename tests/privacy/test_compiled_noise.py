"""The keyed noise: the same bits in both forms, so that a client that changes its form after a
crash adds no other."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.kernels import forms
from shoal.kernels.forms import COMPILED, NUMPY
from shoal.privacy import PrivacyMode
from shoal.privacy.keyed import KeyedRandomness
from shoal.privacy.laplace import ESCAPE, discrete_laplace
from tests.conftest import without
from tests.kernels.both_forms import FORMS
from tests.privacy.modes import KEY, SOURCE, build, formal_mode, paper_mode, places, readings_of

N = 21
"""readings: two whole groups of lanes and a part of one"""


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy, unless the test chooses; restored after it."""
    if importlib.util.find_spec("numba") is None:
        without("numba", "it is not installed")
    monkeypatch.setattr(forms, "PROCESS", FORMS[NUMPY])


def many_places(generator: np.random.Generator, n: int) -> NDArray[np.int64]:
    """Small ones, and the largest that there can be."""
    drawn = np.stack([generator.integers(0, 2**32, n), generator.integers(0, 2**63 - 1, n)], axis=1)
    return np.where(
        np.arange(n)[:, None] % 3 == 0,
        np.stack([np.zeros(n, np.int64), np.arange(n)], axis=1),
        drawn,
    )


def words(form: str, d: int, n: int, number: int) -> NDArray[np.uint64]:
    forms.PROCESS = FORMS[form]
    generator = np.random.default_rng([d, n, number])
    grid = generator.integers(-(2**62), 2**62, size=(n, d))
    return KeyedRandomness(KEY, "attic", SOURCE, bytes(32), d).draw(
        many_places(generator, n), grid, number
    )


# A block of SHAKE-256 has 17 words: messages and outputs end before, at and after its end.
@pytest.mark.parametrize("d", [1, 2, 14, 15, 16, 17, 32, 33, 70])
def test_both_forms_draw_the_same_words(d: int) -> None:
    for n in (0, 1, 8, N):
        for number in (1, 16, 17, 18, 34, 65):
            compiled = words(COMPILED, d, n, number)
            assert compiled.shape == (n, number)
            assert compiled.tobytes() == words(NUMPY, d, n, number).tobytes()


def test_arrays_may_lie_in_memory_in_any_way() -> None:
    grid = np.arange(6 * N).reshape(N, 6)
    turned = np.arange(2 * N).reshape(2, N).T
    drawn = []
    for forms.PROCESS in FORMS.values():
        drawn.append(
            KeyedRandomness(KEY, "attic", SOURCE, bytes(32), 3)
            .draw(turned, grid[:, ::2], 5)
            .tobytes()
        )
    assert drawn[0] == drawn[1]


def extreme_words(w: int) -> NDArray[np.uint64]:
    """(n, w) words of which every one may be the largest, so that whole scales go on through every
    level."""
    generator = np.random.default_rng(w)
    drawn = generator.integers(0, 2**64, size=(4000, w), dtype=np.uint64)
    ends = generator.choice(np.array([0, 1, 2**64 - 1, 2**64 - 2], dtype=np.uint64), drawn.shape)
    return np.where(generator.random(drawn.shape) < 0.4, ends, drawn)


@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 1.0, 20.0, 1e3])
def test_both_forms_release_the_same_values(epsilon: float) -> None:
    noise = discrete_laplace(epsilon)
    drawn = extreme_words(noise.words)
    values = np.random.default_rng(1).choice([0, 1, noise.steps // 2, noise.steps], len(drawn))
    results = []
    for forms.PROCESS in FORMS.values():
        results.append(noise.release(values, drawn))
    assert results[0].tolist() == results[1].tolist()
    # The words reach what this is about: whole scales beyond the first level, and both ends.
    assert (noise.noise(drawn) > 2 * ESCAPE * noise.scale).any()
    assert {results[0].min(), results[0].max()} == {
        -(2 * noise.margin + 1),
        2 * (noise.steps + noise.margin) + 1,
    }


MODES = [
    formal_mode(3, 5.0),
    formal_mode(3, 5.0, (1.0, 5.0, 1.0)),
    formal_mode(3, 5.0, (1.0, 2.0, 900.0)),
    paper_mode(2),
]


@pytest.mark.parametrize("mode", MODES, ids=["equal", "two tables", "three tables", "paper"])
def test_both_forms_give_the_same_rows(mode: PrivacyMode) -> None:
    readings = readings_of(mode, 200) * 1.2
    rows = []
    for forms.PROCESS in FORMS.values():
        released = build(mode).privatise(readings, places(200))
        assert released.clipped
        rows.append(released.rows.tobytes())
    assert rows[0] == rows[1]
