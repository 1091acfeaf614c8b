"""The checks of rows: which rows pass. Which are refused is tested for every algorithm in
tests/laws."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.algorithms.streaming import MAGNITUDE_MAX, check_rows
from shoal.errors import InvalidData


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (0, 7)])
def test_an_empty_table_of_any_width_passes(shape: tuple[int, int]) -> None:
    assert check_rows(np.empty(shape), 3).shape == (0, 3)
    assert check_rows(np.empty(shape), None).shape == shape


def test_rows_without_features_are_refused() -> None:
    for width in (None, 2):
        with pytest.raises(InvalidData, match="0 features"):
            check_rows(np.ones((3, 0)), width)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8, np.int64, np.bool_])
def test_real_numbers_become_float64(dtype: type) -> None:
    rows = check_rows(np.ones((2, 3), dtype=dtype), 3)
    assert rows.dtype == np.float64
    assert rows.tolist() == [[1.0] * 3] * 2


def test_lists_and_transposed_tables_pass() -> None:
    assert check_rows([[1.0, 2.0], [3.0, 4.5]], None).tolist() == [[1, 2], [3, 4.5]]
    turned = check_rows(np.arange(6.0).reshape(2, 3).T, 2)
    assert turned.flags.c_contiguous
    assert turned.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_the_largest_number_passes_and_the_next_does_not() -> None:
    check_rows([[MAGNITUDE_MAX, -MAGNITUDE_MAX]], 2)
    with pytest.raises(InvalidData, match=r"row 1 \(1 of 3\)"):
        check_rows([[0.0], [-np.nextafter(MAGNITUDE_MAX, np.inf)], [0.0]], 1)
