"""Coarse readings are spread over a public step, each by itself and always in the same way."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import SettingsError
from shoal.privacy.base import Bounds
from shoal.privacy.imperfect import CoarseReadings
from shoal.privacy.keyed import SOURCE_BYTES

BOUNDS = Bounds([0.0, -5.0], [40.0, 5.0])
KEY = bytes(range(32))
SOURCE = bytes(SOURCE_BYTES)


def coarse(step: float = 1.0, key: bytes | None = KEY, client: str = "hall") -> CoarseReadings:
    return CoarseReadings(BOUNDS, np.array([step, 0.0]), key, client, SOURCE)


def readings(n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    values = np.stack([np.rint(generator.uniform(0.0, 40.0, n)), generator.normal(size=n)], axis=1)
    return values, np.stack([np.zeros(n, dtype=np.int64), np.arange(n)], axis=1)


def test_values_fill_the_step_around_them_evenly_and_other_features_stay() -> None:
    values, places = readings()
    spread = coarse().spread(values, places)
    moved = (spread - values)[(values[:, 0] > 0) & (values[:, 0] < 40), 0]
    assert np.abs(moved).max() <= 0.5
    np.testing.assert_allclose(np.histogram(moved, 5, (-0.5, 0.5))[0] / len(moved), 0.2, atol=0.03)
    assert (spread[:, 1] == values[:, 1]).all()


def test_no_value_leaves_its_bounds_and_one_beyond_them_stays() -> None:
    values = np.array([[0.0, 0.0], [40.0, 0.0], [-3.0, 0.0], [44.0, 0.0]])
    spread = coarse().spread(np.repeat(values, 100, axis=0), readings(400)[1])[:, 0].reshape(4, 100)
    assert ((spread[0] >= 0.0) & (spread[0] <= 0.5)).all()
    assert ((spread[1] >= 39.5) & (spread[1] <= 40.0)).all()
    assert (spread[2:] == [[-3.0], [44.0]]).all()


def test_a_reading_is_moved_by_its_place_alone_so_that_neighbours_still_differ_in_one_reading() -> (
    None
):
    values, places = readings(50)
    other = values.copy()
    other[20] = [7.0, -1.0]
    one, two = (coarse().spread(rows, places) for rows in (values, other))
    assert np.flatnonzero((one != two).any(axis=1)).tolist() == [20]
    parts = np.concatenate(
        [coarse().spread(values[part], places[part]) for part in (slice(30), slice(30, 50))]
    )
    np.testing.assert_array_equal(parts, one)


def test_another_key_client_or_place_moves_otherwise_and_without_a_key_all_clients_can_do_it() -> (
    None
):
    values, places = readings(50)
    one = coarse().spread(values, places)
    for other in (coarse(key=bytes(32)), coarse(client="yard")):
        assert (other.spread(values, places)[:, 0] != one[:, 0]).mean() > 0.9
    assert (coarse().spread(values, places + np.array([0, 50]))[:, 0] != one[:, 0]).mean() > 0.9
    np.testing.assert_array_equal(
        coarse(key=None).spread(values, places), coarse(key=None).spread(values, places)
    )


@pytest.mark.parametrize("step", [-1.0, 41.0, np.nan])
def test_a_step_that_cannot_be_is_refused(step: float) -> None:
    with pytest.raises(SettingsError, match="step"):
        coarse(step)
