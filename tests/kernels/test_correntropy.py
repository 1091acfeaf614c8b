"""Correntropy and CIM against their formulas, and exact ties and batching."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.kernels import correntropy as kernel
from shoal.kernels.arrays import Floats
from shoal.kernels.correntropy import (
    cim,
    cim_blocks,
    correntropy,
    ignore_underflow,
    mean_nearest_other,
    nearest,
    screened,
)

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
    row = generator.normal(size=d)
    weights = generator.normal(size=(k, d))
    sigma = 0.7
    by_hand = [
        math.fsum(
            math.exp(-((a - b) ** 2) / (2 * sigma**2)) for a, b in zip(row, node, strict=True)
        )
        / d
        for node in weights
    ]
    np.testing.assert_allclose(
        correntropy(row, weights, sigma, *room(weights)), by_hand, rtol=1e-13
    )
    np.testing.assert_allclose(
        of_one_row(row, weights, sigma) ** 2, 1 - np.array(by_hand), atol=1e-15
    )


@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_a_block_of_rows_has_the_bits_of_single_rows(
    k: int, d: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(k * 1000 + d)
    rows = generator.normal(size=(23, d))
    weights = generator.normal(size=(k, d))
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
    node = generator.normal(size=d)
    row = generator.normal(size=d)
    weights = np.where((np.arange(37) % 3 == 1)[:, None], node, generator.normal(size=(37, d)) + 50)
    distances = of_one_row(row, weights, 0.9)
    assert len(set(distances[1::3])) == 1
    assert nearest(row[None], weights, 0.9)[0] == 1


def test_a_far_point_is_at_distance_one_and_nothing_overflows() -> None:
    weights = np.array([[1e150, -1e150], [0.0, 0.0], [3e-149, 0.0]])
    with np.errstate(all="raise"), ignore_underflow():
        assert of_one_row(np.zeros(2), weights, 1e-150).tolist() == pytest.approx(
            [1.0, 0.0, 0.5**0.5]
        )


def test_the_square_of_a_tiny_difference_may_vanish() -> None:
    with np.errstate(all="raise"), ignore_underflow():
        assert of_one_row(np.zeros(1), np.array([[1e-170]]), 1.0).tolist() == [0.0]


def test_memory_of_the_pairwise_form_is_bounded() -> None:
    rows = np.zeros((50_000, 4))
    weights = np.zeros((100, 4))
    heights = {len(block) for _, block in cim_blocks(rows, weights, 1.0)}
    assert max(heights) * 100 * 4 <= kernel.BLOCK_ELEMENTS


def test_arguments_are_not_changed() -> None:
    row = np.arange(3.0)
    weights = np.arange(12.0).reshape(4, 3)
    row.flags.writeable = weights.flags.writeable = False
    of_one_row(row, weights, 1.0)
    nearest(weights, weights, 1.0)
    mean_nearest_other(weights, 1.0)


def test_the_nearest_other_node_of_a_copy_is_not_the_copy() -> None:
    weights = np.array([[0.0], [0.0], [1.0]])
    away = math.sqrt(1 - math.exp(-0.5))
    assert mean_nearest_other(weights, 1.0) == pytest.approx(away)
    assert mean_nearest_other(weights[:2], 1.0) == 1.0


def streams() -> dict[str, tuple[Floats, Floats, float]]:
    """name -> rows, nodes and bandwidth that are hard for the screens of `nearest`."""
    generator = np.random.default_rng(5)
    lattice = np.stack(np.meshgrid(*[np.arange(5.0)] * 3), axis=-1).reshape(-1, 3)
    nodes = generator.random((400, 4))
    near = nodes[generator.integers(0, 400, 100)] + generator.normal(0, 0.02, (100, 4))
    many = generator.random((300, 16))
    places = generator.permutation(150) / 32
    return {
        "equal distances to several nodes": (
            lattice[::2] + 0.5,
            np.repeat(lattice, 3, axis=0),
            0.4,
        ),
        "rows that are nodes, which are there several times": (
            nodes,
            np.concatenate([nodes, nodes]),
            0.1,
        ),
        "rows near nodes": (near, nodes, 0.1),
        "rows between nodes, of which another is nearest by distance": (
            generator.random((2000, 4)),
            nodes,
            0.15,
        ),
        "rows with so much noise that distances leave nearly all undecided": (
            nodes[generator.integers(0, 400, 500)] + generator.normal(0, 0.4, (500, 4)),
            nodes[:50],
            0.05,
        ),
        "nodes near each other beside nodes far away": (
            generator.random((2000, 4)),
            np.concatenate([nodes, 30 + 30 * nodes]),
            0.15,
        ),
        "far from the origin": (near + 1e6, nodes + 1e6, 0.1),
        "so far that 32-bit floats do not tell nodes apart": (near + 1e12, nodes + 1e12, 0.1),
        "so far that their squares overflow in 32 bits": (near * 1e200, nodes * 1e200, 0.1),
        "a bandwidth so small that all correntropies are 0": (near, nodes, 1e-5),
        "a bandwidth so large that all are nearly 1": (near, nodes, 1e4),
        "features that differ more than the bandwidth": (generator.random((100, 16)), many, 0.1),
        "one feature far away": (many[:100] + np.eye(16)[0] * 5.0, many, 0.2),
        "one feature": (generator.random((500, 1)), generator.random((100, 1)), 0.01),
        "one feature, half-way between two nodes": (
            np.arange(1.0, 300.0)[:, None] / 64,
            places[:, None],
            0.1,
        ),
        "one node": (generator.random((9000, 2)), np.array([[0.3, 0.7]]), 0.1),
    }


@pytest.mark.parametrize("name", streams())
def test_the_nearest_node_is_that_of_the_smallest_cim_of_all(name: str) -> None:
    rows, nodes, sigma = streams()[name]
    assert len(rows) * nodes.size >= kernel.SCREENED_FROM, "few terms are not screened"
    with ignore_underflow():
        by_all = np.concatenate(
            [block.argmin(axis=1) for _, block in cim_blocks(rows, nodes, sigma)]
        )
        np.testing.assert_array_equal(nearest(rows, nodes, sigma), by_all)


@pytest.mark.parametrize(
    ("name", "most"),
    [("rows near nodes", 2.0), ("features that differ more than the bandwidth", 1.1)],
)
def test_the_screens_leave_few_nodes_to_compare(name: str, most: float) -> None:
    rows, nodes, sigma = streams()[name]
    blocks = screened(rows, nodes, sigma)
    assert blocks is not None
    assert sum(len(block.pairs[0]) for block in blocks) <= most * len(rows)


@pytest.mark.parametrize("elements", [1, 2000])
def test_the_nearest_node_does_not_depend_on_the_size_of_blocks(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BLOCK_ELEMENTS", "PART_ELEMENTS", "TERMS_ELEMENTS"):
        monkeypatch.setattr(kernel, name, elements)
    for name in ("equal distances to several nodes", "one feature far away"):
        test_the_nearest_node_is_that_of_the_smallest_cim_of_all(name)
