"""Core distances, the spanning tree and the significance of a join, each against a plain
calculation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernels.density_tree import (
    core_distances,
    exact_masses,
    join_significance,
    mass_around,
    masses_at_shares,
    spanning_tree,
)
from shoal.kernels.sketching import squared_between


def test_a_core_distance_is_where_the_mass_is_reached() -> None:
    squared = squared_between(*[np.array([[0.0], [1.0], [2.0], [4.0]])] * 2)
    cores = np.sqrt(core_distances(squared, np.ones(4), 2.0))
    # Of the first point: half of itself at 0, 1.5 in all at 1, 2.5 at 2; so 2 lies half-way between
    # 1 and 2.
    np.testing.assert_allclose(cores, [1.5, 1.0, 1.5, 2.5], rtol=1e-6)


def test_where_there_is_less_mass_in_all_the_farthest_point_is_the_core() -> None:
    squared = squared_between(*[np.array([[0.0], [3.0]])] * 2)
    np.testing.assert_allclose(core_distances(squared, np.ones(2), 50.0), [9.0, 9.0])
    assert core_distances(np.zeros((1, 1), dtype=np.float32), np.ones(1), 5.0).tolist() == [0.0]


@given(st.integers(0, 1000), st.integers(3, 120), st.floats(1.0, 200.0))
def test_core_distances_are_the_same_however_many_neighbours_are_looked_at(
    seed: int, k: int, within: float
) -> None:
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(k, 2))
    mass = generator.uniform(0.5, 6.0, size=k)
    squared = squared_between(points, points)
    found = np.sqrt(core_distances(squared, mass, within))
    for at in range(k):
        # Distances that are equal but for their last bits are in the order of their positions;
        # masses may differ much.
        order = np.argsort(squared[at].view(np.uint32) >> (k - 1).bit_length(), kind="stable")
        held = np.cumsum(mass[order]) - mass[order] / 2
        expected = np.interp(within, held, np.sqrt(squared[at][order]))
        assert found[at] == pytest.approx(expected, rel=1e-4, abs=1e-3)


@given(st.integers(0, 1000), st.integers(2, 40))
def test_the_tree_spans_all_points_at_the_least_length(seed: int, k: int) -> None:
    points = np.random.default_rng(seed).normal(size=(k, 2))
    squared = squared_between(points, points)
    cores = core_distances(squared, np.ones(k), 2.0)
    edges, lengths = spanning_tree(squared, cores)
    reach = np.maximum(np.maximum(squared, cores), cores[:, None])
    np.testing.assert_array_equal(lengths, reach[edges[:, 0], edges[:, 1]])
    root = list(range(k))
    total = 0.0
    pairs = [(state, other) for state in range(k) for other in range(state)]
    for a, b in sorted(pairs, key=lambda pair: float(reach[pair])):
        if root[a] != root[b]:
            root = [root[a] if at == root[b] else at for at in root]
            total += float(reach[a, b])
    assert float(lengths.sum(dtype=np.float64)) == pytest.approx(total, rel=1e-5)
    assert len(set(edges.ravel().tolist())) == k


def test_one_point_has_a_tree_without_edges() -> None:
    edges, lengths = spanning_tree(
        np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.float32)
    )
    assert edges.shape == (0, 2)
    assert lengths.shape == (0,)


def test_points_that_are_equally_dense_are_joined_too() -> None:
    at = np.arange(200.0)[:, None]
    edges, lengths = spanning_tree(squared_between(at, at), np.full(200, 0.25, dtype=np.float32))
    assert lengths.tolist() == [1.0] * 199
    assert len(np.unique(edges)) == 200
    coincide = np.zeros((200, 200), dtype=np.float32)
    assert spanning_tree(coincide, np.zeros(200, dtype=np.float32))[1].tolist() == [0.0] * 199


def test_a_core_distance_does_not_depend_on_the_order_of_neighbours_that_are_equally_far() -> None:
    squared = np.ones((300, 300), dtype=np.float32)
    mass = np.arange(1.0, 301.0)
    np.testing.assert_array_equal(
        core_distances(squared, mass, 40.0), np.ones(300, dtype=np.float32)
    )


def test_the_mass_around_each_point_is_counted_up_to_its_own_limit() -> None:
    at = np.arange(150.0)[:, None]
    limits = np.where(np.arange(150) < 75, 1.0, 4.0).astype(np.float32)
    held = mass_around(squared_between(at, at), limits, [np.ones(150), np.arange(150.0)]).T
    assert held[10].tolist() == [3.0, 30.0]
    assert held[100].tolist() == [5.0, 500.0]
    assert held[0].tolist() == [2.0, 1.0]


@given(st.integers(0, 1000), st.integers(1, 300), st.sampled_from([1e-20, 1.0, 1e15]))
def test_sums_of_exact_masses_are_the_same_in_any_order(seed: int, k: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    mass = generator.uniform(size=k) ** 8 * scale
    exact = exact_masses(mass)
    whole = [float(np.cumsum(exact[generator.permutation(k)])[-1]) for _ in range(5)]
    assert whole == [float(exact.sum(dtype=np.float64))] * 5
    np.testing.assert_allclose(exact, mass, atol=float(mass.sum()) * 2.0**-22)


def test_no_mass_is_exactly_none() -> None:
    assert exact_masses(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]


def test_the_typical_mass_is_that_around_the_median_reading() -> None:
    squared = squared_between(*[np.array([[0.0], [1.0], [2.0], [50.0]])] * 2)
    mass = exact_masses(np.array([1.0, 2.0, 3.0, 4.0]))
    # Within 1.5 of the four lie 3, 6, 5 and 4: of ten readings the fifth in that order is of the
    # point with 4.
    assert masses_at_shares(squared, np.arange(4), mass, 1.5) == [4.0]
    assert masses_at_shares(squared, np.arange(3), mass, 1.5) == [5.0]
    # The ninth of ten readings is one of the two around which 6 lie; the first is that with 3
    # around it.
    assert masses_at_shares(squared, np.arange(4), mass, 1.5, (0.1, 0.5, 0.9)) == [3.0, 4.0, 6.0]


def test_a_side_as_dense_as_the_join_is_not_significant_and_dependence_counts_against_it() -> None:
    assert join_significance(40.0, 40.0, 40.0, 1.0) == 0.0
    assert join_significance(80.0, 40.0, 40.0, 1.0) == pytest.approx(40.0**0.5)
    assert join_significance(80.0, 40.0, 40.0, 4.0) == pytest.approx(40.0**0.5 / 2)
    assert join_significance(80.0, 20.0, 40.0, 1.0) == pytest.approx(60.0 / 40.0**0.5)
