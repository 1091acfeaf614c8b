"""What servers and replicas have published of a federation, as a status for people.

It is read from the topics of snapshots, events and history, from their beginning at each start; the
index of the history is in a file, which is made anew where it is lost. Nothing is written to the
log, and updates are not read: how many of them wait for the server is not known here.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from shoal.algorithms.view import ClusteringView
from shoal.config.resolved import ResolvedContract
from shoal.errors import LogUnavailable, MessageRejected
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import COARSE_S, DAY_S, FINE_S, HistoryMessage
from shoal.protocol.lease import NewestSnapshots, is_for_servers, is_lease
from shoal.protocol.messages import Snapshot
from shoal.protocol.published_contract import CONTRACT_KEY, check_contract
from shoal.protocol.quarantine import LIST_KEY, QuarantinedClient, QuarantineList
from shoal.protocol.validation import Validator
from shoal.server_node.history.store import HistoryReader, HistoryStore
from shoal.server_node.history.unlike import ALARM_DAYS_MAX
from shoal.server_node.models.base import HistoryChange, PublishedSnapshot
from shoal.server_node.models.publisher import thinned
from shoal.server_node.monitoring import ServerMonitoring
from shoal.server_node.page.estimated_history import EstimatedHistory
from shoal.server_node.page.history_clients import HistoryClients
from shoal.server_node.page.topic import FollowedTopic
from shoal.server_node.report.event_messages import EVENTS_MAX, recent_event
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.lineage.events import ENDS, EventKind
from shoal.server_node.report.lineage.published import lineage_of
from shoal.server_node.report.status import (
    ClientStatus,
    HistoryPoint,
    ModelStatus,
    RecentEvent,
    ServerStatus,
)
from shoal.server_node.report.units import view_of
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics
from shoal.transports.base import Log, Record

RECORDS_MAX: Final = 500
"""records that one step reads of a topic"""
HISTORY_STEP_S: Final = 0.25
"""seconds of a step in which the history is read"""
IDS_MAX: Final = 10_000
"""newest events whose ids are remembered: a server that was killed publishes some once more"""
CLIENTS_NOTE: Final = (
    "This page reads no updates: clients are those of the history, with the readings that it"
    " counts, and when they were received is known to 5 minutes."
)
NO_CLIENTS_NOTE: Final = (
    "What serves this federation publishes no history, so this page knows how many clients there"
    " are, and not which."
)
ESTIMATED_NOTE: Final = (
    "What serves this federation publishes no history: shares over time are estimated by this page"
    " from the recent shares in snapshots, since {since}."
)


@dataclass
class _PublishedModel:
    """What was read of one model."""

    snapshot: Snapshot | None = None
    view: ClusteringView | None = None
    lineage: Lineage = field(default_factory=Lineage)
    history: list[HistoryPoint] = field(default_factory=list)
    events: list[RecentEvent] = field(default_factory=list)
    new_events: list[ClusterEventMessage] = field(default_factory=list)
    """those that metrics do not show yet"""
    parents: dict[int, int] = field(default_factory=dict)
    """cluster -> the one that it has parted from"""
    unusual: bool = False
    unlike: dict[str, float] = field(default_factory=dict)
    """client -> since when it is unlike all others, seconds since 1970"""

    def take_event(self, event: ClusterEventMessage, *, is_new: bool) -> None:
        """The next event; `is_new`: it came after the page began."""
        self.events = [*self.events, recent_event(event)][-EVENTS_MAX:]
        # The number of known clusters changes with events alone, which stay for longer than
        # snapshots: of these a topic keeps the newest.
        self._add_point(event.found_at, event.known, event.readings)
        if is_new:
            self.new_events.append(event)
        self._take_finding(event)
        if event.kind == EventKind.PARTED and event.other is not None:
            self.parents[event.cluster] = event.other
        elif event.kind in ENDS:
            # Should it come back after its end, it has parted from nothing.
            self.parents.pop(event.cluster, None)
        else:
            return
        self.lineage = self._with_parents(self.lineage)

    def _take_finding(self, event: ClusterEventMessage) -> None:
        match event.kind:
            case EventKind.UNUSUAL:
                self.unusual = True
            case EventKind.USUAL_AGAIN:
                self.unusual = False
            case EventKind.UNLIKE_OTHERS:
                # The day that was compared is the one before that in which it was found.
                self.unlike[event.client] = (event.found_at // DAY_S - 1) * DAY_S
            case EventKind.LIKE_OTHERS_AGAIN:
                self.unlike.pop(event.client, None)

    def unlike_now(self) -> list[tuple[str, float]]:
        """The clients that are unlike all others. Of one that has been so for long no event tells
        the end: by then it is usual for it."""
        if self.snapshot is None:
            return []
        oldest = self.snapshot.reading_time - (ALARM_DAYS_MAX + 1) * DAY_S
        return sorted(pair for pair in self.unlike.items() if pair[1] >= oldest)

    def take_snapshot(self, snapshot: Snapshot, view: ClusteringView) -> None:
        """The next snapshot that counts."""
        self.snapshot = snapshot
        self.view = view
        self.lineage = self._with_parents(lineage_of(snapshot, view))
        self._add_point(snapshot.reading_time, snapshot.known, snapshot.readings)

    def _with_parents(self, lineage: Lineage) -> Lineage:
        """The lineage with the clusters that others have parted from, which no snapshot has."""
        clusters = dict(lineage.clusters)
        for identity, cluster in lineage.clusters.items():
            clusters[identity] = cluster.having(parent=self.parents.get(identity))
        return replace(lineage, clusters=clusters)

    def _add_point(self, at: float, known: int, readings: int) -> None:
        newest = self.history[-1] if self.history else None
        if newest is None or newest.clusters != known:
            self.history = thinned([*self.history, HistoryPoint(at, known, 0, readings)])


class PublishedFederation:
    """Follows the topics of a federation, one step at a time.

    For one thread. After an error a new one, resumed from the log, goes on.
    """

    def __init__(
        self,
        contract: ResolvedContract,
        log: Log,
        history: HistoryStore,
        metrics: ServerMetrics,
        client_names: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`contract` with those that the federation had before; `history` is the index that this
        process alone writes. Call `resume` before the first step."""
        self._resolved = contract
        self._contract = contract.contract
        self._log = log
        self._history = history
        self._metrics = metrics
        self._client_names = client_names
        self._clock = clock
        self._started_at = clock()

    def resume(self) -> None:
        """Begin at the beginning of each topic. Once, before the first step.

        Raises `LogUnavailable` where a topic is not there yet, and as the log does.
        """
        self._validator = Validator(self._resolved)
        self._monitoring = ServerMonitoring(self._metrics, self._resolved)
        self._models = {name: _PublishedModel() for name in self._resolved.models}
        self._newest = NewestSnapshots()
        self._has_server = False
        """whether a server has held the lease, which publishes the history itself"""
        self._quarantined: Sequence[QuarantinedClient] = ()
        self._ids: dict[str, None] = {}
        self._snapshots = FollowedTopic(self._log, self._contract.snapshots_topic)
        self._events = FollowedTopic(self._log, self._contract.events_topic)
        self._history_topic = FollowedTopic(self._log, self._contract.history_topic)
        self._history_read_to: dict[int, int] | None = None
        self._estimated = EstimatedHistory(self._resolved, self._history)
        self._is_estimated = False
        """whether no server publishes the history"""
        self._clients = None
        if self._history.reader is not None:
            self._clients = HistoryClients(self._history.reader)
        self._listed: list[ClientStatus] | None = None
        """the clients; None: what was read since has changed them"""

    def step(self, timeout_s: float = 0.0) -> bool:
        """Read the next events, bins and snapshots; whether there were any.

        Raises `ContractDiffers`, and as the log does.
        """
        # What came with a snapshot is read first: the page shows no snapshot before its events.
        events = self._read_events()
        bins = self._read_history()
        busy = bool(events or bins) or not self._snapshots.caught_up
        snapshots = self._read_snapshots(0.0 if busy else timeout_s)
        if bins:
            self._look_again()
        if events or bins or snapshots:
            self._listed = None
            self._show()
        return bool(events or bins or snapshots)

    @property
    def ready(self) -> bool:
        """Whether all that was in the log at the start is read."""
        topics = (self._snapshots, self._events)
        return self._history.whole and all(topic.caught_up for topic in topics)

    def status(self) -> ServerStatus:
        """Status for people."""
        if self._listed is None:
            self._listed = self._list_clients()
        clients_note = ""
        if self._listed:
            clients_note = CLIENTS_NOTE
        elif self._is_estimated and any(model.snapshot for model in self._models.values()):
            clients_note = NO_CLIENTS_NOTE
        return ServerStatus(
            contract=self._resolved,
            started_at=self._started_at,
            now=self._clock(),
            ready=self.ready,
            models={name: self._model_status(name) for name in self._models},
            clients=self._listed,
            quarantined=self._quarantined,
            lag_records=None,
            client_names=self._client_names,
            clients_note=clients_note,
            history_read=self._history.share_read,
        )

    def _model_status(self, name: str) -> ModelStatus:
        model = self._models[name]
        note = ""
        if self._is_estimated and model.snapshot is not None:
            note = ESTIMATED_NOTE.format(since=self._estimated_since(name, model.snapshot))
        return ModelStatus(
            name,
            self._resolved.models[name].declared.algorithm,
            model.snapshot,
            history=model.history,
            lineage=model.lineage,
            events=model.events,
            unusual=model.unusual,
            unlike=model.unlike_now(),
            note=note,
        )

    def _list_clients(self) -> list[ClientStatus]:
        if self._clients is None or not self._history.whole:
            return []
        newest = [model.snapshot for model in self._models.values() if model.snapshot is not None]
        return self._clients.statuses(newest)

    def _estimated_since(self, model: str, snapshot: Snapshot) -> str:
        first = None
        if self._history.reader is not None:
            first = _first_bin(self._history.reader, model)
        since = snapshot.reading_time if first is None else float(first)
        return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M UTC")

    def _read_events(self) -> Sequence[Record]:
        is_new = self._events.caught_up
        records = self._events.read(RECORDS_MAX)
        for record in records:
            try:
                event = ClusterEventMessage.decode(record.value)
            except MessageRejected as rejected:
                log_event("event_rejected", logging.WARNING, reason=rejected.reason)
                continue
            model = self._models.get(event.model)
            if model is None or event.id in self._ids:
                continue
            self._ids[event.id] = None
            if len(self._ids) > IDS_MAX:
                # A dictionary keeps the order in which keys came, so the first one is the oldest.
                del self._ids[next(iter(self._ids))]
            model.take_event(event, is_new=is_new)
        return records

    def _read_history(self) -> bool:
        """Read on in the history; whether there was more of it."""
        ends = self._history_topic.ends()
        self._is_estimated = not self._has_server and not any(ends.values())
        if self._history.whole and ends == self._history_read_to:
            return False
        self._history.catch_up(self._log, HISTORY_STEP_S)
        if self._history.whole:
            self._history_read_to = ends
        return True

    def _look_again(self) -> None:
        """Let the report of each snapshot be made again: bins that came after it are part of it."""
        for model in self._models.values():
            # The report is kept for as long as the snapshot is the same object.
            model.snapshot = copy.copy(model.snapshot)

    def _read_snapshots(self, timeout_s: float) -> Sequence[Record]:
        records = self._snapshots.read(RECORDS_MAX, timeout_s)
        newest: dict[bytes, Record] = {}
        contract: Record | None = None
        for record in records:
            if is_lease(record):
                self._has_server = True
                self._newest.take_lease(record)
            elif record.key == CONTRACT_KEY:
                contract = record
            elif record.key == LIST_KEY:
                self._take_quarantined(record)
            elif not is_for_servers(record) and record.key is not None:
                # Of those that are read together the newest counts: at a start there are thousands.
                newest.pop(record.key, None)
                newest[record.key] = record
        check_contract(contract, self._contract)
        for record in newest.values():
            self._take_snapshot(record)
        return records

    def _take_quarantined(self, record: Record) -> None:
        try:
            self._quarantined = QuarantineList.decode(record.value, record.headers).clients
        except MessageRejected as rejected:
            log_event("snapshot_rejected", logging.WARNING, **_reason(rejected))
            return
        self._monitoring.show_quarantined(self._quarantined)

    def _take_snapshot(self, record: Record) -> None:
        if record.value is None:  # of a model that is gone
            return
        try:
            snapshot = Snapshot.decode(record.value, record.headers)
            if self._validator.is_superseded(snapshot):
                return
            # Any writer of the topic may write a snapshot: it is checked as a client checks it.
            self._validator.check_snapshot(snapshot)
            if not self._validator.is_learnt(snapshot):
                return
            if not self._newest.take(snapshot, record):
                return
        except MessageRejected as rejected:
            log_event("snapshot_rejected", logging.WARNING, **_reason(rejected))
            return
        model = self._models[snapshot.model]
        model.take_snapshot(snapshot, view_of(snapshot, self._resolved))
        if self._is_estimated:
            self._estimated.take(snapshot, model.lineage)

    def _show(self) -> None:
        """Show in metrics what was read."""
        for name, model in self._models.items():
            if model.snapshot is None or model.view is None:
                continue
            self._monitoring.show(
                PublishedSnapshot(
                    model.snapshot,
                    b"",
                    model.view,
                    model.lineage,
                    model.new_events,
                    HistoryChange(name, self._newest_bin(name)),
                    model.unusual,
                )
            )
            model.new_events = []

    def _newest_bin(self, model: str) -> Sequence[HistoryMessage]:
        if not self._history.whole:
            return ()
        start = self._history.newest(model, FINE_S)
        return () if start is None else self._history.bins_at(model, FINE_S, [start])


def _first_bin(reader: HistoryReader, model: str) -> int | None:
    """The start of the oldest bin; None before the first, and where the file cannot be read."""
    try:
        coarse = reader.extent(model, COARSE_S)
    except LogUnavailable:
        return None
    return None if coarse is None else coarse[0]


def _reason(rejected: MessageRejected) -> dict[str, str]:
    return {"reason": rejected.reason, "detail": rejected.detail}
