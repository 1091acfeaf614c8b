"""Silverman's bandwidth against its formula."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.kernels.constants import SIGMA_MIN, ZERO_SPREAD
from shoal.kernels.correntropy import bandwidth


@pytest.mark.parametrize(("m", "d"), [(2, 1), (10, 2), (10, 3), (57, 64), (40, 1)])
def test_it_is_the_rule_of_silverman_with_the_median_spread(m: int, d: int) -> None:
    points = np.random.default_rng(m).normal(3, 2, size=(m, d)) * np.arange(1, d + 1)
    rule = (
        (4 / (2 + d)) ** (1 / (4 + d)) * m ** (-1 / (4 + d)) * np.median(points.std(axis=0, ddof=1))
    )
    assert bandwidth(points) == pytest.approx(rule, rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, -7.7, 1e9 / 3, 1e-300])
def test_a_constant_feature_has_the_small_spread_whatever_its_value(value: float) -> None:
    assert bandwidth(np.full((10, 1), value)) == pytest.approx(
        (4 / 3) ** 0.2 * 10**-0.2 * ZERO_SPREAD
    )


def test_the_median_of_two_features_is_their_mean() -> None:
    points = np.array([[0.0, 5.0], [2.0, 5.0]])
    rule = (4 / 4) ** (1 / 6) * 2 ** (-1 / 6) * (np.sqrt(2) + ZERO_SPREAD) / 2
    assert bandwidth(points) == pytest.approx(rule)


def test_the_points_are_not_written_to() -> None:
    points = np.random.default_rng(0).normal(size=(10, 3))
    before = points.copy()
    bandwidth(points)
    np.testing.assert_array_equal(points, before)


@pytest.mark.parametrize("points", [[[1e150], [-1e150]], [[1e-155], [2e-155]], [[5e-324], [0.0]]])
def test_it_is_finite_and_positive_for_extreme_points(points: list[list[float]]) -> None:
    sigma = bandwidth(np.array(points))
    assert SIGMA_MIN <= sigma < np.inf
