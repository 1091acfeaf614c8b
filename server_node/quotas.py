"""Quotas: which clients may send updates, how many names there may be, and how many records of one client per second.

Nothing here looks at a clock of this machine: a rate is measured by the times at which the log took in the records,
apart for each partition, so that a rebuild refuses the same ones.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.config.server_settings import ServerSettings
from shoal.errors import InvalidState, MessageRejected
from shoal.transports.base import Record

BURST_S: Final = 60.0
"""a client may send as many records at once as it may send in so many seconds: it catches up after it was away"""


class Quotas:
    """What a federation allows its clients. Memory is bounded by `clients_max`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._allowed = frozenset(settings.clients)
        self._names_max = settings.clients_max
        self._rate = settings.client_updates_per_s
        self._names: set[str] = set()
        """clients of which an update has been processed"""
        self._left: dict[tuple[int, str], tuple[float, float]] = {}
        """(partition, client) -> records that it may still send at once, and the time of the newest, in seconds"""

    def check(self, client: str, record: Record) -> None:
        """A record of this client. Raises `MessageRejected` ("client", "quota")."""
        if self._allowed and client not in self._allowed:
            raise MessageRejected("client", "its client is not among [server] clients")
        if client not in self._names and not self._allowed and len(self._names) >= self._names_max:
            raise MessageRejected("quota", f"there are {len(self._names)} clients, as many as clients_max allows")
        if self._rate:
            self._spend(client, record)

    def accepted(self, client: str) -> None:
        """An update of this client has been processed."""
        self._names.add(client)

    def begin_again(self) -> None:
        """The log is read from its start once more."""
        self._left = {}

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        # In columns, as a checkpoint looks through every list by itself.
        rows = ((*key, *spent) for key, spent in sorted(self._left.items()))
        columns = list(map(list, zip(*rows, strict=True))) or [[], [], [], []]
        return {"names": sorted(self._names), "left": columns}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        try:
            self._names = set(state["names"])
            self._left = {
                (partition, client): (left, at) for partition, client, left, at in zip(*state["left"], strict=True)
            }
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint's quotas are damaged: {broken}") from None

    def _spend(self, client: str, record: Record) -> None:
        key, most, now = (record.partition, client), self._rate * BURST_S, record.timestamp_ms / 1000
        left, before = self._left.get(key, (most, now))
        left = min(most, left + max(0.0, now - before) * self._rate)
        if left < 1.0:
            self._left[key] = (left, max(now, before))
            raise MessageRejected("quota", f"its client sends more than {self._rate:g} records per second")
        # A client that has all its records left need not be remembered; names alone cannot fill the memory.
        self._left[key] = (left - 1.0, max(now, before))
        if len(self._left) > 2 * self._names_max:
            self._left = {one: spent for one, spent in self._left.items() if one[1] in self._names}
