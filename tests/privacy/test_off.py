"""The mode `off`: rows are the readings in unit coordinates."""

from __future__ import annotations

import numpy as np

from shoal.privacy.off import Off
from tests.privacy.modes import SOURCE, places, readings_of, wide_bounds


def test_off_needs_no_key_and_adds_nothing() -> None:
    mode = Off(wide_bounds(3))
    readings = readings_of(mode, 30)
    rows = mode.mechanism(None, "attic", SOURCE).privatise(readings, places(30)).rows
    np.testing.assert_array_equal(rows, mode.bounds.to_unit(readings))
