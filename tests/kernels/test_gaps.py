"""Missing values are taken from the nearest point over what a row has."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.kernels import distance
from shoal.kernels.distance import MIDDLE, filled_from, nearest_over_present

NAN = np.nan
POINTS = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 0.2], [1.0, 0.0, 0.9]])


def test_what_is_there_decides_which_point_is_nearest_and_what_is_missing_comes_from_it() -> None:
    rows = np.array([[0.9, 0.9, NAN], [NAN, NAN, 0.8], [0.1, NAN, NAN], [0.3, 0.4, 0.5]])
    assert nearest_over_present(rows, POINTS)[0].tolist()[:3] == [1, 2, 0]
    np.testing.assert_array_equal(
        filled_from(rows, POINTS),
        [[0.9, 0.9, 0.2], [1.0, 0.0, 0.8], [0.1, 0.0, 0.0], [0.3, 0.4, 0.5]],
    )


def test_a_squared_distance_is_scaled_by_the_features_over_those_that_are_there() -> None:
    rows = np.array([[0.5, NAN, NAN], [0.5, 0.0, 0.0]])
    _, squared = nearest_over_present(rows, POINTS[:1])
    assert squared.tolist() == [0.75, 0.25]


def test_of_equally_near_points_the_first_is_taken_also_by_a_row_without_any_value() -> None:
    nearest, squared = nearest_over_present(np.array([[1.0, NAN, NAN], [NAN, NAN, NAN]]), POINTS)
    assert (nearest.tolist(), squared.tolist()) == ([1, 0], [0.0, 0.0])


def test_without_a_point_what_is_missing_is_in_the_middle_and_whole_rows_stay_what_they_are() -> (
    None
):
    rows = np.array([[0.1, NAN]])
    assert filled_from(rows, np.empty((0, 2))).tolist() == [[0.1, MIDDLE]]
    whole = np.ones((4, 2))
    assert filled_from(whole, np.zeros((3, 2))) is whole
    assert filled_from(np.empty((0, 2)), np.zeros((3, 2))).shape == (0, 2)


def test_how_many_distances_are_held_at_once_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    rows = generator.random((50, 4))
    points = generator.random((20, 4))
    rows[generator.random(rows.shape) < 0.3] = NAN
    whole = nearest_over_present(rows, points)
    monkeypatch.setattr(distance, "TABLE_CELLS", 60)
    parts = nearest_over_present(rows, points)
    for label, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(label, other)
