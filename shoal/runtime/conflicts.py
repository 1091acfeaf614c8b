"""Stops a client whose updates the server refuses, because another update has the same sequence number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.conflicts import DIGEST_BYTES, ConflictList
from shoal.transports.base import Record

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
        """Whether the update that the server has refused is this client's, or one beyond all that it has published."""
        known = self._known.get(model, {})
        return known.get(sequence) == digest or sequence > max(known, default=0)

    def is_unknown(self, model: str, sequence: int, digest: bytes) -> bool:
        """Whether an update of this content cannot have been published from this folder."""
        known = self._known.get(model, {})
        return sequence > max(known, default=0) or (sequence in known and known[sequence] != digest)

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        # Lists of pairs would cost more than all else in the checkpoint of a client without labels.
        return [
            [model, np.array(list(known), dtype=np.int64), b"".join(known.values())]
            for model, known in sorted(self._known.items())
        ]

    def restore(self, state: Any) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        try:
            self._known = {model: _by_number(numbers.tolist(), digests) for model, numbers, digests in state}
        except (AttributeError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint's digests of updates are damaged: {broken}") from None


def _by_number(numbers: list[int], digests: bytes) -> dict[int, bytes]:
    """The digest of each number. Raises `ValueError` unless there are as many."""
    parts = (digests[place : place + DIGEST_BYTES] for place in range(0, len(digests), DIGEST_BYTES))
    return dict(zip(numbers, parts, strict=True))


def check_no_conflict(record: Record | None, client: str, published: PublishedDigests) -> None:
    """Raises `InvalidState` with what to do if the server has refused an update of this client.

    `record`: the newest of the key `CONFLICTS_KEY` in the topic of snapshots, if there is one.
    """
    if record is None:
        return
    try:
        found = ConflictList.decode(record.value, record.headers)
    except MessageRejected:
        return  # not from a server of this version; it must not keep a client from starting
    refused: Mapping[str, int] = {
        one.model: one.sequence
        for one in found.conflicts
        if one.client == client and published.was_refused(one.model, one.sequence, one.digest)
    }
    for model, sequence in refused.items():
        raise InvalidState(
            f"the server has refused update {sequence} of client {client} for model {model}: it has another update "
            "with this number. This folder is older than what the client has published, or another machine runs under "
            "this name. Restore the newest copy of the folder, or start under a new client name; what the server has "
            "refused is in its rejected messages"
        )
