"""The outcome of one step of the server, which monitoring reads, and the records that the step
publishes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from shoal.config.changes import Standing
from shoal.config.contract import Contract
from shoal.config.resolved import ResolvedContract
from shoal.protocol.checks import TEXT_CHARACTERS_MAX
from shoal.protocol.conflicts import CONFLICTS_KEY, CONFLICTS_MAX, ConflictList
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import CONTRACT_KEY, PublishedContract
from shoal.protocol.quarantine import QuarantinedClient
from shoal.runtime.checkpoint import OutboxRecord
from shoal.server_node.history.store import HistoryRecord, HistoryStore
from shoal.server_node.ingest.quarantine import QuarantineRegister
from shoal.server_node.ingest.reassembly import IncompleteUpdate
from shoal.server_node.ingest.requests import Applied, quarantine_records
from shoal.server_node.models.base import (
    AnswerResult,
    HistoryChange,
    IncompatibleClient,
    ModelEvent,
    PublishedSnapshot,
    ServedModel,
)


class IngestOutcome(NamedTuple):
    """Result of ingesting one record of the updates topic. Small: the arrays of an update are not
    kept for it."""

    topic: str
    partition: int
    offset: int
    at: float
    """time at which it was processed, seconds since 1970"""
    result: Literal[
        "absorbed",
        "repeated",
        "chunk",
        "rejected",
        "quarantined",
        "superseded",
        "request",
    ]
    """`chunk`: some chunks of this update are still to come; `quarantined`: of a client in
    quarantine, not absorbed; `superseded`: of an earlier contract, from which its model cannot
    learn"""
    model: str = ""
    """empty, as `client`, for a record that could not be read"""
    client: str = ""
    readings: int = 0
    """readings that it adds; 0 for answers, as one round after the other is about the same rows"""
    made_at: float = 0.0
    """time at which the client made the update, by its clock"""
    answer: AnswerResult | None = None
    reason: str = ""
    """why it was rejected: one of `shoal.protocol.rejected.REASONS`"""
    detail: str = ""
    """the same for people"""
    request: Applied | None = None
    """the request that was applied; None for a record that was none"""
    copied: bool = False
    """whether it shows for the first time that two processes publish as this client"""
    kept: bool = True
    """whether a copy of it is kept if it was rejected: not above `rejected_kept_per_s`"""


class Report(NamedTuple):
    """An event to log, as a stage returns it."""

    event: str
    level: int = logging.INFO
    fields: Mapping[str, Any] = {}


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of one step of the server."""

    ingested: Sequence[IngestOutcome]
    ingest_s: float
    """time taken by that"""
    incomplete: Sequence[IncompleteUpdate]
    """updates given up because chunks of them are missing"""
    waiting_updates: int
    """updates whose other chunks are still to come"""
    events: Sequence[ModelEvent]
    """events of models by the clock"""
    published: Sequence[PublishedSnapshot]
    quarantined: Sequence[QuarantinedClient]
    """the clients in quarantine"""
    stored_at: float | None
    """time at which the checkpoint was saved, seconds since 1970; None if it was not"""
    reports: Sequence[Report] = ()
    """other events of the step"""
    history: Sequence[HistoryChange] = ()
    """what has changed in the history beside that of the snapshots"""


class StepRecords(NamedTuple):
    """The records that a step publishes beside those it rejects, in their order."""

    records: Sequence[OutboxRecord]
    history: Sequence[HistoryRecord]
    """records of the history among them, which the server's own copy takes over once they are
    published"""


def step_records(
    contract: Contract,
    models: Mapping[str, ServedModel],
    quarantine: QuarantineRegister,
    history: HistoryStore,
    outcome: StepOutcome,
    now: float,
) -> StepRecords:
    """Snapshots, what has changed in the history, requests to quarantine clients, and lists that
    have changed."""
    records: list[OutboxRecord] = []
    for published in outcome.published:
        records += snapshot_records(contract, published)
    of_snapshots = [published.history for published in outcome.published]
    changed = history_records(history, [*outcome.history, *of_snapshots])
    records += [record.outbox_record(contract.history_topic) for record in changed]
    records += quarantine_requests(contract, outcome.events, now)
    records += list_records(contract, models, quarantine, outcome.ingested)
    return StepRecords(records, changed)


