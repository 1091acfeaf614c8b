"""What the server counts while it works: the one place that turns what happened into metrics and events."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from server_node.lineage import Turnover
from server_node.status import ClientStatus
from shoal.errors import MessageRejected
from shoal.protocol.messages import REASONS, Snapshot, Update
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import Record

CLIENTS_SHOWN_MAX = 1000
CLUSTER_EVENTS = ("birth", "split", "merge", "death")
"""in the order of `Turnover`"""
STILL = Turnover()


class ServerMonitoring:
    """Tells the metrics and the log what became of each message; decides nothing."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self.metrics = metrics
        self._rejected: Counter[str] = Counter()
        self._unshown: defaultdict[str, list[float]] = defaultdict(list)
        self._labelled: set[str] = set()
        self._again = False
        # From 0 on, so that the first of a kind shows as one more and not as something new.
        for result in ("absorbed", "repeated", "rejected", "chunk", "incomplete"):
            metrics.updates.labels(result=result).inc(0)
        for result in ("learned", "repeated"):
            metrics.readings.labels(result=result).inc(0)
        for reason in REASONS:
            metrics.rejected.labels(reason=reason).inc(0)

    def begun(self, snapshots: Mapping[str, Snapshot | None], clients: Iterable[ClientStatus]) -> None:
        """The server as it starts: the newest snapshot of each model, and clients that may have been silent since."""
        for model, snapshot in snapshots.items():
            self.metrics.version.labels(model=model).set(0)
            if snapshot is not None:
                self.sizes(snapshot)
        for client in clients:
            self._note_client(client.client, client.last_seen)

    @property
    def rejected(self) -> Mapping[str, int]:
        """reason -> messages set aside since the start."""
        return dict(self._rejected)

    def reading(self, record: Record) -> None:
        """The record that is heard next; after an error it may be one that was counted already."""
        newest = self.metrics.counted.get(record.partition, -1)
        self._again = record.offset <= newest
        self.metrics.counted[record.partition] = max(record.offset, newest)

    def heard(self, update: Update, new: bool, now: float) -> None:
        """An update that passed the border; `new` unless it was heard before."""
        new = new and not self._again
        self.metrics.updates.labels(result="absorbed" if new else "repeated").inc()
        if update.round is None and update.chunk == 1:
            # Answers to calls are about the same rows again and again.
            self.metrics.readings.labels(result="learned" if new else "repeated").inc(update.readings)
        if not new:
            return
        self._unshown[update.model].append(update.made_at)
        self._note_client(update.client, now)

    def chunk(self) -> None:
        """A chunk of an update that is not whole yet."""
        self.metrics.updates.labels(result="chunk").inc(not self._again)

    def waiting(self, updates: int) -> None:
        """So many updates wait for their other chunks."""
        self.metrics.partial_updates.set(updates)

    def dropped(self, model: str, client: str, sequence: int, chunks: int, wanted: int) -> None:
        """An update of which only so many chunks came, and no more will."""
        self.metrics.updates.labels(result="incomplete").inc()
        log_event(
            "update_incomplete",
            logging.WARNING,
            model=model,
            client=client,
            sequence=sequence,
            chunks=chunks,
            wanted=wanted,
        )

    def set_aside(self, record: Record, rejected: MessageRejected, update: Update | None) -> None:
        """A message that did not; `update` if it could be read at all, so that one knows whose it says it is."""
        self._rejected[rejected.reason] += 1
        if self._again:
            return
        self.metrics.updates.labels(result="rejected").inc()
        self.metrics.rejected.labels(reason=rejected.reason).inc()
        place = f"{record.topic}/{record.partition}/{record.offset}"
        said_by = {"model": update.model, "client": update.client} if update is not None else {}
        reason, detail = rejected.reason, rejected.detail
        log_event("update_rejected", logging.WARNING, reason=reason, detail=detail, origin=place, **said_by)

    def sizes(self, snapshot: Snapshot, turnover: Turnover = STILL) -> None:
        """How large a model is now, and what became of its clusters just then."""
        labels = {"model": snapshot.model}
        self.metrics.clusters.labels(**labels).set(snapshot.clusters)
        self.metrics.nodes.labels(**labels).set(snapshot.nodes)
        self.metrics.edges.labels(**labels).set(len(snapshot.arrays.get("edge", ())))
        self.metrics.version.labels(**labels).set(snapshot.version)
        for event, clusters in zip(CLUSTER_EVENTS, turnover, strict=True):
            self.metrics.cluster_events.labels(**labels, event=event).inc(clusters)

    def published(self, snapshot: Snapshot, turnover: Turnover) -> None:
        """A snapshot that is about to be published, and what became of clusters with it."""
        self.sizes(snapshot, turnover)
        for made_at in self._unshown.pop(snapshot.model, ()):
            self.metrics.latency.observe(max(0.0, snapshot.made_at - made_at))
        log_event(
            "snapshot_published",
            model=snapshot.model,
            version=snapshot.version,
            clusters=snapshot.clusters,
            nodes=snapshot.nodes,
            updates=snapshot.updates,
        )
        if turnover != STILL:
            # One line, however many they are: an unsteady model must not flood the log.
            log_event("clusters_changed", model=snapshot.model, version=snapshot.version, **turnover._asdict())

    def _note_client(self, client: str, now: float) -> None:
        """A label for each client, but not without end: anybody who may publish can make up names."""
        if client in self._labelled or len(self._labelled) < CLIENTS_SHOWN_MAX:
            self._labelled.add(client)
            self.metrics.last_seen.labels(client=client).set(now)
