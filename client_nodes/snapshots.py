"""Reads snapshots: keeps the newest one of each model for round answers and labels."""

from __future__ import annotations

from shoal.errors import MessageRejected
from shoal.protocol.lease import is_for_servers
from shoal.protocol.messages import Snapshot
from shoal.protocol.validation import Validator
from shoal.transports.base import Log, Positions, Record, beginning, latest

VERSIONS_AHEAD_MAX = 10**6
"""by which the version of a snapshot may be above the one before; a forged one must not hide all that follow"""


class Snapshots:
    """Follows the topic of snapshots of all models from its beginning. Skips records that fail validation."""

    def __init__(self, topic: str, validator: Validator, log: Log) -> None:
        self._validator = validator
        self._log = log
        self._topic = topic
        self._positions: Positions | None = None
        self._newest: dict[str, Snapshot] = {}
        self._rejected: list[MessageRejected] = []

    def newest(self, model: str) -> Snapshot | None:
        """The newest snapshot read of this model, None before the first."""
        return self._newest.get(model)

    def follow(self) -> None:
        """Read all snapshots that are not read yet. Raises as the log does."""
        if self._positions is None:
            self._positions = beginning(self._log, self._topic)
        records, self._positions = self._log.read(self._topic, self._positions)
        while records:
            for record in records:
                if not is_for_servers(record):
                    self._keep_if_newer(record)
            records, self._positions = self._log.read(self._topic, self._positions)

    def newest_record(self, key: bytes) -> Record | None:
        """The newest record of a key that is no model's, as servers write them. Raises as the log does."""
        return latest(self._log, self._topic).get(key)

    def take_rejected(self) -> list[MessageRejected]:
        """Why records were skipped since the previous call."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def _keep_if_newer(self, record: Record) -> None:
        try:
            snapshot = Snapshot.decode(record.value, record.headers)
            self._validator.check_snapshot(snapshot)
        except MessageRejected as rejected:
            self._rejected.append(rejected)
            return
        known = self._newest.get(snapshot.model)
        if known is None or known.version < snapshot.version <= known.version + VERSIONS_AHEAD_MAX:
            self._newest[snapshot.model] = snapshot
        elif snapshot.version > known.version:
            more = f"version {snapshot.version} is more than {VERSIONS_AHEAD_MAX} above {known.version}"
            self._rejected.append(MessageRejected("malformed", more))
        elif snapshot.version < known.version - VERSIONS_AHEAD_MAX:
            # The one that was known cannot have been of the server that publishes now.
            self._newest[snapshot.model] = snapshot
