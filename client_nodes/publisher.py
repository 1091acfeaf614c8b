"""Encodes the updates of a client: validated as the server validates them, in chunks where one record is too small."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.rounds.base import Params
from shoal.config.contract import Contract
from shoal.config.sections import ClientSettings
from shoal.protocol.chunking import encode_update
from shoal.protocol.conflicts import content_digest
from shoal.protocol.messages import Update
from shoal.protocol.signatures import HEADER, client_file, read_keys, signature
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.runtime.conflicts import PublishedDigests
from shoal.transports.base import Headers


class EncodedUpdate(NamedTuple):
    """An update as the records that go to the outbox."""

    model: str
    records: list[OutboxRecord]
    """one, or one for each chunk"""


class Publisher:
    """Turns updates into records for the topic of updates."""

    def __init__(self, contract: Contract, validator: Validator, record_bytes_max: int) -> None:
        """`record_bytes_max` is the largest record that the topic accepts, in bytes."""
        self._contract = contract
        self._validator = validator
        self._record_bytes_max = record_bytes_max
        self.digests = PublishedDigests()
        """of the newest updates"""

    def make_records(self, update: Update, params: Params | None = None) -> EncodedUpdate:
        """Raises `MessageRejected` for what the server would reject, so that a fault shows where it is made.

        `params` are those that an answer is to.
        """
        self._validator.check_update(update)
        if params is not None:
            self._validator.check_answer_claims(update, params)
        table = load_algorithm(update.algorithm).update
        chunks = encode_update(update, table, self._record_bytes_max)
        key, headers = self._contract.update_key(update.model), Update.headers()
        records = [OutboxRecord(self._contract.updates_topic, chunk.value, key, headers) for chunk in chunks]
        digest = content_digest(*chunks[0], table)
        self.digests.add(update.model, update.sequence, digest)
        return EncodedUpdate(update.model, records)


def read_signing_key(settings: ClientSettings, client: str) -> bytes | None:
    """The key that a client signs its updates with; None: they are not signed. Raises `SettingsError`."""
    template = settings.signing_key_file
    return None if template is None else read_keys(client_file(template, client))[0]


def make_signer(key: bytes | None) -> Callable[[OutboxRecord], Headers]:
    """A function that gives a record's signature header when it is published; no header without a key."""
    if key is None:
        return lambda _: ()
    return lambda record: ((HEADER, signature(key, record.topic, record.value or b"")),)
