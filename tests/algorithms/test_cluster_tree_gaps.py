"""Small clusters are told by the gap around them, and merged cells or readings that depend on each
other are not."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from shoal.algorithms.cluster_tree.gaps import cores_of_few, gap_significance, spread
from shoal.algorithms.cluster_tree.joining import Joining, Weights
from shoal.kernels.arrays import Ints, Singles
from shoal.kernels.density_tree import Neighbours, core_distances


def squared_of(at: np.ndarray) -> Singles:
    return ((at[:, None] - at) ** 2).astype(np.float32)


@pytest.mark.parametrize(
    ("readings", "gap", "places"), [(10.0, 2.0, 2), (10.0, 8.0, 5), (30.0, 4.0, 3)]
)
def test_the_significance_of_a_gap_is_that_of_all_readings_in_one_of_equal_places(
    readings: float, gap: float, places: int
) -> None:
    found = gap_significance(readings, 1.0, gap)
    assert NormalDist().cdf(-found) == pytest.approx(places**-readings, rel=1e-6)


def test_a_gap_without_room_for_a_place_says_nothing() -> None:
    assert gap_significance(1000.0, 1.0, 1.99) == 0.0
    assert gap_significance(1000.0, 0.0, 5.0) == 0.0


def test_ten_readings_beside_a_gap_of_five_times_their_core_distance_are_significant() -> None:
    assert gap_significance(10.0, 1.0, 5.0) == pytest.approx(4.5, abs=0.05)


def test_a_significance_is_finite_however_small_the_chance() -> None:
    assert math.isfinite(gap_significance(1e6, 1.0, 1e6))


def test_cells_that_are_alone_count_fewer_readings_and_all_others_as_many_as_before() -> None:
    angle = np.linspace(0.0, 2.0 * np.pi, 100, endpoint=False)
    points = np.concatenate([np.exp(1j * angle), 9.0 + np.linspace(0.0, 0.1, 12)])
    squared = (np.abs(points[:, None] - points) ** 2).astype(np.float32)
    mass = np.ones(112)
    cores = core_distances(squared, mass, 27.0)
    found = cores_of_few(squared, cores, core_distances(squared, mass, 10.0))
    np.testing.assert_array_equal(found[:100], cores[:100])
    assert (cores[100:] > 7.0**2).all()
    assert (found[100:] < 0.1**2).all()


@pytest.mark.parametrize(("mass", "readings"), [(1.0, 15.0), (5.0, 4.0)])
def test_merged_cells_count_as_as_many_readings_as_there_are_cells(
    mass: float, readings: float
) -> None:
    """20 readings, as so many cells or as 4 of them."""
    at = np.linspace(0.0, 1.0, int(20 / mass))
    masses = np.full(len(at), mass)
    counted, distance = spread(
        np.arange(len(at)), masses, squared_of(at), np.zeros(len(at), np.float32), 27.0, 10.0
    )
    assert counted == pytest.approx(readings)
    assert 0.3 <= distance <= 0.8


def test_the_spread_of_merged_cells_is_at_least_the_way_to_the_next_one() -> None:
    at = np.array([0.0, 1.0, 2.0])
    _, distance = spread(
        np.arange(3), np.full(3, 100.0), squared_of(at), np.zeros(3, np.float32), 27.0, 10.0
    )
    assert distance == 1.0


@pytest.mark.parametrize(
    ("n", "dependence", "recent", "groups"),
    [
        (14, 1.0, 1.0, 2),
        (9, 1.0, 1.0, 1),  # too few
        (14, 4.0, 1.0, 1),  # four count as one
        (14, 1.0, 0.0, 1),  # a place that receives nothing any more
    ],
)
def test_a_small_group_far_from_all_others_is_one_of_its_own(
    n: int, dependence: float, recent: float, groups: int
) -> None:
    at = np.concatenate([np.linspace(0.0, 1.0, 100), 3.0 + np.linspace(0.0, 0.1, n)])
    ones = np.ones(len(at))
    lately = np.concatenate([ones[:100], np.full(n, recent)])
    weights = Weights(
        ones, lately, dependence * ones, dependence * ones, ones, np.zeros(len(at), dtype=np.int64)
    )
    squared = squared_of(at)
    cores = cores_of_few(squared, *Neighbours(squared).core_distances(ones, [27.0, 10.0]))
    joining = Joining(
        weights, at[:, None], squared, cores, 27.0, 10.0, 4.5, lambda pair, found: True
    )
    first = np.arange(len(at) - 1)
    edges: Ints = np.stack([first, first + 1], axis=1)
    lengths = np.maximum(np.maximum(cores[:-1], cores[1:]), squared[first, first + 1])
    order = np.argsort(lengths, kind="stable")
    group, _ = joining.join(edges[order], lengths[order])
    assert len(np.unique(group)) == groups
