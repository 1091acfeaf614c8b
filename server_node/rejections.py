"""Records that are set aside: what is kept of each, and those that are rejected before they are looked at."""

from __future__ import annotations

from server_node.failed_records import FailedRecords
from shoal.config.contract import Contract
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.rejected import Rejected
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Record


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
        """What is kept of a record that was rejected."""
        whole = Rejected(
            record.value, record.key, wrong.reason, wrong.detail, *record[:3], original_headers=record.headers
        )
        kept = whole.within(self._value_bytes_max)
        # A record without a value would delete this key from the compacted topic, so its value is kept as empty bytes.
        return OutboxRecord(self._topic, kept.value or b"", kept.record_key, kept.headers)
