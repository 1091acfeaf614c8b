"""A client labels its own readings by the newest snapshot. The labels stay on its premises."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_nodes.intake import Intake
from client_nodes.snapshots import Snapshots
from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.streaming import Rows
from shoal.config.contract import Contract
from shoal.config.privacy_terms import bounds_of
from shoal.protocol.codec import pack
from shoal.protocol.messages import VERSION
from shoal.protocol.topics import LABELS, LOCAL_SETTINGS
from shoal.transports.base import Log

HEADERS = (("type", b"label"), ("v", str(VERSION).encode()))


class Labeller:
    """Writes the cluster of each reading, by the newest snapshot of every model, into the client's own log.

    Labels are made from the readings as they are, without noise: nothing of them is published.
    """

    def __init__(self, contract: Contract, snapshots: Snapshots, readings: Log) -> None:
        self._bounds = bounds_of(contract)
        self._models = [model.name for model in contract.models]
        self._snapshots = snapshots
        self._readings = readings
        readings.ensure(LABELS, LOCAL_SETTINGS)

    def label(self, intake: Intake) -> None:
        """Write {"cluster", "version", "time"} of each reading and model, keyed by both; the caller flushes."""
        self._snapshots.follow()
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
        snapshot = self._snapshots.newest(model)
        if snapshot is None:
            return np.full(len(rows), -1, dtype=np.int64), 0
        return load_algorithm(snapshot.algorithm).predict(snapshot.arrays, rows), snapshot.version
