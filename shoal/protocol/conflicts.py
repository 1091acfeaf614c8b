"""Conflicts: updates with the number of another one, and clients that publish from two processes.

A server refuses an update of a client that has the sequence number of another update of it.
Either the client runs from a copy of its folder that is older than what it has published, or two
machines run under one name. What the later one has learnt is not in the model. The server publishes
the newest conflicts, and a client that finds itself among them when it starts stops and says what
to do.

A conflict shows only where both processes publish under one number. So each process draws an
*incarnation* when it starts, which is in a header of all its updates, and in no digest and no
model. The log has the incarnations of a client in the order of its starts: where an older one
publishes something new after a newer one, two run at once. The server publishes that beside the
conflicts, and a running client that is one of the two stops. Both headers are marked with the
client's noise key, so that nobody else can stop it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from shoal.algorithms.streaming import ArraySpec
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.checks import is_count, is_name, require
from shoal.protocol.chunking import common_bytes
from shoal.protocol.messages import Envelope, Update
from shoal.transports.base import Record

CONFLICTS_KEY: Final = b"@conflicts"
"""the key of the list in the topic of snapshots; a model cannot have this name"""
CONFLICTS_MAX: Final = 1000
"""most entries of a published list: the newest of each model"""
# A client keeps many of them; one that is equal by chance would hide a conflict once in 2^64.
DIGEST_BYTES: Final = 8
AUTHOR_HEADER = "author"
INCARNATION_HEADER = "incarnation"
INCARNATION_BYTES = 8
VALUE_BYTES = 16
AUTHOR_BYTES = 8


class Mark(NamedTuple):
    """Mark of its author in the headers of an update; only the client itself can check it."""

    incarnation: bytes
    """random bytes of the process"""
    value: bytes
    """digest of the value of the record"""
    author: bytes
    """BLAKE2b of both under a secret of the client"""

    def packed(self) -> bytes:
        """The parts, one after the other."""
        return b"".join(self)


MARK_BYTES: Final = INCARNATION_BYTES + VALUE_BYTES + AUTHOR_BYTES


def make_mark(key: bytes, incarnation: bytes, value: bytes) -> Mark:
    """The mark of a process for a record with this value; `key` is the client's secret."""
    return _mark(key, incarnation, hashlib.blake2b(value, digest_size=VALUE_BYTES).digest())


def _mark(key: bytes, incarnation: bytes, digest: bytes) -> Mark:
    # Under a secret: with marks that others could make, this client would seem to publish from two
    # processes.
    author = hashlib.blake2b(incarnation + digest, digest_size=AUTHOR_BYTES, key=key).digest()
    return Mark(incarnation, digest, author)


def mark_in(record: Record) -> Mark | None:
    """The mark of a record; None for one without, and for headers that are none."""
    headers = dict(record.headers)
    incarnation = headers.get(INCARNATION_HEADER, b"")
    author = headers.get(AUTHOR_HEADER, b"")
    if record.value is None or len(incarnation) != INCARNATION_BYTES or len(author) != AUTHOR_BYTES:
        return None
    digest = hashlib.blake2b(record.value, digest_size=VALUE_BYTES).digest()
    return Mark(incarnation, digest, author)


def is_marked_by(key: bytes, packed: bytes) -> bool:
    """Whether the client with this secret has made a mark."""
    incarnation = packed[:INCARNATION_BYTES]
    digest = packed[INCARNATION_BYTES:-AUTHOR_BYTES]
    return _mark(key, incarnation, digest).packed() == packed


def content_digest(update: Update, value: bytes, table: Mapping[str, ArraySpec]) -> bytes:
    """8 bytes that differ for updates of different content; the same for all chunks of one update.

    `value` is the update, or one chunk of it, as it travels; `table` that of its algorithm's
    update.
    """
    if update.chunks > 1:
        value = common_bytes(update, table)
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).digest()


class Conflict(NamedTuple):
    """The newest update of one client and model that was refused because of its number."""

    model: str
    client: str
    sequence: int
    digest: bytes
    """digest of the content that was refused"""


class Copy(NamedTuple):
    """A client whose older process has published an update after a newer one began to."""

    model: str
    client: str
    sequence: int
    digest: bytes
    """digest of the content of that update"""
    older: bytes
    """its mark: incarnation, digest of the value and `author`, together 32 bytes"""
    newer: bytes
    """the mark of the newer one"""


