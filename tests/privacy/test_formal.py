"""The mode `formal`: grid, shares, and noise whose size does not depend on the reading."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import InvalidData, SettingsError
from shoal.privacy.formal import BLOCK_VALUES
from shoal.privacy.laplace import certified_epsilon
from tests.privacy.modes import build, formal_mode, places, readings_of


@pytest.mark.parametrize("epsilon", [0.2, 3.0, 30.0, 141.0])
def test_formal_rows_lie_on_the_public_half_grid(epsilon: float) -> None:
    """A double of full precision would show which readings it cannot have come from."""
    mode = formal_mode(3, epsilon, (1.0, 2.0, 4.0))
    rows = build(mode).privatise(readings_of(mode, 2000), places(2000)).rows
    half_steps = rows * 2 * np.array([noise.steps for noise in mode.noises])
    np.testing.assert_allclose(half_steps, np.rint(half_steps), rtol=0, atol=1e-6)
    assert (np.rint(half_steps) % 2 == 1).all()


def test_formal_noise_does_not_depend_on_the_reading() -> None:
    """The distribution of row minus reading is the same at both ends of the range."""
    mode = formal_mode(1, 2.0)
    for at in (0.0, 1.0):
        readings = mode.bounds.from_unit(np.full((20_000, 1), at))
        scales = (build(mode).privatise(readings, places(20_000)).rows - at) * 2.0
        assert abs(scales.mean()) < 4 * np.sqrt(2 / 20_000)
        assert np.abs(scales).mean() == pytest.approx(1.0, abs=4 / np.sqrt(20_000))


@pytest.mark.parametrize("shares", [None, (1.0, 3.0, 0.5)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.7, 240.0])
def test_the_certified_epsilons_of_a_reading_sum_to_no_more_than_declared(
    epsilon: float, shares: tuple[float, ...] | None
) -> None:
    noises = formal_mode(3, epsilon, shares).noises
    total = sum(certified_epsilon(noise) for noise in noises)
    assert formal_mode(3, epsilon, shares).epsilon_spent() == pytest.approx(
        (total, epsilon), rel=1e-12
    )
    assert epsilon * 0.999 < total <= epsilon


def test_a_feature_with_a_larger_share_gets_less_noise() -> None:
    mode = formal_mode(2, 6.0, (1.0, 5.0))
    readings = readings_of(mode, 10_000)
    noise = build(mode).privatise(readings, places(10_000)).rows - mode.bounds.to_unit(readings)
    np.testing.assert_allclose(np.abs(noise).mean(axis=0), [1.0, 0.2], rtol=0.05)


def test_an_epsilon_too_small_for_so_many_features_says_what_to_change() -> None:
    with pytest.raises(SettingsError, match="number of features"):
        formal_mode(200, 0.01)


def test_rows_made_in_blocks_are_those_made_one_by_one() -> None:
    mode = formal_mode(3, 30.0)
    n = BLOCK_VALUES // 3 + 5
    readings = readings_of(mode, n)
    at = places(n)
    together = build(mode).privatise(readings, at)
    each = [build(mode).privatise(readings[i : i + 1], at[i : i + 1]).rows for i in range(n)]
    np.testing.assert_array_equal(together.rows, np.concatenate(each))
    assert together.kept.all()
    for other in (at[:-1], [*at, at[-1]]):
        with pytest.raises(InvalidData, match="places"):
            build(mode).privatise(readings, other)


def test_a_reading_that_is_stored_often_is_found_by_the_mean_of_its_rows() -> None:
    """Each copy has noise of its own, so that their epsilons add up: the mean of n copies has an
    n-th of the variance."""
    mode = formal_mode(1, 1.0)
    reading = mode.bounds.from_unit(np.array([[0.3]]))
    copies = 20_000
    rows = build(mode).privatise(np.repeat(reading, copies, axis=0), places(copies)).rows
    once = float(np.abs(rows - 0.3).mean())
    assert once > 0.5, "one row tells little"
    assert abs(float(rows.mean()) - 0.3) < 5 * float(rows.std()) / np.sqrt(copies) < 0.06
