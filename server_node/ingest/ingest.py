"""Ingests records of the updates topic: validates each, reassembles its update, and gives it to its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from server_node.ingest.outcome import IngestOutcome
from server_node.ingest.quarantine import QuarantineRegister
from server_node.ingest.quotas import Quotas
from server_node.ingest.reassembly import Reassembly
from server_node.ingest.rejections import RecordFailed, Rejections
from server_node.models.base import Processed, ServedModel
from server_node.models.clients import Content
from server_node.regions.hierarchy import Hierarchy
from shoal.errors import MessageRejected
from shoal.protocol.conflicts import content_digest
from shoal.protocol.messages import ClusterName, Update, Wake
from shoal.protocol.quarantine import QuarantineRequest
from shoal.protocol.regions import Contribute, decode_update, update_arrays
from shoal.protocol.signatures import OPERATOR, ClientKeys
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Record

WAKE, CLUSTER_NAME, QUARANTINE_REQUEST, CONTRIBUTE = (
    ("type", message.TYPE.encode()) for message in (Wake, ClusterName, QuarantineRequest, Contribute)
)
"""the header of each"""


class Ingested(NamedTuple):
    """What became of one record."""

    outcome: IngestOutcome
    rejected: OutboxRecord | None = None
    """the record for the rejected topic, if it was rejected"""


class Ingest:
    """Gives each record of the updates topic to the model it is for, or to the rejected topic."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument for each part of a server that a record can reach
        self,
        validator: Validator,
        models: Mapping[str, ServedModel],
        reassembly: Reassembly,
        quarantine: QuarantineRegister,
        clock: Callable[[], float],
        rejections: Rejections,
        quotas: Quotas,
        hierarchy: Hierarchy,
        keys: ClientKeys | None = None,
    ) -> None:
        """`keys` are the clients' signing keys; None: updates need no signature."""
        self._validator = validator
        self._models = models
        self._reassembly = reassembly
        self._quarantine = quarantine
        self._clock = clock
        self._rejections = rejections
        self._quotas = quotas
        self._hierarchy = hierarchy
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
            if (requested := self._request(record, outcome)) is not None:
                return Ingested(requested)
            update = decode_update(record.value, record.headers)
            if self._keys is not None:
                self._keys.check(update.client, record.topic, record.value or b"", record.headers)
            if self._quarantine.excludes(update.model, update.client, (record.partition, record.offset)):
                return Ingested(outcome._replace(result="quarantined", model=update.model, client=update.client))
            self._quotas.check(update.client, record)
            self._validator.check_update(update)
            taken = self._take(update, record.value or b"", outcome)
            self._quotas.accepted(update.client)
            return Ingested(taken)
        except MessageRejected as wrong:
            model, client = ("", "") if update is None else (update.model, update.client)
            rejected = outcome._replace(model=model, client=client, reason=wrong.reason, detail=wrong.detail)
            return Ingested(rejected, self._rejections.record_of(record, wrong))
        except Exception as error:  # no record may end the server, whatever it makes an algorithm raise
            raise RecordFailed(record, error) from error

    def _take(self, update: Update, value: bytes, outcome: IngestOutcome) -> IngestOutcome:
        """The outcome of a validated update or chunk of one. Raises `MessageRejected`."""
        model, processed = self._models[update.model], Processed(False)
        table = update_arrays(update)
        content = Content(content_digest(update, value, table), update.made_at)
        if update.chunks == 1:
            processed = model.process(update, outcome.at, content)
        elif not model.clients.knows(update.client, update.sequence, content):
            whole = self._reassembly.take(update, value)
            if whole is None:
                return outcome._replace(result="chunk", model=update.model, client=update.client)
            # Each chunk can be valid, and all of them together too large.
            self._validator.check_update(whole)
            update = whole
            processed = model.process(update, outcome.at, content)
        if processed.new:
            self._hierarchy.take(update, outcome.at)
            self._reassembly.drop(update.model, update.client)
        return outcome._replace(
            result="absorbed" if processed.new else "repeated",
            model=update.model,
            client=update.client,
            readings=update.readings if update.round is None and update.chunk == 1 else 0,
            made_at=update.made_at,
            answer=processed.answer,
        )

    def _request(self, record: Record, outcome: IngestOutcome) -> IngestOutcome | None:
        """The outcome of a request; None for a record that is none. Raises `MessageRejected`."""
        value, headers = record.value, record.headers
        if WAKE in headers:
            return outcome._replace(result="wake_request", model=self._wake(Wake.decode(value, headers)))
        if CLUSTER_NAME in headers:
            model = self._name(ClusterName.decode(value, headers), record)
            return outcome._replace(result="cluster_name", model=model)
        if QUARANTINE_REQUEST in headers:
            return self._apply(QuarantineRequest.decode(value, headers), record, outcome)
        if CONTRIBUTE in headers:
            model = self._contribute(Contribute.decode(value, headers))
            return outcome._replace(result="contribute_request", model=model)
        return None

    def _wake(self, wake: Wake) -> str:
        self._validator.check_wake(wake)
        self._models[wake.model].wake()
        return wake.model

    def _contribute(self, request: Contribute) -> str:
        self._validator.check_contribute(request)
        self._hierarchy.contribute(request.model)
        return request.model

    def _name(self, name: ClusterName, record: Record) -> str:
        self._validator.check_cluster_name(name)
        self._models[name.model].name_cluster(name.identity, name.name, (record.partition, record.offset))
        return name.model

    def _apply(self, request: QuarantineRequest, record: Record, outcome: IngestOutcome) -> IngestOutcome:
        """Take in a request about a client. Raises `MessageRejected`."""
        if self._keys is not None:
            self._keys.check(OPERATOR, record.topic, record.value or b"", record.headers, QuarantineRequest.TYPE)
        self._validator.check_quarantine(request)
        self._hierarchy.check_request(request)
        unlearn = self._quarantine.apply(request, (record.partition, record.offset))
        model = self._models[request.model]
        if request.action == "release":
            model.release(request.client)
        else:
            self._reassembly.drop(request.model, request.client)
            model.quarantine(request.client)
        return outcome._replace(
            result="quarantine_request",
            model=request.model,
            client=request.client,
            action=request.action,
            detail=request.detail,
            unlearn=unlearn,
        )
