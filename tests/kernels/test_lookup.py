"""Looking up random words in tables of running sums: the guide changes nothing but the time it
takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kernels.arrays import Words
from shoal.privacy.keyed import GUIDE_BITS, WORD_BITS, Lookup

ALL = 2**WORD_BITS
TABLES = {
    "one value": [],
    "two values": [ALL // 3],
    "even": [ALL // 5000 * (number + 1) for number in range(4999)],
    "halves": [ALL - ALL // 2**number for number in range(1, 40)],
    "the edges of parts": [
        (number + 1) << (WORD_BITS - GUIDE_BITS[0]) for number in range(2 ** GUIDE_BITS[0] - 1)
    ],
    "values that never occur": [5, 5, 5, ALL // 2, ALL // 2, ALL - 1, ALL - 1],
    "larger than any guide": list(range(0, 100_000)),
}


def around(sums: Words) -> Words:
    """Words at which a value changes, their neighbours, the ends, and random ones."""
    ends = np.array([0, 1, ALL - 1], dtype=np.uint64)
    with_neighbours = np.concatenate(
        [sums, sums + np.uint64(1), np.maximum(sums, 1) - np.uint64(1)]
    )
    parts = np.arange(2 ** GUIDE_BITS[0], dtype=np.uint64) << np.uint64(WORD_BITS - GUIDE_BITS[0])
    drawn = np.random.default_rng(3).integers(0, ALL, size=5000, dtype=np.uint64)
    return np.minimum(np.concatenate([ends, with_neighbours, parts, drawn]), np.uint64(ALL - 1))


@pytest.mark.parametrize("name", TABLES)
def test_every_word_gives_the_number_of_sums_that_are_at_most_it(name: str) -> None:
    sums = np.array(TABLES[name], dtype=np.uint64)
    words = around(sums)
    assert Lookup(sums).find(words).tolist() == np.searchsorted(sums, words, side="right").tolist()


@given(
    st.lists(st.integers(0, ALL - 1), max_size=60), st.lists(st.integers(0, ALL - 1), min_size=1)
)
def test_any_table_gives_what_searching_it_gives(sums: list[int], words: list[int]) -> None:
    table = np.array(sorted(sums), dtype=np.uint64)
    asked = np.array(words + sums, dtype=np.uint64)
    assert (
        Lookup(table).find(asked).tolist() == np.searchsorted(table, asked, side="right").tolist()
    )


def test_words_may_have_any_shape() -> None:
    lookup = Lookup(np.array([10, 20], dtype=np.uint64))
    assert lookup.find(np.array([[0, 10], [19, 20]], dtype=np.uint64)).tolist() == [[0, 1], [1, 2]]
    assert lookup.find(np.empty((0, 3), dtype=np.uint64)).shape == (0, 3)
    assert lookup.find(np.arange(40, dtype=np.uint64)[::5]).tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
