"""Updates too large for one record travel in parts, each a message that can be checked by itself.

The arrays that hold one entry for each node (`ArraySpec.per_node`) are cut between nodes, in the order they are in;
everything else is the same in every part. Joined again, they are the update as it was, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from shoal.algorithms.streaming import Arrays, ArraySpec
from shoal.errors import MessageRejected
from shoal.protocol.codec import pack
from shoal.protocol.messages import MESSAGE_BYTES_MAX, PARTS_MAX, Update

UPDATE_BYTES_MAX = 64 * 1024 * 1024
"""of all parts of an update together"""
HEADERS_BYTES = 1024
"""of a record of updates: what its key and its headers may take"""
_LENGTH_BYTES = 8
"""more than a length or a number takes that is larger than it was in an empty update"""

Table = Mapping[str, ArraySpec]


def split(update: Update, table: Table, record_bytes_max: int) -> list[Update]:
    """The update as one message if its record fits into `record_bytes_max`, else in as few parts as do.

    Raises `MessageRejected` ("oversized") for one that cannot travel even so.
    """
    room = min(record_bytes_max - HEADERS_BYTES, MESSAGE_BYTES_MAX)
    cut = {name: array for name, array in update.arrays.items() if table[name].per_node}
    around = len(replace(update, arrays=_between(update.arrays, table, 0, 0)).encode()) + _LENGTH_BYTES * (len(cut) + 2)
    inside = sum(array.nbytes for array in cut.values())
    if around + inside <= room:
        return [update]
    node = sum(array[:1].nbytes for array in cut.values())
    nodes = max((len(array) for array in cut.values()), default=0)
    nodes_each = (room - around) // node if node else 0
    if nodes_each < 1:
        detail = f"a node takes {node} bytes and what goes with it {around}, a record takes {record_bytes_max}"
        raise MessageRejected("oversized", f"{detail}; raise the limit of the topic of updates")
    parts = -(-nodes // nodes_each)
    if parts > PARTS_MAX or parts * around + inside > UPDATE_BYTES_MAX:
        detail = f"{parts} parts of at most {room} bytes; at most {PARTS_MAX} parts and {UPDATE_BYTES_MAX} bytes travel"
        raise MessageRejected("oversized", f"{detail}; let its model keep fewer nodes")
    return [
        replace(
            update, arrays=_between(update.arrays, table, n * nodes_each, (n + 1) * nodes_each), part=n + 1, parts=parts
        )
        for n in range(parts)
    ]


def alike(part: Update, table: Table) -> bytes:
    """What all parts of an update say alike, as bytes: all but which part it is and what it says of its nodes."""
    said: dict[str, Any] = {field.name: getattr(part, field.name) for field in fields(part)}
    del said["part"]
    forms = {name: list(array.shape[1:]) if table[name].per_node else array for name, array in part.arrays.items()}
    return pack(said | {"arrays": forms})


def joined(parts: Sequence[Update], table: Table) -> Update:
    """All parts of an update, which must be `alike`, in their order -> the update before it was cut."""
    arrays = {
        name: np.concatenate([part.arrays[name] for part in parts]) if table[name].per_node else array
        for name, array in parts[0].arrays.items()
    }
    return replace(parts[0], arrays=arrays, part=1, parts=1)


def _between(arrays: Arrays, table: Table, first: int, end: int) -> Arrays:
    return {name: array[first:end] if table[name].per_node else array for name, array in arrays.items()}
