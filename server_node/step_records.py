"""The records that one step of the server publishes: snapshots, events, history, requests and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from server_node.history.records import HistoryRecord
from server_node.history.store import HistoryStore
from server_node.models.base import PublishedSnapshot, ServedModel
from server_node.models.events import ModelEvent, OddClient
from server_node.outcome import IngestOutcome
from server_node.quarantine.register import QuarantineRegister
from server_node.quarantine.requests import quarantine_records
from shoal.config.contract import Contract
from shoal.protocol.checks import TEXT_CHARACTERS_MAX
from shoal.protocol.conflicts import CONFLICTS_KEY, CONFLICTS_MAX, ConflictList
from shoal.protocol.messages import Snapshot
from shoal.runtime.checkpoint import OutboxRecord


def snapshot_records(contract: Contract, published: PublishedSnapshot) -> Iterator[OutboxRecord]:
    """The snapshot, then what became of clusters with it."""
    key = published.snapshot.model.encode()
    yield OutboxRecord(contract.snapshots_topic, published.value, key, Snapshot.headers())
    for event in published.events:
        yield OutboxRecord(contract.events_topic, event.encode(), key, event.headers())


def history_records(history: HistoryStore, published: Sequence[PublishedSnapshot]) -> list[HistoryRecord]:
    """The bins and names that have changed, and the removal of bins that are too old by now."""
    changed = [HistoryRecord(message.record_key, message) for one in published for message in one.history]
    again = [one.snapshot.model for one in published if one.history_begins_again]
    return changed + history.expired(changed) + history.forgotten(again, changed)


def quarantine_requests(contract: Contract, events: Sequence[ModelEvent], now: float) -> Iterator[OutboxRecord]:
    """Requests to quarantine the clients that keep answers from being combined. They count when they are read."""
    for event in events:
        match event:
            case OddClient():
                detail = f"{event.model}: {event.detail}"[:TEXT_CHARACTERS_MAX]
                yield from quarantine_records(contract, event.client, "quarantine", detail, now)


def list_records(
    contract: Contract,
    models: Mapping[str, ServedModel],
    quarantine: QuarantineRegister,
    ingested: Sequence[IngestOutcome],
) -> Iterator[OutboxRecord]:
    """The lists that clients read at their start, where the step has changed them."""
    if any(one.reason == "conflict" for one in ingested):
        yield _conflict_list(contract, models)
    if any(one.result == "quarantine_request" for one in ingested):
        yield quarantine.list_record(contract)


def _conflict_list(contract: Contract, models: Mapping[str, ServedModel]) -> OutboxRecord:
    """The record that tells clients at their start that their updates are refused because of their numbers."""
    found = [[name, *one] for name, model in models.items() for one in model.clients.conflicts()]
    message = ConflictList(contract.federation, found[-CONFLICTS_MAX:])
    return OutboxRecord(contract.snapshots_topic, message.encode(), CONFLICTS_KEY, ConflictList.headers())
