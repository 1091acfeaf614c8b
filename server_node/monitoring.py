"""Metrics and events of the server, derived from the outcome of each of its steps. It decides
nothing."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from prometheus_client import Gauge

from shoal.algorithms.view import ClusteringView
from shoal.config.resolved import ResolvedContract
from shoal.protocol.events import EVENT_KINDS
from shoal.protocol.history import NO_CLUSTER, HistoryBin, HistoryMessage, pairs
from shoal.protocol.messages import Snapshot
from shoal.protocol.quarantine import QuarantinedClient
from shoal.protocol.rejected import REASONS
from shoal.server_node.history.shares import newest_fine_bin
from shoal.server_node.ingest.outcome import IngestOutcome, Report, StepOutcome
from shoal.server_node.models.base import (
    ModelEvent,
    ModelSleeping,
    PublishedSnapshot,
    RoundClosed,
    RoundFailed,
    RoundOpened,
    ServedModel,
)
from shoal.server_node.regions.hierarchy import Hierarchy
from shoal.server_node.report.clusters import centres_of
from shoal.server_node.report.lineage.clusters import Cluster, Lineage, dwells_of
from shoal.server_node.report.lineage.events import EventKind
from shoal.server_node.report.regression import prediction_error
from shoal.server_node.report.status import ClientStatus, newest_clients
from shoal.server_node.spans import ServerSpans
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics
from shoal.telemetry.spans import SPANS, SpanReceivers

CLIENTS_LABELLED_MAX = 1000
"""clients and regions that have metrics of their own"""
CLUSTERS_LABELLED_MAX = 100
"""clusters of a model that have metrics of their own, those with the largest recent shares"""
FEATURES_LABELLED_MAX = 16
"""features whose centres are shown, the first ones of the contract"""
EVENTS_LABELLED_MAX = 50
"""newest births and ends of clusters of a model that have a metric of their own"""
BIRTHS_AND_ENDS = frozenset({EventKind.BIRTH, EventKind.PARTED, EventKind.MERGED, EventKind.GONE})

MASKED_RESULT_OF = {
    "masked_round_closed": "closed",
    "masked_round_absorbed": "absorbed",
    "masked_round_void": "void",
    "masked_helpers_checked": "checked",
    "masked_helper_wrong": "checked",
}
"""event of a round of masked counts -> what its metric counts it as"""

Labels = tuple[str, ...]


class BirthOrEnd(NamedTuple):
    """A birth or an end of a cluster."""

    event: str
    """its kind"""
    cluster: int
    """identity"""
    text: str
    at: float
    """time at which it happened, seconds since 1970"""


class ClusterMonitoring:
    """Sets the metrics of the clusters of each model, and removes the series of what is shown no
    more."""

    def __init__(self, metrics: ServerMetrics, contract: ResolvedContract) -> None:
        self._contract = contract
        self._metrics = metrics
        # Those of a node that was thrown away after an error would stay for ever.
        metrics.put_off.clear()
        metrics.cluster_recent_share.clear()
        metrics.cluster_centre.clear()
        metrics.state_dwell.clear()
        metrics.cluster_event_at.clear()
        self._shares: defaultdict[str, _Series] = defaultdict(
            lambda: _Series(metrics.cluster_recent_share)
        )
        self._dwells: defaultdict[str, _Series] = defaultdict(lambda: _Series(metrics.state_dwell))
        self._centres: defaultdict[str, _Series] = defaultdict(
            lambda: _Series(metrics.cluster_centre)
        )
        self._events_at: defaultdict[str, _Series] = defaultdict(
            lambda: _Series(metrics.cluster_event_at)
        )
        self._births_and_ends: defaultdict[str, dict[tuple[str, int], BirthOrEnd]] = defaultdict(
            dict
        )
        """model -> (kind, identity) -> birth or end, in the order of time"""

    def clusters(self, model: str, view: ClusteringView, lineage: Lineage) -> None:
        """The known clusters of the newest snapshot of a model: shown when metrics are read, which
        few snapshots are followed by."""
        self._metrics.put_off.put(
            "clusters", model, partial(self._show_clusters, model, view, lineage)
        )

    def _show_clusters(self, model: str, view: ClusteringView, lineage: Lineage) -> None:
        # Prometheus keeps a series for each label: only those with the most recent readings get
        # one.
        shown = sorted(lineage.known, key=lambda cluster: -cluster.recent_share)[
            :CLUSTERS_LABELLED_MAX
        ]
        self._shares[model].show(
            {_labels(model, cluster): cluster.recent_share for cluster in shown}
        )
        dwells = dwells_of(view.states, lineage)
        lasting = [cluster for cluster in shown if cluster.identity in dwells]
        self._dwells[model].show(
            {_labels(model, cluster): dwells[cluster.identity] for cluster in lasting}
        )
        self._centres[model].show(self._centres_of(model, view, lineage, shown))

    def births_and_ends(self, model: str, events: Iterable[BirthOrEnd]) -> None:
        """Births and ends of clusters; the newest one of each kind and cluster is shown."""
        kept = self._births_and_ends[model]
        for event in events:
            if event.event in BIRTHS_AND_ENDS:
                # Out and in again, so that the newest is last: the first ones are left out of too
                # many.
                kept.pop((event.event, event.cluster), None)
                kept[event.event, event.cluster] = event
        for key in list(kept)[: max(0, len(kept) - EVENTS_LABELLED_MAX)]:
            del kept[key]
        shown: dict[Labels, float] = {
            (model, event.event, str(event.cluster), event.text): event.at
            for event in kept.values()
        }
        self._metrics.put_off.put("events", model, partial(self._events_at[model].show, shown))

    def counted(self, model: str, history: Iterable[HistoryMessage]) -> None:
        """The bins that have changed with a snapshot: the newest one shows how much falls to no
        known cluster."""
        newest = newest_fine_bin(history)
        if newest is not None:
            self._metrics.put_off.put("unknown", model, partial(self._show_unknown, model, newest))

    def _show_unknown(self, model: str, newest: HistoryBin) -> None:
        counts = dict(pairs(newest.clusters))
        if total := sum(counts.values()):
            self._metrics.unknown_share.labels(model=model).set(counts.get(NO_CLUSTER, 0) / total)

    def _centres_of(
        self, model: str, view: ClusteringView, lineage: Lineage, shown: Sequence[Cluster]
    ) -> dict[Labels, float]:
        """labels -> value in the unit of the feature, within its bounds, of each of these clusters
        that has nodes."""
        centres = centres_of(view, lineage, self._contract)
        features = self._contract.features[:FEATURES_LABELLED_MAX]
        series = {}
        for cluster in shown:
            for feature, value in zip(features, centres.get(cluster.identity, ()), strict=False):
                series[*_labels(model, cluster), feature.name, feature.unit] = value
        return series


def _labels(model: str, cluster: Cluster) -> Labels:
    return model, str(cluster.identity), cluster.name


class _Series:
    """Series of one metric whose labels change. Looking a series up costs more than setting it, so
    it is kept."""

    def __init__(self, metric: Gauge) -> None:
        self._metric = metric
        self._shown: dict[Labels, Gauge] = {}
        self._values: Mapping[Labels, float] = {}
        """values that were set last: most stay the same from one snapshot to the next"""

    def show(self, values: Mapping[Labels, float]) -> None:
        """Set these and remove all others."""
        for gone in self._shown.keys() - values.keys():
            # A series that is not removed is served for ever, with its last value.
            self._metric.remove(*gone)
            del self._shown[gone]
        for labels, value in values.items():
            series = self._shown.get(labels)
            if series is None:
                series = self._shown[labels] = self._metric.labels(*labels)
            elif value == self._values[labels]:
                continue
            series.set(value)
        self._values = values


@dataclass
class NotKept:
    """Rejected messages of one reason and partition of which no copy is kept."""

    first: int
    """offset of the first"""
    last: int
    messages: int = 0


@dataclass
class _Totals:
    """The updates of one step, added up: setting a metric for each takes longer than all else that
    is shown of it."""

    updates: Counter[str] = field(default_factory=Counter)
    """result -> updates"""
    readings: Counter[str] = field(default_factory=Counter)
    """result -> readings"""
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(model, result) -> answers"""
    rejected: Counter[str] = field(default_factory=Counter)
    """reason -> messages"""
    not_kept: dict[tuple[str, int, str], NotKept] = field(default_factory=dict)
    """(topic, partition, reason) -> rejected messages of which no copy is kept"""
    last_seen: dict[str, float] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    """events to log, in their order"""


