"""Conflicts: updates that a server refused because another update of that client has the same sequence number.

Either the client runs from a copy of its folder that is older than what it has published, or two machines run under one
name. What the later one has learnt is not in the model. The server publishes the newest conflicts, and a client that
finds itself among them when it starts stops and says what to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from shoal.algorithms.streaming import ArraySpec
from shoal.protocol.checks import is_count, is_name, require
from shoal.protocol.chunking import common_bytes
from shoal.protocol.messages import Envelope, Update

CONFLICTS_KEY: Final = b"@conflicts"
"""the key of the list in the topic of snapshots; a model cannot have this name"""
CONFLICTS_MAX: Final = 1000
"""most entries of a published list: the newest of each model"""
DIGEST_BYTES: Final = 8


def content_digest(update: Update, value: bytes, table: Mapping[str, ArraySpec]) -> bytes:
    """8 bytes that differ for updates of different content; the same for all chunks of one update.

    `value` is the update, or one chunk of it, as it travels; `table` that of its algorithm's update.
    """
    whole = value if update.chunks == 1 else common_bytes(update, table)
    return hashlib.blake2b(whole, digest_size=DIGEST_BYTES).digest()


class Conflict(NamedTuple):
    """The newest update of one client and model that was refused because of its number."""

    model: str
    client: str
    sequence: int
    digest: bytes
    """digest of the content that was refused"""


@dataclass(frozen=True)
class ConflictList(Envelope):
    """The newest conflict of each client, as the server publishes it after each one."""

    TYPE: ClassVar[str] = "conflicts"

    federation: str
    entries: list[list[Any]]
    """a `Conflict` each, as lists"""

    def __post_init__(self) -> None:
        require(is_name(self.federation), "malformed", "federation")
        require(isinstance(self.entries, list) and all(map(_is_entry, self.entries)), "malformed", "entries")

    @property
    def conflicts(self) -> list[Conflict]:
        """The entries by name."""
        return [Conflict(*entry) for entry in self.entries]


def _is_entry(value: object) -> bool:
    if not (isinstance(value, list) and len(value) == len(Conflict._fields)):
        return False
    model, client, sequence, digest = value
    return is_name(model) and is_name(client) and is_count(sequence) and isinstance(digest, bytes)
