"""Arrays with a number that is not finite are found, wherever it is and whatever else is there."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from shoal.kernels.arrays import all_finite

SHAPES = [(0,), (1,), (), (7,), (3, 5), (2, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("largest", [0.0, 5e-324, 1.0, 1e200, np.finfo(np.float64).max])
def test_finite_numbers_of_any_size_are_finite(shape: tuple[int, ...], largest: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all_finite(np.full(shape, largest))
        assert all_finite(np.full(shape, -largest))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape])
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("others", [0.0, 1.0, 1e300])
def test_one_number_that_is_not_is_found_at_every_place(
    shape: tuple[int, ...], wrong: float, others: float
) -> None:
    for place in range(int(np.prod(shape))):
        array = np.full(shape, others)
        array.flat[place] = wrong
        assert not all_finite(array)
        with np.errstate(over="ignore"):
            assert not all_finite(array.astype(np.float32))


def test_opposite_infinities_and_parts_of_arrays_are_looked_at() -> None:
    assert not all_finite(np.array([np.inf, -np.inf]))
    every_second = np.array([1.0, np.nan, 2.0, np.inf])
    assert all_finite(every_second[::2])
    assert not all_finite(every_second[1::2])
    assert not all_finite(np.array([[1.0, 2.0], [np.nan, 3.0]]).T)


@pytest.mark.parametrize("dtype", ["<i8", "<u8", "|u1", "|b1"])
def test_whole_numbers_are_finite(dtype: str) -> None:
    assert all_finite(np.ones((2, 3), dtype=dtype))
