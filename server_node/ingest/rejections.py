"""Records that are set aside: rejected ones, and those whose processing raised an error that no check foresees.

A record that has made the server fail is tried again once, from the checkpoint, and then rejected before it is looked
at, so that the server goes on. What becomes of a model depends on the log alone, so a rebuild sets the same ones aside.
"""

from __future__ import annotations

import logging
from typing import Final

from shoal.config.contract import Contract
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.errors import MessageRejected
from shoal.protocol.rejected import Rejected
from shoal.runtime.checkpoint import OutboxRecord
from shoal.telemetry.events import log_event
from shoal.transports.base import Record

FAILURES_MAX: Final = 2
"""failures after which a record is set aside: the first may have had a cause of its own, such as too little memory"""


class RecordFailed(Exception):
    """Processing a record raised an unforeseen error. The models may be half changed."""

    def __init__(self, record: Record, error: Exception) -> None:
        # The text of the error could quote what is in the record.
        super().__init__(f"{record.topic}/{record.partition}/{record.offset}: {type(error).__name__}")
        self.place = (record.partition, record.offset)
        self.kind = type(error).__name__


class FailedRecords:
    """How often each record has failed since the server was started."""

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
        """What is kept of a record that was rejected."""
        whole = Rejected(
            record.value, record.key, wrong.reason, wrong.detail, *record[:3], original_headers=record.headers
        )
        kept = whole.within(self._value_bytes_max)
        # A record without a value would delete this key from the compacted topic, so its value is kept as empty bytes.
        return OutboxRecord(self._topic, kept.value or b"", kept.record_key, kept.headers)
