"""Spans of a server: how long updates take until a snapshot shows them, and how long rounds take.

A snapshot is the root of a trace. Its parts are the updates that it shows for the first time, each
from the moment at which its client made it until it was absorbed; the time in which the model
learnt them; and the round that it closes.
"""

from __future__ import annotations

from collections import defaultdict

from shoal.server_node.ingest.outcome import IngestOutcome
from shoal.server_node.models.base import PublishedSnapshot, RoundClosed
from shoal.telemetry.spans import Attribute, Span, SpanReceivers

UPDATES_MAX = 200
"""updates of one snapshot that have spans of their own, the first ones"""


class ServerSpans:
    """Collects what a snapshot will show, and ends its spans once it is published."""

    def __init__(self, receivers: SpanReceivers) -> None:
        self._receivers = receivers
        self._updates: defaultdict[str, list[Span]] = defaultdict(list)
        """model -> spans of the updates that no snapshot shows yet"""
        self._absorbed_at: dict[str, float] = {}
        """model -> when the first of them was absorbed"""
        self._rounds: dict[str, Span] = {}
        """model -> the round that its next snapshot closes"""

    def absorbed(self, ingested: IngestOutcome) -> None:
        """An update is absorbed."""
        if not self._receivers.wanted:
            return
        self._absorbed_at.setdefault(ingested.model, ingested.at)
        spans = self._updates[ingested.model]
        if len(spans) < UPDATES_MAX:
            spans.append(_update_span(ingested))

    def rejected(self, ingested: IngestOutcome) -> None:
        """An update is rejected, and so is part of no snapshot."""
        if self._receivers.wanted:
            self._receivers.end(_update_span(ingested))

    def round_closed(self, closed: RoundClosed, now: float) -> None:
        """The answers of a round are combined."""
        if not self._receivers.wanted:
            return
        attributes: dict[str, Attribute] = {
            "shoal.model": closed.model,
            "shoal.round": closed.round,
            "shoal.round.answers": closed.answers,
            "shoal.round.expected": closed.expected,
            "shoal.round.closed_by": closed.by,
            "shoal.round.shift": closed.shift,
        }
        self._rounds[closed.model] = Span("round", now - closed.duration_s, now, attributes)

    def published(self, published: PublishedSnapshot) -> None:
        """A snapshot is published: its trace is complete."""
        if not self._receivers.wanted:
            return
        snapshot = published.snapshot
        parts = self._updates.pop(snapshot.model, [])
        absorbed_at = self._absorbed_at.pop(snapshot.model, None)
        if absorbed_at is not None:
            model = {"shoal.model": snapshot.model}
            parts.append(Span("learn", absorbed_at, snapshot.made_at, model))
        if (closed := self._rounds.pop(snapshot.model, None)) is not None:
            parts.append(closed)
        attributes: dict[str, Attribute] = {
            "shoal.model": snapshot.model,
            "shoal.snapshot.version": snapshot.version,
            "shoal.snapshot.clusters": snapshot.known,
            "shoal.snapshot.nodes": snapshot.nodes,
        }
        start = min((part.start for part in parts), default=snapshot.made_at)
        self._receivers.end(Span("snapshot", start, snapshot.made_at, attributes, parts))


def _update_span(ingested: IngestOutcome) -> Span:
    """The way of an update, from the client's clock to the server's: of a client whose clock is
    ahead it takes no time."""
    attributes: dict[str, Attribute] = {
        "messaging.destination.name": ingested.topic,
        "messaging.destination.partition.id": str(ingested.partition),
        "messaging.kafka.offset": ingested.offset,
        "shoal.result": ingested.answer or ingested.result,
    }
    # A record that could not be read has neither.
    if ingested.model:
        attributes["shoal.model"] = ingested.model
        attributes["shoal.client"] = ingested.client
        attributes["shoal.readings"] = ingested.readings
    made_at = ingested.made_at or ingested.at
    return Span("update", min(made_at, ingested.at), ingested.at, attributes, error=ingested.reason)
