"""Values by client as parts of a state, such that a checkpoint costs what has changed and not the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from zlib import crc32

from shoal.protocol.codec import StoredPart

GROUPS: Final = 512
"""a checkpoint lists all of them and writes those anew in which a client has changed, with its other clients"""


class ClientGroups:
    """Puts each client into one of `GROUPS` groups by its name; a group is a part of the state.

    Which groups there are, and what is in them, follows from the clients and their values alone.
    """

    def __init__(self) -> None:
        self._parts: dict[int, StoredPart] = {}
        """group -> client -> value"""
        self._changed: set[str] = set()

    def change(self, client: str) -> None:
        """The value of this client is another one than at the last `state`, or there is one, or none any more."""
        self._changed.add(client)

    def begin_again(self, clients: Iterable[str]) -> None:
        """These are all clients, and nothing is known of their values."""
        self._parts, self._changed = {}, set(clients)

    def state(self, value_of: Callable[[str], Any]) -> list[StoredPart]:
        """The groups in their order. `value_of` gives a client's plain value, None to leave the client out."""
        changed: dict[int, dict[str, Any]] = {}
        for client in self._changed:
            changed.setdefault(crc32(client.encode()) % GROUPS, {})[client] = value_of(client)
        self._changed.clear()
        for group, values in changed.items():
            old = self._parts.get(group)
            merged = values if old is None else old.value | values
            kept = {client: merged[client] for client in sorted(merged) if merged[client] is not None}
            if kept:
                self._parts[group] = StoredPart(kept)
            else:
                self._parts.pop(group, None)
        return [self._parts[group] for group in sorted(self._parts)]


def values_by_client(state: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What `ClientGroups.state` was made of. Raises `TypeError` or `ValueError` for a damaged state."""
    return {client: value for group in state for client, value in dict(group).items()}