NOT_LEARNT = frozenset({"chunk", "quarantined", "superseded"})
"""results of records of updates that add no readings"""


class ServerMonitoring:
    """Derives the metrics and the events of a server from the outcome of each of its steps."""

    def __init__(
        self,
        metrics: ServerMetrics,
        contract: ResolvedContract,
        client_names: Mapping[str, str] | None = None,
        spans: SpanReceivers = SPANS,
    ) -> None:
        """`client_names`: those that owners gave, by client. `spans` get what took how long."""
        self._contract = contract
        self._metrics = metrics
        self._algorithms = {
            model.name: model.declared.algorithm for model in contract.models.values()
        }
        self._rejected: Counter[str] = Counter()
        self._short_of_memory: set[str] = set()
        """models whose memory is too small for the clusters that there are"""
        self._made_at: defaultdict[str, list[float]] = defaultdict(list)
        """model -> when the updates were made that no snapshot shows yet"""
        self._spans = ServerSpans(spans)
        self._waiting: set[str] = set()
        """models with an open round"""
        self._labelled: set[str] = set()
        metrics.client_info.clear()
        for client, name in islice((client_names or {}).items(), CLIENTS_LABELLED_MAX):
            metrics.client_info.labels(client=client, name=name).set(1)
        metrics.region_clients.clear()
        self._regions = _Series(metrics.region_clients)
        self._clusters = ClusterMonitoring(metrics, contract)
        # From 0 on, so that the first of a kind shows as an increase and not as a new series.
        for result in (
            "absorbed",
            "repeated",
            "rejected",
            "quarantined",
            "superseded",
            "chunk",
            "incomplete",
        ):
            metrics.updates.labels(result=result).inc(0)
        for result in ("learned", "repeated"):
            metrics.readings.labels(result=result).inc(0)
        for reason in REASONS:
            metrics.rejected.labels(reason=reason).inc(0)
            metrics.rejected_not_kept.labels(reason=reason).inc(0)
        for model in contract.models.values():
            labels = {"model": model.name, "unit": model.statement["unit"]}
            metrics.model_epsilon.labels(**labels).set(_or_infinite(model.epsilon))
        metrics.epsilon.set(_or_infinite(contract.total_epsilon))

    @property
    def rejected(self) -> Mapping[str, int]:
        """reason -> messages rejected since the start."""
        return dict(self._rejected)

    def resumed(
        self, models: Mapping[str, ServedModel], clients: Iterable[ClientStatus], restored: bool
    ) -> None:
        """The server is ready to step: show the newest snapshots, and clients that may have been
        silent since.

        `restored`: from its checkpoint.
        """
        if restored:
            log_event("checkpoint_restored", models=len(models))
        for name, model in models.items():
            self._metrics.version.labels(model=name).set(0)
            if model.rounds is not None:
                self._metrics.rounds_failed.labels(model=name).inc(0)
            for kind in EVENT_KINDS:
                self._metrics.cluster_events.labels(model=name, event=kind).inc(0)
            if model.snapshot is not None and model.view is not None:
                self._sizes(model.snapshot, model.view, model.lineage)
            known = model.status().events
            self._clusters.births_and_ends(
                name,
                (BirthOrEnd(event.kind, event.cluster, event.text, event.at) for event in known),
            )
        for client in newest_clients(clients, CLIENTS_LABELLED_MAX):
            self._last_seen(client.client, client.last_seen)

    def show_quarantined(self, quarantined: Iterable[QuarantinedClient]) -> None:
        """How many clients are in quarantine; one may be so in several models."""
        self._metrics.quarantined.set(len({entry.client for entry in quarantined}))

    def observe(self, outcome: StepOutcome) -> None:
        """One step."""
        if outcome.ingested:
            self._metrics.learn.observe(outcome.ingest_s)
        totals = _Totals()
        for ingested in outcome.ingested:
            self._ingested(ingested, totals)
        for incomplete in outcome.incomplete:
            totals.updates["incomplete"] += 1
            totals.reports.append(
                Report("update_incomplete", logging.WARNING, incomplete._asdict())
            )
        self._show(totals)
        self.show_quarantined(outcome.quarantined)
        self._metrics.partial_updates.set(outcome.waiting_updates)
        for event in outcome.events:
            totals.reports.append(Report(event.event, event.level, asdict(event)))
            self._open_round(event, outcome.stored_at or 0.0)
        totals.reports += outcome.reports
        for published in outcome.published:
            self._published(published, totals)
        if outcome.stored_at is not None:
            self._metrics.checkpoint_at.set(outcome.stored_at)
        for report in totals.reports:
            log_event(report.event, report.level, **report.fields)

    def observe_lag(self, topic: str, lag_records: int, margin_records: int) -> None:
        """Show how many records are not read yet, and how many that were read the log still
        keeps."""
        self._metrics.lag.labels(topic=topic).set(lag_records)
        self._metrics.margin.labels(topic=topic).set(margin_records)

    def observe_lag_alone(self, topic: str, lag_records: int | None) -> None:
        """The same where it is not known what the log still keeps; None: another process reads the
        topic now."""
        if lag_records is None:
            self._metrics.lag.clear()
        else:
            self._metrics.lag.labels(topic=topic).set(lag_records)

    def observe_hierarchy(self, hierarchy: Hierarchy) -> None:
        """The regions below, and how many contributions wait for the upstream federation."""
        self._regions.show(
            {(region.path,): region.clients for region in hierarchy.regions[:CLIENTS_LABELLED_MAX]}
        )
        if (waiting := hierarchy.waiting) is not None:
            self._metrics.lag.labels(topic=self._contract.contract.contributions_topic).set(waiting)

    def observe_places(self, used: float) -> None:
        """The share of the places for clients that are taken."""
        self._metrics.places_used.set(used)

    def observe_masked(self, waits_for: Mapping[str, Sequence[str]], wrong: int) -> None:
        """The helpers that rounds of masked counts wait for, and how many are wrong."""
        self._metrics.helpers_awaited.set(sum(len(helpers) for helpers in waits_for.values()))
        self._metrics.helpers_wrong.set(wrong)

    def observe_lost(self, topic: str, records: int) -> None:
        """Count records that were removed by retention before they were read."""
        self._metrics.lost.labels(topic=topic).inc(records)

    def _ingested(self, ingested: IngestOutcome, totals: _Totals) -> None:
        # After an error a node is built again from its checkpoint, and reads some records once
        # more.
        newest = self._metrics.counted.get(ingested.partition, -1)
        again = ingested.offset <= newest
        self._metrics.counted[ingested.partition] = max(ingested.offset, newest)
        if ingested.copied and not again:
            self._metrics.copied.inc()
            fields = {"model": ingested.model, "client": ingested.client}
            totals.reports.append(Report("client_copied", logging.ERROR, fields))
        if ingested.result == "rejected":
            self._rejection(ingested, again, totals)
        elif ingested.request is not None:
            if ingested.request.event and not again:
                request = ingested.request
                if (result := MASKED_RESULT_OF.get(request.event)) is not None:
                    self._metrics.masked_rounds.labels(result=result).inc()
                totals.reports.append(Report(request.event, request.level, request.fields))
        elif ingested.result in NOT_LEARNT:
            self._metrics.updates.labels(result=ingested.result).inc(not again)
        else:
            self._update(ingested, totals, new=ingested.result == "absorbed" and not again)

    def _update(self, ingested: IngestOutcome, totals: _Totals, new: bool) -> None:
        totals.updates["absorbed" if new else "repeated"] += 1
        totals.readings["learned" if new else "repeated"] += ingested.readings
        if ingested.answer is not None:
            totals.answers[ingested.model, ingested.answer] += 1
        if new:
            self._made_at[ingested.model].append(ingested.made_at)
            totals.last_seen[ingested.client] = ingested.at
            self._spans.absorbed(ingested)

    def _show(self, totals: _Totals) -> None:
        for result, number in totals.updates.items():
            self._metrics.updates.labels(result=result).inc(number)
        for result, number in totals.readings.items():
            self._metrics.readings.labels(result=result).inc(number)
        for (model, result), number in totals.answers.items():
            self._metrics.round_answers.labels(model=model, result=result).inc(number)
        for reason, number in totals.rejected.items():
            self._metrics.rejected.labels(reason=reason).inc(number)
        for (topic, partition, reason), not_kept in totals.not_kept.items():
            self._metrics.rejected_not_kept.labels(reason=reason).inc(not_kept.messages)
            place = {"topic": topic, "partition": partition, "reason": reason}
            fields = {**place, **asdict(not_kept)}
            totals.reports.append(Report("rejected_not_kept", logging.WARNING, fields))
        for client, at in totals.last_seen.items():
            self._last_seen(client, at)

    def _rejection(self, ingested: IngestOutcome, again: bool, totals: _Totals) -> None:
        self._rejected[ingested.reason] += 1
        if again:
            return
        totals.updates["rejected"] += 1
        totals.rejected[ingested.reason] += 1
        self._spans.rejected(ingested)
        if not ingested.kept:
            place = (ingested.topic, ingested.partition, ingested.reason)
            not_kept = totals.not_kept.setdefault(place, NotKept(ingested.offset, ingested.offset))
            not_kept.last = ingested.offset
            not_kept.messages += 1
            return
        origin = f"{ingested.topic}/{ingested.partition}/{ingested.offset}"
        # As the message claims, if it could be read at all.
        claimed = {}
        if ingested.model:
            claimed = {"model": ingested.model, "client": ingested.client}
        fields = {"reason": ingested.reason, "detail": ingested.detail, "origin": origin}
        totals.reports.append(Report("update_rejected", logging.WARNING, {**fields, **claimed}))

    def _open_round(self, event: ModelEvent, now: float) -> None:
        """Show since when a model waits for a round to close; opening one again changes nothing."""
        match event:
            case RoundOpened() if event.model not in self._waiting:
                self._waiting.add(event.model)
                self._metrics.round_opened_at.labels(model=event.model).set(now)
            case RoundClosed():
                self._waiting.discard(event.model)
                self._round_closed(event)
                self._spans.round_closed(event, now)
            case ModelSleeping():
                self._waiting.discard(event.model)
                self._metrics.round_opened_at.labels(model=event.model).set(0)
            case RoundFailed():
                self._metrics.rounds_failed.labels(model=event.model).inc()

    def _round_closed(self, event: RoundClosed) -> None:
        algorithm = self._algorithms[event.model]
        self._metrics.round_duration.labels(algorithm=algorithm).observe(event.duration_s)
        self._metrics.round.labels(model=event.model).set(event.round)
        self._metrics.round_counted.labels(model=event.model).set(event.answers)
        self._metrics.round_shift.labels(model=event.model).set(event.shift)

    def show(self, published: PublishedSnapshot) -> None:
        """Show the clusters of the newest snapshot of a model, and what is new with it. Nothing is
        logged."""
        snapshot = published.snapshot
        self._sizes(snapshot, published.view, published.lineage)
        self._metrics.unusual.labels(model=snapshot.model).set(published.unusual)
        for event in published.events:
            # Alert rules count them, and a cluster that is confirmed or muted raises none.
            if not event.muted:
                self._metrics.cluster_events.labels(model=snapshot.model, event=event.kind).inc()
        events = (
            BirthOrEnd(event.kind, event.cluster, event.text, event.happened_at)
            for event in published.events
        )
        self._clusters.births_and_ends(snapshot.model, events)
        self._clusters.counted(snapshot.model, published.history.messages)

    def _published(self, published: PublishedSnapshot, totals: _Totals) -> None:
        snapshot = published.snapshot
        self.show(published)
        for client, unlike in published.unlikeness.items():
            # A client is labelled with its first update, up to a number of clients.
            if client in self._labelled:
                labels = {"model": snapshot.model, "client": client}
                self._metrics.client_unlikeness.labels(**labels).set(unlike)
        self._spans.published(published)
        for made_at in self._made_at.pop(snapshot.model, ()):
            self._metrics.latency.observe(max(0.0, snapshot.made_at - made_at))
        fields = {
            "model": snapshot.model,
            "version": snapshot.version,
            "clusters": snapshot.known,
            "active": snapshot.active,
            "nodes": snapshot.nodes,
            "updates": snapshot.updates,
        }
        totals.reports.append(Report("snapshot_published", logging.INFO, fields))
        places = published.view.unresolved
        if not places:
            self._short_of_memory.discard(snapshot.model)
        elif snapshot.model not in self._short_of_memory:
            # Once, and not with every snapshot, until there was enough memory again.
            self._short_of_memory.add(snapshot.model)
            short = {"model": snapshot.model, "places": places, "clusters": snapshot.known}
            totals.reports.append(Report("memory_too_small", logging.WARNING, short))
        for event in published.events:
            changed = {
                "model": snapshot.model,
                "event_id": event.id,
                "kind": event.kind,
                "text": event.text,
            }
            totals.reports.append(Report("cluster_changed", logging.INFO, changed))

    def _sizes(self, snapshot: Snapshot, view: ClusteringView, lineage: Lineage) -> None:
        labels = {"model": snapshot.model}
        self._metrics.clusters.labels(**labels).set(snapshot.known)
        self._metrics.clusters_active.labels(**labels).set(snapshot.active)
        self._metrics.clusters_published.labels(**labels).set(snapshot.clusters)
        self._metrics.nodes.labels(**labels).set(snapshot.nodes)
        self._metrics.edges.labels(**labels).set(len(view.edges))
        self._metrics.version.labels(**labels).set(snapshot.version)
        if (error := prediction_error(snapshot, self._contract)) is not None:
            self._metrics.prediction_error.labels(**labels).set(error)
        self._clusters.clusters(snapshot.model, view, lineage)

    def _last_seen(self, client: str, at: float) -> None:
        """A label for each client, but not without bound: any writer to the updates topic can make
        up names."""
        if client in self._labelled or len(self._labelled) < CLIENTS_LABELLED_MAX:
            self._labelled.add(client)
            self._metrics.last_seen.labels(client=client).set(at)


def _or_infinite(epsilon: float | None) -> float:
    """The epsilon, or infinity: without a guarantee it has no bound."""
    # Without a bound any loss is possible, and infinity sorts and alerts as such.
    if epsilon is None:
        return math.inf
    return epsilon
