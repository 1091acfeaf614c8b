"""An update of any algorithm, split into chunks and joined again: nothing is lost, each chunk fits
its record."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.algorithms.registry import algorithm_names, load_algorithm
from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.config.limits import UPDATE_BYTES_MAX, UPDATE_HEADERS_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.chunking import common_bytes, encode_update, join_chunks
from shoal.protocol.messages import CHUNKS_MAX, Update
from shoal.transports.base import size_of
from tests.examples import examples
from tests.small_plant import an_update, nodes_at, plant

NAMED = an_update(plant(), rows=2)
LONGEST_NAME = "a" * 64
SLACK = 100
"""bytes that may be left free in a record because lengths are not counted to the byte"""


def arrays_of(name: str, sizes: dict[str, int], seed: int = 0) -> Arrays:
    """Arrays as the table of this algorithm declares them, of any values; a size that is not given
    is 1."""
    rng = np.random.default_rng(seed)

    def one(spec: ArraySpec) -> NDArray[Any]:
        shape = tuple(size if isinstance(size, int) else sizes.get(size, 1) for size in spec.shape)
        return rng.integers(1, 2**40, shape).astype(spec.dtype)

    return {array: one(spec) for array, spec in load_algorithm(name).update.items()}


def update_of(name: str, arrays: Arrays) -> Update:
    return replace(NAMED, algorithm=name, arrays=arrays)


def record_bytes(chunk: Update) -> int:
    headers = (*Update.headers(), ("signature", bytes(32)))
    return size_of("plant.updates", chunk.encode(), chunk.model.encode(), headers)


# Algorithms differ in the table of their arrays alone, so each needs few of the sizes.
@settings(max_examples=examples(25))
@pytest.mark.parametrize("name", algorithm_names())
@given(
    sizes=st.fixed_dictionaries({size: st.integers(0, 300) for size in "nkpcq"}),
    d=st.integers(1, 40),
    record=st.integers(3000, 60_000),
    seed=st.integers(0, 99),
)
def test_chunks_joined_are_the_update_to_the_bit_and_each_fits_its_record(
    name: str, sizes: dict[str, int], d: int, record: int, seed: int
) -> None:
    update = update_of(name, arrays_of(name, sizes | {"d": d, "m": d * (d + 1) // 2}, seed))
    table = load_algorithm(name).update
    around = len(replace(update, arrays={**update.arrays, **cut(update, 0, 0)}).encode())
    node = sum(array[:1].nbytes for array in cut(update, 0, 1).values())
    if (
        around + node > record - UPDATE_HEADERS_BYTES_MAX - SLACK
        and len(update.encode()) > record - UPDATE_HEADERS_BYTES_MAX - SLACK
    ):
        # It may just fit or just not; what is certain is that it is not cut wrongly.
        with suppress(MessageRejected):
            assert all(
                record_bytes(chunk.update) <= record
                for chunk in encode_update(update, table, record)
            )
        return
    encoded = encode_update(update, table, record)
    chunks = [chunk.update for chunk in encoded]
    assert [chunk.value for chunk in encoded] == [chunk.encode() for chunk in chunks]
    assert [(chunk.chunk, chunk.chunks) for chunk in chunks] == [
        (n + 1, len(chunks)) for n in range(len(chunks))
    ]
    assert all(record_bytes(chunk) <= record for chunk in chunks)
    assert len({common_bytes(chunk, table) for chunk in chunks}) == 1
    again = [Update.decode(chunk.encode(), Update.headers()) for chunk in chunks]
    assert join_chunks(again, table).encode() == update.encode()
    assert len(chunks) == 1 or len(update.encode()) > record - UPDATE_HEADERS_BYTES_MAX - SLACK, (
        "it is cut only where it must be"
    )


def cut(update: Update, first: int, end: int) -> Arrays:
    """What is per node, of these nodes."""
    table = load_algorithm(update.algorithm).update
    return {name: array[first:end] for name, array in update.arrays.items() if table[name].per_node}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in algorithm_names()
        if any(spec.per_node for spec in load_algorithm(name).update.values())
    ],
)
def test_what_is_not_cut_is_of_one_size_whatever_the_number_of_nodes(name: str) -> None:
    table = load_algorithm(name).update
    assert any(spec.per_node for spec in table.values())
    nodes = {spec.shape[0] for spec in table.values() if spec.per_node}
    assert all(spec.per_node or not nodes.intersection(spec.shape) for spec in table.values())


def test_the_first_chunk_has_the_nodes_that_won_most_often() -> None:
    update = an_update(plant(), rows=400)
    few_nodes = (
        len(replace(update, arrays=cut(update, 0, 5)).encode()) + UPDATE_HEADERS_BYTES_MAX + 50
    )
    chunks = [
        chunk.update for chunk in encode_update(update, load_algorithm("fcac").update, few_nodes)
    ]
    assert len(chunks) > 3
    counts = [chunk.arrays["count"] for chunk in chunks]
    assert all(before.min() >= after.max() for before, after in pairwise(counts))


def test_a_chunk_goes_with_the_longest_names_and_a_signature() -> None:
    update = replace(
        an_update(plant(), rows=400),
        model=LONGEST_NAME,
        client=LONGEST_NAME,
        federation=LONGEST_NAME,
    )
    assert record_bytes(update) - len(update.encode()) <= UPDATE_HEADERS_BYTES_MAX


def test_what_cannot_travel_even_in_chunks_is_refused_where_it_is_made() -> None:
    table = load_algorithm("fcac").update
    wide = update_of("fcac", nodes_at(np.zeros((2, 300))))
    with pytest.raises(MessageRejected, match=r"oversized: a node takes 2408 bytes"):
        encode_update(wide, table, 3000)
    n = UPDATE_BYTES_MAX // 24
    large = update_of("fcac", nodes_at(np.zeros((n, 2))))
    with pytest.raises(MessageRejected, match=r"oversized.*fewer nodes"):
        encode_update(large, table, 960 * 1024)
    n = CHUNKS_MAX * 1000
    with pytest.raises(MessageRejected, match=f"limits are {CHUNKS_MAX} chunks"):
        encode_update(
            update_of("fcac", nodes_at(np.zeros((n, 1)))),
            table,
            1700,
        )


def test_parts_that_differ_in_anything_but_their_nodes_are_not_alike() -> None:
    table = load_algorithm("gmm").update
    chunk = update_of("gmm", arrays_of("gmm", {"k": 3, "c": 3, "d": 2, "m": 3}))
    other_nodes = replace(
        chunk, chunk=2, chunks=1 + chunk.chunk, arrays={**chunk.arrays, **cut(chunk, 1, 3)}
    )
    common = common_bytes(replace(chunk, chunks=2), table)
    assert common_bytes(other_nodes, table) == common
    for change in (
        {"readings": 7},
        {"made_at": 2e9},
        {"chunks": 3},
        {"sequence": 9},
        {"newest_reading_at": None},
    ):
        assert common_bytes(replace(other_nodes, **change), table) != common
    for name, array in {"rows": np.array([9.0]), "second": np.zeros((3, 4))}.items():
        assert (
            common_bytes(replace(other_nodes, arrays={**other_nodes.arrays, name: array}), table)
            != common
        )
