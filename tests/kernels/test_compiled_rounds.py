"""Counts of cells, fuzzy weights, responsibilities and weights on landmarks: the same bits in both
forms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from shoal.algorithms.registry import rounds_algorithm
from shoal.algorithms.rounds.base import Params
from shoal.kernels import forms, gaussian
from shoal.kernels.arrays import Floats, unpack_symmetric
from shoal.kernels.cells import CellCounts
from shoal.kernels.forms import COMPILED, NUMPY
from shoal.kernels.fuzzy import fuzzy_weights
from shoal.kernels.gaussian import mixture_responsibilities, second_moments
from shoal.kernels.landmarks import add_gram, nearest_weights
from shoal.simulation.rounds import bounding_box
from tests.kernels.both_forms import FORMS
from tests.kernels.kinds import KINDS, N, blobs

COUNTS = [0, 1, 2, 128, N]
"""of rows"""
WIDTHS = [1, 2, 3, 4, 16]


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy, unless the test chooses; restored after it."""
    monkeypatch.setattr(forms, "PROCESS", FORMS[NUMPY])


def rows_and_centres(kind: str, d: int, k: int) -> tuple[Floats, Floats]:
    """Rows of a kind; centres: rows, means of two rows, and the first one again at the end, where
    there are several."""
    generator = np.random.default_rng([N, d, k])
    rows = KINDS[kind](generator, d)
    centres = rows[generator.choice(N, k)]
    centres[k // 2 :] = (centres[k // 2 :] + rows[generator.choice(N, k - k // 2)]) / 2
    centres[-1] = centres[0]
    return rows, centres


def in_both_forms(work: Callable[..., list[Floats]], *arguments: Any) -> list[list[bytes]]:
    """The bits of what is computed in NumPy's form and in the compiled one."""
    found = []
    for form in (NUMPY, COMPILED):
        forms.PROCESS = FORMS[form]
        found.append([np.ascontiguousarray(array).tobytes() for array in work(*arguments)])
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_fuzzy_weights_have_the_same_bits_in_both_forms(kind: str, numba: None) -> None:
    for d, k in product(WIDTHS, (1, 2, 9, 40)):
        rows, centres = rows_and_centres(kind, d, k)
        for n, fuzzifier in [*((n, 2.0) for n in COUNTS), (N, 1.7)]:
            expected, found = in_both_forms(
                lambda *rows: [fuzzy_weights(*rows)], rows[:n], centres, fuzzifier
            )
            assert found == expected, (d, k, n, fuzzifier)


@pytest.mark.parametrize("form", [NUMPY, COMPILED])
def test_weights_of_a_row_are_squares_of_shares_that_add_up_to_one(form: str, numba: None) -> None:
    forms.PROCESS = FORMS[form]
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    centres = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 0.0]])
    wanted = np.square([[1.0, 0.0, 0.0], [2 / 3, 1 / 6, 1 / 6], [0.0, 0.5, 0.5]])
    np.testing.assert_allclose(fuzzy_weights(rows, centres, 2.0).T, wanted, rtol=1e-15)


def weights_and_gram(rows: Floats, landmarks: Floats, bandwidth: float, near: int) -> list[Any]:
    which, weights, square = nearest_weights(rows, landmarks, bandwidth, near)
    gram = np.full((len(landmarks),) * 2, 0.1)
    add_gram(gram, which, weights)
    return [which, weights, square, gram]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_on_landmarks_have_the_same_bits_in_both_forms(kind: str, numba: None) -> None:
    for d, q in product(WIDTHS, (1, 2, 9, 40)):
        rows, landmarks = rows_and_centres(kind, d, q)
        bandwidth = 0.3 * float(np.abs(rows).max())
        for n, near in [*((n, 3) for n in COUNTS), (N, 2), (N, 10)]:
            expected, found = in_both_forms(weights_and_gram, rows[:n], landmarks, bandwidth, near)
            assert found == expected, (d, q, n, near)


@pytest.mark.parametrize("form", [NUMPY, COMPILED])
@pytest.mark.parametrize("d", [2, 5])
def test_of_landmarks_that_are_equally_near_the_first_count(form: str, d: int, numba: None) -> None:
    forms.PROCESS = FORMS[form]
    landmarks = np.repeat([[2.0], [1.0], [1.0], [0.0], [1.0], [2.0]], d, axis=1)
    which, weights, square = nearest_weights(np.full((1, d), 1.0), landmarks, 1.0, 5)
    assert which.tolist() == [[1, 2, 4, 0, 3]]
    np.testing.assert_allclose(weights.sum(), 1.0)
    assert square.tolist() == [0.0]


def whitened(generator: np.random.Generator, form: str, k: int, d: int, extent: float) -> Floats:
    """The whitening of k random components that are about as wide as the rows."""
    if form == "diag":
        return np.asarray(generator.uniform(1.0, 9.0, (k, d)) / extent)
    if form == "spherical":
        return np.asarray(generator.uniform(1.0, 9.0, (k, 1)) / extent)
    upper = np.triu(generator.normal(size=(k if form == "full" else 1, d, d)))
    np.einsum("kii->ki", upper)[:] = generator.uniform(1.0, 9.0, (len(upper), d))
    return np.asarray(upper / extent)


def responsibilities_and_likelihood(form: str, *mixture: Floats) -> list[Any]:
    return list(mixture_responsibilities(form, *mixture))


