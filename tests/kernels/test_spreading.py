"""Ties of coarse values are spread, within the range, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernels.sketching import spread_ties


@pytest.mark.parametrize("rows", [np.empty((0, 2)), np.ones((1, 2)), np.full((300, 2), 0.1)])
def test_nothing_one_row_and_equal_rows_are_left_alone(rows: np.ndarray) -> None:
    np.testing.assert_array_equal(spread_ties(rows), rows)


def test_continuous_and_binary_columns_are_left_alone() -> None:
    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.normal(size=300), generator.integers(2, size=300)])
    np.testing.assert_array_equal(spread_ties(rows), rows)


@given(st.integers(0, 1000), st.sampled_from([0.1, 1.0, 64.0]))
def test_a_coarse_column_is_spread_over_its_step_and_stays_in_its_range(
    seed: int, step: float
) -> None:
    rows = np.random.default_rng(seed).integers(0, 12, size=(900, 2)) * step
    given_rows = rows.copy()
    out = spread_ties(rows)
    np.testing.assert_array_equal(rows, given_rows)
    assert np.abs(out - rows).max() <= step
    assert (out.min(axis=0) >= rows.min(axis=0)).all()
    assert (out.max(axis=0) <= rows.max(axis=0)).all()
    assert len(np.unique(out[:, 0])) > 750
    # Evenly: about as many rows in every twelfth of the range.
    held = np.histogram(out[:, 0], bins=12)[0]
    assert held.min() >= 24


def test_equal_rows_are_spread_differently_and_the_same_every_time() -> None:
    rows = np.repeat(np.arange(6.0)[:, None], 50, axis=0)
    out = spread_ties(rows)
    np.testing.assert_array_equal(out, spread_ties(rows))
    assert len(np.unique(out)) == len(rows)


def test_the_same_values_in_another_block_are_spread_to_other_places() -> None:
    rows = np.repeat(np.arange(6.0)[:, None], 50, axis=0)
    other = rows.copy()
    other[-1] = 0.0
    assert not np.isin(spread_ties(rows)[:250], spread_ties(other)[:250]).any()


def test_a_few_rows_are_spread_by_the_steps_of_those_before() -> None:
    rows = np.random.default_rng(0).integers(0, 40, size=(256, 1)).astype(np.float64)
    few = rows[-20:]
    before = rows[:-20]
    # alone they do not show that they are whole numbers
    np.testing.assert_array_equal(spread_ties(few), few)
    out = spread_ties(few, before)
    assert len(np.unique(out % 1.0)) == len(few)
    assert np.abs(out - few).max() <= 1.0
