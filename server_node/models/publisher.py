"""Parts that every model on the server has, whatever its family: clients, totals, sizes, the newest
snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from shoal.algorithms.streaming import Arrays, Rows
from shoal.algorithms.view import ClusteringView
from shoal.config.changes import common_places
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.sections import ServerSettings
from shoal.errors import MessageRejected
from shoal.kernels.arrays import AnyArray, Bools, Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.history import COARSE_S, DAY_S, NO_CLUSTER, PLACES_S
from shoal.protocol.messages import RoundRequest, Snapshot, Update
from shoal.runtime.checkpoint import SavedFields, SavedPart, SavedParts, SavedValue, pairs_of
from shoal.server_node.history.attribution import (
    POINTS_MAX,
    WaitingUpdate,
    WaitingUpdates,
    points_compared,
)
from shoal.server_node.history.newest_day import NewestDay
from shoal.server_node.history.node_times import NodeTimes
from shoal.server_node.history.recorder import Recorder
from shoal.server_node.history.regrouped import regrouped
from shoal.server_node.history.sources import NOTHING_PUBLISHED, PublishedHistory
from shoal.server_node.history.times import Times
from shoal.server_node.history.unlike import UnlikeWatch
from shoal.server_node.history.unusual import UnusualWatch
from shoal.server_node.models.base import HistoryChange, Processed, PublishedSnapshot
from shoal.server_node.models.clients import Clients
from shoal.server_node.models.sequences import Content
from shoal.server_node.report.description import describe
from shoal.server_node.report.event_messages import EVENTS_MAX, event_messages, recent_event
from shoal.server_node.report.lineage.clusters import Lineage, restore_lineage
from shoal.server_node.report.lineage.events import (
    FED_KINDS,
    ClusterChange,
    ClusterEvent,
    EventKind,
)
from shoal.server_node.report.lineage.places import (
    CarriedIdentities,
    carried_by_place,
    without_nodes,
)
from shoal.server_node.report.lineage.policy import DEFAULT_POLICY
from shoal.server_node.report.lineage.published import lineage_of, published_identities
from shoal.server_node.report.lineage.step import advance
from shoal.server_node.report.parts import Parts
from shoal.server_node.report.status import HistoryPoint, ModelStatus, RecentEvent, RoundStatus
from shoal.transports.base import Positions

HISTORY_MAX = 600
"""points that are kept at most"""


def as_columns(history: Sequence[HistoryPoint]) -> list[AnyArray]:
    """times (n,) and sizes (n, 3): a list for each point would cost more than all else in a
    checkpoint."""
    times = np.array([point.time for point in history], dtype=np.float64)
    sizes = np.array([point[1:] for point in history], dtype=np.int64).reshape(-1, 3)
    return [times, sizes]


def from_columns(times: Floats, sizes: Ints) -> list[HistoryPoint]:
    """The history of times (n,) and sizes (n, 3), as `as_columns` made them."""
    return [
        HistoryPoint(time, *row) for time, row in zip(times.tolist(), sizes.tolist(), strict=True)
    ]


def thinned(history: list[HistoryPoint]) -> list[HistoryPoint]:
    """`HISTORY_MAX` points at most: of too many every second one is left out; the first and the
    newest stay.

    Recent history is kept finely and the distant past coarsely, and the page can still show the
    first day.
    """
    while len(history) > HISTORY_MAX:
        history = history[:-1:2] + history[-1:]
    return history


SPAN_MAX = 366.0 * DAY_S
"""seconds that an update spans at most, by whatever its client claims"""
KNOWN_PART = 0.7
"""part of the readings of a window below which it was counted under another plan than the newest:
the noise of its counts is less than the rest"""
DENSER_WEIGHT = 0.3
SPARSER_WEIGHT = 0.02
"""weights of an update in the seconds between readings, where it has more readings than usual in
its time, and fewer"""


@dataclass
class SnapshotCounts(SavedFields):
    """Numbers of the newest snapshot of a model, and of what has come since."""

    updates: int = 0
    readings: int = 0
    newest_reading_at: float | None = None
    """time of the newest reading, seconds since 1970; None where readings have no times"""
    reading_s: float | None = None
    """seconds between two readings of a client, as a rule; None where readings have no times"""
    version: int = 0
    """version of the newest snapshot; 0 before the first"""
    snapshot_at: float = 0.0
    """time at which it was made, seconds since 1970"""
    lineage_from_update: int = 0
    """updates behind the snapshot that a rebuild has taken the identities from; as many must be
    read again before the identities are followed any further"""
    changed: list[tuple[int, str]] = field(default_factory=list)
    """identities that operators have named, confirmed or muted since the newest snapshot, and the
    kind of the event"""
    rebuilt: bool = False
    """whether the model has been rebuilt since the newest snapshot, so that its nodes have other
    numbers"""


class ModelPublisher:
    """Makes the snapshots of one model and counts what is behind them."""

    def __init__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        published_history: PublishedHistory = NOTHING_PUBLISHED,
        settings: ServerSettings | None = None,
    ) -> None:
        """`settings` have the rates of false alarms; without them no alarm is raised."""
        self._contract = contract.contract
        self._digest = contract.digest
        self._model = model.declared
        self.name = model.name
        self._algorithm = model.algorithm
        self._counts_by_plan = (
            not model.algorithm.family.in_rounds and model.streaming.counted_points is not None
        )
        """whether updates have no points of their own, but readings counted under a snapshot"""
        self.clients = Clients()
        self.counts = SnapshotCounts()
        self.snapshot: Snapshot | None = None
        """the newest one published"""
        self.view: ClusteringView | None = None
        """its clustering"""
        self._encoded: bytes | None = None
        """the snapshot as it travels"""
        self.lineage = Lineage()
        """identities of its clusters"""
        self._changes_from: Positions = {}
        """positions from which on requests to change clusters are new to a rebuild"""
        self._carried: CarriedIdentities | None = None
        """clusters known before the newest change of the contract after which the model began anew
        """
        self._began_anew = any(
            earlier.standing.get(model.name) == "anew" for earlier in contract.earlier.values()
        )
        self.history: list[HistoryPoint] = []
        """sizes from the first snapshot to the newest, thinner the further back"""
        self.events: list[RecentEvent] = []
        """events of clusters, the newest last"""
        self._recorder = Recorder(self._contract, model.name, published_history)
        self._published_history = published_history
        self._unusual_per_month = 0.0 if settings is None else settings.unusual_per_month
        self._unlike_per_month = 0.0 if settings is None else settings.unlike_per_month
        self._client_names = {} if settings is None else settings.client_names
        self._watch = UnusualWatch()
        self._unlike = UnlikeWatch()
        self._newest_day = NewestDay()
        self._times = Times()
        self._parts = Parts()
        self._node_times = NodeTimes()
        self._uncounted = WaitingUpdates(self._contract.bounds.circular)
        """updates that the history does not have yet: they are counted by the next snapshot, or
        the first one with a known cluster"""

    @property
    def _nodes_have_times(self) -> bool:
        """Whether updates have points that become nodes, or parts of them, so that nodes have
        times."""
        return not (self._counts_by_plan or self._algorithm.family.in_rounds)

    def count_update(self, update: Update) -> None:
        """Count one more update."""
        self.counts.updates += 1
        if update.newest_reading_at is not None:
            before = self.counts.newest_reading_at
            self.counts.newest_reading_at = max(
                before or update.newest_reading_at, update.newest_reading_at
            )
        if update.reading_s is not None:
            self._follow_interval(update.reading_s)

    def _follow_interval(self, reading_s: float) -> None:
        """Move the usual seconds between readings towards those of an update."""
        usual_s = self.counts.reading_s
        if usual_s is None:
            self.counts.reading_s = reading_s
            return
        # After a pause of a sensor, or an answer in between, an update has fewer readings in its
        # time: seldom more.
        weight = SPARSER_WEIGHT
        if reading_s < usual_s:
            weight = DENSER_WEIGHT
        # Twice at most: one long pause must not decide what is usual.
        self.counts.reading_s = usual_s + weight * (min(reading_s, 2 * usual_s) - usual_s)

    def count_readings(self, readings: int) -> None:
        """Count more readings. Clients claim these numbers, so the sum is capped at what a snapshot
        can carry."""
        self.counts.readings = min(COUNT_MAX, self.counts.readings + readings)

    def record(self, update: Update, points: Rows, weights: Floats, now: float) -> None:
        """Put the readings behind an update, counted before, into the history of the clusters that
        they fell to.

        `points` (n, d) are those that the update has in feature space, `weights` (n,) the readings
        of each, relative to each other. Their time ends with that of the newest reading, which
        cannot be later than `now`.
        """
        if self._counts_by_plan and not self.lineage.of_number:
            # Counts under a plan that was made before any cluster was found: too coarse to tell.
            points = points[:0]
            weights = weights[:0]
        # A sensor whose clock is ahead must not put its readings into bins of the future.
        newest = update.made_at
        if update.newest_reading_at is not None:
            newest = update.newest_reading_at
        newest = min(newest, now)
        span = 0.0
        if update.oldest_reading_at is not None:
            # Not negative: the times of an update are the word of its client.
            span = max(0.0, newest - update.oldest_reading_at)
        self._recorder.follow_span(min(span, SPAN_MAX), update.readings)
        if self._counts_by_plan and weights.sum() < KNOWN_PART * update.readings:
            self._recorder.still_mixed(newest - span, newest)
        waiting = WaitingUpdate(
            newest, update.client, update.readings, self.counts.updates, points, weights, span
        )
        if update.readings and self._uncounted.add(waiting):
            self._count_waiting_by_newest()

    def _count_waiting_by_newest(self) -> None:
        """Put the updates that wait into the history, by the newest snapshot and its clusters."""
        arrays: Arrays = {}
        if self.snapshot is not None:
            arrays = self.snapshot.arrays
        self._count_waiting(arrays, self.view, self.lineage.of_number)

    def _count_waiting(
        self, arrays: Arrays, view: ClusteringView | None, of_number: Mapping[int, int]
    ) -> None:
        """Put the updates that wait into the history, by a snapshot and the known clusters in it.

        Where no cluster is known they are readings of none.
        """
        predict: Callable[[Floats], Ints] = partial(self._algorithm.predict, arrays)
        points_max = POINTS_MAX
        if view is None or not of_number:
            predict = _of_no_cluster
        else:
            points_max = points_compared(view.nodes)
            if self._counts_by_plan:
                # What was counted before any cluster was found does not show where it lay: it is
                # part of what the nodes have counted by now.
                self._uncounted.fill(view.nodes, view.mass)
        unknown = self._unknown_places(view, of_number)
        found = self._uncounted.take(predict, of_number, points_max, unknown)
        if found is not None:
            self._recorder.count(found)

    def _unknown_places(
        self, view: ClusteringView | None, of_number: Mapping[int, int]
    ) -> dict[int, Bools]:
        """identity -> features (d,) on which the place of a cluster is not known, of a view and the
        known clusters in it: those of which the readings that wait say nothing there."""
        if view is None or view.node_known is None:
            return {}
        unknown = _by_identity(view.unknown_means(), of_number)
        # The points of these readings are places of the snapshot before, where there is one.
        if self.view is not view and self.view is not None and self.lineage.of_number:
            earlier = _by_identity(self.view.unknown_means(), self.lineage.of_number)
            nothing_known = np.ones(view.nodes.shape[1], dtype=np.bool_)
            for identity, features in unknown.items():
                # Of a cluster that was just found they are those of the one that it was part of.
                unknown[identity] = features | earlier.get(identity, nothing_known)
        return {identity: features for identity, features in unknown.items() if features.any()}

    def adopt(self, published: Snapshot) -> None:
        """Go on from a snapshot that was published before the checkpoint was lost."""
        self.counts.version = published.version
        self._keep(published, published.encode(), self._algorithm.view(published.arrays))
        self.adopt_identities(published)

    def adopt_identities(self, published: Snapshot) -> None:
        """Go on with the identities and names of a published snapshot once all updates behind it
        have been read."""
        self.lineage = lineage_of(published, self._algorithm.view(published.arrays))
        self.counts.lineage_from_update = published.updates
        self._parts.adopt(published)
        self._changes_from = published.read_up_to
        if self._began_anew:
            self._carried = CarriedIdentities.published(
                published, self._algorithm.view(published.arrays)
            )

    def begin_anew(self, state: Mapping[str, Any], earlier: ResolvedContract) -> None:
        """Go on from the saved state of the same model under an earlier contract, without what that
        had learnt.

        Its clients, numbers, sizes, events and history stay. Identities and names stay with the
        known clusters until those are found again by their places.
        """
        # The saved state of a publisher depends on its contract, so it is read by one of the
        # contract that wrote it.
        before = ModelPublisher(earlier, earlier.models[self._model.name], self._published_history)
        before.restore(state)
        common = common_places(earlier.contract, self._contract)
        self.clients = before.clients
        self.counts = before.counts
        streaming = not self._algorithm.family.in_rounds
        self.counts.rebuilt = streaming
        self.history = before.history
        self.events = before.events
        self._changes_from = before._changes_from
        self._carried = CarriedIdentities.of(before.lineage, before.view, common, before._carried)
        # Until as many readings have come as it had learnt; a model in rounds finds all its
        # clusters at once.
        readings = 0
        if streaming:
            readings = before.lineage.readings
        self.lineage = without_nodes(before.lineage, readings)
        # Their points are places of the earlier contract.
        before._count_waiting_by_newest()
        self._recorder.go_on_from(before._recorder)

    @staticmethod
    def newest_round(state: Mapping[str, Any]) -> int:
        """The round of the newest snapshot in a saved state; 0 without one."""
        value = state["snapshot"]
        if value is None:
            return 0
        return Snapshot.decode(value, Snapshot.headers()).round or 0

    def skip(self, update: Update, now: float, content: Content) -> Processed:
        """Count an update of an earlier contract, which the model cannot learn from.

        Raises `MessageRejected` ("sequence", "conflict").
        """
        readings = 0 if update.round is not None else update.readings
        new = self.clients.take(update.client, update.sequence, readings, now, content)
        if new and not update.is_report:
            self.count_update(update)
            self.count_readings(readings)
        return Processed(new, None if update.round is None else "too_late")

    def begin_again(self, read_up_to: Positions) -> None:
        """The model learns the log from its start once more, without a client that it had learnt
        from.

        Identities are carried over by place with the next snapshot; what operators have changed of
        clusters up to `read_up_to` is kept.
        """
        self.clients = Clients()
        self.begin_history_again()
        self.counts.updates = 0
        self.counts.readings = 0
        self.counts.newest_reading_at = None
        self.counts.reading_s = None
        self.counts.lineage_from_update = 0
        self._changes_from = dict(read_up_to)
        self.counts.rebuilt = True

    def begin_history_again(self) -> None:
        """Forget the history, whose bins do not show which of their readings came from a client
        that is unlearned."""
        self._uncounted.clear()
        self._recorder.begin_again()
        self._watch = UnusualWatch()
        self._unlike = UnlikeWatch()
        self._newest_day = NewestDay()
        self._times = Times()
        self._node_times = NodeTimes()
        self._parts.begin_again()

    def change_cluster(self, change: ClusterChange, place: tuple[int, int]) -> bool:
        """Change a known cluster; `place` is (partition, offset) of the request. Raises
        `MessageRejected`.

        False while rebuilding, as the snapshot that the identities were taken from has the change
        already.
        """
        partition, offset = place
        if offset < self._changes_from.get(partition, 0):
            return False
        changed = self.lineage.changed(change)
        if changed is None:
            raise MessageRejected(
                "cluster", f"model {self._model.name} has no known cluster {change.identity}"
            )
        self.lineage = changed
        self.counts.changed.append((change.identity, change.kind.value))
        return True

    def publish(
        self,
        arrays: Arrays,
        positions: Positions,
        statement: Mapping[str, Any],
        now: float,
        *,
        pooled: int = 0,
        clustered_readings: int | None = None,
        number: int | None = None,
        request: RoundRequest | None = None,
    ) -> PublishedSnapshot:
        """Make the next snapshot.

        `positions` is where the updates are read on, `pooled` how many updates were merged together
        to begin with, `clustered_readings` how many readings the clusters were learnt from where
        these are not those of the federation's own clients, `number` the round of a model in rounds
        and `request` that of its open round.
        """
        view = self._algorithm.view(arrays)
        sizes = view.summary()
        lineage, changes = self._next_lineage(
            arrays, view, clustered_readings, now, in_round=request is not None
        )
        self.counts.version += 1
        if request is not None:
            # Clients have been told the version of its snapshot already.
            self.counts.version = request.version
        snapshot = Snapshot(
            federation=self._contract.federation,
            contract=self._digest,
            model=self._model.name,
            algorithm=self._model.algorithm,
            version=self.counts.version,
            positions=pairs_of(positions),
            updates=self.counts.updates,
            readings=self.counts.readings,
            clients=len(self.clients),
            clusters=sizes.clusters,
            nodes=sizes.nodes,
            pooled=pooled,
            privacy=dict(statement),
            arrays=arrays,
            made_at=now,
            newest_reading_at=self.counts.newest_reading_at,
            reading_s=None if view.states is None else self.counts.reading_s,
            round=number,
            round_request=None if request is None else request.table(),
            known=len(lineage.known),
            active=len(lineage.active),
            next_identity=lineage.next_identity,
            identities=[list(identity) for identity in published_identities(lineage)],
            parts=[
                list(part)
                for part in self._parts.follow(view, lineage, self._contract, self.counts.readings)
            ],
        )
        # Encoded once: these bytes are published, kept in the checkpoint and published again after
        # a kill, so that all three are the same record.
        value = snapshot.encode()
        self._keep(snapshot, value, view)
        described = {}
        if changes:
            described = describe(view, self._contract, lineage.times)
        events = event_messages(
            self._contract,
            snapshot,
            self.lineage,
            lineage,
            changes,
            described,
            self._client_names,
        )
        self._remember(snapshot, lineage, events)
        self.lineage = lineage
        self.counts.changed = []
        self.counts.snapshot_at = now
        history = self.take_history()
        unusual = self._watch.unusual
        unlikeness = {
            self._recorder.client(number): unlike
            for number, unlike in self._unlike.unlikeness.items()
        }
        return PublishedSnapshot(
            snapshot, value, view, lineage, events, history, unusual, unlikeness
        )

    @property
    def held_history(self) -> int:
        """The numbers that wait until the history is whole."""
        return self._recorder.held

    def take_history(self) -> HistoryChange:
        """What has changed in the history since the last call; nothing while it is not whole."""
        name = self._model.name
        if not self._published_history.whole:
            return HistoryChange(name)
        again = self._recorder.begins_again
        # Bins say up to which update they are complete. Updates that wait for a cluster are in none
        # of them yet, so a rebuild has to count from the first of these.
        waits_from = self._uncounted.first_number
        counted = self.counts.updates
        if waits_from is not None:
            counted = waits_from - 1
        return HistoryChange(name, self._recorder.take_changed(counted), again)

    def _remember(
        self, snapshot: Snapshot, lineage: Lineage, events: Sequence[ClusterEventMessage]
    ) -> None:
        """Keep sizes and events for people to read, and give the clusters of the history their
        names."""
        point = HistoryPoint(
            snapshot.reading_time, snapshot.known, snapshot.nodes, snapshot.readings
        )
        self.history = thinned([*self.history, point])
        recent = [recent_event(event) for event in events]
        self.events = [*self.events, *recent][-EVENTS_MAX:]
        labels = {event.cluster: event.label for event in events}
        for cluster in lineage.known:
            self._recorder.name(cluster.identity, cluster.name, labels.get(cluster.identity, ""))

    def _next_lineage(
        self,
        arrays: Arrays,
        view: ClusteringView,
        clustered: int | None,
        now: float,
        *,
        in_round: bool,
    ) -> tuple[Lineage, list[ClusterEvent]]:
        if self._nodes_have_times:
            self._node_times.follow(self._uncounted, self.view, view)
        # Where a model in rounds begins anew is no place of its clusters yet.
        if in_round and self._carried is not None and not self.lineage.of_node:
            return self.lineage, []
        # A log that is read again comes to the snapshot that the identities are of: until then they
        # stay as they are.
        if 0 < self.counts.updates <= self.counts.lineage_from_update and not self.counts.changed:
            if self.lineage.of_number:
                self._count_waiting_by_newest()
            return self.lineage, []
        before = self.lineage
        readings = self.counts.readings if clustered is None else clustered
        # A model that learns the log again gives its nodes other numbers, so no node tells which
        # cluster it is of.
        if self.counts.rebuilt and self.view is not None:
            before = carried_by_place(before, self.view, view, readings)
        self.counts.rebuilt = False
        if self._carried is not None:
            self._carried, before, view = self._carried.follow(before, view)
        # By the time of readings: events of a log that is read late or again have the dates at
        # which they happened.
        at = now
        if self.counts.newest_reading_at is not None:
            # The clock of a sensor may be ahead.
            at = min(self.counts.newest_reading_at, now)
        lineage, found = self._lasting_moves(*advance(before, view, readings, at))
        self._count_learnt(arrays, view, lineage, at)
        events = [
            self._with_client(self._with_readings_span(event, view, lineage)) for event in found
        ]
        asked = [
            ClusterEvent(EventKind(kind), identity)
            for identity, kind in self.counts.changed
            if identity in lineage.clusters
        ]
        times: Mapping[int, str] = {cluster.identity: cluster.time for cluster in lineage.known}
        # Nothing is found in a part of the history: the first look at the whole goes on from the
        # last one.
        if self._published_history.whole:
            newest = self._recorder.newest(COARSE_S)
            times = self._times.look(self._published_history, self._model.name, newest, times)
        events = events + asked + self._unusual_events(lineage, at)
        events = events + self._unlike_events(lineage, at)
        return lineage.with_times(times), events

    def _count_learnt(
        self, arrays: Arrays, view: ClusteringView, lineage: Lineage, at: float
    ) -> None:
        """Put the updates that wait into the history, by the snapshot that has learnt from them;
        note of which clusters earlier readings were counted to others."""
        # By the snapshot before, the first readings of a cluster would fall to others. Before any
        # cluster is known they wait for the first.
        if lineage.of_number:
            self._count_waiting(arrays, view, lineage.of_number)
        if self._counts_by_plan:
            for identity in self._regrouped(view, lineage):
                self._recorder.tell_apart(identity, at)

    def _regrouped(self, view: ClusteringView, lineage: Lineage) -> set[int]:
        """The identities of clusters whose earlier readings the history has counted to others."""
        now = _identities(view.cluster, lineage.of_number)
        before = np.full(len(now), NO_CLUSTER)
        if self.snapshot is None or not self.lineage.of_number:
            # Readings counted before any cluster was found are of no cluster in the history.
            return regrouped(before, now, view.mass, None)
        numbers = self._algorithm.predict(self.snapshot.arrays, view.nodes)
        before = _identities(numbers, self.lineage.of_number)
        recent_shares = None
        if view.recent is not None and view.recent.sum() > 0.0:
            shares = view.recent / view.recent.sum()
            recent_shares = {
                identity: float(shares[number]) for number, identity in lineage.of_number.items()
            }
        return regrouped(before, now, view.mass, recent_shares)

    def _with_readings_span(
        self, event: ClusterEvent, view: ClusteringView, lineage: Lineage
    ) -> ClusterEvent:
        """The event with the time of the readings of its cluster, where these lie where none were
        before."""
        # States may share a place: readings near a node are not all of its state. And a part of a
        # cluster has readings near its edge that are as old as that.
        if (
            event.kind is not EventKind.BIRTH
            or not self._nodes_have_times
            or view.states is not None
        ):
            return event
        numbers = [number for number, known in lineage.of_number.items() if known == event.identity]
        span = self._node_times.span(view, numbers)
        if span is None:
            return event
        return replace(event, first=span.first, last=span.last)

    def _with_client(self, event: ClusterEvent) -> ClusterEvent:
        """The event with the client that feeds its cluster, where a cluster of one begins: wear of
        one pump of twenty is that pump's."""
        if event.kind not in FED_KINDS:
            return event
        client = self._recorder.feeding_client(
            event.identity, event.share, DEFAULT_POLICY.share_readings
        )
        return replace(event, client=client)

    def _lasting_moves(
        self, lineage: Lineage, events: Sequence[ClusterEvent]
    ) -> tuple[Lineage, list[ClusterEvent]]:
        """The lineage and its events but for those of shares that have moved no further than they
        do by day and night, or at weekends; the others have the share of the newest day, and the
        usual one."""
        kept = []
        clusters = dict(lineage.clusters)
        for event in events:
            if event.kind is not EventKind.SHARE_MOVED:
                kept.append(event)
                continue
            shares = None
            if self._published_history.whole:
                newest = self._recorder.newest(COARSE_S)
                self._newest_day.read(self._published_history, self._model.name, newest)
                # A cluster from which another one has parted has lost that one's share, and another
                # event says so.
                since = max(
                    cluster.since
                    for cluster in lineage.known
                    if event.identity in {cluster.identity, cluster.parent}
                )
                shares = self._newest_day.share(event.identity, since)
            if shares is not None and abs(shares[0] - shares[1]) >= DEFAULT_POLICY.share_moved:
                kept.append(replace(event, share=shares[0], share_before=shares[1]))
                continue
            # It is looked at again with the next snapshot: what is not known to last may last.
            clusters[event.identity] = clusters[event.identity].having(
                reported_share=event.share_before
            )
        return replace(lineage, clusters=clusters), kept

    def _unusual_events(self, lineage: Lineage, at: float) -> list[ClusterEvent]:
        """Events of shares that are unusual, or usual again, but for those of clusters that raise
        no alerts."""
        if not self._unusual_per_month or not self._published_history.whole:
            return []
        clusters = {cluster.identity: cluster.muted(at) for cluster in lineage.known}
        newest = self._recorder.newest(COARSE_S)
        found = self._watch.look(
            self._published_history, self._model.name, newest, clusters, self._unusual_per_month
        )
        kinds = {True: EventKind.UNUSUAL, False: EventKind.USUAL_AGAIN}
        # The cluster that an alarm has named may be gone when it ends: the end is reported all the
        # same.
        largest = max(lineage.known, key=lambda cluster: cluster.mass, default=None)
        events = []
        for finding in found:
            if finding.identity in clusters:
                identity = finding.identity
            elif largest is not None:
                identity = largest.identity
            else:
                continue
            events.append(
                ClusterEvent(
                    kinds[finding.unusual],
                    identity,
                    share=finding.share,
                    share_before=finding.usual,
                )
            )
        return events

    def _unlike_events(self, lineage: Lineage, at: float) -> list[ClusterEvent]:
        """Events of clients that have become unlike all others, or are as usual again."""
        if not self._unlike_per_month or not self._published_history.whole:
            return []
        named = [cluster.identity for cluster in lineage.known if not cluster.muted(at)]
        newest = self._recorder.newest(PLACES_S)
        found = self._unlike.look(
            self._published_history, self._model.name, newest, named, self._unlike_per_month
        )
        events = []
        for finding in found:
            identity = finding.identity
            if identity == NO_CLUSTER:
                # An event is listed with a cluster: with the largest, where none may be named.
                largest = max(lineage.known, key=lambda cluster: cluster.mass, default=None)
                if largest is None:
                    continue
                identity = largest.identity
            kind = EventKind.UNLIKE_OTHERS if finding.unlike else EventKind.LIKE_OTHERS_AGAIN
            events.append(
                ClusterEvent(
                    kind,
                    identity,
                    share=finding.share,
                    share_before=finding.fellow_share,
                    client=self._recorder.client(finding.client),
                )
            )
        return events

    def _unlike_clients(self) -> list[tuple[str, float]]:
        unlike = [
            (self._recorder.client(client), float(since)) for client, since in self._unlike.unlike
        ]
        return sorted(unlike)

    def status(self, waiting_for: str, rounds: RoundStatus | None = None) -> ModelStatus:
        """Status of the model for people; `waiting_for` is empty once there is a clustering."""
        name = self._model.name
        algorithm = self._model.algorithm
        parts = (self.history, rounds, self.lineage, self.events, self._watch.unusual)
        unlike = self._unlike_clients()
        return ModelStatus(name, algorithm, self.snapshot, waiting_for, *parts, unlike)

    def state(self) -> dict[str, Any]:
        """Plain values and parts for `restore`."""
        return self._saved().state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`, or any of `DAMAGED`."""
        self._saved().restore(state)

    def _saved(self) -> SavedParts:
        parts: dict[str, SavedPart] = {
            "clients": self.clients,
            "counts": self.counts,
            "snapshot": SavedValue(lambda: self._encoded, self._restore_snapshot),
            "lineage": SavedValue(self.lineage.state, self._restore_lineage),
            "carried": SavedValue(
                lambda: self._carried and self._carried.state(), self._restore_carried
            ),
            "changes_from": SavedValue(
                lambda: pairs_of(self._changes_from), self._restore_changes_from
            ),
            "history": SavedValue(lambda: as_columns(self.history), self._restore_history),
            "events": SavedValue(
                lambda: [list(event) for event in self.events], self._restore_events
            ),
            "recorder": self._recorder,
            "waiting": self._uncounted,
            "unusual": self._watch,
            "unlike": self._unlike,
            "times": self._times,
            "node_times": self._node_times,
            "parts": self._parts,
        }
        return SavedParts(f"the checkpoint of model {self._model.name}", parts)

    def _restore_snapshot(self, value: bytes | None) -> None:
        if value is not None:
            snapshot = Snapshot.decode(value, Snapshot.headers())
            self._keep(snapshot, value, self._algorithm.view(snapshot.arrays))

    def _restore_lineage(self, state: Mapping[str, Any]) -> None:
        self.lineage = restore_lineage(state)

    def _restore_carried(self, state: list[Any] | None) -> None:
        self._carried = None
        if state is not None:
            self._carried = CarriedIdentities.restored(state)

    def _restore_changes_from(self, state: Iterable[tuple[int, int]]) -> None:
        self._changes_from = dict(state)

    def _restore_history(self, state: Sequence[AnyArray]) -> None:
        self.history = thinned(from_columns(*state))

    def _restore_events(self, state: Iterable[Sequence[Any]]) -> None:
        self.events = [RecentEvent(*event) for event in state]

    def _keep(self, snapshot: Snapshot, value: bytes, view: ClusteringView) -> None:
        self.snapshot = snapshot
        self._encoded = value
        self.view = view


def _identities(numbers: Ints, of_number: Mapping[int, int]) -> Ints:
    """The identity of the cluster of each number (n,); `NO_CLUSTER` where it is not known."""
    known = [of_number.get(number, NO_CLUSTER) for number in numbers.tolist()]
    return np.array(known, dtype=np.int64)


def _by_identity(of_cluster: Bools, of_number: Mapping[int, int]) -> dict[int, Bools]:
    """Rows (c, d) of clusters, by their identities."""
    return {
        identity: of_cluster[number]
        for number, identity in of_number.items()
        if number < len(of_cluster)
    }


def _of_no_cluster(points: Floats) -> Ints:
    """points (n, d) -> (n,) `NO_CLUSTER`."""
    return np.full(len(points), NO_CLUSTER, dtype=np.int64)


class PublishedModel:
    """A model as others see it, whatever its family: what its publisher has."""

    _publisher: ModelPublisher

    @property
    def name(self) -> str:
        """The model's name in the contract."""
        return self._publisher.name

    @property
    def held_history(self) -> int:
        """The numbers that wait until the history is whole."""
        return self._publisher.held_history

    def take_history(self) -> HistoryChange:
        """What has changed in its history since the last call; nothing while it is not whole."""
        return self._publisher.take_history()

    @property
    def clients(self) -> Clients:
        """The clients that its updates came from."""
        return self._publisher.clients

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot that was published."""
        return self._publisher.snapshot

    @property
    def view(self) -> ClusteringView | None:
        """The clustering in it."""
        return self._publisher.view

    @property
    def lineage(self) -> Lineage:
        """The identities of its clusters."""
        return self._publisher.lineage
