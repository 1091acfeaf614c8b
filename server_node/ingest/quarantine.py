"""The register of clients in quarantine: for each model and client, from which record on nothing is
absorbed.

The register changes only when a request is read from the topic of updates, so its order with the
updates of a model is that of the log, and a rebuild repeats it. A part of the server that decides
by itself that a client must be quarantined publishes the same requests (`quarantine.requests`),
through the outbox.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from shoal.config.contract import Contract
from shoal.protocol.messages import Update
from shoal.protocol.quarantine import (
    LIST_KEY,
    LIST_MAX,
    QuarantinedClient,
    QuarantineList,
    QuarantineRequest,
)
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import SavedState, state_type
from shoal.transports.base import Record

AHEAD_S_MAX: Final = 86_400.0
"""seconds that the clock of a client's or an operator's machine may be ahead of that of the log"""
Value = TypeVar("Value")
Place = tuple[int, int]
"""(partition, offset) of a record in the topic of updates"""


@state_type
class ActiveState(SavedState):
    """A client in quarantine, as it is saved."""

    model: str
    client: str
    since: float
    detail: str


@state_type
class UnlearnedState(SavedState):
    """The newest request to unlearn a client, as it is saved."""

    model: str
    client: str
    partition: int
    offset: int


@state_type
class SeenState(SavedState):
    """What came of a client while it was in quarantine, as it is saved."""

    model: str
    client: str
    number: int
    made_at: float


@state_type
class QuarantineState(SavedState):
    """Saved state of `QuarantineRegister`."""

    active: list[ActiveState]
    unlearned: list[UnlearnedState]
    seen: list[SeenState]


class _Entry(NamedTuple):
    since: float
    detail: str


def _of_models(
    entries: Mapping[tuple[str, str], Value], models: Collection[str]
) -> dict[tuple[str, str], Value]:
    """The entries of these models; (model, client) -> value."""
    return {key: value for key, value in entries.items() if key[0] in models}


class QuarantineRegister:
    """Clients that each model absorbs nothing from. It changes by requests alone."""

    def __init__(self) -> None:
        self._active: dict[tuple[str, str], _Entry] = {}
        """(model, client) -> its quarantine"""
        self._unlearned: dict[tuple[str, str], Place] = {}
        """(model, client) -> the newest request to unlearn it: nothing before that record counts"""
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}
        """(model, client) -> the highest number of the updates that came in quarantine, and when
        the newest was made"""

    def __len__(self) -> int:
        return len({client for _, client in self._active})

    def excludes(self, update: Update, record: Record) -> bool:
        """Whether an update must not be absorbed: its client is in quarantine, or it came while the
        client was.

        Without the second, any reader of the log could publish all of them again once the client is
        released.
        """
        key = (update.model, update.client)
        number, made_at = self._seen.get(key, (0, -math.inf))
        if key in self._active:
            # A forged time far ahead must not exclude what the client sends after its release.
            newest = min(update.made_at, record.timestamp_ms / 1000 + AHEAD_S_MAX)
            self._seen[key] = (max(number, update.sequence), max(made_at, newest))
            return True
        # Both: a client that begins anew under its name has small numbers, and later times.
        if update.sequence <= number and update.made_at <= made_at:
            return True
        return self._was_unlearned_after(key, (record.partition, record.offset))

    def begin(self, request: QuarantineRequest) -> None:
        """Put a client into quarantine."""
        # The first of several requests counts, so that `since` is when absorbing ended.
        entry = _Entry(request.made_at, request.detail)
        self._active.setdefault((request.model, request.client), entry)

    def end(self, request: QuarantineRequest) -> None:
        """Release a client from quarantine."""
        self._active.pop((request.model, request.client), None)

    def unlearn(self, request: QuarantineRequest, place: Place) -> bool:
        """Count nothing of a client before the request at `place`; whether its model has to be
        rebuilt without it.

        It has not where the request is read again after a rebuild, or a later one was read before.
        """
        key = (request.model, request.client)
        if self._unlearned.get(key) == place or self._was_unlearned_after(key, place):
            return False
        self._unlearned[key] = place
        return True

    def is_unlearned(self, model: str, client: str) -> bool:
        """Whether a model is without a client, which is in quarantine."""
        return (model, client) in self._active and (model, client) in self._unlearned

    def begin_again(self) -> None:
        """The log is read from its start once more: requests in it are applied again, in their
        order."""
        self._active = {}
        self._seen = {}

    def keep(self, models: Collection[str]) -> None:
        """Forget what is of other models than these."""
        self._active = _of_models(self._active, models)
        self._unlearned = _of_models(self._unlearned, models)
        self._seen = _of_models(self._seen, models)

    def clients(self) -> list[QuarantinedClient]:
        """Every client in quarantine by model, sorted."""
        return [
            QuarantinedClient(*key, entry.since, entry.detail, key in self._unlearned)
            for key, entry in sorted(self._active.items())
        ]

    def list_record(self, contract: Contract) -> OutboxRecord:
        """The record that shows the register to `shoal quarantine list`."""
        # A list is one record: where not all have room, those that came last are what an operator
        # looks for.
        newest = sorted(self.clients(), key=lambda entry: -entry.since)[:LIST_MAX]
        message = QuarantineList(contract.federation, [list(entry) for entry in sorted(newest)])
        return OutboxRecord(
            contract.snapshots_topic, message.encode(), LIST_KEY, QuarantineList.headers()
        )

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        active: list[ActiveState] = []
        for (model, client), entry in sorted(self._active.items()):
            active.append(
                ActiveState(model=model, client=client, since=entry.since, detail=entry.detail)
            )
        unlearned: list[UnlearnedState] = []
        for (model, client), (partition, offset) in sorted(self._unlearned.items()):
            unlearned.append(
                UnlearnedState(model=model, client=client, partition=partition, offset=offset)
            )
        seen: list[SeenState] = []
        for (model, client), (number, made_at) in sorted(self._seen.items()):
            seen.append(SeenState(model=model, client=client, number=number, made_at=made_at))
        return QuarantineState(active=active, unlearned=unlearned, seen=seen).saved()

    def restore(self, state: Any) -> None:
        """Become the saved one. Raises `InvalidState`."""
        saved = QuarantineState.read(state)
        self._active = {
            (entry.model, entry.client): _Entry(entry.since, entry.detail) for entry in saved.active
        }
        self._unlearned = {
            (entry.model, entry.client): (entry.partition, entry.offset)
            for entry in saved.unlearned
        }
        self._seen = {
            (entry.model, entry.client): (entry.number, entry.made_at) for entry in saved.seen
        }

    def _was_unlearned_after(self, key: tuple[str, str], place: Place) -> bool:
        """Whether a request to unlearn the client comes after `place`.

        All updates of a model are in the partition of its requests; one in another partition has no
        order with them.
        """
        request = self._unlearned.get(key)
        return request is not None and (place[0] != request[0] or place[1] < request[1])
