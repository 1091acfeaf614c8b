"""Reassembly of updates that travel in chunks: chunks are kept until the last one has come, and
then joined.

What is kept depends on the order of the log alone and is part of the checkpoint. It is bounded
whatever is sent.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from shoal.config.limits import MIB, UPDATE_BYTES_MAX
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.chunking import common_bytes, join_chunks
from shoal.protocol.codec import StoredPart
from shoal.protocol.messages import Update
from shoal.protocol.regions import RegionUpdate, update_arrays
from shoal.saved_state import SavedState, require, state_type

WAITING_UPDATES_MAX = 4096
"""updates that may wait for their other chunks"""
WAITING_BYTES_MAX = 128 * MIB
"""bytes of their chunks, which are kept in memory and in every checkpoint"""
CLIENT_BYTES_MAX = UPDATE_BYTES_MAX
"""bytes of the chunks of one client, of all models together"""
# Counted in chunks and not in seconds, so that reading the log again drops the same updates.
STALE_AFTER_CHUNKS = 4096
"""newest chunks; an update that has none among them may be dropped where room is needed"""


@state_type
class WaitingState(SavedState):
    """An update that waits for some of its chunks, as it is saved."""

    model: str
    client: str
    newest: int
    of_region: bool
    values: list[bytes]
    """chunks, as they travelled"""

    def check(self) -> None:
        require(bool(self.values), "an update waits for chunks, and has none")


@state_type
class ReassemblyState(SavedState):
    """Saved state of `Reassembly`."""

    received: int
    waiting: list[WaitingState]


@dataclass
class _WaitingUpdate:
    """An update that waits for some of its chunks."""

    sequence: int
    chunks: int
    common: bytes
    """digest of what is the same in all its chunks"""
    newest: int
    """position, among all chunks ever received, of the newest of its own"""
    of_region: bool = False
    """whether it is an update of a region"""
    values: dict[int, StoredPart] = field(default_factory=dict)
    """chunk -> as it travelled; a checkpoint stores each once"""

    @property
    def size(self) -> int:
        """Bytes of the chunks that are here."""
        return sum(len(part.value) for part in self.values.values())


class IncompleteUpdate(NamedTuple):
    """An update given up: only some of its chunks came, and no more will."""

    model: str
    client: str
    sequence: int
    chunks: int
    """chunks that came"""
    wanted: int
    """chunks that it has"""


class Reassembly:
    """Updates whose chunks are coming in: for each client and model one, the newest.

    A client sends one update after the other and repeats them in order, so a chunk of another
    update means that nothing more will come of this one, or that all of it will come again.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], _WaitingUpdate] = {}
        """(model, client) -> update; the one whose newest chunk is oldest comes first"""
        self._size = 0
        self._size_of: Counter[str] = Counter()
        """client -> bytes of its chunks"""
        self._received = 0
        self._incomplete: list[IncompleteUpdate] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, chunk: Update, value: bytes) -> Update | None:
        """Keep a validated chunk, `value` as it travelled; the whole update once all chunks are
        here.

        A chunk that is here already changes nothing. Raises `MessageRejected` ("chunks",
        "oversized") for one that contradicts the others or has no room.
        """
        self._received += 1
        key = (chunk.model, chunk.client)
        table = update_arrays(chunk)
        waiting = self._matching(key, chunk, hashlib.sha256(common_bytes(chunk, table)).digest())
        here = waiting.values.get(chunk.chunk)
        if here is not None and here.value != value:
            raise MessageRejected(
                "chunks", f"another chunk {chunk.chunk} of update {chunk.sequence} came before it"
            )
        if here is None:
            self._make_room(key, waiting, len(value))
            waiting.values[chunk.chunk] = StoredPart(value)
            self._count(chunk.client, len(value))
        waiting.newest = self._received
        # Out and in again: the update whose newest chunk is oldest must stay the first one.
        self._waiting.pop(key, None)
        self._waiting[key] = waiting
        if len(waiting.values) < waiting.chunks:
            return None
        self._remove(key)
        form = type(chunk)
        chunks: list[Update] = []
        for number in range(1, waiting.chunks + 1):
            chunks.append(form.decode(waiting.values[number].value, form.headers()))
        return join_chunks(chunks, table)

    def drop(self, model: str, client: str) -> None:
        """Give up the update that waits, if one does: its client has gone on to its next one."""
        waiting = self._remove((model, client))
        if waiting is not None:
            arrived = len(waiting.values)
            self._incomplete.append(
                IncompleteUpdate(model, client, waiting.sequence, arrived, waiting.chunks)
            )

    def clear(self) -> None:
        """Drop every chunk: all of them will be read again."""
        self._waiting = {}
        self._size = 0
        self._size_of.clear()

    def collect_incomplete(self) -> list[IncompleteUpdate]:
        """The updates given up since the last call."""
        collected = self._incomplete
        self._incomplete = []
        return collected

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        waiting: list[WaitingState] = []
        for (model, client), update in self._waiting.items():
            waiting.append(
                WaitingState(
                    model=model,
                    client=client,
                    newest=update.newest,
                    of_region=update.of_region,
                    # A stored part comes back as its bytes.
                    values=cast("list[bytes]", list(update.values.values())),
                )
            )
        return ReassemblyState(received=self._received, waiting=waiting).saved()

    def restore(self, state: Any) -> None:
        """Become the saved one. Raises `InvalidState`."""
        saved = ReassemblyState.read(state)
        self._received = saved.received
        for entry in saved.waiting:
            try:
                waiting = _restored(entry)
            except (ValueError, MessageRejected) as damaged:
                raise InvalidState(
                    f"the checkpoint's updates in chunks are damaged: {damaged}"
                ) from None
            self._waiting[entry.model, entry.client] = waiting
            self._count(entry.client, waiting.size)

    def _matching(self, key: tuple[str, str], chunk: Update, common: bytes) -> _WaitingUpdate:
        """The waiting update that this chunk belongs to, or a new one."""
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.sequence != chunk.sequence:
            self.drop(*key)
            waiting = None
        if waiting is None:
            of_region = chunk.TYPE == RegionUpdate.TYPE
            return _WaitingUpdate(chunk.sequence, chunk.chunks, common, self._received, of_region)
        if waiting.common != common:
            raise MessageRejected(
                "chunks",
                f"it contradicts the chunks of update {chunk.sequence} that came before it",
            )
        return waiting

    def _make_room(self, key: tuple[str, str], waiting: _WaitingUpdate, size: int) -> None:
        """Make room for a chunk of this size.

        A client makes room for itself; then stale updates are dropped, then those of the client
        with the most bytes. Raises `MessageRejected` where that is this client, and for an update
        that is too large.
        """
        # Before others are dropped for it: an update that can never be whole must not cost them
        # theirs.
        if waiting.size + size > UPDATE_BYTES_MAX:
            raise MessageRejected(
                "oversized", f"the chunks of an update may have {UPDATE_BYTES_MAX} bytes together"
            )
        client = key[1]
        while self._size_of[client] + size > CLIENT_BYTES_MAX:
            self.drop(*self._oldest_of(client, but=key))
        updates_max = WAITING_UPDATES_MAX
        if key not in self._waiting:
            # One place is for this update itself.
            updates_max -= 1
        while len(self._waiting) > updates_max or self._size + size > WAITING_BYTES_MAX:
            oldest, update = next(iter(self._waiting.items()))
            if oldest != key and update.newest < self._received - STALE_AFTER_CHUNKS:
                self.drop(*oldest)
                continue
            # Of equal sizes the client with the later name: the same one in every run over the log.
            largest = max(self._size_of, key=lambda name: (self._size_of[name], name))
            # A client may not drop another's chunks and then have more than that one had: with many
            # updates of its own, it would drive out all others.
            is_largest = largest == client or (
                self._size_of[largest] <= self._size_of[client] + size
            )
            if is_largest or len(self._waiting) > updates_max:
                raise MessageRejected(
                    "chunks", f"{len(self)} updates wait for their other chunks already: no room"
                )
            self.drop(*self._oldest_of(largest))

    def _oldest_of(self, client: str, but: tuple[str, str] | None = None) -> tuple[str, str]:
        """The update of a client, other than `but`, whose newest chunk is oldest."""
        return next(key for key in self._waiting if key[1] == client and key != but)

    def _remove(self, key: tuple[str, str]) -> _WaitingUpdate | None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self._count(key[1], -waiting.size)
        return waiting

    def _count(self, client: str, size: int) -> None:
        self._size += size
        self._size_of[client] += size
        if not self._size_of[client]:
            del self._size_of[client]


def _restored(saved: WaitingState) -> _WaitingUpdate:
    """The waiting update of saved chunks. Raises `MessageRejected` or `ValueError`."""
    form = RegionUpdate if saved.of_region else Update
    chunks = [form.decode(value, form.headers()) for value in saved.values]
    first = chunks[0]
    common = hashlib.sha256(common_bytes(first, update_arrays(first))).digest()
    waiting = _WaitingUpdate(first.sequence, first.chunks, common, saved.newest, saved.of_region)
    for chunk, value in zip(chunks, saved.values, strict=True):
        waiting.values[chunk.chunk] = StoredPart(value)
    return waiting
