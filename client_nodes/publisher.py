"""The publisher of a client: encodes its updates, and signs their records."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoal.algorithms.streaming import Arrays
from shoal.client_nodes.intake import TimeSpan
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.protocol.chunking import encode_update
from shoal.protocol.conflicts import (
    PublishedDigests,
    content_digest,
)
from shoal.protocol.messages import MASKED_COUNTS, Update
from shoal.protocol.signatures import HEADER, signature
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Headers


class EncodedUpdate(NamedTuple):
    """An update as the records that go to the outbox."""

    model: str
    records: list[OutboxRecord]
    """one, or one for each chunk"""


class Content(NamedTuple):
    """Content of an update."""

    sequence: int
    readings: int
    """readings, or places, that it stands for"""
    arrays: Arrays
    made_at: float
    """seconds since 1970"""
    span: TimeSpan
    """event times of the readings"""
    round: int | None = None
    """the round that it answers; None for a streaming model"""
    rejected: int | None = None
    """readings that the client has rejected since its first start; None where nothing may tell"""


class Publisher:
    """Makes the updates of one client, as records for the topic of updates."""

    def __init__(
        self, contract: ResolvedContract, client: str, validator: Validator, record_bytes_max: int
    ) -> None:
        """`record_bytes_max` is the largest record that the topic accepts, in bytes."""
        self._contract = contract
        self._client = client
        self._validator = validator
        self._record_bytes_max = record_bytes_max
        self.digests = PublishedDigests()
        """digests of the newest updates"""

    def make_update(
        self, model: ResolvedModel, content: Content, params: Arrays | None = None
    ) -> EncodedUpdate:
        """An update of a model under the terms of the contract; raises as `make_records` does."""
        update = Update(
            federation=self._contract.federation,
            contract=self._contract.digest,
            model=model.name,
            algorithm=model.algorithm.name,
            client=self._client,
            sequence=content.sequence,
            readings=content.readings,
            privacy=model.statement,
            arrays=content.arrays,
            made_at=content.made_at,
            oldest_reading_at=content.span.oldest,
            newest_reading_at=content.span.newest,
            rejected=content.rejected,
            round=content.round,
        )
        return self.make_records(update, params)

    def make_records(self, update: Update, params: Arrays | None = None) -> EncodedUpdate:
        """Raises `MessageRejected` for what the server would reject, here where a fault is made.

        `params` are those that an answer is to.
        """
        self._validator.check_update(update)
        if params is not None:
            self._validator.check_answer_claims(update, params)
        table = self._contract.models[update.model].algorithm.update
        chunks = encode_update(update, table, self._record_bytes_max)
        agreed = self._contract.contract
        headers = Update.headers()
        key = agreed.update_key(update.model)
        topic = agreed.updates_topic
        records = [OutboxRecord(topic, chunk.value, key, headers) for chunk in chunks]
        # Of any chunk: the digest is the same for all of one update.
        digest = content_digest(*chunks[0], table)
        self.digests.add(update.model, update.sequence, digest)
        return EncodedUpdate(update.model, records)


def make_signer(key: bytes | None) -> Callable[[OutboxRecord], Headers]:
    """A function that gives a record its signature header when it is published.

    It gives none without a key.
    """
    if key is None:
        return lambda _: ()

    def sign(record: OutboxRecord) -> Headers:
        is_masked = ("type", MASKED_COUNTS.encode()) in record.headers
        kind = MASKED_COUNTS if is_masked else Update.TYPE
        return ((HEADER, signature(key, record.topic, record.value or b"", kind)),)

    return sign


def all_headers(*makers: Callable[[OutboxRecord], Headers]) -> Callable[[OutboxRecord], Headers]:
    """All headers that several makers give a record."""
    return lambda record: tuple(header for make in makers for header in make(record))
