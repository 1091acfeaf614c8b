"""Quotas: which clients may send updates, how many names there may be, how many records of one
client per second, and of how many rejected records copies are kept.

Nothing here looks at a clock of this machine: a rate is measured by the times at which the log took
in the records, apart for each partition, so that a rebuild refuses the same ones.
"""

from __future__ import annotations

from typing import Any, Final

from shoal.config.sections import ServerSettings
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.messages import ModelMessage
from shoal.saved_state import SavedState, state_type
from shoal.server_node.models.clients import ClientGroups, values_by_client
from shoal.transports.base import Record

OF_NO_KEY: Final = ""
"""the place of a model for requests in records with the key of none"""
BURST_S: Final = 60.0
"""seconds whose records a client may send at once, so that it can catch up after it was away"""


_Buckets = dict[int, tuple[float, float]]
"""partition -> token bucket of a sender: records that it may still send at once, and the time of
the newest, in seconds"""


def _has_token(buckets: _Buckets, rate: float, record: Record) -> bool:
    """Whether a record is within `rate` per second."""
    tokens_max = rate * BURST_S
    now = record.timestamp_ms / 1000
    tokens, newest = buckets.get(record.partition, (tokens_max, now))
    # The clock of a log may be set back: that must give no client more records, nor take any away.
    tokens = min(tokens_max, tokens + max(0.0, now - newest) * rate)
    buckets[record.partition] = (tokens, max(now, newest))
    return tokens >= 1.0


def _take_token(buckets: _Buckets, rate: float, record: Record) -> bool:
    """Whether a record is within `rate` per second; it then counts."""
    # A refused record costs nothing, or a client above its rate would stay refused for ever.
    if not _has_token(buckets, rate, record):
        return False
    tokens, newest = buckets[record.partition]
    buckets[record.partition] = (tokens - 1.0, newest)
    return True


def _saved(buckets: _Buckets) -> list[list[float]]:
    return [[partition, *bucket] for partition, bucket in sorted(buckets.items())]


def _restored(saved: list[list[float]]) -> _Buckets:
    return {int(partition): (tokens, newest) for partition, tokens, newest in saved}


@state_type
class RequestQuotasState(SavedState):
    """Saved state of the quotas of requests; those of clients are saved in groups."""

    requests: dict[str, dict[str, list[list[float]]]]
    """type of request -> model -> [partition, tokens, newest] of each bucket"""
    rejected: dict[str, list[list[float]]]
    """reason -> the same of the rejected records that are kept"""


