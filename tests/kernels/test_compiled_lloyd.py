"""The sums of k-means: the same bits in both forms, from the labels that differences give, added
row by row."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.rounds.kmeans import answer
from shoal.kernels import forms, lloyd
from shoal.kernels.arrays import Floats
from shoal.kernels.constants import FEW_FEATURES
from shoal.kernels.distance import MANY_CENTRES, nearest_labels, squared_by_differences
from shoal.kernels.forms import COMPILED, NUMPY
from tests.kernels.both_forms import FORMS
from tests.kernels.kinds import KINDS, N

WIDTHS = [1, 2, 3, 4, 5, 7, 16, 33]


def rows_and_centres(kind: str, d: int, k: int) -> tuple[Floats, Floats]:
    """Rows of a kind, and centres: rows, means of two rows, and, for k = 9, one of them twice."""
    generator = np.random.default_rng([N, d, k])
    rows = KINDS[kind](generator, d)
    centres = rows[generator.choice(N, k, replace=False)]
    centres[k // 2 :] = (centres[k // 2 :] + rows[generator.choice(N, k - k // 2)]) / 2
    if k == 9:
        centres[-1] = centres[0]
    return rows, centres


def assigned(
    form: str, rows: Floats, centres: Floats, weights: Floats | None = None
) -> list[bytes]:
    """The bits of masses, sums and inertia."""
    forms.PROCESS = FORMS[form]
    return [np.asarray(array).tobytes() for array in lloyd.assign_block(rows, centres, weights)]


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy, unless the test chooses; restored after it."""
    monkeypatch.setattr(forms, "PROCESS", FORMS[NUMPY])


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_give_the_same_bits(kind: str, numba: None) -> None:
    for d in WIDTHS:
        for k in (1, 2, 9, 14):
            rows, centres = rows_and_centres(kind, d, k)
            for weights in (None, np.random.default_rng(d).random(N)):
                for n in (0, 1, 128, N):
                    given = None if weights is None else weights[:n]
                    expected = assigned(NUMPY, rows[:n], centres, given)
                    assert assigned(COMPILED, rows[:n], centres, given) == expected, (d, k, n)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_belongs_to_the_centre_that_differences_give(kind: str) -> None:
    for d in WIDTHS:
        for k in (9, MANY_CENTRES, 200):
            rows, centres = rows_and_centres(kind, d, k)
            expected = squared_by_differences(rows, centres).argmin(axis=1)
            np.testing.assert_array_equal(nearest_labels(rows, centres), expected)


@pytest.mark.parametrize("form", [NUMPY, COMPILED])
@pytest.mark.parametrize("d", WIDTHS)
def test_sums_are_taken_row_by_row_in_order(form: str, d: int, numba: None) -> None:
    """So they do not depend on the matrix product of the machine."""
    rows, centres = rows_and_centres("heavy tails", d, 9)
    labels = squared_by_differences(rows, centres).argmin(axis=1)
    weights = np.random.default_rng(d).random(N)
    for given in (None, weights):
        count = np.zeros(9)
        total = np.zeros((9, d))
        for row, label, weight in zip(
            rows, labels, np.ones(N) if given is None else weights, strict=True
        ):
            count[label] += weight
            total[label] += row * weight
        assert assigned(form, rows, centres, given)[:2] == [count.tobytes(), total.tobytes()]


@pytest.mark.parametrize("d", [FEW_FEATURES + 1, 16])
def test_few_and_many_centres_are_summed_alike(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = rows_and_centres("heavy tails", d, 9)
    # No row has label 3, and one row alone label 5.
    labels = np.random.default_rng(d).choice([0, 1, 2, 4, 6, 7, 8], N)
    labels[N // 2] = 5
    found = set()
    for threshold in (0, 1 << 30):
        monkeypatch.setattr(lloyd, "FEW_CENTRES", threshold)
        found.add(lloyd.sums_by_label(rows, labels, 9).tobytes())
    assert len(found) == 1


def test_one_run_of_lloyds_algorithm_passes_from_one_form_to_the_other(numba: None) -> None:
    found = set()
    for turns in ((NUMPY,), (COMPILED,), (NUMPY, COMPILED), (COMPILED, NUMPY)):
        rows, centres = rows_and_centres("blobs", 5, 9)
        for step in range(8):
            forms.PROCESS = FORMS[turns[step % len(turns)]]
            count, total, inertia = lloyd.assign_block(rows, centres)
            centres = lloyd.means(count, total, centres)
        found.add((centres.tobytes(), inertia))
    assert len(found) == 1


def test_an_answer_of_many_rows_loads_the_compiled_form_and_its_kernel_does_the_work(
    numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, centres = rows_and_centres("blobs", 5, 9)
    params = {"centre": centres, "weight": np.zeros(9)}
    expected = answer({"centre": centres}, rows)
    forms.PROCESS = FORMS[COMPILED]
    monkeypatch.delattr(lloyd, "nearest_labels")
    found = answer(params, rows)
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


def test_rows_that_may_not_be_written_to_and_stand_apart_in_memory_are_assigned(
    numba: None,
) -> None:
    rows, centres = rows_and_centres("blobs", 16, 9)
    apart = np.asfortranarray(rows)
    apart.flags.writeable = False
    assert assigned(COMPILED, apart, centres) == assigned(NUMPY, rows, centres)


def test_few_rows_are_closer_than_the_screen_can_tell(
    numba: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.kernels.compiled import lloyd as compiled  # noqa: PLC0415  # needs Numba

    looked_at = []
    exact = compiled.label_by_differences.py_func
    rows, centres = rows_and_centres("blobs", 16, 9)
    centres = centres[:8]
    monkeypatch.setattr(
        compiled,
        "label_by_differences",
        lambda row, centres: looked_at.append(1) or exact(row, centres),
    )
    tile = np.zeros((21, compiled.TILE), np.float32)
    for name in ("open_screen", "screen_pair"):
        monkeypatch.setattr(compiled, name, getattr(compiled, name).py_func)
    labels = np.zeros(compiled.TILE, np.int32)
    part = rows[: compiled.TILE]
    compiled.labels_by_screen.py_func(
        part, centres, compiled.open_screen(centres), (tile[5:], *tile[:5]), labels
    )
    np.testing.assert_array_equal(labels, squared_by_differences(part, centres).argmin(axis=1))
    assert len(looked_at) < compiled.TILE // 20
