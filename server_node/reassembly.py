"""Updates that come in chunks: kept until the last chunk is here, joined, and then heard like any other.

What is kept depends on the order of the log alone and is chunk of the checkpoint. It is bounded whatever anybody sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.algorithms.registry import load_algorithm
from shoal.config.limits import UPDATE_BYTES_MAX
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.chunking import common_bytes, join_chunks
from shoal.protocol.messages import Update

WAITING_MAX = 4096
"""updates that may wait for their other chunks"""
WAITING_BYTES_MAX = 128 * 1024 * 1024
"""of their chunks so far: they are kept in memory and in every checkpoint"""
PATIENCE_CHUNKS = 4096
"""an update of which no chunk was among the newest so many may be dropped where room is needed"""


@dataclass
class Waiting:
    """An update of which some chunks are still to come."""

    sequence: int
    chunks: int
    common: bytes
    """digest of what all its chunks must share"""
    newest: int
    """the number, among all chunks that ever came, of the newest of its own"""
    values: dict[int, bytes] = field(default_factory=dict)
    """chunk -> as it travelled"""

    @property
    def size(self) -> int:
        """Bytes of the chunks that are here."""
        return sum(map(len, self.values.values()))


class Reassembly:
    """For each client and model the one update whose chunks are coming in: the one it spoke of last.

    A client says one update after the other and repeats them in order, so a chunk of another update means that nothing
    more will come of this one, or that all of it will come again.
    """

    def __init__(self, on_drop: Callable[[str, str, int, int, int], None]) -> None:
        """`on_drop` is told model, client, sequence and how many chunks came, of how many, of an update given up."""
        self._on_drop = on_drop
        self._waiting: dict[tuple[str, str], Waiting] = {}
        """the one whose newest chunk is oldest comes first"""
        self._size = 0
        self._came = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, chunk: Update, value: bytes) -> Update | None:
        """Take a checked chunk in, `value` as it travelled; the whole update once all chunks are here.

        A chunk that is here already changes nothing. Raises `MessageRejected` ("chunks", "oversized") for one that
        contradicts the others or has no room.
        """
        self._came += 1
        place = (chunk.model, chunk.client)
        table = load_algorithm(chunk.algorithm).update
        waiting = self._with(place, chunk, hashlib.sha256(common_bytes(chunk, table)).digest())
        here = waiting.values.get(chunk.chunk)
        if here is not None and here != value:
            raise MessageRejected("chunks", f"another chunk {chunk.chunk} of update {chunk.sequence} came before it")
        if here is None:
            self._make_room(place, waiting, len(value))
            waiting.values[chunk.chunk] = value
            self._size += len(value)
        waiting.newest = self._came
        self._waiting.pop(place, None)
        self._waiting[place] = waiting
        if len(waiting.values) < waiting.chunks:
            return None
        self._forget(place)
        values = (waiting.values[number] for number in range(1, waiting.chunks + 1))
        return join_chunks([Update.decode(value, Update.headers()) for value in values], table)

    def drop(self, model: str, client: str) -> None:
        """The client went on to its next update: what is missing of the one before will not come."""
        if waiting := self._forget((model, client)):
            self._on_drop(model, client, waiting.sequence, len(waiting.values), waiting.chunks)

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        waiting = [
            [model, client, each.newest, list(each.values.values())] for (model, client), each in self._waiting.items()
        ]
        return {"came": self._came, "waiting": waiting}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            self._came = state["came"]
            for model, client, newest, values in state["waiting"]:
                chunks = [(Update.decode(value, Update.headers()), value) for value in values]
                one = chunks[0][0]
                same = hashlib.sha256(common_bytes(one, load_algorithm(one.algorithm).update)).digest()
                kept = {chunk.chunk: value for chunk, value in chunks}
                self._waiting[model, client] = Waiting(one.sequence, one.chunks, same, newest, kept)
            self._size = sum(waiting.size for waiting in self._waiting.values())
        except (KeyError, IndexError, TypeError, ValueError, MessageRejected) as broken:
            raise InvalidState(f"what the checkpoint says of updates in chunks is damaged: {broken}") from None

    def _with(self, place: tuple[str, str], chunk: Update, same: bytes) -> Waiting:
        """What is here of this chunk's update."""
        waiting = self._waiting.get(place)
        if waiting is not None and waiting.sequence != chunk.sequence:
            self.drop(*place)
            waiting = None
        if waiting is None:
            return Waiting(chunk.sequence, chunk.chunks, same, self._came)
        if waiting.common != same:
            raise MessageRejected("chunks", f"it contradicts the chunks of update {chunk.sequence} that came before it")
        return waiting

    def _make_room(self, place: tuple[str, str], waiting: Waiting, size: int) -> None:
        """Raises `MessageRejected` unless there is room for a chunk of this size, if need be without those given up."""
        if waiting.size + size > UPDATE_BYTES_MAX:
            raise MessageRejected("oversized", f"the chunks of an update may have {UPDATE_BYTES_MAX} bytes together")
        one_more = place not in self._waiting
        while len(self._waiting) + one_more > WAITING_MAX or self._size + size > WAITING_BYTES_MAX:
            oldest, given_up = next(iter(self._waiting.items()))
            if oldest == place or given_up.newest >= self._came - PATIENCE_CHUNKS:
                raise MessageRejected("chunks", f"{len(self)} updates wait for their other chunks already: no room")
            self.drop(*oldest)

    def _forget(self, place: tuple[str, str]) -> Waiting | None:
        waiting = self._waiting.pop(place, None)
        self._size -= 0 if waiting is None else waiting.size
        return waiting