class Quotas:
    """Limits of a federation for its clients. Memory is bounded by `clients_max`."""

    def __init__(self, settings: ServerSettings) -> None:
        self._regions = frozenset(settings.regions)
        # Without `clients` any name may send: regions alone must not make it a list of who may.
        self._allowed = frozenset(settings.clients and (*settings.clients, *settings.regions))
        self._names_max = settings.clients_max
        self._rate = settings.client_updates_per_s
        self._names: set[str] = set()
        """clients with an update that has been processed"""
        self._clients: dict[str, _Buckets] = {}
        """client -> its token buckets"""
        self._requests_rate = settings.requests_taken_per_s
        self._requests: dict[tuple[str, str], _Buckets] = {}
        """(type of request, model) -> the same for requests

        Their number has no limit of its own: a request of a foreign model is refused before."""
        self._rejected_rate = settings.rejected_kept_per_s
        self._rejected: dict[str, _Buckets] = {}
        """reason -> the same for rejected records that are kept"""
        self._groups = ClientGroups()

    def check_region(self, region: str) -> None:
        """Check an update that is of a region, so of many clients.

        Any client could name its update so, and count as many. Raises `MessageRejected` ("client").
        """
        if region not in self._regions:
            raise MessageRejected(
                "client",
                "its client is not among [server] regions; name it there if it is a region",
            )

    def check(self, client: str, record: Record) -> None:
        """Check a record of this client. Raises `MessageRejected` ("client", "quota")."""
        if self._allowed and client not in self._allowed:
            raise MessageRejected("client", "its client is not among [server] clients")
        takes_a_place = not self._allowed and self._is_new(client)
        if takes_a_place and self._places_taken >= self._names_max:
            raise MessageRejected(
                "quota", f"there are {len(self._names)} clients, as many as clients_max allows"
            )
        if self._rate:
            self._check_rate(client, record)

    def check_request(self, request: ModelMessage, record: Record) -> None:
        """Check a record with a request, from any sender. Raises `MessageRejected` ("quota")."""
        if not self._requests_rate:
            return
        buckets = self._requests.setdefault((request.TYPE, request.model), {})
        if not _take_token(buckets, self._requests_rate, record):
            raise self._too_many_requests()

    def check_unread_request(self, kind: str, model: str | None, record: Record) -> None:
        """Check a record with a request before it is read, which takes several times as long as to
        refuse it.

        `model`: that whose key the record has; it does not count yet. None: it has the key of no
        model, which all that publish requests give them; those count together, so that they take
        nothing from the others. Raises `MessageRejected` ("quota").
        """
        if not self._requests_rate:
            return
        if model is None:
            buckets = self._requests.setdefault((kind, OF_NO_KEY), {})
            is_within = _take_token(buckets, self._requests_rate, record)
        else:
            buckets = self._requests.setdefault((kind, model), {})
            is_within = _has_token(buckets, self._requests_rate, record)
        if not is_within:
            raise self._too_many_requests()

    def _too_many_requests(self) -> MessageRejected:
        return MessageRejected(
            "quota",
            f"there are more than {self._requests_rate:g} such requests per second for this model",
        )

    def keeps_rejected(self, reason: str, record: Record) -> bool:
        """Whether a copy of this rejected record is kept; it then counts.

        To keep one takes ten times as long as to reject it, so that a flood of them would delay
        the updates behind it. By reason, so that a flood of one hides no record of another.
        """
        if not self._rejected_rate:
            return True
        return _take_token(self._rejected.setdefault(reason, {}), self._rejected_rate, record)

    def accepted(self, client: str) -> None:
        """Count the client among those there are: an update of it has been processed."""
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
        if self._allowed:
            return 0.0
        return self._places_taken / self._names_max

    def _is_new(self, client: str) -> bool:
        return client not in self._names and client not in self._regions

    @property
    def _places_taken(self) -> int:
        """Clients that take a place of `clients_max`; regions, which settings name, take none."""
        return len(self._names) - len(self._regions & self._names)

    def begin_again(self) -> None:
        """The log is read from its start once more."""
        # Empty, as at the first reading: the same records have to be refused again.
        self._clients = {}
        self._requests = {}
        self._rejected = {}
        self._groups.begin_again(self._names)

    def state(self) -> dict[str, Any]:
        """Parts for `restore`, which takes them as a checkpoint loads them."""
        requests: dict[str, dict[str, list[list[float]]]] = {}
        for (kind, model), buckets in sorted(self._requests.items()):
            requests.setdefault(kind, {})[model] = _saved(buckets)
        # Of the clients, only groups in which something has changed are saved again.
        clients = self._groups.state(self._saved_client)
        rejected = {reason: _saved(buckets) for reason, buckets in sorted(self._rejected.items())}
        state = RequestQuotasState(requests=requests, rejected=rejected)
        return {"clients": clients, **state.saved()}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        self._requests = {}
        self._rejected = {}
        try:
            saved = values_by_client(state["clients"])
            self._names = {client for client, (accepted, _) in saved.items() if accepted}
            self._clients = {
                client: _restored(buckets) for client, (_, buckets) in saved.items() if buckets
            }
            others = RequestQuotasState.read(state)
            for kind, by_model in others.requests.items():
                for model, buckets in by_model.items():
                    self._requests[kind, model] = _restored(buckets)
            for reason, buckets in others.rejected.items():
                self._rejected[reason] = _restored(buckets)
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint's quotas are damaged: {broken}") from None
        self._groups.begin_again(saved)

    def _saved_client(self, client: str) -> list[Any] | None:
        accepted = client in self._names
        buckets = _saved(self._clients.get(client, {}))
        if accepted or buckets:
            return [accepted, buckets]
        return None

    def _check_rate(self, client: str, record: Record) -> None:
        self._groups.change(client)
        if not _take_token(self._clients.setdefault(client, {}), self._rate, record):
            raise MessageRejected(
                "quota", f"its client sends more than {self._rate:g} records per second"
            )
        # Names that come once, each with a rejected record, must not fill the memory: what has no
        # accepted update is forgotten. It then may send as much as a new client.
        # At twice as many as stay, so that not every new name costs a search through all of them.
        if len(self._clients) > 2 * self._names_max:
            self._clients = {
                name: buckets for name, buckets in self._clients.items() if name in self._names
            }
            self._groups.begin_again(self._names)
