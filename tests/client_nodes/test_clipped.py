"""What is counted of readings beyond the bounds, where no model learns rows."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.client_nodes.intake import Batch, no_batch
from shoal.client_nodes.privacy import counted_only
from shoal.privacy import Bounds

BOUNDS = Bounds([0.0, -1.0, 0.0], [1.0, 1.0, 360.0], circular=[False, False, True])


def batch_of(values: np.ndarray) -> Batch:
    places = [(0, number) for number in range(len(values))]
    return no_batch(values.shape[1])._replace(values=values, places=places)


@pytest.mark.parametrize("gaps", [False, True], ids=["whole", "with gaps"])
@pytest.mark.parametrize("readings", [0, 1, 500])
def test_as_many_readings_are_counted_as_clipped_as_are_clipped(readings: int, gaps: bool) -> None:
    generator = np.random.default_rng(readings)
    values = generator.normal(0.5, [0.5, 1.0, 400.0], (readings, 3))
    # Values that lie on a bound are within it.
    values[: readings // 10, 0] = 1.0
    if gaps:
        values[generator.random(values.shape) < 0.2] = np.nan
    _, clipped = BOUNDS.clip(values, gaps)
    counted = counted_only(batch_of(values), BOUNDS, gaps)
    assert counted.clipped == clipped
    assert (readings < 500) or 0 < clipped < readings


def test_the_first_reading_beyond_the_bounds_of_a_feature_is_known_by_its_place() -> None:
    values = np.array([[0.5, 0.0, 720.0], [0.5, 3.0, 10.0], [2.0, 3.0, 10.0]])
    counted = counted_only(batch_of(values), BOUNDS)
    assert counted.clipped == 2
    assert counted.clipped_by_feature == (1, 2, 0)
    assert counted.first_clipped == {0: (0, 2), 1: (0, 1)}