def contract_change_records(
    contract: ResolvedContract, standing: Mapping[str, Standing], history: HistoryStore
) -> StepRecords:
    """The contract, and the removal of what its models have no more.

    `standing`: model of the contract before -> what becomes of it.
    """
    agreed = contract.contract
    message = PublishedContract.of(contract)
    gone = [name for name, change in standing.items() if change == "gone"]
    anew = [name for name, change in standing.items() if change == "anew"]
    # A model that begins anew keeps its history, but its places are of other features.
    changed = [*history.forgotten(gone), *history.without_places(anew)]
    records = [
        OutboxRecord(agreed.snapshots_topic, message.encode(), CONTRACT_KEY, message.headers())
    ]
    # Records without a value remove their keys from compacted topics.
    records += [OutboxRecord(agreed.snapshots_topic, None, name.encode(), ()) for name in gone]
    records += [
        OutboxRecord(agreed.history_topic, None, f"{name}/names".encode(), ()) for name in gone
    ]
    records += [record.outbox_record(agreed.history_topic) for record in changed]
    return StepRecords(records, changed)


def snapshot_records(contract: Contract, published: PublishedSnapshot) -> Iterator[OutboxRecord]:
    """The snapshot, then what became of clusters with it."""
    key = published.snapshot.model.encode()
    # The snapshot first: who reads an event finds the snapshot that it names.
    yield OutboxRecord(contract.snapshots_topic, published.value, key, Snapshot.headers())
    for event in published.events:
        yield OutboxRecord(contract.events_topic, event.encode(), key, event.headers())


def history_records(history: HistoryStore, changes: Sequence[HistoryChange]) -> list[HistoryRecord]:
    """The bins and names that have changed, and the removal of bins that are too old by now."""
    changed: list[HistoryRecord] = []
    models_anew: list[str] = []
    for change in changes:
        changed += [HistoryRecord(message.record_key, message) for message in change.messages]
        if change.begins_again:
            models_anew.append(change.model)
    return changed + history.expired(changed) + history.forgotten(models_anew, changed)


def quarantine_requests(
    contract: Contract, events: Sequence[ModelEvent], now: float
) -> Iterator[OutboxRecord]:
    """Requests to quarantine the clients that keep answers from being combined.

    They count when they are read back from the log, so that their order with updates is the log's.
    """
    for event in events:
        if isinstance(event, IncompatibleClient):
            detail = f"{event.model}: {event.detail}"[:TEXT_CHARACTERS_MAX]
            yield from quarantine_records(contract, event.client, "quarantine", detail, now)


def list_records(
    contract: Contract,
    models: Mapping[str, ServedModel],
    quarantine: QuarantineRegister,
    ingested: Sequence[IngestOutcome],
) -> Iterator[OutboxRecord]:
    """The lists that clients read at their start, where the step has changed them."""
    if any(outcome.reason == "conflict" or outcome.copied for outcome in ingested):
        yield _conflict_list(contract, models)
    requests = (outcome.request for outcome in ingested)
    if any(request is not None and request.quarantine_changed for request in requests):
        yield quarantine.list_record(contract)


def _conflict_list(contract: Contract, models: Mapping[str, ServedModel]) -> OutboxRecord:
    """The record that tells clients that their updates are refused because of their numbers, or
    that two publish."""
    conflicts: list[list[Any]] = []
    copies: list[list[Any]] = []
    for name, model in models.items():
        conflicts += [list(conflict) for conflict in model.clients.conflicts(name)]
        copies += [list(copy) for copy in model.clients.copies(name)]
    # A list is one record: where not all have room, the newest are kept.
    message = ConflictList(contract.federation, conflicts[-CONFLICTS_MAX:], copies[-CONFLICTS_MAX:])
    return OutboxRecord(
        contract.snapshots_topic, message.encode(), CONFLICTS_KEY, ConflictList.headers()
    )
