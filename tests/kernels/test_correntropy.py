"""Correntropy and CIM against their formulas, and exact ties and batching."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.kernels import correntropy as kernel
from shoal.kernels.correntropy import cim, cim_blocks, correntropy, ignore_underflow, mean_nearest_other, nearest

Floats = NDArray[np.float64]
SHAPES = [(1, 1), (1, 7), (5, 1), (3, 2), (9, 16), (4, 129), (130, 3)]


def room(weights: Floats) -> tuple[Floats, tuple[Floats, Floats]]:
    return np.empty(len(weights)), (np.empty(weights.shape), np.empty(weights.shape))


def of_one_row(row: Floats, weights: Floats, sigma: float) -> Floats:
    return cim(row, weights, sigma, *room(weights))


def test_no_nodes_give_no_distances() -> None:
    assert of_one_row(np.zeros(3), np.empty((0, 3)), 1.0).shape == (0,)
    assert nearest(np.empty((0, 3)), np.ones((2, 3)), 1.0).shape == (0,)


@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_it_is_the_mean_gaussian_of_the_differences(k: int, d: int) -> None:
    generator = np.random.default_rng(k * 1000 + d)
    row, weights, sigma = generator.normal(size=d), generator.normal(size=(k, d)), 0.7
    by_hand = [
        math.fsum(math.exp(-((a - b) ** 2) / (2 * sigma**2)) for a, b in zip(row, node, strict=True)) / d
        for node in weights
    ]
    np.testing.assert_allclose(correntropy(row, weights, sigma, *room(weights)), by_hand, rtol=1e-13)
    np.testing.assert_allclose(of_one_row(row, weights, sigma) ** 2, 1 - np.array(by_hand), atol=1e-15)


@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_a_block_of_rows_has_the_bits_of_single_rows(k: int, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(k * 1000 + d)
    rows, weights = generator.normal(size=(23, d)), generator.normal(size=(k, d))
    single = np.array([of_one_row(row, weights, 0.7) for row in rows])
    for elements in (1, 5 * k * d, kernel.BLOCK_ELEMENTS):
        monkeypatch.setattr(kernel, "BLOCK_ELEMENTS", elements)
        blocks = np.concatenate([block.copy() for _, block in cim_blocks(rows, weights, 0.7)])
        np.testing.assert_array_equal(blocks, single)
        np.testing.assert_array_equal(nearest(rows, weights, 0.7), single.argmin(axis=1))


@pytest.mark.parametrize("d", [1, 2, 3, 7, 49, 64, 100])
def test_a_point_and_itself_are_at_distance_exactly_zero(d: int) -> None:
    row = np.random.default_rng(d).normal(size=d)
    assert of_one_row(row, np.array([row, row + 1]), 0.3)[0] == 0.0


@pytest.mark.parametrize("d", [1, 2, 3, 7, 49, 64])
def test_equal_nodes_tie_at_any_position(d: int) -> None:
    generator = np.random.default_rng(d)
    node, row = generator.normal(size=d), generator.normal(size=d)
    weights = np.where((np.arange(37) % 3 == 1)[:, None], node, generator.normal(size=(37, d)) + 50)
    distances = of_one_row(row, weights, 0.9)
    assert len(set(distances[1::3])) == 1
    assert nearest(row[None], weights, 0.9)[0] == 1


def test_a_far_point_is_at_distance_one_and_nothing_overflows() -> None:
    weights = np.array([[1e150, -1e150], [0.0, 0.0], [3e-149, 0.0]])
    with np.errstate(all="raise"), ignore_underflow():
        assert of_one_row(np.zeros(2), weights, 1e-150).tolist() == pytest.approx([1.0, 0.0, 0.5**0.5])


def test_the_square_of_a_tiny_difference_may_vanish() -> None:
    with np.errstate(all="raise"), ignore_underflow():
        assert of_one_row(np.zeros(1), np.array([[1e-170]]), 1.0).tolist() == [0.0]


def test_memory_of_the_pairwise_form_is_bounded() -> None:
    rows, weights = np.zeros((50_000, 4)), np.zeros((100, 4))
    heights = {len(block) for _, block in cim_blocks(rows, weights, 1.0)}
    assert max(heights) * 100 * 4 <= kernel.BLOCK_ELEMENTS


def test_arguments_are_not_changed() -> None:
    row, weights = np.arange(3.0), np.arange(12.0).reshape(4, 3)
    row.flags.writeable = weights.flags.writeable = False
    of_one_row(row, weights, 1.0)
    nearest(weights, weights, 1.0)
    mean_nearest_other(weights, 1.0)


def test_the_nearest_other_node_of_a_copy_is_not_the_copy() -> None:
    weights = np.array([[0.0], [0.0], [1.0]])
    away = math.sqrt(1 - math.exp(-0.5))
    assert mean_nearest_other(weights, 1.0) == pytest.approx(away)
    assert mean_nearest_other(weights[:2], 1.0) == 1.0
