"""Updates that come in parts: kept until the last part is here, joined, and then heard like any other.

What is kept depends on the order of the log alone and is part of the checkpoint. It is bounded whatever anybody sends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.algorithms.registry import load_algorithm
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.chunking import UPDATE_BYTES_MAX, alike, joined
from shoal.protocol.messages import Update

WAITING_MAX = 4096
"""updates that may wait for their other parts"""
WAITING_BYTES_MAX = 128 * 1024 * 1024
"""of their parts so far: they are kept in memory and in every checkpoint"""
PATIENCE_PARTS = 4096
"""an update of which no part was among the newest so many may be dropped where room is needed"""


@dataclass
class Waiting:
    """An update of which some parts are still to come."""

    sequence: int
    parts: int
    alike: bytes
    """digest of what all its parts must say alike"""
    newest: int
    """the number, among all parts that ever came, of the newest of its own"""
    values: dict[int, bytes] = field(default_factory=dict)
    """part -> as it travelled"""

    @property
    def size(self) -> int:
        """Bytes of the parts that are here."""
        return sum(map(len, self.values.values()))


class Reassembly:
    """For each client and model the one update whose parts are coming in: the one it spoke of last.

    A client says one update after the other and repeats them in order, so a part of another update means that nothing
    more will come of this one, or that all of it will come again.
    """

    def __init__(self, on_drop: Callable[[str, str, int, int, int], None]) -> None:
        """`on_drop` is told model, client, sequence and how many parts came, of how many, of an update given up."""
        self._on_drop = on_drop
        self._waiting: dict[tuple[str, str], Waiting] = {}
        """the one whose newest part is oldest comes first"""
        self._size = 0
        self._came = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, part: Update, value: bytes) -> Update | None:
        """Take a checked part in, `value` as it travelled; the whole update once all parts are here.

        A part that is here already changes nothing. Raises `MessageRejected` ("parts", "oversized") for one that
        contradicts the others or has no room.
        """
        self._came += 1
        place = (part.model, part.client)
        table = load_algorithm(part.algorithm).update
        waiting = self._with(place, part, hashlib.sha256(alike(part, table)).digest())
        here = waiting.values.get(part.part)
        if here is not None and here != value:
            raise MessageRejected("parts", f"another part {part.part} of update {part.sequence} came before it")
        if here is None:
            self._make_room(place, waiting, len(value))
            waiting.values[part.part] = value
            self._size += len(value)
        waiting.newest = self._came
        self._waiting.pop(place, None)
        self._waiting[place] = waiting
        if len(waiting.values) < waiting.parts:
            return None
        self._forget(place)
        values = (waiting.values[number] for number in range(1, waiting.parts + 1))
        return joined([Update.decode(value, Update.headers()) for value in values], table)

    def drop(self, model: str, client: str) -> None:
        """The client went on to its next update: what is missing of the one before will not come."""
        if waiting := self._forget((model, client)):
            self._on_drop(model, client, waiting.sequence, len(waiting.values), waiting.parts)

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
                parts = [(Update.decode(value, Update.headers()), value) for value in values]
                one = parts[0][0]
                same = hashlib.sha256(alike(one, load_algorithm(one.algorithm).update)).digest()
                kept = {part.part: value for part, value in parts}
                self._waiting[model, client] = Waiting(one.sequence, one.parts, same, newest, kept)
            self._size = sum(waiting.size for waiting in self._waiting.values())
        except (KeyError, IndexError, TypeError, ValueError, MessageRejected) as broken:
            raise InvalidState(f"what the checkpoint says of updates in parts is damaged: {broken}") from None

    def _with(self, place: tuple[str, str], part: Update, same: bytes) -> Waiting:
        """What is here of this part's update."""
        waiting = self._waiting.get(place)
        if waiting is not None and waiting.sequence != part.sequence:
            self.drop(*place)
            waiting = None
        if waiting is None:
            return Waiting(part.sequence, part.parts, same, self._came)
        if waiting.alike != same:
            raise MessageRejected("parts", f"it contradicts the parts of update {part.sequence} that came before it")
        return waiting

    def _make_room(self, place: tuple[str, str], waiting: Waiting, size: int) -> None:
        """Raises `MessageRejected` unless there is room for a part of this size, if need be without those given up."""
        if waiting.size + size > UPDATE_BYTES_MAX:
            raise MessageRejected("oversized", f"the parts of an update may have {UPDATE_BYTES_MAX} bytes together")
        one_more = place not in self._waiting
        while len(self._waiting) + one_more > WAITING_MAX or self._size + size > WAITING_BYTES_MAX:
            oldest, given_up = next(iter(self._waiting.items()))
            if oldest == place or given_up.newest >= self._came - PATIENCE_PARTS:
                raise MessageRejected("parts", f"{len(self)} updates wait for their other parts already: no room")
            self.drop(*oldest)

    def _forget(self, place: tuple[str, str]) -> Waiting | None:
        waiting = self._waiting.pop(place, None)
        self._size -= 0 if waiting is None else waiting.size
        return waiting
