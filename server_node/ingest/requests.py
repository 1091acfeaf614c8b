"""Requests to quarantine, release or unlearn a client: one record for each model of the federation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoal.config.contract import Contract
from shoal.protocol.quarantine import QuarantineRequest
from shoal.protocol.signatures import operator_signature
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Headers


def quarantine_records(contract: Contract, client: str, action: str, detail: str, made_at: float) -> list[OutboxRecord]:
    """The records of a request, for the log or for the outbox of the server.

    Raises `MessageRejected` ("malformed") for a wrong name, action or detail.
    """
    requests = [
        QuarantineRequest(contract.federation, contract.digest, model.name, client, action, detail, made_at)
        for model in contract.models
    ]
    return [
        OutboxRecord(contract.updates_topic, one.encode(), contract.update_key(one.model), QuarantineRequest.headers())
        for one in requests
    ]


def request_signer(client_keys: Path | None) -> Callable[[OutboxRecord], Headers]:
    """A function that gives the headers to add to a record: a signature of a request, where clients sign as well."""

    def sign(record: OutboxRecord) -> Headers:
        if client_keys is None or ("type", QuarantineRequest.TYPE.encode()) not in record.headers:
            return ()
        return operator_signature(client_keys, record.topic, record.value or b"", QuarantineRequest.TYPE)

    return sign
