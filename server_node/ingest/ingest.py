"""Ingests records of the updates topic: validates each, reassembles its update, and gives it to its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from server_node.ingest.outcome import IngestOutcome
from server_node.ingest.rejections import RecordFailed, Rejections
from server_node.ingest.requests import Request, ServerParts, request_in
from server_node.models.base import Processed
from server_node.models.clients import Content
from shoal.errors import MessageRejected
from shoal.protocol.conflicts import content_digest
from shoal.protocol.messages import Update
from shoal.protocol.regions import decode_update, update_arrays
from shoal.protocol.signatures import OPERATOR, ClientKeys
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Record


class Ingested(NamedTuple):
    """What became of one record."""

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
        keys: ClientKeys | None = None,
    ) -> None:
        """`keys` are the clients' signing keys; None: updates need no signature."""
        self._server = server
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
            if (request := request_in(record)) is not None:
                return Ingested(self._apply(request, record, outcome))
            update = decode_update(record.value, record.headers)
            if self._keys is not None:
                self._keys.check(update.client, record.topic, record.value or b"", record.headers)
            if self._server.quarantine.excludes(update.model, update.client, (record.partition, record.offset)):
                return Ingested(outcome._replace(result="quarantined", model=update.model, client=update.client))
            self._server.quotas.check(update.client, record)
            self._server.validator.check_update(update)
            taken = self._take(update, record.value or b"", outcome)
            self._server.quotas.accepted(update.client)
            return Ingested(taken)
        except MessageRejected as wrong:
            model, client = ("", "") if update is None else (update.model, update.client)
            rejected = outcome._replace(model=model, client=client, reason=wrong.reason, detail=wrong.detail)
            return Ingested(rejected, self._rejections.record_of(record, wrong))
        except Exception as error:  # no record may end the server, whatever it makes an algorithm raise
            raise RecordFailed(record, error) from error

    def _apply(self, request: Request, record: Record, outcome: IngestOutcome) -> IngestOutcome:
        """The outcome of a request. Raises `MessageRejected`."""
        if self._keys is not None and request.signed:
            kind = request.message_type.TYPE
            self._keys.check(OPERATOR, record.topic, record.value or b"", record.headers, kind)
        request.check(self._server)
        return outcome._replace(result="request", model=request.model, request=request.apply(self._server))

    def _take(self, update: Update, value: bytes, outcome: IngestOutcome) -> IngestOutcome:
        """The outcome of a validated update or chunk of one. Raises `MessageRejected`."""
        model, processed = self._server.models[update.model], Processed(False)
        table = update_arrays(update)
        content = Content(content_digest(update, value, table), update.made_at)
        if update.chunks == 1:
            processed = model.process(update, outcome.at, content)
        elif not model.clients.knows(update.client, update.sequence, content):
            whole = self._server.reassembly.take(update, value)
            if whole is None:
                return outcome._replace(result="chunk", model=update.model, client=update.client)
            # Each chunk can be valid, and all of them together too large.
            self._server.validator.check_update(whole)
            update = whole
            processed = model.process(update, outcome.at, content)
        if processed.new:
            self._server.hierarchy.take(update, outcome.at)
            self._server.reassembly.drop(update.model, update.client)
        return outcome._replace(
            result="absorbed" if processed.new else "repeated",
            model=update.model,
            client=update.client,
            readings=update.readings if update.round is None and update.chunk == 1 else 0,
            made_at=update.made_at,
            answer=processed.answer,
        )
