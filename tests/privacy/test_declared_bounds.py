"""Bounds: unit coordinates, clipping, and errors that do not contain values."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import InvalidData, SettingsError
from shoal.privacy import Bounds

BOUNDS = Bounds([0.0, -5.0], [10.0, 5.0])


def test_no_readings_give_no_rows_and_none_is_clipped() -> None:
    inside, clipped = BOUNDS.clip(np.empty((0, 2)))
    assert inside.shape == (0, 2)
    assert clipped == 0


def test_the_ends_of_the_bounds_are_zero_and_one() -> None:
    unit = BOUNDS.to_unit(np.array([[0.0, -5.0], [10.0, 5.0], [5.0, 0.0]]))
    assert unit.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.5, 0.5]]


def test_to_unit_and_back_is_the_identity() -> None:
    values = np.random.default_rng(1).uniform(-20, 20, (50, 2))
    np.testing.assert_allclose(BOUNDS.from_unit(BOUNDS.to_unit(values)), values, rtol=0, atol=1e-12)


def test_readings_outside_are_clipped_and_counted_once_each() -> None:
    readings = np.array([[11.0, 9.0], [3.0, -6.0], [10.0, -5.0], [1.0, 1.0]])
    before = readings.copy()
    inside, clipped = BOUNDS.clip(readings)
    assert inside.tolist() == [[10.0, 5.0], [3.0, -5.0], [10.0, -5.0], [1.0, 1.0]]
    assert clipped == 2
    np.testing.assert_array_equal(readings, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_a_number_is_an_error_without_the_reading(bad: float) -> None:
    with pytest.raises(InvalidData) as rejected:
        BOUNDS.clip(np.array([[7.125, 3.0], [7.125, bad]]))
    assert "1 of 2" in str(rejected.value)
    assert "7.125" not in str(rejected.value)


@pytest.mark.parametrize("shape", [(2,), (1, 3), (1, 1), (1, 2, 1)])
def test_readings_of_another_width_are_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidData, match="where"):
        BOUNDS.clip(np.zeros(shape))


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ([], []),
        ([0.0], [1.0, 2.0]),
        ([0.0], [0.0]),
        ([1.0], [0.0]),
        ([0.0], [np.inf]),
        ([np.nan], [1.0]),
        ([-1e308], [1.7e308]),
    ],
)
def test_invalid_bounds_are_an_error(low: list[float], high: list[float]) -> None:
    with pytest.raises(SettingsError):
        Bounds(low, high)


def test_bounds_do_not_follow_the_array_they_were_made_from() -> None:
    low = np.array([0.0])
    bounds = Bounds(low, np.array([1.0]))
    low[0] = 0.5
    assert bounds.low[0] == 0.0
