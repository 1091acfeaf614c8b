"""The records of the topic of the history: bins, names of models, and tombstones of bins that are kept no longer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shoal.config.contract import Contract
from shoal.errors import MessageRejected
from shoal.protocol.history import HistoryBin, HistoryNames
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Record


@dataclass(frozen=True)
class HistoryRecord:
    """A record of the topic: a bin, the names of a model, or None for a bin that is kept no longer."""

    key: bytes
    message: HistoryBin | HistoryNames | None

    @cached_property
    def value(self) -> bytes | None:
        """The message as it travels; None for a tombstone."""
        return None if self.message is None else self.message.encode()

    def outbox_record(self, topic: str) -> OutboxRecord:
        """The record to publish; a tombstone for a bin that is kept no longer."""
        return OutboxRecord(topic, self.value, self.key, () if self.message is None else self.message.headers())


def decode_record(record: Record, contract: Contract) -> HistoryRecord | None:
    """What is in a record of the topic; None for one that is not of this contract's history, which is left alone."""
    if record.key is None:
        return None
    if record.value is None:
        return HistoryRecord(record.key, None)
    form = HistoryNames if ("type", HistoryNames.TYPE.encode()) in record.headers else HistoryBin
    try:
        message = form.decode(record.value, record.headers)
    except MessageRejected:
        return None
    expected = (contract.federation, contract.digest, record.key)
    known = contract.model(message.model) is not None
    if not known or (message.federation, message.contract, message.record_key) != expected:
        return None
    return HistoryRecord(record.key, message)
