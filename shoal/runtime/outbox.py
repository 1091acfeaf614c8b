"""The transactional outbox: records are stored in the checkpoint with the state they belong to, then published."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from shoal.runtime.checkpoint import Checkpoint, OutboxRecord
from shoal.transports.base import Headers, Log

STORE_INTERVAL_S = 1.0
"""most seconds of learning that are repeated after a kill. Each store waits for the disk, so not every step."""


class Outbox:
    """Publishes the records stored in a checkpoint, in order, each at least once; readers drop repeated ones.

    A step that makes records must store them before they are published. A step that only learns may store later:
    until then a new process learns the same again from the log.
    """

    def __init__(
        self, checkpoint: Checkpoint, log: Log, sign: Callable[[OutboxRecord], Headers] = lambda _: ()
    ) -> None:
        """`sign` returns headers to add when a record is published: a key may change between two runs."""
        self._checkpoint = checkpoint
        self._log = log
        self._sign = sign
        self._published_up_to = 0
        self._stored_up_to = 0
        self._pending: list[OutboxRecord] | None = None
        """those that are stored and not known to be published; None: not read from the checkpoint yet"""
        self._unstored = 0
        self._stored_at = -math.inf

    def should_store(self, learnt: int, unstored_max: int, now: float) -> bool:
        """Whether a step that learnt from `learnt` more records and made none must store the state now.

        True if anything is not stored yet and the step had nothing to learn (so there is time), or at least
        `unstored_max` records are not stored, or the newest store is `STORE_INTERVAL_S` ago.
        """
        self._unstored += learnt
        # A clock that was set back must not lengthen the interval.
        self._stored_at = min(self._stored_at, now)
        due = learnt == 0 or self._unstored >= unstored_max or now >= self._stored_at + STORE_INTERVAL_S
        return self._unstored > 0 and due

    def store(self, state: dict[str, Any], records: Sequence[OutboxRecord], now: float) -> None:
        """Save the state and its records in one transaction, and delete the records known to be published."""
        last = self._checkpoint.save(state, records, self._published_up_to)
        if self._pending is not None and records:
            self._pending += records
            self._stored_up_to = last
        self._unstored, self._stored_at = 0, now

    def publish_pending(self) -> int:
        """Publish every stored record that is not known to be published; returns how many. Raises as the log does.

        A record published again after a kill has the same bytes. After `LogUnavailable` all of them stay stored.
        """
        if self._pending is None:
            stored = self._checkpoint.pending()
            self._pending = [record for _, record in stored]
            self._stored_up_to = stored[-1][0] if stored else 0
        pending = self._pending
        for record in pending:
            self._log.publish(record.topic, record.value, record.key, record.headers + self._sign(record))
        if pending:
            self._log.flush()
            self._published_up_to, self._pending = self._stored_up_to, []
        return len(pending)
