"""What a client writes to its own log about each reading: the labels, and the readings it rejected. None leaves it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_nodes.intake import Batch, RejectedReading
from client_nodes.snapshots import Snapshots
from shoal.algorithms.registry import load_algorithm
from shoal.algorithms.streaming import Rows
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.protocol.codec import pack
from shoal.protocol.messages import VERSION
from shoal.protocol.topics import LABELS, LOCAL_SETTINGS, REJECTED
from shoal.transports.base import Log

VERSION_HEADER = ("v", str(VERSION).encode())
LABEL_HEADERS = (("type", b"label"), VERSION_HEADER)


class LocalResults:
    """Writes rejected readings and labels to the client's own log, keyed by the reading's place.

    So writing them again after a kill changes nothing in the compacted view.
    """

    def __init__(self, readings: Log, labeller: Labeller | None) -> None:
        self._readings = readings
        self._labeller = labeller

    def ensure_topics(self) -> None:
        """Create the topics that are written to. Raises as the log does."""
        self._readings.ensure(REJECTED, LOCAL_SETTINGS)
        if self._labeller is not None:
            self._readings.ensure(LABELS, LOCAL_SETTINGS)

    def write(self, batch: Batch) -> None:
        """Write what there is to write about a batch, and flush it. Raises as the log does."""
        for rejected in batch.rejected:
            self._write_rejected(rejected)
        if self._labeller is not None:
            self._labeller.label(batch)
        if batch.rejected or (self._labeller is not None and batch.places):
            self._readings.flush()

    def _write_rejected(self, rejected: RejectedReading) -> None:
        record = rejected.record
        key = f"{record.partition}/{record.offset}".encode()
        headers = (("type", b"rejected"), VERSION_HEADER, ("reason", rejected.reason.encode()))
        # A record without a value would delete the key from the compacted view.
        self._readings.publish(REJECTED, record.value or b"", key, headers)


class Labeller:
    """Labels each reading with its cluster in the newest snapshot of every model.

    Labels are made from the readings without noise, so none of them is published.
    """

    def __init__(self, contract: Contract, snapshots: Snapshots, readings: Log) -> None:
        self._bounds = declared_bounds(contract)
        self._models = [model.name for model in contract.models]
        self._snapshots = snapshots
        self._readings = readings

    def label(self, batch: Batch) -> None:
        """Write {"cluster", "version", "time"} of each reading and model, keyed by both; the caller flushes."""
        self._snapshots.follow()
        if not batch.places:
            return
        unit = self._bounds.to_unit(self._bounds.clip(batch.values)[0])
        for model in self._models:
            clusters, version = self._clusters(model, unit)
            for cluster, (partition, offset), time in zip(clusters, batch.places, batch.times, strict=True):
                label = {"cluster": int(cluster), "version": version, "time": time}
                self._readings.publish(LABELS, pack(label), f"{model}/{partition}/{offset}".encode(), LABEL_HEADERS)

    def _clusters(self, model: str, rows: Rows) -> tuple[NDArray[np.int64], int]:
        """Clusters of rows (n, d), and the version of the snapshot; -1 and 0 until there is a snapshot."""
        snapshot = self._snapshots.newest(model)
        if snapshot is None:
            return np.full(len(rows), -1, dtype=np.int64), 0
        return load_algorithm(snapshot.algorithm).predict(snapshot.arrays, rows), snapshot.version