@dataclass(frozen=True)
class ConflictList(Envelope):
    """The newest conflict of each client, and the clients that publish from two processes."""

    TYPE: ClassVar[str] = "conflicts"

    federation: str
    entries: list[list[Any]]
    """a `Conflict` each, as lists"""
    copied: list[list[Any]]
    """a `Copy` each, as lists"""

    def __post_init__(self) -> None:
        require(is_name(self.federation), "malformed", "federation")
        require(
            isinstance(self.entries, list) and all(map(_is_entry, self.entries)),
            "malformed",
            "entries",
        )
        require(
            isinstance(self.copied, list) and all(map(_is_copy, self.copied)), "malformed", "copied"
        )

    @property
    def conflicts(self) -> list[Conflict]:
        """The entries by name."""
        return [Conflict(*entry) for entry in self.entries]

    @property
    def copies(self) -> list[Copy]:
        """The clients that publish from two processes, by name."""
        return [Copy(*entry) for entry in self.copied]


def _is_entry(value: object) -> bool:
    if not (isinstance(value, list) and len(value) == len(Conflict._fields)):
        return False
    model, client, sequence, digest = value
    return is_name(model) and is_name(client) and is_count(sequence) and isinstance(digest, bytes)


def _is_copy(value: object) -> bool:
    if not isinstance(value, list) or len(value) != len(Copy._fields):
        return False
    # Its first fields are those of a conflict; two marks follow.
    of_conflict = len(Conflict._fields)
    marks = value[of_conflict:]
    are_marks = all(isinstance(mark, bytes) and len(mark) == MARK_BYTES for mark in marks)
    return are_marks and _is_entry(value[:of_conflict])


DIGESTS_MAX = 64
"""number of digests that a client keeps for each model, of its newest updates"""


class PublishedDigests:
    """Digests of the newest updates of a client, by model and sequence number."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, bytes]] = {}

    def add(self, model: str, sequence: int, digest: bytes) -> None:
        """Add an update that is about to be published."""
        known = self._known.setdefault(model, {})
        known[sequence] = digest
        if len(known) > DIGESTS_MAX:
            del known[next(iter(known))]

    def was_refused(self, model: str, sequence: int, digest: bytes) -> bool:
        """Whether the update that the server has refused is this client's.

        Or one beyond all that it has published: a later state of this folder has made it.
        """
        known = self._known.get(model, {})
        return known.get(sequence) == digest or sequence > max(known, default=0)

    def is_unknown(self, model: str, sequence: int, digest: bytes) -> bool:
        """Whether an update of this content cannot have been published from this folder."""
        known = self._known.get(model, {})
        return sequence > max(known, default=0) or (sequence in known and known[sequence] != digest)

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        # Lists of pairs would cost more than all else in the checkpoint of a client without labels.
        entries = []
        for model, known in sorted(self._known.items()):
            numbers = np.array(list(known), dtype=np.int64)
            entries.append([model, numbers, b"".join(known.values())])
        return entries

    def restore(self, state: Any) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        known = {}
        try:
            for model, numbers, digests in state:
                known[model] = _by_number(numbers.tolist(), digests)
        except (AttributeError, TypeError, ValueError) as broken:
            raise InvalidState(
                f"the checkpoint's digests of updates are damaged: {broken}"
            ) from None
        self._known = known


def _by_number(numbers: list[int], digests: bytes) -> dict[int, bytes]:
    """The digest of each number. Raises `ValueError` unless there are as many."""
    starts = range(0, len(digests), DIGEST_BYTES)
    parts = [digests[start : start + DIGEST_BYTES] for start in starts]
    return dict(zip(numbers, parts, strict=True))


def check_no_conflict(record: Record | None, client: str, published: PublishedDigests) -> None:
    """Raises `InvalidState` with what to do if the server has refused an update of this client.

    `record`: the newest of the key `CONFLICTS_KEY` in the topic of snapshots, if there is one.
    """
    if record is None:
        return
    try:
        conflicts = ConflictList.decode(record.value, record.headers).conflicts
    except MessageRejected:
        # Not from a server of this version; it must not keep a client from starting.
        return
    for conflict in conflicts:
        if conflict.client != client:
            continue
        if not published.was_refused(conflict.model, conflict.sequence, conflict.digest):
            continue
        raise InvalidState(
            f"the server has refused update {conflict.sequence} of client {client} for model "
            f"{conflict.model}: it "
            "has another update with this number. This folder is older than what the client has "
            "published, or another machine runs under this name. Restore the newest copy of the "
            "folder, or start under a new client name; what the server has refused is in its "
            "rejected messages"
        )
