"""Labels a client's readings by the newest snapshot of every model.

Those from before the first snapshot are labelled when it comes. The distances of readings to their
clusters are kept as one histogram for each lasting identity, on the client only; so are the usual
values of each feature, by which a novel reading gets its reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.intake import READINGS_READ_MAX, Batch
from shoal.client_nodes.labelling.backlog import Backlog
from shoal.client_nodes.labelling.drift import DriftWatch
from shoal.client_nodes.labelling.dwells import Dwells
from shoal.client_nodes.labelling.snapshot_clusters import NO_IDENTITY, Assigned, SnapshotClusters
from shoal.client_nodes.labelling.spread import Spread
from shoal.client_nodes.labelling.streaks import Streak
from shoal.client_nodes.labelling.stuck import StuckWatch
from shoal.client_nodes.labelling.usual_values import Outside, UsualValues
from shoal.client_nodes.labelling.waiting import Sequences, WaitingReadings
from shoal.client_nodes.monitoring import Labelled
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.changes import Standing
from shoal.config.contract import Feature, within
from shoal.config.resolved import ResolvedContract
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label, Reason, label_headers, label_key
from shoal.protocol.parts import NO_PART, part_numbers
from shoal.protocol.topics import LABELS, SITE_EVENTS, ensure_label_topics
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import SavedState
from shoal.transports.base import Log, Positions

NOVELTY_DIGITS = 5
BACKLOG_WAIT_S = 0.25
"""wait for records of the backlog: a log on brokers has none at once"""


@dataclass(frozen=True, kw_only=True)
class ModelLabelsState(SavedState):
    """The number of novel readings of one model."""

    novel: int


@dataclass
class ModelLabels:
    """Memory of labelling for one model."""

    usual: UsualValues
    streak: Streak
    dwells: Dwells
    drift: DriftWatch
    waiting: WaitingReadings
    """readings that wait for the label of their sequence"""
    waiting_earlier: WaitingReadings
    """the same of the backlog"""
    backlog: Backlog = field(default_factory=Backlog)
    spread: Spread = field(default_factory=Spread)
    clusters: SnapshotClusters | None = None
    """clusters of the newest snapshot, if it knows any"""
    version: int = 0
    """version of the newest snapshot"""


class BacklogPiece(NamedTuple):
    """Labels that were written for earlier readings."""

    records_read: int
    labels_of: dict[str, int]
    """model -> labels written"""
    records: list[OutboxRecord]
    """records to publish; none without `publish_labels`"""


class Labeller:
    """Labels each reading with its cluster, lasting identity and novelty, in the client's own log.

    Labels are made from the readings without noise. They stay in the client's folder unless
    `[client] publish_labels` tells to publish them, which is done through the outbox.
    """

    def __init__(
        self,
        contract: ResolvedContract,
        client: str,
        settings: ClientSettings,
        snapshots: Snapshots,
        readings: Log,
        sequences: Sequences | None = None,
    ) -> None:
        """`sequences`: for models that label them; None: there is none."""
        self._sequences = sequences
        self._contract = contract
        self._topic = contract.contract.labels_topic
        self._client = client
        self._settings = settings
        self._bounds = contract.bounds
        self._features = [feature.name for feature in contract.contract.features]
        self._models = {name: self._none_yet(name) for name in contract.models}
        self._stuck = StuckWatch(contract.contract, client, settings.stuck_per_month)
        self._snapshots = snapshots
        self._readings = readings
        self._novel: Counter[str] = Counter()

    @property
    def has_work(self) -> bool:
        """Whether earlier readings can be labelled now."""
        for kept in self._models.values():
            if kept.backlog.pending and kept.clusters is not None:
                return True
        return False

    @property
    def novel(self) -> dict[str, int]:
        """model -> readings that were novel since the client was first started."""
        return {model: self._novel[model] for model in self._models}

    def ensure_topics(self) -> None:
        """Create the topics of labels and events in the client's own log.

        Raises as the log does.
        """
        ensure_label_topics(self._readings)

    def label(self, batch: Batch) -> Labelled:
        """Write the labels of a batch, and of the next readings of the backlog; the caller flushes.

        Readings of a model without a snapshot that knows a cluster are kept in mind for later.
        """
        self.follow()
        labels = 0
        events = self._stuck.follow(batch.values, batch.times, batch.places)
        records = self._published(events)
        for model, kept in self._models.items():
            if kept.clusters is None:
                kept.backlog.extend(batch)
                continue
            ready, made = self._labels(model, kept.clusters, kept.waiting, batch)
            labels += len(made)
            records += self._write(model, made, ready)
            events += kept.streak.follow(made, ready.places)
            # With differences in units, so never published.
            events += kept.drift.follow(made, self._bounds.to_unit(ready.values), ready.places)
            regime_events = self._regime_events(kept, made, ready)
            events += regime_events
            records += self._published(regime_events)
        # The id has the place of the reading: an event that is written again after a kill has the
        # same.
        for event in events:
            self._readings.publish(SITE_EVENTS, event.encode(), event.id.encode(), event.headers())
        earlier = self.label_backlog()
        labels += sum(earlier.labels_of.values())
        return Labelled(labels, earlier.records_read, records + earlier.records, events)

    def _regime_events(
        self, kept: ModelLabels, labels: Sequence[Label], batch: Batch
    ) -> list[SiteEvent]:
        regimes = None if kept.clusters is None else kept.clusters.regimes
        if regimes is None:
            return []
        return kept.dwells.follow(labels, self._bounds.to_unit(batch.values), batch.places, regimes)

    def _published(self, events: Sequence[SiteEvent]) -> list[OutboxRecord]:
        if not self._settings.publish_labels:
            return []
        records = []
        for event in events:
            key = self._client.encode() + b"/" + event.id.encode()
            records.append(OutboxRecord(self._topic, event.encode(), key, event.headers()))
        return records

    def label_backlog(self) -> BacklogPiece:
        """Write the labels of the next earlier readings of each model; the caller flushes."""
        read = 0
        labels_of: dict[str, int] = {}
        records: list[OutboxRecord] = []
        contract = self._contract
        limit = min(self._settings.batch_readings_max, READINGS_READ_MAX)
        for model, kept in self._models.items():
            if kept.clusters is None or not kept.backlog.pending:
                continue
            # Readings that are labelled again were counted when they were labelled first.
            count_novel = not kept.backlog.again
            piece = kept.backlog.take(
                self._readings, limit, BACKLOG_WAIT_S, contract.width, gaps=contract.learns_gaps
            )
            read += piece.records
            is_last = not kept.backlog.pending
            ready, labels = self._labels(
                model, kept.clusters, kept.waiting_earlier, piece, count_novel, is_last
            )
            labels_of[model] = len(labels)
            records += self._write(model, labels, ready)
        return BacklogPiece(read, labels_of, records)

    def follow(self) -> None:
        """Read the snapshots that are not read yet. Raises as the log does."""
        self._snapshots.follow()
        for model, kept in self._models.items():
            snapshot = self._snapshots.newest(model)
            if snapshot is None or snapshot.version == kept.version:
                continue
            sequence = None
            if self._sequences is not None and model in self._sequences.halves:
                sequence = self._sequences.halves[model].sequence_labels(snapshot.arrays)
            algorithm = self._contract.models[model].algorithm
            clusters = SnapshotClusters(snapshot, algorithm, sequence)
            kept.version = snapshot.version
            kept.clusters = clusters if clusters.known else None

    def label_again(self, learnt: Positions, oldest: Positions) -> dict[str, bool]:
        """Label all readings from `oldest` to `learnt` again, in the calls of `label` that follow.

        Novelty is computed anew, in the order of the readings. Returns which models can be labelled
        now; the others are left as they are.
        """
        start = {}
        until = {}
        for partition, end in learnt.items():
            first = oldest.get(partition, 0)
            if first < end:
                start[partition] = first
                until[partition] = end
        for kept in self._models.values():
            if kept.clusters is not None:
                kept.spread = Spread()
                kept.usual = UsualValues(self._contract.width)
                kept.waiting_earlier = WaitingReadings(self._contract.width)
                kept.backlog = Backlog(dict(start), dict(until), again=True)
        return {model: kept.clusters is not None for model, kept in self._models.items()}

    def reset_published(self, _: float) -> None:
        """Forget what is known by lasting identity: another log has other identities."""
        for model, kept in self._models.items():
            kept.spread = Spread()
            kept.usual = UsualValues(self._contract.width)
            kept.dwells = self._no_dwells(model)
            kept.drift = self._no_drift(model)

    def state(self) -> dict[str, Any]:
        models = {}
        for model, kept in self._models.items():
            models[model] = {
                "backlog": kept.backlog.state(),
                "spread": kept.spread.state(),
                "usual": kept.usual.state(),
                "streak": kept.streak.state(),
                "drift": kept.drift.state(),
                **ModelLabelsState(novel=self._novel[model]).saved(),
            }
            if self._has_sequences(model):
                models[model]["dwells"] = kept.dwells.state()
                models[model]["waiting"] = kept.waiting.state()
                models[model]["waiting_earlier"] = kept.waiting_earlier.state()
        return {"models": models, "stuck": self._stuck.state()}

    def moved(self, state: dict[str, Any], standing: Mapping[str, Standing]) -> dict[str, Any]:
        """A state of an earlier contract.

        Of a model that begins anew it has only which readings wait for a label.
        """
        models = dict(self.state()["models"])
        for name, model in state["models"].items():
            if standing.get(name) == "same":
                # Between other bounds the same level is at another place, which is no shift.
                models[name] = {**model, "drift": models[name]["drift"]}
            elif standing.get(name) == "anew":
                models[name] |= {"backlog": model["backlog"], "novel": model["novel"]}
        return {"models": models, "stuck": state["stuck"]}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            for model, kept in self._models.items():
                own = state["models"][model]
                kept.backlog = Backlog.restored(own["backlog"])
                kept.spread.restore(own["spread"])
                kept.usual.restore(own["usual"])
                kept.streak.restore(own["streak"])
                kept.drift.restore(own["drift"])
                if self._has_sequences(model):
                    kept.dwells.restore(own["dwells"])
                    kept.waiting.restore(own["waiting"])
                    kept.waiting_earlier.restore(own["waiting_earlier"])
                self._novel[model] = ModelLabelsState.read(own).novel
            self._stuck.restore(state["stuck"])
        except (InvalidState, KeyError, TypeError) as broken:
            raise InvalidState(f"the checkpoint of the labels is damaged: {broken}") from None

    def _has_sequences(self, model: str) -> bool:
        return self._sequences is not None and model in self._sequences.halves

    def _none_yet(self, model: str) -> ModelLabels:
        width = self._contract.width
        streak = Streak(self._contract.contract, self._client, model, self._settings.novel_streak)
        return ModelLabels(
            usual=UsualValues(width),
            streak=streak,
            dwells=self._no_dwells(model),
            drift=self._no_drift(model),
            waiting=WaitingReadings(width),
            waiting_earlier=WaitingReadings(width),
        )

    def _no_drift(self, model: str) -> DriftWatch:
        per_month = self._settings.drift_per_month
        return DriftWatch(self._contract.contract, self._client, model, per_month)

    def _no_dwells(self, model: str) -> Dwells:
        return Dwells(self._contract.contract, self._client, model, self._settings)

    def _write(self, model: str, labels: Sequence[Label], batch: Batch) -> list[OutboxRecord]:
        """Write the label of each reading; returns the records to publish."""
        publish = self._settings.publish_labels
        federation = self._contract.federation
        client_key = self._client.encode() + b"/"
        headers = label_headers()
        records: list[OutboxRecord] = []
        for label, place in zip(labels, batch.places, strict=True):
            key = label_key(model, *place)
            self._readings.publish(LABELS, label.encode(), key, headers)
            if publish:
                value = label.to_json(federation, self._client, model, self._features)
                records.append(OutboxRecord(self._topic, value, client_key + key, headers))
        return records

    def _labels(
        self,
        model: str,
        clusters: SnapshotClusters,
        waiting: WaitingReadings,
        batch: Batch,
        count_novel: bool = True,
        is_last: bool = False,
    ) -> tuple[Batch, list[Label]]:
        """The readings that get a label now, and their labels.

        They are those of the batch, unless they have to wait.
        """
        bounds = self._bounds
        numbers = None
        if clusters.sequence is not None and self._sequences is not None:
            waiting.add(batch, self._sequences.rows_of(batch))
            batch, numbers = waiting.take(clusters.sequence, is_last)
        if not batch.places:
            return batch, []
        unit = bounds.to_unit(batch.values)
        if numbers is None:
            # Models learn within the bounds: beyond them there is no cluster.
            clipped, _ = bounds.clip(batch.values, self._contract.learns_gaps)
            assigned = clusters.assign(bounds.to_unit(clipped), unit)
        else:
            assigned = clusters.compare(numbers, unit)
        return batch, self._labels_of(model, clusters, assigned, unit, batch.times, count_novel)

    def _labels_of(
        self,
        model: str,
        clusters: SnapshotClusters,
        assigned: Assigned,
        unit: Rows,
        times: Sequence[float | None],
        count_novel: bool,
    ) -> list[Label]:
        kept = self._models[model]
        # What belongs to no known cluster must not count as one of the nearest: it may be a new
        # cluster.
        known = assigned.identity != NO_IDENTITY
        novelty = kept.spread.novelty(assigned.reference, assigned.distance, known)
        novel = novelty >= self._settings.novelty_quantile
        outside = kept.usual.reasons(assigned.reference, unit, novel, known)
        if count_novel:
            self._novel[model] += int(novel.sum())
        titles = {NO_PART: ""}
        for part in clusters.parts:
            titles[part.number] = part.title
        numbers = part_numbers(clusters.parts, unit, self._contract.features)
        numbers[~known] = NO_PART
        labels = []
        for cluster, identity, strangeness, time, number in zip(
            assigned.cluster.tolist(),
            assigned.identity.tolist(),
            np.round(novelty, NOVELTY_DIGITS).tolist(),
            times,
            numbers.tolist(),
            strict=True,
        ):
            label = Label(
                cluster,
                None if identity == NO_IDENTITY else identity,
                clusters.names.get(identity, ""),
                None if math.isnan(strangeness) else strangeness,
                clusters.version,
                time,
                part=titles[number],
            )
            labels.append(label)
        for place in np.flatnonzero(novel).tolist():
            reference = int(assigned.reference[place])
            name = clusters.names.get(reference) or f"cluster {reference}"
            reasons = self._in_units(outside.get(place, []))
            labels[place] = labels[place]._replace(usual_in=name, reasons=reasons)
        return labels

    def _in_units(self, outside: Sequence[Outside]) -> tuple[Reason, ...]:
        reasons = []
        for beyond in outside:
            feature = self._contract.contract.features[beyond.feature]
            low = _in_unit(beyond.low, feature)
            high = _in_unit(beyond.high, feature)
            reasons.append(Reason(beyond.feature, beyond.above, low, high))
        return tuple(reasons)


def _in_unit(end: float, feature: Feature) -> float:
    return within(feature.low + end * (feature.high - feature.low), feature)
