"""Weighted points merged: nothing is lost, nothing far is merged before what is near, ties do not
matter."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernels import forms
from shoal.kernels.arrays import Floats
from shoal.kernels.forms import NUMPY, Forms
from shoal.kernels.sketching import (
    Sketch,
    empty_sketch,
    frame_of,
    merge_targets,
    merged,
    squared_between,
)


def singles(points: Floats) -> Sketch:
    return Sketch(points, np.ones(len(points)))


def test_no_points_and_one_point_are_left_as_they_are() -> None:
    assert merge_targets(empty_sketch(3), 0, 10.0).tolist() == []
    assert merge_targets(singles(np.ones((1, 3))), 1, 10.0).tolist() == [0]


def test_the_nearest_are_merged_first_and_into_the_first_of_them() -> None:
    into = merge_targets(singles(np.array([[0.0], [5.0], [0.1], [9.0], [5.3]])), 3, 10.0)
    assert into.tolist() == [0, 1, 0, 3, 1]


def test_equal_points_are_merged_in_one_call() -> None:
    into = merge_targets(singles(np.full((64, 2), 0.1)), 16, 4.0)
    assert len(set(into.tolist())) <= 32
    assert np.bincount(into).max() <= 4


def test_no_point_outgrows_its_limit_or_leaves_its_group() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 2))
    group = np.arange(100) % 3
    into = merge_targets(singles(rows), 1, 5.0, group)
    assert np.bincount(into).max() <= 5
    np.testing.assert_array_equal(group[into], group)


def test_full_points_are_left_and_the_others_merged() -> None:
    sketch = Sketch(np.array([[0.0], [0.1], [0.2], [0.3]]), np.array([9.0, 1.0, 9.0, 1.0]))
    assert merge_targets(sketch, 1, 4.0).tolist() == [0, 1, 2, 1]


def test_points_that_stand_for_nothing_are_a_slip_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="no readings"):
        merge_targets(Sketch(np.zeros((2, 1)), np.array([1.0, 0.0])), 1, 4.0)


def test_nothing_of_the_size_of_all_distances_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "PROCESS", Forms(NUMPY))
    sketch = singles(np.random.default_rng(0).normal(size=(1100, 2)))
    merge_targets(singles(np.full((8, 2), 0.1)), 4, 4.0)
    tracemalloc.start()
    try:
        merge_targets(sketch, 1000, 4.0)
        assert tracemalloc.get_traced_memory()[0] < len(sketch.mass) ** 2
    finally:
        tracemalloc.stop()


@given(st.integers(2, 40), st.integers(1, 12), st.integers(0, 1000), st.integers(1, 40))
def test_mass_and_mean_of_all_readings_are_kept(n: int, d: int, seed: int, n_left: int) -> None:
    generator = np.random.default_rng(seed)
    before = Sketch(generator.normal(size=(n, d)), generator.uniform(1, 5, n))
    after = merged(before, merge_targets(before, n_left, np.inf))
    middle = np.average(before.points, axis=0, weights=before.mass)
    np.testing.assert_allclose(
        np.average(after.points, axis=0, weights=after.mass), middle, atol=1e-12
    )
    assert after.mass.sum() == pytest.approx(before.mass.sum())


def test_distances_are_those_of_differences() -> None:
    generator = np.random.default_rng(1)
    one = generator.normal(size=(50, 8))
    other = 1.0 + generator.normal(size=(70, 8))
    exact = ((one[:, None] - other) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_between(one, other), exact, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-140, 1.0, 1e150])
def test_a_frame_holds_its_points_whatever_their_size(scale: float) -> None:
    points = np.array([[-1.0, 2.0], [1.0, 2.0], [0.5, 2.0]]) * scale
    np.testing.assert_allclose(frame_of(points).of(points)[:, 0], [-1.0, 1.0, 0.5])
    assert np.isfinite(frame_of(points[:1]).of(points[:1])).all()
