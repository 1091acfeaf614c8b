"""Blocks, and sets of cells from counts of pairs: what parts a stream, and what only looks so."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from shoal.algorithms.states.blocks import BLOCKS_MAX, BlockMemory, block_features, window_features
from shoal.algorithms.states.plan import nearest
from shoal.algorithms.states.sets import (
    CROSSINGS_MAX,
    _crossings,
    correlation_of_sides,
    find_cut,
    find_sets,
)
from shoal.kernels.arrays import Floats

LINE = np.linspace(-4, 4, 81)
N_PAIRS = 10_000.0


def gaussian(correlation: float) -> Floats:
    """(c, c) expected counts of pairs of a Gaussian process on the cells of `LINE`."""
    one, other = np.meshgrid(LINE, LINE, indexing="ij")
    square = one**2 + other**2 - 2 * correlation * one * other
    density = np.exp(-square / (2 * (1 - correlation**2)))
    expected: Floats = N_PAIRS * density / density.sum()
    return expected


def switching(distance: float, remaining: float, lag: int) -> Floats:
    """(c, c) expected counts of pairs `lag` apart, of two states with this chance to stay,
    independent otherwise."""
    parts = np.exp(-((LINE[:, None] - np.array([-distance / 2, distance / 2])) ** 2) / 2)
    parts /= parts.sum(axis=0)
    step = np.linalg.matrix_power(
        np.array([[remaining, 1 - remaining], [1 - remaining, remaining]]), lag
    )
    expected: Floats = N_PAIRS * parts @ (step / 2) @ parts.T
    return expected


@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("cut", [0.05, 0.85])
def test_a_gaussian_process_crosses_a_cut_as_often_as_its_autocorrelation_says(
    correlation: float, cut: float
) -> None:
    # However its values are stretched, as only their order counts.
    assert (
        0.97 < _crossings(np.exp(LINE), (cut < LINE).astype(np.int64), gaussian(correlation)) < 1.03
    )


def test_at_the_median_thecorrelation_of_sides_is_the_arcsine_law() -> None:
    assert correlation_of_sides(0.7, 0.5) == pytest.approx(2 / np.pi * np.arcsin(0.7), abs=1e-4)
    assert correlation_of_sides(1.0, 0.5) == pytest.approx(1.0, abs=1e-4)
    assert correlation_of_sides(-0.2, 0.3) == 0.0


def test_states_whose_valley_is_shallow_are_parted_where_the_stream_seldom_crosses() -> None:
    pairs, pairs_2 = (switching(3.2, 0.9, lag) for lag in (1, 2))
    assert find_sets(LINE[:, None], pairs, pairs_2) is None
    sets = find_cut(LINE[:, None], pairs, pairs_2)
    assert sets is not None
    assert np.array_equal(sets.of_cell, LINE > 0)
    assert _crossings(LINE, sets.of_cell, pairs) < CROSSINGS_MAX


def test_two_peaks_that_the_next_block_does_not_depend_on_are_not_parted() -> None:
    pairs, pairs_2 = (switching(4.0, 0.5, lag) for lag in (1, 2))
    assert find_cut(LINE[:, None], pairs, pairs_2) is None


def test_two_peaks_of_a_process_seen_through_a_steep_function_are_not_parted() -> None:
    # Values of a Gaussian process, moved apart at 0: between the peaks lies a valley, and it
    # crosses as often as ever.
    seen = LINE + 1.5 * np.sign(LINE)
    mass = gaussian(0.95).sum(axis=1)
    assert mass[np.abs(seen) < 0.5].sum() < 0.1 * mass[np.abs(np.abs(seen) - 2) < 0.5].sum()
    assert find_cut(seen[:, None], gaussian(0.95), gaussian(0.95**2)) is None


def test_a_slow_cycle_with_flat_ends_passes_between_the_cores_and_is_not_parted() -> None:
    level = np.tanh(np.sin(2 * np.pi * np.arange(4_800) / 60)) / np.tanh(1)
    noise = np.array([NormalDist().inv_cdf(value) for value in (np.arange(25) + 0.5) / 25])
    cell = np.rint((level[:, None] + 0.25 * noise + 4) / 0.1).astype(np.int64)
    member = np.stack([(cell == state).mean(axis=1) for state in range(len(LINE))], axis=1)
    pairs, pairs_2 = (member[:-lag].T @ member[lag:] for lag in (1, 2))
    assert find_cut(LINE[:, None], pairs, pairs_2) is None


def test_cells_that_no_pair_has_are_one_set() -> None:
    for cells in (LINE[:, None], np.zeros((3, 1)), np.zeros((1, 2))):
        none = np.zeros((len(cells), len(cells)))
        assert find_cut(cells, none, none) is None


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_windows_have_the_features_of_blocks(share: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(64, 2))
    rows[rng.random(rows.shape) < share] = np.nan
    for w in (1, 2, 4, 16):
        blocks = block_features(rows.reshape(-1, w, 2))
        np.testing.assert_allclose(window_features(rows, w)[::w], blocks, atol=1e-6)


def test_a_block_that_lacks_half_of_a_column_is_unknown_and_memory_is_bounded() -> None:
    block = np.arange(16.0).reshape(1, 8, 2)
    block[0, :4, 1] = np.nan
    assert np.isnan(block_features(block)).all()
    memory = BlockMemory(8)
    for _ in range(20):
        memory.add(np.zeros((BLOCKS_MAX // 4, 8)))
    held = sum(array.nbytes for array in memory.state().values())
    assert memory.n_blocks[1] == 5 * BLOCKS_MAX
    assert held < 4 * 2**20


def test_the_nearest_cell_is_the_first_of_equals_on_one_axis_and_on_more() -> None:
    rng = np.random.default_rng(0)
    for q in (1, 2, 4):
        points = rng.normal(size=(500, q))
        cells = rng.normal(size=(20, q))
        expected = ((points[:, None] - cells) ** 2).sum(axis=2).argmin(axis=1)
        np.testing.assert_array_equal(nearest(points, cells), expected)
