"""Chunking: an update too large for one record travels as several, each checked by itself.

Arrays with one entry for each node (`ArraySpec.per_node`) are cut between nodes, in their order;
everything else is the same in every chunk. Joined again, the chunks are the update as it was, to
the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.config.limits import MESSAGE_BYTES_MAX, UPDATE_BYTES_MAX, UPDATE_HEADERS_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.codec import pack
from shoal.protocol.messages import CHUNKS_MAX, Update

_LENGTH_BYTES = 8
"""more than a packed length or number grows by between an empty update and a full one"""

Table = Mapping[str, ArraySpec]


class EncodedChunk(NamedTuple):
    """An update, or one chunk of it, and the same as it travels."""

    update: Update
    value: bytes


def encode_update(update: Update, table: Table, record_bytes_max: int) -> list[EncodedChunk]:
    """The update itself if its record has at most `record_bytes_max` bytes, else chunks of it.

    They are the fewest that have. Raises `MessageRejected` ("oversized") for an update that is too
    large even in chunks.
    """
    room = min(record_bytes_max - UPDATE_HEADERS_BYTES_MAX, MESSAGE_BYTES_MAX)
    if sum(array.nbytes for array in update.arrays.values()) <= room:
        # What is too large for a message is cut.
        with suppress(MessageRejected):
            value = update.encode()
            if len(value) <= room:
                return [EncodedChunk(update, value)]
    return [EncodedChunk(chunk, chunk.encode()) for chunk in _chunks(update, table, room)]


def _chunks(update: Update, table: Table, room: int) -> list[Update]:
    """The fewest chunks of an update with at most `room` bytes each. Raises `MessageRejected`."""
    cut = {name: array for name, array in update.arrays.items() if table[name].per_node}
    # Packed and not estimated: the limit of a record must hold to the byte.
    empty = replace(update, arrays=_between(update.arrays, table, 0, 0))
    fixed = len(empty.encode()) + _LENGTH_BYTES * (len(cut) + 2)
    variable = sum(array.nbytes for array in cut.values())
    node = sum(array[:1].nbytes for array in cut.values())
    nodes = max((len(array) for array in cut.values()), default=0)
    nodes_each = (room - fixed) // node if node else 0
    if nodes_each < 1:
        detail = (
            f"a node takes {node} bytes and the rest of the update {fixed}, a record has room for "
            f"{room}"
        )
        raise MessageRejected("oversized", f"{detail}; raise the limit of the topic of updates")
    # Rounded up: // rounds towards minus infinity.
    chunks = -(-nodes // nodes_each)
    if chunks > CHUNKS_MAX or chunks * fixed + variable > UPDATE_BYTES_MAX:
        detail = (
            f"{chunks} chunks of {room} bytes; the limits are {CHUNKS_MAX} chunks and "
            f"{UPDATE_BYTES_MAX} bytes"
        )
        raise MessageRejected("oversized", f"{detail}; let its model keep fewer nodes")
    parts = []
    for n in range(chunks):
        arrays = _between(update.arrays, table, n * nodes_each, (n + 1) * nodes_each)
        parts.append(replace(update, arrays=arrays, chunk=n + 1, chunks=chunks))
    return parts


def common_bytes(chunk: Update, table: Table) -> bytes:
    """Common part of all chunks of an update, as bytes.

    It is all but the chunk's number and the entries of its nodes.
    """
    shared: dict[str, Any] = {field.name: getattr(chunk, field.name) for field in fields(chunk)}
    # Its number is all in which chunks of one update may differ, besides their nodes.
    del shared["chunk"]
    forms: dict[str, Any] = {}
    for name, array in chunk.arrays.items():
        forms[name] = list(array.shape[1:]) if table[name].per_node else array
    return pack(shared | {"arrays": forms})


def join_chunks(chunks: Sequence[Update], table: Table) -> Update:
    """The update that was split; `chunks` are all of them, in order, with equal `common_bytes`."""
    arrays = dict(chunks[0].arrays)
    for name in arrays:
        if table[name].per_node:
            arrays[name] = np.concatenate([chunk.arrays[name] for chunk in chunks])
    return replace(chunks[0], arrays=arrays, chunk=1, chunks=1)


def _between(arrays: Arrays, table: Table, first: int, end: int) -> Arrays:
    """The arrays with the nodes from `first` up to `end`, and all of those without nodes."""
    cut = {}
    for name, array in arrays.items():
        cut[name] = array[first:end] if table[name].per_node else array
    return cut