@pytest.mark.parametrize("form", gaussian.COVARIANCE_TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_responsibilities_have_the_same_bits_in_both_forms(
    kind: str, form: str, numba: None
) -> None:
    for d, k in product(WIDTHS, (1, 2, 9, 40)):
        rows, means = rows_and_centres(kind, d, k)
        generator = np.random.default_rng([d, k])
        # A variance is at least the ridge of the model, so its square root has a square.
        extent = max(float(np.abs(rows - rows[0]).max()), 1e-100)
        whiten = whitened(generator, form, k, d, extent)
        for n in COUNTS:
            expected, found = in_both_forms(
                responsibilities_and_likelihood,
                form,
                rows[:n],
                means,
                whiten,
                np.log(generator.dirichlet(np.ones(k))),
            )
            assert found == expected, (d, k, n)


@pytest.mark.parametrize("form", [NUMPY, COMPILED])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_shares_and_second_moments_are_those_of_the_formulas(
    form: str, d: int, numba: None
) -> None:
    forms.PROCESS = FORMS[form]
    generator = np.random.default_rng(d)
    for k in (1, 3, 9):
        rows, means = rows_and_centres("blobs", d, k)
        whiten = whitened(generator, "full", k, d, 1.0)
        weights = generator.dirichlet(np.ones(k))
        shares, likelihood = mixture_responsibilities("full", rows, means, whiten, np.log(weights))
        deviations = np.einsum("nkd,kde->nke", rows[:, None] - means, whiten)
        heights = np.exp(-0.5 * np.square(deviations).sum(axis=2)) * np.linalg.det(whiten) * weights
        heights /= (2 * np.pi) ** (d / 2)
        totals = heights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(shares.T, heights / totals, rtol=1e-9, atol=1e-300)
        assert likelihood == pytest.approx(float(np.log(totals).sum()), rel=1e-12)
        wanted = np.einsum("kn,nd,ne->kde", shares, rows, rows)
        np.testing.assert_allclose(
            unpack_symmetric(second_moments("full", rows, shares.T), d), wanted, rtol=1e-12
        )


@pytest.mark.parametrize(("d", "cells"), [(1, 7), (2, 32), (2, 300), (3, 90), (6, 4), (6, 1000)])
@pytest.mark.parametrize("kind", KINDS)
def test_cells_have_the_same_counts_in_both_forms(
    kind: str, d: int, cells: int, numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small enough that the hash table is enlarged, and emptied at its full size, and what it held
    # merged.
    monkeypatch.setattr("shoal.kernels.cells.SLOTS", (4, 64))
    monkeypatch.setattr("shoal.kernels.cells.MERGE_MIN", 50)
    rows = KINDS[kind](np.random.default_rng([d, cells]), d)
    # Rows are below the grid and above it, and in three features or more the last one has no range.
    least = rows.min(axis=0)
    most = rows.max(axis=0)
    low = least + (most - least) / 4
    step = (most - least) / 2 / cells
    step[-1] *= d < 3
    found = set()
    for turns in ((NUMPY,), (COMPILED,), (NUMPY, COMPILED), (COMPILED, NUMPY)):
        counts = CellCounts(cells, low, step)
        for number, part in enumerate(np.split(rows, COUNTS)):
            forms.PROCESS = FORMS[turns[number % len(turns)]]
            counts.add(part)
        number_of, count = counts.total()
        assert count.sum() == N
        found.add((number_of.tobytes(), count.tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("form", [NUMPY, COMPILED])
@pytest.mark.parametrize("cells", [10, 300])
def test_a_step_that_is_too_small_to_divide_by_puts_rows_on_the_edges(
    form: str, cells: int, numba: None
) -> None:
    forms.PROCESS = FORMS[form]
    counts = CellCounts(cells, np.array([0.5, 0.0]), np.array([5e-324, 0.0]))
    counts.add(np.array([[0.5, 3.0], [0.4, 3.0], [0.6, -3.0], [1e140, 0.0]]))
    number, count = counts.total()
    assert number.tolist() == [0, (cells - 1) * cells]
    assert count.tolist() == [2.0, 2.0]


def test_many_cells_are_counted_in_a_hash_table_of_bounded_size(
    numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.kernels.cells.SLOTS", (4, 256))
    forms.PROCESS = FORMS[COMPILED]
    counts = CellCounts(1000, np.zeros(3), np.ones(3))
    sizes = set()
    places = np.random.default_rng(0).permutation(1000)
    for part in np.array_split(np.stack([places, places[::-1], places], axis=1) + 0.5, 50):
        counts.add(part)
        sizes.add(len(counts._slots))
    assert sizes == {64, 256}
    assert counts.total()[1].tolist() == [1.0] * 1000


@pytest.mark.parametrize("name", ["fcm", "ffcm", "gmm", "tsk", "dbscan", "spectral"])
@pytest.mark.parametrize("d", [2, 5])
def test_rounds_pass_from_one_form_to_the_other(name: str, d: int, numba: None) -> None:
    algorithm = rounds_algorithm(name)
    generator = np.random.default_rng(d)
    clients = [blobs(generator, d) for _ in range(2)]
    found = set()
    for turns in ((NUMPY,), (COMPILED,), (NUMPY, COMPILED), (COMPILED, NUMPY)):
        clusters = {"clusters": 4} if algorithm.takes("clusters") else {}
        params: Params = algorithm.start(clusters, d, bounding_box(clients, 3))
        labels = []
        for number in range(4):
            forms.PROCESS = FORMS[turns[number % len(turns)]]
            params = algorithm.combine(params, [algorithm.answer(params, rows) for rows in clients])
            labels.append(algorithm.predict(params, clients[0]).tobytes())
        found.add((*labels, *(array.tobytes() for _, array in sorted(params.items()))))
    assert len(found) == 1
