"""An update of any algorithm, cut into parts and joined again: nothing is lost, nothing is too large for its record."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.algorithms.registry import algorithm_names, load_algorithm
from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.errors import MessageRejected
from shoal.protocol.chunking import HEADERS_BYTES, UPDATE_BYTES_MAX, alike, joined, split
from shoal.protocol.messages import PARTS_MAX, Update
from shoal.transports.limits import size_of
from tests.small_plant import an_update, plant

NAMED = an_update(plant(), rows=2)
LONGEST_NAME = "a" * 64
SLACK = 100
"""bytes that may be left free in a record because lengths are not counted to the byte"""


def arrays_of(name: str, sizes: dict[str, int], seed: int = 0) -> Arrays:
    """Arrays as the table of this algorithm declares them, of any values; a size nobody gave is 1."""
    rng = np.random.default_rng(seed)

    def one(spec: ArraySpec) -> NDArray[Any]:
        shape = tuple(size if isinstance(size, int) else sizes.get(size, 1) for size in spec.shape)
        return rng.integers(1, 2**40, shape).astype(spec.dtype)

    return {array: one(spec) for array, spec in load_algorithm(name).update.items()}


def update_of(name: str, arrays: Arrays) -> Update:
    return replace(NAMED, algorithm=name, arrays=arrays)


def record_bytes(part: Update) -> int:
    headers = (*Update.headers(), ("signature", bytes(32)))
    return size_of("plant.updates", part.encode(), part.model.encode(), headers)


@pytest.mark.parametrize("name", algorithm_names())
@given(
    sizes=st.fixed_dictionaries({size: st.integers(0, 300) for size in "nkpcq"}),
    d=st.integers(1, 40),
    record=st.integers(3000, 60_000),
    seed=st.integers(0, 99),
)
def test_parts_joined_are_the_update_to_the_bit_and_each_fits_its_record(
    name: str, sizes: dict[str, int], d: int, record: int, seed: int
) -> None:
    update = update_of(name, arrays_of(name, sizes | {"d": d, "m": d * (d + 1) // 2}, seed))
    table = load_algorithm(name).update
    around = len(replace(update, arrays={**update.arrays, **cut(update, 0, 0)}).encode())
    node = sum(array[:1].nbytes for array in cut(update, 0, 1).values())
    if around + node > record - HEADERS_BYTES - SLACK and len(update.encode()) > record - HEADERS_BYTES - SLACK:
        # It may just fit or just not; what is certain is that it is not cut wrongly.
        with suppress(MessageRejected):
            assert all(record_bytes(part) <= record for part in split(update, table, record))
        return
    parts = split(update, table, record)
    assert [(part.part, part.parts) for part in parts] == [(n + 1, len(parts)) for n in range(len(parts))]
    assert all(record_bytes(part) <= record for part in parts)
    assert len({alike(part, table) for part in parts}) == 1
    again = [Update.decode(part.encode(), Update.headers()) for part in parts]
    assert joined(again, table).encode() == update.encode()
    assert len(parts) == 1 or len(update.encode()) > record - HEADERS_BYTES - SLACK, "it is cut only where it must be"


def cut(update: Update, first: int, end: int) -> Arrays:
    """What is per node, of these nodes."""
    table = load_algorithm(update.algorithm).update
    return {name: array[first:end] for name, array in update.arrays.items() if table[name].per_node}


@pytest.mark.parametrize("name", algorithm_names())
def test_what_is_not_cut_is_of_one_size_whatever_the_number_of_nodes(name: str) -> None:
    table = load_algorithm(name).update
    assert any(spec.per_node for spec in table.values())
    assert all(spec.per_node or spec.shape in ((1,), ("d",)) for spec in table.values())


def test_the_first_part_has_the_nodes_that_won_most_often() -> None:
    update = an_update(plant(), rows=400)
    few_nodes = len(replace(update, arrays=cut(update, 0, 5)).encode()) + HEADERS_BYTES + 50
    parts = split(update, load_algorithm("fcac").update, few_nodes)
    assert len(parts) > 3
    counts = [part.arrays["count"] for part in parts]
    assert all(before.min() >= after.max() for before, after in pairwise(counts))


def test_a_part_goes_with_the_longest_names_and_a_signature() -> None:
    update = replace(an_update(plant(), rows=400), model=LONGEST_NAME, client=LONGEST_NAME, federation=LONGEST_NAME)
    assert record_bytes(update) - len(update.encode()) <= HEADERS_BYTES


def test_what_cannot_travel_even_in_parts_is_refused_where_it_is_made() -> None:
    table = load_algorithm("fcac").update
    wide = update_of("fcac", {"weight": np.zeros((2, 300)), "count": np.ones(2, dtype=np.int64)})
    with pytest.raises(MessageRejected, match=r"oversized: a node takes 2408 bytes"):
        split(wide, table, 3000)
    n = UPDATE_BYTES_MAX // 24
    large = update_of("fcac", {"weight": np.zeros((n, 2)), "count": np.ones(n, dtype=np.int64)})
    with pytest.raises(MessageRejected, match=r"oversized.*fewer nodes"):
        split(large, table, 960 * 1024)
    n = PARTS_MAX * 1000
    with pytest.raises(MessageRejected, match=f"at most {PARTS_MAX} parts"):
        split(update_of("fcac", {"weight": np.zeros((n, 1)), "count": np.ones(n, dtype=np.int64)}), table, 1700)


def test_parts_that_differ_in_anything_but_their_nodes_are_not_alike() -> None:
    table = load_algorithm("gmm").update
    part = update_of("gmm", arrays_of("gmm", {"k": 3, "c": 3, "d": 2, "m": 3}))
    other_nodes = replace(part, part=2, parts=1 + part.part, arrays={**part.arrays, **cut(part, 1, 3)})
    said = alike(replace(part, parts=2), table)
    assert alike(other_nodes, table) == said
    for change in ({"readings": 7}, {"made_at": 2e9}, {"parts": 3}, {"sequence": 9}, {"newest_reading_at": None}):
        assert alike(replace(other_nodes, **change), table) != said
    for name, array in {"rows": np.array([9.0]), "second": np.zeros((3, 4))}.items():
        assert alike(replace(other_nodes, arrays={**other_nodes.arrays, name: array}), table) != said
