"""The newest snapshot of each model, as this client has read it."""

from __future__ import annotations

import logging

from shoal.config.contract import Contract
from shoal.errors import MessageRejected
from shoal.protocol.lease import is_lease
from shoal.protocol.messages import Snapshot
from shoal.protocol.validation import Validator
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Record, beginning


class Snapshots:
    """Follows the snapshots of all models. What fails a check is passed over, and said."""

    def __init__(self, contract: Contract, border: Validator, log: Log) -> None:
        self._border = border
        self._log = log
        self._topic = contract.snapshots_topic
        self._positions = beginning(log, self._topic)
        self._newest: dict[str, Snapshot] = {}

    def newest(self, model: str) -> Snapshot | None:
        """The newest one read, None before the first."""
        return self._newest.get(model)

    def follow(self) -> None:
        """Read everything there is. Raises as the log does."""
        records, self._positions = self._log.read(self._topic, self._positions)
        while records:
            for record in records:
                if not is_lease(record):
                    self._take(record)
            records, self._positions = self._log.read(self._topic, self._positions)

    def _take(self, record: Record) -> None:
        try:
            snapshot = Snapshot.decode(record.value, record.headers)
            self._border.check_snapshot(snapshot)
        except MessageRejected as rejected:
            log_event("snapshot_rejected", logging.WARNING, reason=rejected.reason, detail=rejected.detail)
            return
        known = self._newest.get(snapshot.model)
        if known is None or known.version < snapshot.version:
            self._newest[snapshot.model] = snapshot
