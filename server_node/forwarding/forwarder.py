"""The forwarder: reads cluster events from the log and delivers those that match a rule, each at least once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from server_node.forwarding.rules import Rule
from server_node.forwarding.sinks import Sink, Sinks
from shoal.config.contract import Contract
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.cluster_events import ClusterEventMessage
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.reader import read_next
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, beginning

Alert = tuple[str, ClusterEventMessage]
"""name of the rule, and the event that matches it"""
STATE_VERSION = 1
BATCH_EVENTS_MAX = 100


class Forwarder:
    """One step delivers one batch of events and then stores the position behind it.

    A kill between delivery and storing delivers the batch again: receivers recognise events by their `id`.
    """

    def __init__(
        self, contract: Contract, log: Log, checkpoint: Checkpoint, rules: Sequence[Rule], sinks: Sinks
    ) -> None:
        self._contract, self._log, self._checkpoint = contract, log, checkpoint
        self._rules, self._sinks = rules, sinks
        self._positions: Positions = {}
        self._delivered: dict[str, int] = {}
        """sink -> alerts of the present batch that it has, so that an outage of one sink repeats nothing to another"""
        self.forwarded = 0
        """alerts delivered since this object was made"""

    def resume(self) -> None:
        """Go on behind the newest event that was delivered; at first, from the beginning. Raises `InvalidState`."""
        state = self._checkpoint.load()
        if state is None:
            self._positions = beginning(self._log, self._contract.events_topic)
            return
        if state.get("version") != STATE_VERSION or state.get("log") != self._log.identity(self._contract.events_topic):
            raise InvalidState(
                "the forwarder's checkpoint is of another log or version; move its folder away to forward all events "
                "that the log still has"
            )
        self._positions = dict(state["positions"])
        self._delivered = dict(state["delivered"])

    def step(self, timeout_s: float = 0.0) -> bool:
        """Deliver what has come. Raises `LogUnavailable` when a sink or the log is away; the next step goes on."""
        topic = self._contract.events_topic
        records, after = read_next(self._log, topic, self._positions, BATCH_EVENTS_MAX, timeout_s, accept_gap=True)
        if not records:
            return False
        alerts = [alert for record in records for alert in self._alerts_of(record)]
        try:
            for name, sink in self._sinks.items():
                self._deliver(name, sink, alerts)
        finally:
            # After an outage of one sink the other ones must not get the batch again.
            self._store()
        self._delivered, self._positions = {}, after
        self._store()
        log_event("events_forwarded", events=len(records), alerts=len(alerts))
        return True

    def _deliver(self, name: str, sink: Sink, alerts: Sequence[Alert]) -> None:
        for place, (rule, event) in enumerate(alerts):
            if place < self._delivered.get(name, 0):
                continue
            if not sink.deliver({"alert": rule, "event": asdict(event)}, event.kind, event.model):
                log_event("alert_rejected", logging.WARNING, sink=name, alert=rule, id=event.id)
            self._delivered[name] = place + 1
            self.forwarded += 1

    def _store(self) -> None:
        state = {
            "version": STATE_VERSION,
            "log": self._log.identity(self._contract.events_topic),
            "positions": [[partition, offset] for partition, offset in sorted(self._positions.items())],
            "delivered": self._delivered,
        }
        self._checkpoint.save(state)

    def _alerts_of(self, record: Record) -> list[Alert]:
        try:
            event = ClusterEventMessage.decode(record.value)
        except MessageRejected as wrong:
            place = f"{record.topic}/{record.partition}/{record.offset}"
            log_event("event_rejected", logging.WARNING, reason=wrong.reason, origin=place)
            return []
        return [(rule.name, event) for rule in self._rules if rule.matches(event)]
