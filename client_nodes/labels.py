"""A client labels its own readings by the newest snapshot. The labels stay on its premises."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_nodes.intake import Intake
from shoal.algorithms.registry import STREAMING
from shoal.algorithms.streaming import Rows
from shoal.border import Border, bounds_of
from shoal.codec import pack
from shoal.contract import Contract
from shoal.errors import MessageRefused
from shoal.events import log_event
from shoal.messages import VERSION, Snapshot
from shoal.topics import LABELS, LOCAL_SETTINGS
from shoal.transports.contract import Log, Record, beginning

HEADERS = (("type", b"label"), ("v", str(VERSION).encode()))


class Labeller:
    """Follows the snapshots of every model and writes the cluster of each reading into the client's own log.

    Labels are made from the readings as they are, without noise: nothing of them is published.
    """

    def __init__(self, contract: Contract, border: Border, log: Log, readings: Log) -> None:
        self._border = border
        self._bounds = bounds_of(contract)
        self._models = [model.name for model in contract.models]
        self._log = log
        self._readings = readings
        self._topic = contract.snapshots_topic
        self._positions = beginning(log, self._topic)
        self._newest: dict[str, Snapshot] = {}
        readings.ensure(LABELS, LOCAL_SETTINGS)

    def label(self, intake: Intake) -> None:
        """Write {"cluster", "version", "time"} of each reading and model, keyed by both; the caller flushes."""
        self._follow()
        if not intake.places:
            return
        unit = self._bounds.to_unit(self._bounds.clip(intake.values)[0])
        for model in self._models:
            clusters, version = self._clusters(model, unit)
            for cluster, (partition, offset), time in zip(clusters, intake.places, intake.times, strict=True):
                label = {"cluster": int(cluster), "version": version, "time": time}
                self._readings.publish(LABELS, pack(label), f"{model}/{partition}/{offset}".encode(), HEADERS)

    def _clusters(self, model: str, rows: Rows) -> tuple[NDArray[np.int64], int]:
        """Clusters of rows (n, d) and the version they are of; -1 and 0 until there is a snapshot."""
        snapshot = self._newest.get(model)
        if snapshot is None:
            return np.full(len(rows), -1, dtype=np.int64), 0
        return STREAMING[snapshot.algorithm].predict(snapshot.arrays, rows), snapshot.version

    def _follow(self) -> None:
        records, self._positions = self._log.read(self._topic, self._positions)
        while records:
            for record in records:
                self._take(record)
            records, self._positions = self._log.read(self._topic, self._positions)

    def _take(self, record: Record) -> None:
        try:
            snapshot = Snapshot.decode(record.value, record.headers)
            self._border.admit_snapshot(snapshot)
        except MessageRefused as refused:
            log_event("snapshot_refused", reason=refused.reason, detail=refused.detail)
            return
        known = self._newest.get(snapshot.model)
        if known is None or known.version < snapshot.version:
            self._newest[snapshot.model] = snapshot
