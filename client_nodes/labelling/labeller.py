"""Labels a client's readings by the newest snapshot of every model, and earlier ones when the first snapshot comes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from client_nodes.intake import Batch
from client_nodes.labelling.backlog import Backlog
from client_nodes.labelling.clusters import NO_IDENTITY, SnapshotClusters
from client_nodes.labelling.spread import Spread
from client_nodes.local_results import Labelled
from client_nodes.snapshots import Snapshots
from shoal.config.contract import Contract
from shoal.config.privacy import declared_bounds
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState
from shoal.protocol.labels import Label, label_headers, label_key
from shoal.protocol.topics import LABELS, LOCAL_SETTINGS
from shoal.runtime.checkpoint import OutboxRecord
from shoal.transports.base import Log, Positions

NOVELTY_DIGITS = 5
BACKLOG_WAIT_S = 0.25
"""for records of the backlog: a log on brokers has none at once"""


@dataclass
class ModelLabels:
    """What labelling keeps for one model."""

    backlog: Backlog = field(default_factory=Backlog)
    spread: Spread = field(default_factory=Spread)
    clusters: SnapshotClusters | None = None
    """of the newest snapshot, if it knows any cluster"""
    version: int = 0
    """of the newest snapshot"""


class BacklogPiece(NamedTuple):
    """What was done for earlier readings."""

    records_read: int
    labels_of: dict[str, int]
    """model -> labels written"""
    records: list[OutboxRecord]
    """to publish; none unless the settings tell to"""


class Labeller:
    """Labels each reading with its cluster, lasting identity and novelty, in the client's own log.

    Labels are made from the readings without noise. They stay in the client's folder unless `[client] publish_labels`
    tells to publish them, which is done through the outbox.
    """

    def __init__(
        self, contract: Contract, client: str, settings: ClientSettings, snapshots: Snapshots, readings: Log
    ) -> None:
        self._contract = contract
        self._client = client
        self._settings = settings
        self._bounds = declared_bounds(contract)
        self._models = {model.name: ModelLabels() for model in contract.models}
        self._snapshots = snapshots
        self._readings = readings
        self._novel: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        """Whether earlier readings can be labelled now."""
        return any(one.backlog.pending and one.clusters is not None for one in self._models.values())

    @property
    def novel(self) -> dict[str, int]:
        """model -> readings of at least the novelty of the settings, since the client was first started."""
        return {model: self._novel[model] for model in self._models}

    def ensure_topics(self) -> None:
        """Create the topic of labels in the client's own log. Raises as the log does."""
        self._readings.ensure(LABELS, LOCAL_SETTINGS)

    def label(self, batch: Batch) -> Labelled:
        """Write the labels of a batch, and of the next readings of the backlog; the caller flushes.

        Readings of a model without a snapshot that knows a cluster are kept in mind for later.
        """
        self.follow()
        labels, records = 0, list[OutboxRecord]()
        for model, kept in self._models.items():
            if kept.clusters is None:
                kept.backlog.extend(batch)
            else:
                labels += len(batch.places)
                records += self._write(model, kept.clusters, batch, count_novel=True)
        done = self.label_backlog()
        return Labelled(labels + sum(done.labels_of.values()), done.records_read, records + done.records)

    def label_backlog(self) -> BacklogPiece:
        """Write the labels of the next earlier readings of each model that has some; the caller flushes."""
        read, labels_of, records = 0, dict[str, int](), list[OutboxRecord]()
        for model, kept in self._models.items():
            if kept.clusters is not None and kept.backlog.pending:
                count_novel, limit = not kept.backlog.again, self._settings.batch_readings_max
                piece = kept.backlog.take(self._readings, limit, BACKLOG_WAIT_S, self._contract.width)
                read += piece.records
                labels_of[model] = len(piece.places)
                records += self._write(model, kept.clusters, piece, count_novel)
        return BacklogPiece(read, labels_of, records)

    def follow(self) -> None:
        """Read the snapshots that are not read yet. Raises as the log does."""
        self._snapshots.follow()
        for model, kept in self._models.items():
            snapshot = self._snapshots.newest(model)
            if snapshot is not None and snapshot.version != kept.version:
                clusters = SnapshotClusters(snapshot)
                kept.version, kept.clusters = snapshot.version, clusters if clusters.known else None

    def label_again(self, learnt: Positions, oldest: Positions) -> dict[str, bool]:
        """Label all readings from `oldest` to `learnt` again, in the calls of `label` that follow.

        Novelty is computed anew, in the order of the readings. Returns which models can be labelled now; the others
        are left as they are.
        """
        start = {one: oldest.get(one, 0) for one, end in learnt.items() if oldest.get(one, 0) < end}
        for kept in self._models.values():
            if kept.clusters is not None:
                kept.spread = Spread()
                kept.backlog = Backlog(dict(start), {one: learnt[one] for one in start}, again=True)
        return {model: kept.clusters is not None for model, kept in self._models.items()}

    def reset_identities(self) -> None:
        """Forget the distances by lasting identity: another log of the federation begins with other identities."""
        for kept in self._models.values():
            kept.spread = Spread()

    def state(self) -> dict[str, Any]:
        return {
            "models": {
                model: {"backlog": kept.backlog.state(), "spread": kept.spread.state(), "novel": self._novel[model]}
                for model, kept in self._models.items()
            }
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            for model, kept in self._models.items():
                own = state["models"][model]
                kept.backlog = Backlog.restored(own["backlog"])
                kept.spread.restore(own["spread"])
                self._novel[model] = own["novel"]
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint of the labels is damaged: {broken}") from None

    def _write(self, model: str, clusters: SnapshotClusters, batch: Batch, count_novel: bool) -> list[OutboxRecord]:
        """Write a label for each reading; returns the records to publish."""
        if not batch.places:
            return []
        publish, headers, records = self._settings.publish_labels, label_headers(), list[OutboxRecord]()
        for label, place in zip(self._labels(model, clusters, batch, count_novel), batch.places, strict=True):
            key = label_key(model, *place)
            self._readings.publish(LABELS, label.encode(), key, headers)
            if publish:
                value = label.to_json(self._contract.federation, self._client, model)
                records.append(
                    OutboxRecord(self._contract.labels_topic, value, self._client.encode() + b"/" + key, headers)
                )
        return records

    def _labels(self, model: str, clusters: SnapshotClusters, batch: Batch, count_novel: bool) -> list[Label]:
        clipped = self._bounds.to_unit(self._bounds.clip(batch.values)[0])
        found = clusters.assign(clipped, self._bounds.to_unit(batch.values))
        spread = self._models[model].spread
        # What belongs to no known cluster must not count as one of the nearest: it may be a new cluster.
        novelty = spread.novelty(found.reference, found.distance, found.identity != NO_IDENTITY)
        if count_novel:
            self._novel[model] += int((novelty >= self._settings.novelty_quantile).sum())
        columns = (found.cluster.tolist(), found.identity.tolist(), np.round(novelty, NOVELTY_DIGITS).tolist())
        return [
            Label(
                cluster,
                None if identity == NO_IDENTITY else identity,
                clusters.names.get(identity, ""),
                None if math.isnan(strange) else strange,
                clusters.version,
                time,
            )
            for cluster, identity, strange, time in zip(*columns, batch.times, strict=True)
        ]
