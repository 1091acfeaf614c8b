"""The outcome of one step of the server, which monitoring reads, and the records that the step publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from server_node.clusters.history.store import HistoryRecord, HistoryStore
from server_node.ingest.quarantine import QuarantineRegister
from server_node.ingest.reassembly import IncompleteUpdate
from server_node.ingest.requests import Applied, quarantine_records
from server_node.models.base import AnswerResult, ModelEvent, OddClient, PublishedSnapshot, ServedModel
from shoal.config.contract import Contract
from shoal.protocol.checks import TEXT_CHARACTERS_MAX
from shoal.protocol.conflicts import CONFLICTS_KEY, CONFLICTS_MAX, ConflictList
from shoal.protocol.messages import Snapshot
from shoal.protocol.quarantine import QuarantinedClient
from shoal.runtime.checkpoint import OutboxRecord


class IngestOutcome(NamedTuple):
    """What became of one record of the updates topic. Small: the arrays of an update are not kept for it."""

    topic: str
    partition: int
    offset: int
    at: float
    """when it was processed, seconds since 1970"""
    result: Literal[
        "absorbed",
        "repeated",
        "chunk",
        "rejected",
        "quarantined",
        "request",
    ]
    """`chunk`: some chunks of this update are still to come; `quarantined`: of a client in quarantine, not absorbed"""
    model: str = ""
    """empty, as `client`, for a record that could not be read"""
    client: str = ""
    readings: int = 0
    """that it adds; 0 for answers, as one round after the other is about the same rows"""
    made_at: float = 0.0
    """when the client made the update, by its clock"""
    answer: AnswerResult | None = None
    reason: str = ""
    """why it was rejected: one of `shoal.protocol.rejected.REASONS`"""
    detail: str = ""
    """the same for people"""
    request: Applied | None = None
    """the request that was applied; None for a record that was none"""


@dataclass(frozen=True)
class StepOutcome:
    """What one step of the server did."""

    ingested: Sequence[IngestOutcome]
    ingest_s: float
    """time taken by that"""
    incomplete: Sequence[IncompleteUpdate]
    """updates given up because chunks of them are missing"""
    waiting_updates: int
    """updates whose other chunks are still to come"""
    events: Sequence[ModelEvent]
    """of models, by the clock"""
    published: Sequence[PublishedSnapshot]
    quarantined: Sequence[QuarantinedClient]
    """the clients in quarantine"""
    stored_at: float | None
    """when the checkpoint was saved, seconds since 1970; None if it was not"""


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
    if any(one.request is not None and one.request.quarantine_changed for one in ingested):
        yield quarantine.list_record(contract)


def _conflict_list(contract: Contract, models: Mapping[str, ServedModel]) -> OutboxRecord:
    """The record that tells clients at their start that their updates are refused because of their numbers."""
    found = [[name, *one] for name, model in models.items() for one in model.clients.conflicts()]
    message = ConflictList(contract.federation, found[-CONFLICTS_MAX:])
    return OutboxRecord(contract.snapshots_topic, message.encode(), CONFLICTS_KEY, ConflictList.headers())
