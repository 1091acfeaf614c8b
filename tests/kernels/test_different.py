"""The different numbers of an array, by a table of those between them or by sorting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernels.arrays import SPAN_MAX, different

NUMBERS = st.one_of(st.integers(-5, 40), st.integers(-SPAN_MAX, SPAN_MAX), st.integers(0, 2**62))


@given(st.lists(NUMBERS, max_size=60))
def test_they_are_those_of_numpy(numbers: list[int]) -> None:
    array = np.array(numbers, dtype=np.int64)
    found, place = different(array)
    wanted, wanted_place = np.unique(array, return_inverse=True)
    assert found.dtype == place.dtype == np.int64
    assert found.tolist() == wanted.tolist()
    assert place.tolist() == wanted_place.tolist()
