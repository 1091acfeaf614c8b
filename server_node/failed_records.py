"""Records whose processing raised an error that no check foresees: each is set aside, and the server goes on.

A record must not end the server, or it would end it again at each start. After such an error nothing is known of the
models, so the server returns to its checkpoint, as after a kill, and reads on from there. At its second failure the
record is rejected with the reason `failed` before it is looked at. Which records fail depends on the log alone, so a
rebuild sets the same ones aside.
"""

from __future__ import annotations

import logging
from typing import Final

from shoal.errors import MessageRejected
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
