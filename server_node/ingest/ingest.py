"""Ingests records of the updates topic: validates each, reassembles its update, and gives it to its
model.

A record that is rejected goes to the topic of rejected messages. One whose processing raises an
error that no check foresees is tried again once, from the checkpoint, and then rejected before it
is looked at, so that the server goes on. Both depend on the log alone, so a rebuild sets the same
records aside.

To unlearn a client its models forget it, and the log is read from its start once more without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from shoal.config.contract import Contract
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.conflicts import content_digest, mark_in
from shoal.protocol.messages import Update
from shoal.protocol.regions import RegionUpdate, decode_update, update_arrays
from shoal.protocol.rejected import Rejected
from shoal.protocol.signatures import ServerKeys
from shoal.runtime.checkpoint import OutboxRecord, pairs_of
from shoal.server_node.ingest.masked import MaskedRounds
from shoal.server_node.ingest.outcome import IngestOutcome, Report
from shoal.server_node.ingest.quarantine import AHEAD_S_MAX
from shoal.server_node.ingest.requests import Request, ServerParts, request_in
from shoal.server_node.models.base import Processed
from shoal.server_node.models.sequences import Content
from shoal.telemetry.events import log_event
from shoal.transports.base import Positions, Record

FAILURES_MAX: Final = 2
"""failures after which a record is set aside: the first may have had a cause of its own, such as
too little memory"""


class RecordFailed(Exception):
    """Processing a record raised an unforeseen error. The models may be half changed."""

    def __init__(self, record: Record, error: Exception) -> None:
        # The text of the error could quote what is in the record.
        super().__init__(
            f"{record.topic}/{record.partition}/{record.offset}: {type(error).__name__}"
        )
        self.place = (record.partition, record.offset)
        self.kind = type(error).__name__


class FailedRecords:
    """Number of failures of each record since the server was started."""

    def __init__(self) -> None:
        self._failures: dict[tuple[int, int], tuple[int, str]] = {}
        """(partition, offset) -> how often, and the kind of error"""

    def add(self, failed: RecordFailed) -> None:
        """Count one failure, and write an event."""
        times, _ = self._failures.get(failed.place, (0, ""))
        self._failures[failed.place] = (times + 1, failed.kind)
        log_event("record_failed", logging.ERROR, origin=str(failed), failures=times + 1)

    def check(self, record: Record) -> None:
        """Raises `MessageRejected` ("failed") for a record that has failed too often."""
        if not self._failures:
            return
        times, kind = self._failures.get((record.partition, record.offset), (0, ""))
        if times >= FAILURES_MAX:
            raise MessageRejected("failed", f"processing it raised {kind}, {times} times")


class Rejections:
    """Makes the records for the topic of rejected messages."""

    def __init__(self, contract: Contract, value_bytes_max: int = UPDATE_RECORD_BYTES_MAX) -> None:
        """`value_bytes_max` is the largest record that the topic of updates accepts."""
        self._topic = contract.rejected_topic
        self._value_bytes_max = value_bytes_max
        self.failed = FailedRecords()

    def check(self, record: Record) -> None:
        """Raises `MessageRejected` ("failed") for a record that has made the server fail."""
        self.failed.check(record)

    def record_of(self, record: Record, wrong: MessageRejected) -> OutboxRecord:
        """The message that keeps a rejected record."""
        whole = Rejected(
            record.value,
            record.key,
            wrong.reason,
            wrong.detail,
            *record[:3],
            original_headers=record.headers,
        )
        kept = whole.within(self._value_bytes_max)
        # A record without a value would delete this key from the compacted topic, so its value is
        # kept as empty bytes.
        return OutboxRecord(self._topic, kept.value or b"", kept.record_key, kept.headers)


class Ingested(NamedTuple):
    """Result of ingesting one record."""

    outcome: IngestOutcome
    rejected: OutboxRecord | None = None
    """the record for the rejected topic, if it was rejected"""


class Ingest:
    """Gives each record of the updates topic to the model it is for, or to the rejected topic."""

    def __init__(
        self,
        server: ServerParts,
        clock: Callable[[], float],
        rejections: Rejections,
        keys: ServerKeys,
        masked: MaskedRounds | None = None,
    ) -> None:
        """`masked`: None where no model learns from masked counts."""
        self._server = server
        self._masked = masked
        self._clock = clock
        self._rejections = rejections
        self._keys = keys

    def process(self, record: Record) -> Ingested:
        """Validate one record and give its update, once that is whole, to its model.

        Raises `RecordFailed` for an error that no check foresees; then models may be half changed.
        """
        at = self._clock()
        outcome = IngestOutcome(record.topic, record.partition, record.offset, at, "rejected")
        update: Update | None = None
        try:
            self._rejections.check(record)
            if self._masked is not None and self._masked.takes(record):
                return Ingested(self._masked.take(record, outcome, self._keys))
            if (request := request_in(record)) is not None:
                return Ingested(self._apply(request, record, outcome))
            update = decode_update(record.value, record.headers)
            self._keys.check_client(
                update.client, record.topic, record.value or b"", record.headers
            )
            if (left_out := self._left_out(update, record)) is not None:
                return Ingested(
                    outcome._replace(result=left_out, model=update.model, client=update.client)
                )
            if isinstance(update, RegionUpdate):
                self._server.quotas.check_region(update.client)
            self._server.quotas.check(update.client, record)
            self._server.validator.check_update(update)
            taken = self._take(update, record, outcome)
            self._server.quotas.accepted(update.client)
            return Ingested(taken._replace(copied=self._is_copied(update)))
        except MessageRejected as wrong:
            model, client = ("", "") if update is None else (update.model, update.client)
            rejected = outcome._replace(
                model=model, client=client, reason=wrong.reason, detail=wrong.detail
            )
            if wrong.reason == "conflict" and update is not None:
                rejected = rejected._replace(copied=self._is_copied(update))
            return Ingested(rejected, self._rejections.record_of(record, wrong))
        # no record may end the server, whatever it makes an algorithm raise
        except Exception as error:
            raise RecordFailed(record, error) from error

    def _left_out(
        self, update: Update, record: Record
    ) -> Literal["superseded", "quarantined"] | None:
        """Why an update is left out before it is checked; None: it is not."""
        if self._server.validator.is_superseded(update):
            return "superseded"
        return "quarantined" if self._server.quarantine.excludes(update, record) else None

    def _is_copied(self, update: Update) -> bool:
        """Whether this update was the first to show that two processes publish as its client."""
        return self._server.models[update.model].clients.take_copy()

    def _apply(self, request: Request, record: Record, outcome: IngestOutcome) -> IngestOutcome:
        """The outcome of a request. Raises `MessageRejected`."""
        if self._server.validator.is_superseded(request.message):
            return outcome._replace(result="superseded", model=request.model)
        self._keys.check_request(
            record.topic, record.value or b"", record.headers, request.message_type.TYPE
        )
        return outcome._replace(
            result="request", model=request.model, request=request.take(self._server, record)
        )

    def _take(self, update: Update, record: Record, outcome: IngestOutcome) -> IngestOutcome:
        """The outcome of a validated update or chunk of one. Raises `MessageRejected`."""
        model = self._server.models[update.model]
        processed = Processed(False)
        table = update_arrays(update)
        digest = content_digest(update, record.value or b"", table)
        times = update.oldest_reading_at, update.newest_reading_at
        content = Content(digest, update.made_at, mark_in(record), record.partition, *times)
        learns = self._server.validator.is_learnt(update)
        process = model.process if learns else model.skip
        if update.chunks == 1:
            update = _dated(update, record)
            processed = process(update, outcome.at, content)
        elif not model.clients.knows(update.client, update.sequence, content):
            whole = self._server.reassembly.take(update, record.value or b"")
            if whole is None:
                return outcome._replace(result="chunk", model=update.model, client=update.client)
            # Each chunk can be valid, and all of them together too large.
            self._server.validator.check_update(whole)
            update = _dated(whole, record)
            processed = process(update, outcome.at, content)
        if processed.new and not update.is_report:
            self._server.hierarchy.take(update, outcome.at)
            self._server.reassembly.drop(update.model, update.client)
        return outcome._replace(
            result="superseded" if not learns else "absorbed" if processed.new else "repeated",
            model=update.model,
            client=update.client,
            readings=update.readings
            if learns and update.round is None and update.chunk == 1
            else 0,
            made_at=update.made_at,
            answer=processed.answer,
        )


def _dated(update: Update, record: Record) -> Update:
    """The update with a newest reading that is a day at most after the log took it in.

    A later one would stay the newest of the federation for ever.
    """
    latest = record.timestamp_ms / 1000 + AHEAD_S_MAX
    if update.newest_reading_at is None or update.newest_reading_at <= latest:
        return update
    oldest = update.oldest_reading_at
    oldest = None if oldest is None else min(oldest, latest)
    return replace(update, newest_reading_at=latest, oldest_reading_at=oldest)


class Unlearned(NamedTuple):
    """Continuation of a step after its requests to unlearn clients."""

    positions: Positions
    """positions to read on from: those that the step came to, or the start of the log"""
    hidden: bool
    """whether the log is read once more and is not read as far as before yet, so that no snapshot
    may be published"""
    reports: Sequence[Report]


class Unlearning:
    """Rewinds the server to the start of the log when a client is to be unlearned, and reports when
    it is done.

    Models in rounds keep what they know of other clients: each update that is read again is a
    repeated one to them. No snapshot is published until the log has been read as far as before, so
    that readers never see half a model.
    """

    def __init__(self, server: ServerParts) -> None:
        self._server = server
        self._until: Positions = {}
        """partition -> how far the log had been read; empty while nothing is read again"""

    def after(
        self, ingested: Sequence[IngestOutcome], positions: Positions, first: Positions
    ) -> Unlearned:
        """Continue a step that came to `positions` of a log that begins at `first`."""
        requests = [
            (one.model, one.request.unlearn)
            for one in ingested
            if one.request and one.request.unlearn
        ]
        reports: list[Report] = []
        if requests:
            positions = self._unlearn(requests, positions, first, reports)
        if self._until and all(
            positions.get(partition, 0) >= end for partition, end in self._until.items()
        ):
            self._until = {}
            reports.append(Report("unlearning_done"))
        return Unlearned(positions, bool(self._until), reports)

    def _unlearn(
        self,
        requests: Sequence[tuple[str, str]],
        positions: Positions,
        first: Positions,
        reports: list[Report],
    ) -> Positions:
        """Have the models forget the clients. Returns the positions to read on from."""
        whole_log = any(self._server.models[model].needs_whole_log for model, _ in requests)
        if whole_log and any(first.values()):
            for model, client in requests:
                reports.append(
                    Report(
                        "unlearning_refused", logging.WARNING, {"model": model, "client": client}
                    )
                )
            return positions
        for model, client in requests:
            reports.append(
                Report("unlearning_started", logging.INFO, {"model": model, "client": client})
            )
            self._server.models[model].unlearn(client, positions)
        if not whole_log:
            return positions
        self._server.reassembly.clear()
        self._server.quarantine.begin_again()
        self._server.taken.begin_again()
        self._until = {
            partition: max(at, self._until.get(partition, 0)) for partition, at in positions.items()
        }
        return first

    def state(self) -> list[list[int]]:
        """Plain values for `restore`."""
        return pairs_of(self._until)

    def restore(self, state: Any) -> None:
        """Become the saved one."""
        self._until = dict(state)
