"""Updates large enough to travel in chunks, for tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from shoal.algorithms.registry import load_algorithm
from shoal.config.limits import UPDATE_HEADERS_BYTES_MAX
from shoal.protocol.chunking import encode_update
from shoal.protocol.messages import Update
from tests.small_plant import an_update, plant

CONTRACT = plant()


def in_chunks(update: Update, nodes_each: int = 9) -> list[Update]:
    """The update in chunks of at most so many nodes, as a topic with a small limit makes them."""
    empty = {name: array[:0] for name, array in update.arrays.items()}
    node = sum(array[:1].nbytes for array in update.arrays.values())
    record = (
        UPDATE_HEADERS_BYTES_MAX
        + len(replace(update, arrays=empty).encode())
        + 32
        + nodes_each * node
    )
    chunks = [
        chunk.update
        for chunk in encode_update(update, load_algorithm(update.algorithm).update, record)
    ]
    assert len(chunks) > 2
    return chunks


@cache
def large(client: str, sequence: int = 1) -> Update:
    return an_update(CONTRACT, client, sequence, rows=300)
