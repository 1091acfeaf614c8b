"""Distances, memberships, seeds and matching against direct formulas, on difficult rows first."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.kernels.arrays import pack_symmetric, unpack_symmetric
from shoal.kernels.distance import nearest, nearest_mask, squared_by_differences, squared_distances
from shoal.kernels.fuzzy import memberships
from shoal.kernels.gaussian import (
    COVARIANCE_TYPES,
    affinity,
    merge_mixtures,
    spherical_spread,
    spread_from_moments,
)
from shoal.kernels.lloyd import assign, assign_block, best_kmeans, kmeans_plusplus, lloyd
from shoal.kernels.matching import assignment, matched_distance


def plain(rows: np.ndarray, centres: np.ndarray) -> NDArray[np.float64]:
    return np.asarray(((rows[:, None, :] - centres) ** 2).sum(axis=2), dtype=np.float64)


def test_no_rows_have_no_distances() -> None:
    assert squared_distances(np.empty((0, 3)), np.ones((2, 3))).shape == (0, 2)
    assert nearest(np.empty((0, 3)), np.ones((2, 3)))[0].shape == (0,)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_distances_are_those_of_differences_far_from_the_origin_too(
    offset: float, spread: float
) -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(7, 5)) * spread + offset
    rows = np.concatenate(
        [centres[generator.integers(0, 7, 500)] + generator.normal(size=(500, 5)) * 1e-6, centres]
    )
    np.testing.assert_allclose(squared_distances(rows, centres), plain(rows, centres), rtol=1e-9)
    np.testing.assert_allclose(
        nearest(rows, centres)[1], plain(rows, centres).min(axis=1), rtol=1e-9
    )
    assert (np.diag(squared_distances(rows, centres)[-7:]) == 0.0).all()


def test_a_tie_goes_to_the_first_whatever_rows_stand_beside_it() -> None:
    grid = np.array(list(itertools.product(range(5), repeat=3)), dtype=float)
    centres = np.array([[0.0, 0, 0], [4, 4, 4], [0, 4, 0], [4, 0, 4]]) + 0.1
    grid += 0.1
    together = nearest(grid, centres)[0]
    np.testing.assert_array_equal(together, squared_by_differences(grid, centres).argmin(axis=1))
    np.testing.assert_array_equal(
        together, [nearest(grid[i : i + 1], centres)[0][0] for i in range(len(grid))]
    )


@pytest.mark.parametrize("d", [4, 6])
def test_a_row_almost_half_way_gets_the_label_that_differences_give(d: int) -> None:
    """A product rounds otherwise, and how depends on which rows stand beside it."""
    rows = np.array(list(itertools.product(range(4), repeat=d)), dtype=float) / 7 + 0.3
    centres = (
        np.array(
            [[0.0] * d, [3.0] * d, [0.0] * (d // 2) + [3.0] * (d - d // 2), [3.0, *[0.0] * (d - 1)]]
        )
        / 7
        + 0.3
    )
    expected = squared_by_differences(rows, centres).argmin(axis=1)
    np.testing.assert_array_equal(nearest(rows, centres)[0], expected)


@pytest.mark.parametrize("d", [1, 3, 4, 6])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_every_row_has_one_nearest_centre_and_the_sums_are_those_of_a_loop(
    d: int, offset: float
) -> None:
    """Most rows of a lattice lie half-way between two centres, some on one, and two centres are the
    same."""
    rows = np.array(list(itertools.product(range(3), repeat=d)), dtype=float) + offset
    centres = np.concatenate([rows[:1], rows[-1:], rows[:1], rows[len(rows) // 2 :][:1]])
    own, least = nearest_mask(rows, centres)
    np.testing.assert_array_equal(own.sum(axis=0), 1)
    expected = plain(rows, centres).argmin(axis=1)
    np.testing.assert_array_equal(own.argmax(axis=0), expected)
    np.testing.assert_allclose(least, plain(rows, centres).min(axis=1), atol=1e-9)
    weights = np.arange(1.0, len(rows) + 1)
    for sums in (assign, assign_block):
        count, total, inertia = sums(rows, centres, weights)
        for k in range(len(centres)):
            mine = expected == k
            np.testing.assert_allclose(count[k], weights[mine].sum())
            np.testing.assert_allclose(total[k], (weights[mine, None] * rows[mine]).sum(axis=0))
        np.testing.assert_allclose(inertia, (weights * plain(rows, centres).min(axis=1)).sum())


@given(
    st.lists(st.floats(0, 1e300, allow_subnormal=True), min_size=1, max_size=6),
    st.floats(1.0, 50, exclude_min=True),
)
def test_memberships_add_up_to_one_for_any_distances_and_any_fuzzifier(
    distances: list[float], fuzzifier: float
) -> None:
    shares = memberships(np.array([distances]), fuzzifier)
    assert np.isfinite(shares).all()
    assert shares.sum() == pytest.approx(1)
    assert shares[0, int(np.argmin(distances))] == shares.max()


def test_a_row_on_a_centre_belongs_to_it_alone_and_in_halves_when_there_are_two() -> None:
    np.testing.assert_array_equal(memberships(np.array([[0.0, 3, 4]]), 2.0), [[1, 0, 0]])
    np.testing.assert_array_equal(memberships(np.array([[0.0, 3, 0]]), 1.3), [[0.5, 0, 0.5]])
    np.testing.assert_allclose(memberships(np.array([[1.0, 4]]), 2.0), [[0.8, 0.2]])
    np.testing.assert_array_equal(
        memberships(np.array([[1.0, 2], [0, 1]]), 1 + 1e-12), [[1, 0], [1, 0]]
    )


def test_there_are_at_most_as_many_seeds_as_different_rows() -> None:
    assert len(kmeans_plusplus(np.empty((0, 2)), 3, 0)) == 0
    assert len(kmeans_plusplus(np.ones((9, 2)), 3, 0)) == 1
    rows = np.repeat(np.arange(4.0)[:, None], 5, axis=0)
    assert sorted(rows[kmeans_plusplus(rows, 9, 1)][:, 0]) == [0, 1, 2, 3]


def test_seeds_do_not_depend_on_the_order_of_rows_or_on_rows_that_are_not_seeds() -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(300, 3))
    chosen = rows[kmeans_plusplus(rows, 6, 11)]
    order = generator.permutation(300)
    np.testing.assert_array_equal(rows[order][kmeans_plusplus(rows[order], 6, 11)], chosen)
    is_seed = (rows[:, None] == chosen).all(axis=2).any(axis=1)
    for place in np.flatnonzero(~is_seed)[:50]:
        left = np.delete(rows, place, axis=0)
        np.testing.assert_array_equal(left[kmeans_plusplus(left, 6, 11)], chosen)
    left = rows[~is_seed]
    assert (left[kmeans_plusplus(left, 6, 11)] != chosen).any()


def test_the_second_seed_is_drawn_by_squared_distance_and_weight() -> None:
    rows = np.array([[0.0], [1.0], [2.0]])
    drawn = np.array(
        [kmeans_plusplus(rows, 2, seed, np.array([1e9, 4.0, 1.0])) for seed in range(4000)]
    )
    assert (drawn[:, 0] == 0).mean() > 0.99
    assert (drawn[:, 1] == 1).mean() == pytest.approx(0.5, abs=0.03)
    first = np.array([kmeans_plusplus(rows, 1, seed)[0] for seed in range(4000)])
    np.testing.assert_allclose(np.bincount(first) / 4000, 1 / 3, atol=0.03)


def test_lloyd_keeps_a_centre_without_rows_and_weights_points() -> None:
    rows = np.array([[0.0], [1.0], [10.0]])
    centres, _ = lloyd(
        rows, np.array([[0.2], [11.0], [99.0]]), 10, weights=np.array([1.0, 3.0, 1.0])
    )
    np.testing.assert_allclose(centres, np.array([[0.75], [10], [99]]))


def test_the_best_of_several_starts_finds_clusters_that_are_there() -> None:
    rows = np.concatenate(
        [np.random.default_rng(0).normal(size=(50, 2)) * 0.1 + place for place in range(0, 60, 10)]
    )
    found = best_kmeans(rows, 6, 0, 10, 100)
    assert matched_distance(np.repeat(np.arange(0.0, 60, 10)[:, None], 2, axis=1), found) < 0.2


def test_the_assignment_is_the_cheapest_of_all() -> None:
    generator = np.random.default_rng(1)
    for n, m in [(1, 1), (2, 3), (4, 4), (5, 6)]:
        for cost in (generator.random((n, m)), generator.integers(0, 3, (n, m)).astype(float)):
            columns = assignment(cost)
            assert len(set(columns.tolist())) == n
            best = min(
                sum(cost[range(n), list(order)]) for order in itertools.permutations(range(m), n)
            )
            assert cost[np.arange(n), columns].sum() == pytest.approx(best)
    assert len(assignment(np.empty((0, 3)))) == 0


@pytest.mark.parametrize("shape", [(1, 0), (3, 2)])
def test_more_rows_than_columns_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"{shape[0]} rows .* there are {shape[1]}"):
        assignment(np.zeros(shape))


def test_symmetric_matrices_are_packed_and_unpacked() -> None:
    matrices = np.arange(18.0).reshape(2, 3, 3)
    matrices = matrices + matrices.transpose(0, 2, 1)
    np.testing.assert_array_equal(unpack_symmetric(pack_symmetric(matrices), 3), matrices)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_mixtures_of_parts_join_to_the_mixture_of_the_whole(covariance_type: str) -> None:
    """With all shares 0 or 1, the moments of two clients' rows joined are those of all rows."""
    generator = np.random.default_rng(2)
    parts = [generator.normal(size=(40, 3)) + 1, generator.normal(size=(70, 3)) * 2 - 1]

    def moments(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mass = np.array([float(len(rows))])
        mean = rows.mean(axis=0, keepdims=True)
        square = (rows.T @ rows)[None]
        second = {
            "full": pack_symmetric(square),
            "tied": pack_symmetric(square),
            "diag": (rows**2).sum(axis=0)[None],
            "spherical": np.array([[(rows**2).sum()]]),
        }[covariance_type]
        return mass, mean, spread_from_moments(covariance_type, mass, mean, second, 1e-12)

    mass, means, spread = (np.stack(numbers) for numbers in zip(*map(moments, parts), strict=True))
    mean, whole = merge_mixtures(covariance_type, mass, means, spread)
    _, expected_mean, expected = moments(np.concatenate(parts))
    np.testing.assert_allclose(mean, expected_mean, atol=1e-9)
    np.testing.assert_allclose(whole, expected, atol=1e-9)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_a_component_overlaps_itself_wholly_and_a_far_one_hardly(covariance_type: str) -> None:
    means = np.array([[0.0, 0], [1, 1], [30, 30]])
    spread = spherical_spread(covariance_type, np.array([1.0, 2.0]), 3)
    found = affinity(covariance_type, means, spread, means, spread)
    np.testing.assert_allclose(np.diag(found), 1)
    assert found[0, 2] < 1e-6 < found[0, 1] < 1
