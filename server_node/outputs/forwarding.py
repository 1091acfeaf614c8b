"""Forwarding of events to sinks: every event that a rule matches reaches every sink, in order.

Each event is delivered at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from shoal.errors import InvalidState, LogUnavailable, MessageRejected
from shoal.runtime.checkpoint import Checkpoint, pairs_of, positions_of
from shoal.saved_state import SavedState, state_type
from shoal.server_node.outputs.alert_rules import Event, Rule
from shoal.server_node.outputs.sinks.base import Sink, Sinks
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, beginning, read_next

STATE_VERSION: Final = 3
BATCH_EVENTS_MAX: Final = 100
"""events delivered to a sink between two stores of its position; a kill repeats these at most"""

Alert = tuple[str, Event]
"""name of the rule, and the event that matches it"""


class Topic(NamedTuple):
    """Place from which events are read."""

    name: str
    decode: Callable[[bytes | None], Event]
    """raises `MessageRejected` for what is no such event"""


@state_type
class ProgressState(SavedState):
    """How far one sink has come, as it is saved."""

    positions: list[list[int]]
    delivered: int


@state_type
class ForwarderState(SavedState):
    """Saved state of `Forwarder`."""

    sinks: dict[str, ProgressState]


@dataclass
class _Progress:
    """How far one sink has come."""

    positions: Positions
    delivered: int = 0
    """alerts of the batch from these positions on that it has"""


class Forwarder:
    """One step delivers to each sink its next batch of events, and then stores the position behind
    it.

    Each sink has a position of its own, so that one that is away holds up no other. A kill between
    delivery and storing delivers a batch again: receivers recognise events by their `id`.
    """

    def __init__(
        self, topic: Topic, log: Log, checkpoint: Checkpoint, rules: Sequence[Rule], sinks: Sinks
    ) -> None:
        self._topic = topic
        self._log = log
        self._checkpoint = checkpoint
        self._rules = rules
        self._sinks = sinks
        self._progress: dict[str, _Progress] = {}
        """sink -> its progress"""
        self.forwarded = 0
        """alerts delivered since this object was made"""

    def resume(self) -> None:
        """Go on behind the newest event that each sink has; at first, from the beginning.

        A sink that has come since begins with what the others are to get next. Raises
        `InvalidState`.
        """
        state = self._checkpoint.load()
        saved = {} if state is None else self._saved_progress(state)
        # Without any saved sink, that is the beginning of the log.
        furthest = max(
            (sorted(progress.positions.items()) for progress in saved.values()),
            default=list(beginning(self._log, self._topic.name).items()),
        )
        self._progress = {}
        for name, _ in self._sinks.items():
            self._progress[name] = saved.get(name, _Progress(dict(furthest)))

    def step(self, timeout_s: float = 0.0) -> bool:
        """Deliver what has come to each sink.

        Raises `LogUnavailable` when one of them or the log is away; the next step goes on.
        """
        # The error is kept until every sink has had its turn: one that is away must not hold up the
        # others.
        first_error: LogUnavailable | None = None
        worked = False
        for name, sink in self._sinks.items():
            try:
                worked |= self._forward(name, sink)
            except LogUnavailable as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        if worked or timeout_s <= 0:
            return worked
        # Nothing was left for any sink, so all are at the end of the log, and one shows when more
        # comes.
        progress = next(iter(self._progress.values()))
        records, _ = read_next(
            self._log, self._topic.name, progress.positions, 1, timeout_s, accept_gap=True
        )
        return bool(records) and self.step()

    def _forward(self, name: str, sink: Sink) -> bool:
        """Deliver the next batch to one sink; False where there is none."""
        progress = self._progress[name]
        records, after = read_next(
            self._log, self._topic.name, progress.positions, BATCH_EVENTS_MAX, 0.0, accept_gap=True
        )
        if not records:
            return False
        alerts: list[Alert] = []
        for record in records:
            alerts += self._alerts_of(record)
        try:
            self._deliver(name, sink, alerts)
            self._progress[name] = _Progress(after)
        finally:
            # Also after an error: when the sink is back it must not get the first alerts of the
            # batch again.
            self._store()
        log_event("events_forwarded", sink=name, events=len(records), alerts=len(alerts))
        return True

    def _deliver(self, name: str, sink: Sink, alerts: Sequence[Alert]) -> None:
        progress = self._progress[name]
        for rule, event in alerts[progress.delivered :]:
            if not sink.deliver({"alert": rule, "event": asdict(event)}, event.kind, event.model):
                log_event("alert_rejected", logging.WARNING, sink=name, alert=rule, id=event.id)
            # Counted one by one, so that an outage in the middle of a batch repeats none of the
            # alerts before it.
            progress.delivered += 1
            self.forwarded += 1

    def _alerts_of(self, record: Record) -> list[Alert]:
        try:
            event = self._topic.decode(record.value)
        except MessageRejected as rejected:
            origin = f"{record.topic}/{record.partition}/{record.offset}"
            log_event("event_rejected", logging.WARNING, reason=rejected.reason, origin=origin)
            return []
        return [(rule.name, event) for rule in self._rules if rule.matches(event)]

    def _store(self) -> None:
        sinks: dict[str, ProgressState] = {}
        for name, progress in sorted(self._progress.items()):
            sinks[name] = ProgressState(
                positions=pairs_of(progress.positions), delivered=progress.delivered
            )
        log = self._log.identity(self._topic.name)
        state = ForwarderState(sinks=sinks).saved()
        self._checkpoint.save({"version": STATE_VERSION, "log": log, **state})

    def _saved_progress(self, state: dict[str, Any]) -> dict[str, _Progress]:
        """sink -> its saved progress."""
        log = self._log.identity(self._topic.name)
        if state.get("version") != STATE_VERSION or state.get("log") != log:
            raise InvalidState(
                "the forwarder's checkpoint is of another log or version; move its folder away to "
                "forward all events that the log still has"
            )
        progress: dict[str, _Progress] = {}
        for name, saved in ForwarderState.read(state).sinks.items():
            progress[name] = _Progress(positions_of(saved.positions), saved.delivered)
        return progress
