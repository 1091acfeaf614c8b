"""Quotas: which clients may send updates, how many names there may be, and how many records of one
client per second.

Nothing here looks at a clock of this machine: a rate is measured by the times at which the log took
in the records, apart for each partition, so that a rebuild refuses the same ones.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.config.sections import ServerSettings
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.messages import ModelMessage
from shoal.server_node.models.clients import ClientGroups, values_by_client
from shoal.transports.base import Record

BURST_S: Final = 60.0
"""seconds whose records a client may send at once, so that it can catch up after it was away"""


_Spent = dict[int, tuple[float, float]]
"""partition -> records that may still come at once, and the time of the newest, in seconds"""


def _spend(spent: _Spent, rate: float, record: Record) -> bool:
    """Whether a record is within `rate` per second; it then counts."""
    most = rate * BURST_S
    now = record.timestamp_ms / 1000
    left, before = spent.get(record.partition, (most, now))
    left = min(most, left + max(0.0, now - before) * rate)
    # A refused record costs nothing, or a client above its rate would stay refused for ever.
    spent[record.partition] = (left - 1.0 if left >= 1.0 else left, max(now, before))
    return left >= 1.0


def _saved(spent: _Spent) -> list[list[Any]]:
    return [[partition, *one] for partition, one in sorted(spent.items())]


def _restored(saved: list[list[Any]]) -> _Spent:
    return {partition: (left, at) for partition, left, at in saved}


class Quotas:
    """Limits of a federation for its clients. Memory is bounded by `clients_max`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._regions = frozenset(settings.regions)
        self._allowed = frozenset(settings.clients and (*settings.clients, *settings.regions))
        self._names_max = settings.clients_max
        self._rate = settings.client_updates_per_s
        self._names: set[str] = set()
        """clients with an update that has been processed"""
        self._left: dict[str, _Spent] = {}
        """client -> what it may still send"""
        self._requests_rate = settings.requests_taken_per_s
        self._requests: dict[tuple[str, str], _Spent] = {}
        """(type of request, model) -> the same for requests. Not bounded: a request of a foreign
        model is refused"""
        self._groups = ClientGroups()

    def check_region(self, region: str) -> None:
        """An update that says it is of a region: of many clients. Raises `MessageRejected`
        ("client")."""
        if region not in self._regions:
            raise MessageRejected(
                "client",
                "its client is not among [server] regions; name it there if it is a region",
            )

    def check(self, client: str, record: Record) -> None:
        """A record of this client. Raises `MessageRejected` ("client", "quota")."""
        if self._allowed and client not in self._allowed:
            raise MessageRejected("client", "its client is not among [server] clients")
        new = client not in self._names and client not in self._regions
        if (
            new
            and not self._allowed
            and len(self._names) - len(self._regions & self._names) >= self._names_max
        ):
            raise MessageRejected(
                "quota", f"there are {len(self._names)} clients, as many as clients_max allows"
            )
        if self._rate:
            self._spend(client, record)

    def check_request(self, request: ModelMessage, record: Record) -> None:
        """A record with a request, from any sender. Raises `MessageRejected` ("quota")."""
        if self._requests_rate:
            spent = self._requests.setdefault((request.TYPE, request.model), {})
            if not _spend(spent, self._requests_rate, record):
                detail = f"there are more than {self._requests_rate:g} such requests per second for this model"
                raise MessageRejected("quota", detail)

    def accepted(self, client: str) -> None:
        """An update of this client has been processed."""
        if client not in self._names:
            self._names.add(client)
            self._groups.change(client)

    def forget(self, client: str) -> None:
        """Free the place of a client; with its next update it takes one again, if there is one.

        Its rate stays: a request published again must not give it new records to send.
        """
        self._names.discard(client)
        self._groups.change(client)

    @property
    def used(self) -> float:
        """Share of the places for clients that are taken; 0 where the settings name the clients."""
        return (
            0.0
            if self._allowed
            else (len(self._names) - len(self._regions & self._names)) / self._names_max
        )

    def begin_again(self) -> None:
        """The log is read from its start once more."""
        self._left = {}
        self._requests = {}
        self._groups.begin_again(self._names)

    def state(self) -> dict[str, Any]:
        """Parts for `restore`, which takes them as a checkpoint loads them."""
        requests = [[*key, _saved(spent)] for key, spent in sorted(self._requests.items())]
        return {"clients": self._groups.state(self._saved_client), "requests": requests}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        try:
            saved = values_by_client(state["clients"])
            self._names = {client for client, (accepted, _) in saved.items() if accepted}
            self._left = {
                client: _restored(by_partition)
                for client, (_, by_partition) in saved.items()
                if by_partition
            }
            self._requests = {
                (kind, model): _restored(by_partition)
                for kind, model, by_partition in state["requests"]
            }
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint's quotas are damaged: {broken}") from None
        self._groups.begin_again(saved)

    def _saved_client(self, client: str) -> list[Any] | None:
        accepted = client in self._names
        by_partition = _saved(self._left.get(client, {}))
        return [accepted, by_partition] if accepted or by_partition else None

    def _spend(self, client: str, record: Record) -> None:
        self._groups.change(client)
        if not _spend(self._left.setdefault(client, {}), self._rate, record):
            raise MessageRejected(
                "quota", f"its client sends more than {self._rate:g} records per second"
            )
        # A client that has all its records left need not be remembered; names alone cannot fill the
        # memory.
        if len(self._left) > 2 * self._names_max:
            self._left = {
                one: by_partition for one, by_partition in self._left.items() if one in self._names
            }
            self._groups.begin_again(self._names)
