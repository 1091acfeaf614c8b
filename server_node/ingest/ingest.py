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
from shoal.runtime.checkpoint import OutboxRecord, pairs_of, positions_of
from shoal.saved_state import SavedState, state_type
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

    def record_of(self, record: Record, rejected: MessageRejected) -> OutboxRecord:
        """The message that keeps a rejected record."""
        whole = Rejected(
            record.value,
            record.key,
            rejected.reason,
            rejected.detail,
            record.topic,
            record.partition,
            record.offset,
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
    """the record for the rejected topic, if it was rejected and is kept"""


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
        contract = server.validator.contract.contract
        self._of_key = {contract.update_key(name): name for name in server.models}

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
            request = request_in(record, self._server.quotas, self._of_key)
            if request is not None:
                return Ingested(self._apply(request, record, outcome))
            update = decode_update(record.value, record.headers)
            return Ingested(self._process_update(update, record, outcome))
        except MessageRejected as rejected:
            # A record that has made the server fail must be kept: it shows what to mend.
            is_kept = rejected.reason == "failed" or self._server.quotas.keeps_rejected(
                rejected.reason, record
            )
            outcome = outcome._replace(reason=rejected.reason, detail=rejected.detail, kept=is_kept)
            if update is not None:
                outcome = self._claimed(outcome, update)
            kept = self._rejections.record_of(record, rejected) if is_kept else None
            return Ingested(outcome, kept)
        # No record may end the server, whatever it makes an algorithm raise.
        except Exception as error:
            raise RecordFailed(record, error) from error

    def _apply(self, request: Request, record: Record, outcome: IngestOutcome) -> IngestOutcome:
        """The outcome of a request. Raises `MessageRejected`."""
        if self._server.validator.is_superseded(request.message):
            return outcome._replace(result="superseded", model=request.model)
        self._keys.check_request(
            record.topic, record.value or b"", record.headers, request.message_type.TYPE
        )
        applied = request.take(self._server, record)
        return outcome._replace(result="request", model=request.model, request=applied)

    def _process_update(
        self, update: Update, record: Record, outcome: IngestOutcome
    ) -> IngestOutcome:
        """The outcome of an update or a chunk of one, in the order of the checks: who sent it,
        whether it counts, how many there may be, and what it says.

        Raises `MessageRejected`.
        """
        # The signature comes first: without it, anybody could use up the quota of a client.
        self._keys.check_client(update.client, record.topic, record.value or b"", record.headers)
        left_out = self._left_out(update, record)
        if left_out is not None:
            return outcome._replace(result=left_out, model=update.model, client=update.client)
        if isinstance(update, RegionUpdate):
            self._server.quotas.check_region(update.client)
        # Before what the update contains, which takes the most time to check: a client above its
        # rate must not use up the server's.
        self._server.quotas.check(update.client, record)
        self._server.validator.check_update(update)
        absorbed = self._absorb(update, record, outcome)
        # Only now: an update that is rejected gives its client no place among `clients_max`.
        self._server.quotas.accepted(update.client)
        return absorbed._replace(copied=self._is_copied(update))

    def _left_out(
        self, update: Update, record: Record
    ) -> Literal["superseded", "quarantined"] | None:
        """Why an update is left out before it is checked; None: it is not."""
        if self._server.validator.is_superseded(update):
            return "superseded"
        if self._server.quarantine.excludes(update, record):
            return "quarantined"
        return None

    def _absorb(self, update: Update, record: Record, outcome: IngestOutcome) -> IngestOutcome:
        """The outcome of a validated update or chunk of one. Raises `MessageRejected`."""
        model = self._server.models[update.model]
        table = update_arrays(update)
        content = Content(
            content_digest(update, record.value or b"", table),
            update.made_at,
            mark_in(record),
            record.partition,
            update.oldest_reading_at,
            update.newest_reading_at,
        )
        learns = self._server.validator.is_learnt(update)
        process = model.process if learns else model.skip
        processed = Processed(False)
        if update.chunks == 1:
            update = _dated(update, record)
            processed = process(update, outcome.at, content)
        # Chunks of an update that was processed are not kept: they would take room until the last
        # of them has come again.
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
        readings = 0
        # All chunks of a repeated update come here; its readings count with the first.
        if learns and update.round is None and update.chunk == 1:
            readings = update.readings
        result: Literal["superseded", "absorbed", "repeated"] = "superseded"
        if learns:
            result = "absorbed" if processed.new else "repeated"
        return outcome._replace(
            result=result,
            model=update.model,
            client=update.client,
            readings=readings,
            made_at=update.made_at,
            answer=processed.answer,
        )

    def _claimed(self, outcome: IngestOutcome, update: Update) -> IngestOutcome:
        """The outcome of a rejected record, with what its update claims to be."""
        outcome = outcome._replace(model=update.model, client=update.client)
        # Only a conflict shows that the model is one of the contract, as it is found last.
        if outcome.reason != "conflict":
            return outcome
        return outcome._replace(copied=self._is_copied(update))

    def _is_copied(self, update: Update) -> bool:
        """Whether this update was the first to show that two processes publish as its client."""
        return self._server.models[update.model].clients.take_copy()


def _dated(update: Update, record: Record) -> Update:
    """The update with a newest reading that is a day at most after the log took it in.

    A later one would stay the newest of the federation for ever.
    """
    latest = record.timestamp_ms / 1000 + AHEAD_S_MAX
    if update.newest_reading_at is None or update.newest_reading_at <= latest:
        return update
    oldest = update.oldest_reading_at
    if oldest is not None:
        oldest = min(oldest, latest)
    return replace(update, newest_reading_at=latest, oldest_reading_at=oldest)


class Unlearned(NamedTuple):
    """Continuation of a step after its requests to unlearn clients."""

    positions: Positions
    """positions to read on from: those that the step came to, or the start of the log"""
    hidden: bool
    """whether the log is read once more and is not read as far as before yet, so that no snapshot
    may be published"""
    reports: Sequence[Report]


@state_type
class UnlearningState(SavedState):
    """Saved state of `Unlearning`."""

    until: list[list[int]]
    """[partition, how far the log had been read]"""


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
        requests: list[tuple[str, str]] = []
        for outcome in ingested:
            if outcome.request is not None and outcome.request.unlearn:
                requests.append((outcome.model, outcome.request.unlearn))
        reports: list[Report] = []
        if requests:
            positions = self._unlearn(requests, positions, first, reports)
        if self._until and self._is_read(positions):
            self._until = {}
            reports.append(Report("unlearning_done"))
        return Unlearned(positions, bool(self._until), reports)

    def _is_read(self, positions: Positions) -> bool:
        """Whether the log has been read as far as before the client was unlearned."""
        return all(positions.get(partition, 0) >= end for partition, end in self._until.items())

    def _unlearn(
        self,
        requests: Sequence[tuple[str, str]],
        positions: Positions,
        first: Positions,
        reports: list[Report],
    ) -> Positions:
        """Have the models forget the clients, and add what happens to `reports`.

        `requests` are pairs of model and client. Returns the positions to read on from.
        """
        whole_log = any(self._server.models[model].needs_whole_log for model, _ in requests)
        # A log that has lost its first updates would give a model without more than the client.
        if whole_log and any(first.values()):
            for model, client in requests:
                fields = {"model": model, "client": client}
                reports.append(Report("unlearning_refused", logging.WARNING, fields))
            return positions
        for model, client in requests:
            fields = {"model": model, "client": client}
            reports.append(Report("unlearning_started", logging.INFO, fields))
            self._server.models[model].unlearn(client, positions)
        if not whole_log:
            return positions
        self._server.reassembly.clear()
        self._server.quarantine.begin_again()
        self._server.taken.begin_again()
        # Of a second request while the log is read again, the end that is further counts.
        for partition, position in positions.items():
            self._until[partition] = max(position, self._until.get(partition, 0))
        return first

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return UnlearningState(until=pairs_of(self._until)).saved()

    def restore(self, state: Any) -> None:
        """Become the saved one. Raises `InvalidState`."""
        self._until = positions_of(UnlearningState.read(state).until)
