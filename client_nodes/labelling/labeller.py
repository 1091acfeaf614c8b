"""Labels a client's readings by the newest snapshot of every model.

Those from before the first snapshot are labelled when it comes. The distances of readings to their
clusters are kept as one histogram for each lasting identity, on the client only; so are the usual
values of each feature, by which a novel reading gets its reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.intake import READINGS_READ_MAX, Batch
from shoal.client_nodes.labelling.backlog import Backlog
from shoal.client_nodes.labelling.calibration import CALIBRATED_DAYS, Calibration
from shoal.client_nodes.labelling.drift import DriftWatch
from shoal.client_nodes.labelling.dwells import Dwells
from shoal.client_nodes.labelling.snapshot_clusters import NO_IDENTITY, Assigned, SnapshotClusters
from shoal.client_nodes.labelling.spread import Spread
from shoal.client_nodes.labelling.streaks import Streaks, beyond_text
from shoal.client_nodes.labelling.stuck import StuckWatch
from shoal.client_nodes.labelling.usual_values import Outside, UsualValues
from shoal.client_nodes.labelling.visits import Visit, Visits, day_of
from shoal.client_nodes.labelling.waiting import Sequences, WaitingReadings
from shoal.client_nodes.monitoring import Labelled
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.changes import Standing
from shoal.config.contract import Feature, rounded, within
from shoal.config.resolved import ResolvedContract
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState
from shoal.kernels.arrays import Bools, Floats
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label, Reason, label_headers, label_key
from shoal.protocol.parts import NO_PART, part_numbers
from shoal.protocol.topics import LABELS, SITE_EVENTS, ensure_label_topics
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import SavedState, state_type
from shoal.transports.base import Log, Positions

NOVELTY_DIGITS = 5
REASONS_MAX = 3
"""features named for one reading"""
BACKLOG_WAIT_S = 0.25
"""wait for records of the backlog: a log on brokers has none at once"""


@state_type
class ModelLabelsState(SavedState):
    """The number of novel readings of one model."""

    novel: int


@dataclass
class ModelLabels:
    """Memory of labelling for one model."""

    usual: UsualValues
    streaks: Streaks
    dwells: Dwells
    drift: DriftWatch
    visits: Visits
    waiting: WaitingReadings
    """readings that wait for the label of their sequence"""
    waiting_earlier: WaitingReadings
    """the same of the backlog"""
    backlog: Backlog = field(default_factory=Backlog)
    spread: Spread = field(default_factory=Spread)
    calibration: Calibration = field(default_factory=Calibration)
    clusters: SnapshotClusters | None = None
    """clusters of the newest snapshot, if it knows any"""
    version: int = 0
    """version of the newest snapshot"""


class LabelledBatch(NamedTuple):
    """Readings that have got a label."""

    readings: Batch
    labels: list[Label]
    """(n,)"""
    visits: list[Visit]
    """those to clusters that are new to the client"""


class _OfDay(NamedTuple):
    """Readings of one day, or without a time."""

    unit: Rows
    """(n, d) in unit coordinates"""
    assigned: Assigned
    """their labels"""
    judged: Assigned
    """the same with the clusters that they are compared with, if these are others"""
    times: Sequence[float | None]
    held_on: int | None
    """the day, if novel readings in a row are held back"""


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
    def has_backlog(self) -> bool:
        """Whether readings wait for a label, and be it for the first snapshot."""
        return any(kept.backlog.pending for kept in self._models.values())

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
            labelled = self._labels(model, kept.clusters, kept.waiting, batch)
            ready = labelled.readings
            made = labelled.labels
            labels += len(made)
            records += self._write(model, made, ready)
            events += kept.streaks.follow(made, ready.places, _devices(ready))
            # With differences in units, so never published.
            events += kept.drift.follow(made, self._bounds.to_unit(ready.values), ready.places)
            new_here = [self._new_here(model, visit, labelled) for visit in labelled.visits]
            events += new_here
            records += self._published(new_here)
            state_events = self._state_events(kept, made, ready)
            events += state_events
            records += self._published(state_events)
        # The id has the place of the reading: an event that is written again after a kill has the
        # same.
        for event in events:
            self._readings.publish(SITE_EVENTS, event.encode(), event.id.encode(), event.headers())
        earlier = self.label_backlog()
        labels += sum(earlier.labels_of.values())
        return Labelled(labels, earlier.records_read, records + earlier.records, events)

    def _state_events(
        self, kept: ModelLabels, labels: Sequence[Label], batch: Batch
    ) -> list[SiteEvent]:
        states = None if kept.clusters is None else kept.clusters.states
        if states is None:
            return []
        return kept.dwells.follow(labels, self._bounds.to_unit(batch.values), batch.places, states)

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
            labelled = self._labels(
                model, kept.clusters, kept.waiting_earlier, piece, count_novel, is_last, True
            )
            labels_of[model] = len(labelled.labels)
            records += self._write(model, labelled.labels, labelled.readings)
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
            before = kept.clusters
            kept.version = snapshot.version
            kept.clusters = clusters if clusters.known else None
            if kept.clusters is not None:
                readings = kept.visits.kept(CALIBRATED_DAYS)
                moves = kept.calibration.follow(clusters, before, readings)
                for identity, move in moves.items():
                    kept.spread.move(identity, move.counts)

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
                kept.calibration = Calibration()
                kept.usual = UsualValues(self._contract.width)
                kept.visits = self._no_visits()
                kept.waiting_earlier = WaitingReadings(self._contract.width)
                kept.backlog = Backlog(dict(start), dict(until), again=True)
        return {model: kept.clusters is not None for model, kept in self._models.items()}

    def reset_published(self, _: float) -> None:
        """Forget what is known by lasting identity: another log has other identities."""
        for model, kept in self._models.items():
            kept.spread = Spread()
            kept.calibration = Calibration()
            kept.usual = UsualValues(self._contract.width)
            kept.dwells = self._no_dwells(model)
            kept.drift = self._no_drift(model)
            kept.visits = self._no_visits()

    def state(self) -> dict[str, Any]:
        models = {}
        for model, kept in self._models.items():
            models[model] = {
                "backlog": kept.backlog.state(),
                "spread": kept.spread.state(),
                "calibration": kept.calibration.state(),
                "usual": kept.usual.state(),
                "drift": kept.drift.state(),
                "streaks": kept.streaks.state(),
                "visits": kept.visits.state(),
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
                anew = {part: models[name][part] for part in ("drift", "visits", "calibration")}
                models[name] = {**model, **anew}
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
                kept.calibration.restore(own["calibration"])
                kept.usual.restore(own["usual"])
                kept.drift.restore(own["drift"])
                kept.streaks.restore(own["streaks"])
                kept.visits.restore(own["visits"])
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
        length = self._settings.novel_streak
        return ModelLabels(
            usual=UsualValues(width),
            streaks=Streaks(self._contract.contract, self._client, model, length),
            dwells=self._no_dwells(model),
            visits=self._no_visits(),
            drift=self._no_drift(model),
            waiting=WaitingReadings(width),
            waiting_earlier=WaitingReadings(width),
        )

    def _no_drift(self, model: str) -> DriftWatch:
        per_month = self._settings.drift_per_month
        return DriftWatch(self._contract.contract, self._client, model, per_month)

    def _no_visits(self) -> Visits:
        settings = self._settings
        return Visits(self._contract.width, settings.novel_streak, settings.new_here_per_month)

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
        is_backlog: bool = False,
    ) -> LabelledBatch:
        """The readings that get a label now.

        They are those of the batch, unless they have to wait.
        """
        bounds = self._bounds
        if clusters.sequence is not None and self._sequences is not None:
            waiting.add(batch, self._sequences.rows_of(batch))
            batch, numbers = waiting.take(clusters.sequence, is_last)
            if not batch.places:
                return LabelledBatch(batch, [], [])
            unit = bounds.to_unit(batch.values)
            assigned = clusters.compare(numbers, unit)
            of_day = _OfDay(unit, assigned, assigned, batch.times, None)
            labels = self._labels_of(model, clusters, of_day, count_novel)
            return LabelledBatch(batch, labels, [])
        unit = bounds.to_unit(batch.values)
        # Models learn within the bounds: beyond them there is no cluster.
        clipped, _ = bounds.clip(batch.values, self._contract.learns_gaps)
        within_bounds = bounds.to_unit(clipped)
        visits = self._models[model].visits
        devices = _devices(batch)
        labels = []
        new_here = []
        for own, day in _days(batch.times):
            rows = within_bounds[own]
            places = batch.places[own]
            assigned = clusters.assign(rows, unit[own])
            judged = assigned
            held_on = None
            if day is not None and is_backlog:
                visits.add_earlier(rows, places, day)
            elif day is not None:
                is_usual = visits.usual_here(day, clusters.version, clusters.identities_of)
                judged = clusters.compared_with_usual(assigned, unit[own], is_usual)
                # On the first day nothing is known that readings in a row could be held back from.
                held_on = day if visits.has_earlier(day) else None
            of_day = _OfDay(unit[own], assigned, judged, batch.times[own], held_on)
            labels += self._labels_of(model, clusters, of_day, count_novel)
            if day is None or is_backlog:
                continue
            visit = visits.follow(
                assigned.identity, rows, places, devices[own], day, clusters.identities_of
            )
            if visit is not None:
                new_here.append(visit._replace(position=own.start + visit.position))
        return LabelledBatch(batch, labels, new_here)

    def _labels_of(
        self, model: str, clusters: SnapshotClusters, of_day: _OfDay, count_novel: bool
    ) -> list[Label]:
        kept = self._models[model]
        assigned = of_day.assigned
        reference = of_day.judged.reference
        # What belongs to no known cluster must not count as one of the nearest: it may be a new
        # cluster.
        known = assigned.identity != NO_IDENTITY
        is_new = known & (reference != assigned.identity)
        counted = known & ~is_new
        if of_day.held_on is not None:
            kept.spread.begin_day(of_day.held_on)
        novelty, held = kept.spread.judge(
            reference,
            of_day.judged.distance,
            counted,
            self._settings.novelty_quantile,
            of_day.held_on,
        )
        novel = novelty >= self._settings.novelty_quantile
        outside = kept.usual.reasons(reference, of_day.unit, novel, counted & ~held)
        self._learn_new(kept, of_day, is_new)
        if count_novel:
            self._novel[model] += int(novel.sum())
        titles = {NO_PART: ""}
        for part in clusters.parts:
            titles[part.number] = part.title
        numbers = part_numbers(clusters.parts, of_day.unit, self._contract.features)
        numbers[~known] = NO_PART
        labels = []
        for cluster, identity, strangeness, time, new_here, number in zip(
            assigned.cluster.tolist(),
            assigned.identity.tolist(),
            np.round(novelty, NOVELTY_DIGITS).tolist(),
            of_day.times,
            is_new.tolist(),
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
                new_here=new_here,
                part=titles[number],
            )
            labels.append(label)
        for place in np.flatnonzero(novel).tolist():
            compared_with = int(reference[place])
            name = clusters.names.get(compared_with) or f"cluster {compared_with}"
            reasons = self._in_units(outside.get(place, []), of_day.unit[place])
            labels[place] = labels[place]._replace(usual_in=name, reasons=reasons)
        return labels

    def _learn_new(self, kept: ModelLabels, of_day: _OfDay, is_new: Bools) -> None:
        """Count readings (n,) of clusters that are new to the client, to which others will be
        compared from the next day on."""
        if not is_new.any():
            return
        identity = of_day.assigned.identity[is_new]
        counted = np.ones(len(identity), dtype=np.bool_)
        kept.spread.judge(identity, of_day.assigned.distance[is_new], counted)
        kept.usual.reasons(identity, of_day.unit[is_new], ~counted, counted)

    def _new_here(self, model: str, visit: Visit, batch: LabelledBatch) -> SiteEvent:
        label = batch.labels[visit.position]
        partition, offset = batch.readings.places[visit.position]
        outside = {}
        for reason in label.reasons:
            side = "above" if reason.above else "below"
            outside[self._features[reason.feature]] = side
        name = label.name or f"cluster {visit.identity}"
        text = (
            f"{visit.readings} readings in a row in {name}, in which this client was on"
            f" {visit.visited_days} of {visit.earlier_days} days before"
        )
        if label.reasons:
            text += f": {beyond_text(label, self._contract.contract)}"
        return SiteEvent(
            id=f"{model}/{partition}/{offset}/new_here",
            kind="new_here",
            federation=self._contract.federation,
            client=self._client,
            model=model,
            version=label.version,
            readings=visit.readings,
            at=label.time,
            cluster=visit.identity,
            name=label.name,
            outside=outside,
            text=text,
        )

    def _in_units(self, outside: Sequence[Outside], unit: Floats) -> tuple[Reason, ...]:
        """The features in which a reading (d,), in unit coordinates, is outside as it is shown.

        The farthest come first, at most `REASONS_MAX`.
        """
        reasons: list[Reason] = []
        for beyond in outside:
            feature = self._contract.contract.features[beyond.feature]
            low = _in_unit(beyond.low, feature)
            high = _in_unit(beyond.high, feature)
            # Not clipped to the bounds: a reading may be shown beyond them.
            value = feature.low + float(unit[beyond.feature]) * (feature.high - feature.low)
            # "33.0: usual 30.0-33.0" would name a feature that is as it always is.
            if rounded([value], feature)[0] not in rounded([low, high], feature):
                reasons.append(Reason(beyond.feature, beyond.above, low, high))
        return tuple(reasons[:REASONS_MAX])


def _in_unit(end: float, feature: Feature) -> float:
    return within(feature.low + end * (feature.high - feature.low), feature)


def _devices(batch: Batch) -> list[str]:
    """The device of each reading (n,): its user, as far as users are known, or its partition."""
    if batch.users:
        return [user.hex() for user in batch.users]
    return [str(partition) for partition, _ in batch.places]


def _days(times: Sequence[float | None]) -> Iterator[tuple[slice, int | None]]:
    """Readings in a row of the same day (UTC), and that day; None without times."""
    days = [None if time is None else day_of(time) for time in times]
    start = 0
    for day, of_day in groupby(days):
        end = start + len(list(of_day))
        yield slice(start, end), day
        start = end
