"""The metrics, log events and heartbeat of a client, all derived here from what a step did.

What is counted from raw readings, such as how many are clipped, goes to the client's own events and
metrics, and is never published.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shoal.client_nodes.intake import Batch
from shoal.client_nodes.privacy import PrivateBatch
from shoal.client_nodes.publisher import EncodedUpdate
from shoal.client_nodes.round_answers import RejectedRequest
from shoal.config.resolved import ResolvedContract
from shoal.errors import MessageRejected
from shoal.protocol.reading_faults import CLIPPED_SHARE, CLIPPING_REMEDY, FaultCounts, place_text
from shoal.protocol.topics import READINGS
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import SavedState, state_type
from shoal.telemetry.events import log_event, note_experimental

if TYPE_CHECKING:
    from shoal.protocol.events import SiteEvent
    from shoal.telemetry.metrics import ClientMetrics


WINDOW_READINGS: Final = 1000
"""readings after which shares are looked at"""
CALM_SHARE: Final = CLIPPED_SHARE / 2
"""share at which a feature is no longer clipped too much, so that one at the limit is not warned of
again and again"""
REJECTED_S: Final = 60.0
"""least seconds between two log lines about readings that were rejected for one reason"""


class BegunClipping(NamedTuple):
    """A feature of which too many readings have begun to be clipped."""

    position: int
    """position of the feature"""
    share: float
    """share clipped of the readings looked at"""
    readings: int
    """number of readings looked at"""
    first: tuple[int, int] | None
    """(partition, offset) in the readings log of the first of them that is clipped, if known"""


class ClippingWatch:
    """Finds features with too many clipped readings, once each time that it begins."""

    def __init__(self, n_features: int) -> None:
        self._readings = 0
        self._clipped = np.zeros(n_features, dtype=np.int64)
        self._over = np.zeros(n_features, dtype=np.bool_)
        self._first: dict[int, tuple[int, int]] = {}

    def add(
        self,
        readings: int,
        clipped: Sequence[int],
        first: Mapping[int, tuple[int, int]] | None = None,
    ) -> list[BegunClipping]:
        """Count more readings, and how many of them were clipped by feature (none: () will do).

        `first`: position of a feature -> (partition, offset) of the first of them. Returns the
        features that have begun to be clipped.
        """
        if first:
            # Those that were there first stay.
            self._first = {**first, **self._first}
        self._readings += readings
        if clipped:
            self._clipped += np.asarray(clipped, dtype=np.int64)
        if self._readings < WINDOW_READINGS:
            return []
        shares = self._clipped / self._readings
        looked_at = self._readings
        # With hysteresis: a share around the limit must not log an event for each window.
        over = shares > np.where(self._over, CALM_SHARE, CLIPPED_SHARE)
        begun = np.flatnonzero(over & ~self._over).tolist()
        self._readings = 0
        self._over = over
        self._clipped[:] = 0
        places = self._first
        self._first = {}
        return [
            BegunClipping(position, float(shares[position]), looked_at, places.get(position))
            for position in begun
        ]


class RejectionWatch:
    """Counts rejected readings by reason: the first at once, further ones once in a while.

    A sensor that is broken sends its bad readings one by one, and each comes in a step of its own.
    """

    def __init__(self) -> None:
        self._unlogged: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}

    @property
    def has_unlogged(self) -> bool:
        """Whether some are still to be logged."""
        return bool(self._unlogged)

    def add(self, reasons: Iterable[str], now: float) -> list[tuple[str, int]]:
        """Count more, at `now` (seconds). -> (reason, readings) of what is to be logged now."""
        self._unlogged.update(reasons)
        # First, as it is nearly every step.
        if not self._unlogged:
            return []
        due = []
        for reason in list(self._unlogged):
            age_s = now - self._logged_at.get(reason, -math.inf)
            # An age below 0 is of a clock that was set back, which must not delay the log line.
            if age_s < 0 or age_s >= REJECTED_S:
                due.append((reason, self._unlogged.pop(reason)))
                self._logged_at[reason] = now
        return due


READING_RESULTS = ("read", "refused", "learned", "rejected", "withheld", "clipped")
"""what can become of a reading; each is read, and a clipped one is learned too"""
TOTALS = (*READING_RESULTS, "updates")


@state_type
class TotalsState(SavedState):
    """Counts by name since the client was first started."""

    counts: dict[str, int]


class Totals(Counter[str]):
    """Counts of `TOTALS` since the client was first started, saved with what they count."""

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return TotalsState(counts=self).saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = TotalsState.read(state)
        self.clear()
        self.update(saved.counts)


class Labelled(NamedTuple):
    """Results of labelling in one step."""

    labels: int = 0
    """number of labels written"""
    backlog: int = 0
    """number of earlier readings read again to be labelled"""
    records: Sequence[OutboxRecord] = ()
    """records to publish; none without `publish_labels`"""
    events: Sequence[SiteEvent] = ()
    """findings in the labels"""


class StepOutcome(NamedTuple):
    """Results of the stages of one step."""

    batch: Batch
    private: PrivateBatch
    updates: Sequence[EncodedUpdate]
    """updates of streaming models, and answers to round requests"""
    rejected_requests: Sequence[RejectedRequest]
    rejected_snapshots: Sequence[MessageRejected]
    learn_s: float
    """seconds that privacy and learning took"""
    labelled: Labelled
    novel: Mapping[str, int]
    """model -> novel readings since the client was first started; none where readings are not
    labelled"""
    refused: int = 0
    """readings that were read and not released, because of the limit of the ledger"""

    @property
    def did_something(self) -> bool:
        """Whether records were read or updates made."""
        return bool(self.batch.records or self.updates or self.labelled.backlog)

    def counts(self) -> dict[str, int]:
        """Numbers that the step adds to each of `TOTALS`."""
        return {
            "read": self.batch.records,
            "refused": self.refused,
            "learned": len(self.private.rows) + self.private.counted,
            "rejected": len(self.batch.rejected),
            "withheld": self.private.withheld,
            "clipped": self.private.clipped,
            "updates": len(self.updates),
        }


class ClientMonitoring:
    """Writes metrics, if they are served, and events. Decides nothing."""

    def __init__(
        self,
        metrics: ClientMetrics | None,
        lag_records: Callable[[], int],
        clock: Callable[[], float],
        newest_reading_at: Callable[[], float | None],
        faults: FaultCounts,
    ) -> None:
        """`lag_records` asks the log; `newest_reading_at` is asked whenever the metrics are read.

        `faults`: the rejected readings since the client was first started.
        """
        self._faults = faults
        self._features = faults.features
        self._clipping = ClippingWatch(len(self._features))
        self._rejections = RejectionWatch()
        self._clock = clock
        self._metrics = metrics
        self._results = READING_RESULTS if metrics is None or metrics.on_site else ("read",)
        self._lag_records = lag_records
        if metrics is not None:
            metrics.event_time_lag.set_function(lambda: _age_s(clock(), newest_reading_at()))

    def resumed(
        self,
        contract: ResolvedContract,
        totals: Mapping[str, int],
        novel: Mapping[str, int],
        from_checkpoint: bool,
        new_log: bool,
        is_one_of_many: bool = False,
    ) -> None:
        """A node resumed with these totals, and novel readings of each model.

        `new_log`: the federation's log is not the one of the checkpoint. `is_one_of_many`: whether
        its process logs for all of them that they have begun.
        """
        note_experimental(contract.experimental)
        if new_log:
            log_event("federation_log_recreated", logging.WARNING)
        if from_checkpoint and not is_one_of_many:
            log_event("checkpoint_restored", readings=totals["read"], updates=totals["updates"])
        if self._metrics is None:
            return
        # Set here too, as no step may ever end: when nothing can be saved, the lag must still show.
        self._metrics.lag.labels(topic=READINGS).set(self._lag_records())
        self._metrics.lost.labels(topic=READINGS).inc(0)
        labels = {name: str(contract.statement[name]) for name in ("mode", "unit", "mechanism")}
        self._metrics.guarantee.labels(**labels).set(1)
        spent, limit = contract.epsilon_spent
        self._metrics.epsilon_spent.set(spent)
        self._metrics.epsilon_limit.set(limit)
        counted = self._metrics.counted
        repeated = 0
        if counted:
            # What an earlier node of this process read and did not store is read again, and counts
            # as read once.
            repeated = max(0, counted["read"] - totals["read"])
        self._metrics.readings.labels(result="repeated").inc(repeated)
        if not counted:
            counted.update(totals)
            self._metrics.novel_counted.update(novel)
            self._metrics.rejected_counted.update(self._faults.by_label())
        self._begin_series(self._metrics, novel)

    def _begin_series(self, metrics: ClientMetrics, models: Collection[str]) -> None:
        """Let every series begin at 0, so that the first increment is seen as one; `models`: those
        by which readings are labelled."""
        for result in self._results:
            metrics.readings.labels(result=result).inc(0)
        metrics.updates.labels(result="published").inc(0)
        if not metrics.on_site:
            return
        for name in self._features:
            metrics.readings_clipped.labels(feature=name).inc(0)
            metrics.values_missing.labels(feature=name).inc(0)
        for model in models:
            metrics.readings_novel.labels(model=model).inc(0)
        # Only a client that labels finds site events.
        if models:
            for kind, feature in _site_event_labels(self._features):
                metrics.site_events.labels(kind=kind, feature=feature).inc(0)

    def stepped(
        self,
        outcome: StepOutcome,
        totals: Mapping[str, int],
        nodes: Mapping[str, int],
        stored_at: float | None,
    ) -> None:
        """A step ended with these totals and this number of nodes of each model.

        `stored_at`: when it stored the checkpoint, seconds since 1970; None if it did not.
        """
        if self._metrics is not None:
            if stored_at is not None:
                self._metrics.checkpoint_at.set(stored_at)
            self._metrics.lost.labels(topic=READINGS).inc(outcome.batch.lost)
            if outcome.batch.records:
                self._metrics.learn.observe(outcome.learn_s)
        self._show_clipping(outcome.private)
        self._log_rejected(outcome)
        for event in outcome.labelled.events:
            _log_site_event(event)
            if self._metrics is not None and self._metrics.on_site:
                self._metrics.site_events.labels(kind=event.kind, feature=event.feature).inc()
        # Asking the log for the lag takes longer than the rest, so only where it is shown.
        if self._metrics is None:
            if outcome.updates:
                _log_updates(outcome, totals, self._lag_records())
        elif outcome.updates or outcome.did_something:
            lag = self._lag_records()
            self._count_progress(self._metrics, outcome, totals, nodes, lag)
            _log_updates(outcome, totals, lag)

    @property
    def has_unlogged(self) -> bool:
        """Whether rejected readings are still to be logged."""
        return self._rejections.has_unlogged

    def _log_rejected(self, outcome: StepOutcome) -> None:
        reasons = [rejected.reason for rejected in outcome.batch.rejected]
        for reason, number in self._rejections.add(reasons, self._clock()):
            log_event("readings_rejected", reason=reason, readings=number)
        for request in outcome.rejected_requests:
            log_event(
                "round_request_rejected",
                logging.WARNING,
                model=request.model,
                round=request.round,
                detail=request.detail,
            )
        for snapshot in outcome.rejected_snapshots:
            log_event(
                "snapshot_rejected", logging.WARNING, reason=snapshot.reason, detail=snapshot.detail
            )

    def _show_clipping(self, private: PrivateBatch) -> None:
        """Count the readings outside the bounds by feature, and warn where they become many."""
        if self._metrics is not None and self._metrics.on_site:
            for name, number in zip(self._features, private.clipped_by_feature, strict=False):
                self._metrics.readings_clipped.labels(feature=name).inc(number)
            for name, number in zip(self._features, private.missing_by_feature, strict=False):
                self._metrics.values_missing.labels(feature=name).inc(number)
        if self._features:
            learnt = len(private.rows) + private.counted
            begun = self._clipping.add(learnt, private.clipped_by_feature, private.first_clipped)
            for clipping in begun:
                log_event(
                    "readings_clipped",
                    logging.WARNING,
                    feature=self._features[clipping.position],
                    share=round(clipping.share, 3),
                    newest_readings=clipping.readings,
                    first=None if clipping.first is None else place_text(clipping.first),
                    remedy=CLIPPING_REMEDY,
                )

    def _count_progress(
        self,
        metrics: ClientMetrics,
        outcome: StepOutcome,
        totals: Mapping[str, int],
        nodes: Mapping[str, int],
        lag: int,
    ) -> None:
        # A counter counts this process alone, and totals come from the checkpoint: what is above
        # the number counted so far is new.
        for result in self._results:
            new = max(0, totals[result] - metrics.counted[result])
            metrics.readings.labels(result=result).inc(new)
            metrics.counted[result] += new
        if metrics.on_site:
            for (reason, feature), number in self._faults.by_label().items():
                new = max(0, number - metrics.rejected_counted[reason, feature])
                metrics.readings_rejected.labels(reason=reason, feature=feature).inc(new)
                metrics.rejected_counted[reason, feature] += new
            for model, number in outcome.novel.items():
                new = max(0, number - metrics.novel_counted[model])
                metrics.readings_novel.labels(model=model).inc(new)
                metrics.novel_counted[model] += new
        for model, number in nodes.items():
            metrics.nodes.labels(model=model).set(number)
        metrics.lag.labels(topic=READINGS).set(lag)
        metrics.updates.labels(result="published").inc(len(outcome.updates))


def _log_updates(outcome: StepOutcome, totals: Mapping[str, int], lag: int) -> None:
    for model, number in Counter(update.model for update in outcome.updates).items():
        log_event(
            "updates_published", model=model, updates=number, readings=totals["read"], lag=lag
        )


def _age_s(now: float, newest_at: float | None) -> float:
    """NaN before the first reading."""
    if newest_at is None:
        return math.nan
    return now - newest_at


def _site_event_labels(features: Sequence[str]) -> list[tuple[str, str]]:
    """The kind and feature of each series that counts site events."""
    from shoal.protocol.events import (  # noqa: PLC0415 - loaded only to label
        FEATURE_EVENT_KINDS,
        SITE_EVENT_KINDS,
    )

    labels = []
    for kind in SITE_EVENT_KINDS:
        of_kind = features if kind in FEATURE_EVENT_KINDS else [""]
        labels += [(kind, feature) for feature in of_kind]
    return labels


def _log_site_event(event: SiteEvent) -> None:
    fields: dict[str, str | int | None] = {"kind": event.kind, "readings": event.readings}
    if event.feature:
        # Found without a model.
        log_event("feature_unusual", logging.WARNING, **fields, feature=event.feature)
        return
    fields = {"model": event.model, **fields}
    if event.outside is not None:
        features = ", ".join(event.outside)
        if event.kind == "new_here":
            log_event("new_here", logging.WARNING, **fields, features=features)
        else:
            log_event("novel_streak", logging.WARNING, **fields, features=features)
        return
    fields["state"] = event.cluster
    fields["other"] = event.other
    # A change is what a sensor with states does all day; the others are rare.
    if event.kind == "state_changed":
        log_event("state_changed", logging.INFO, **fields)
    else:
        log_event("state_unusual", logging.WARNING, **fields)
