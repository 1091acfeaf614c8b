"""What a client counts while it works: the one place that turns what happened into metrics and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from client_nodes.intake import RejectedReading
from shoal.privacy import PrivacyTerms, epsilon_spent
from shoal.protocol.topics import READINGS
from shoal.telemetry.events import log_event

if TYPE_CHECKING:
    from shoal.telemetry.metrics import ClientMetrics

READINGS_BECAME = ("learned", "rejected", "withheld", "clipped")
"""what can become of a reading; a clipped one is learnt too"""


class ClientMonitoring:
    """Tells the metrics, if anybody looks at them, and the log what became of the readings; decides nothing."""

    def __init__(self, metrics: ClientMetrics | None) -> None:
        self._metrics = metrics

    @property
    def asked(self) -> bool:
        """Whether there is anybody to count for."""
        return self._metrics is not None

    def watch_event_time(self, clock: Callable[[], float], newest: Callable[[], float | None]) -> None:
        """How far the newest reading lies in the past is asked for when somebody looks."""
        if self._metrics is not None:
            self._metrics.watch_event_time(clock, newest)

    def begun(self, statement: Mapping[str, Any], terms: PrivacyTerms, totals: Mapping[str, int], lag: int) -> None:
        """A node begins, with these totals from its checkpoint and `lag` readings to read."""
        if self._metrics is None:
            return
        # Also where no step ever ends, because nothing can be saved: that is when somebody must see it.
        self._metrics.lag.labels(topic=READINGS).set(lag)
        labels = {name: str(statement[name]) for name in ("mode", "unit", "mechanism")}
        self._metrics.guarantee.labels(**labels).set(1)
        spent, limit = epsilon_spent(terms)
        self._metrics.epsilon.set(spent)
        self._metrics.epsilon_limit.set(limit)
        counted = self._metrics.counted
        # What an earlier node of this process had learnt and not saved is learnt again: that counts once as learnt.
        replayed = max(0, counted["learned"] - totals["learned"]) if counted else 0
        self._metrics.readings.labels(result="replayed").inc(replayed)
        if not counted:
            counted.update(totals)
        # From 0 on, so that the first of a kind shows as one more and not as something new.
        for result in READINGS_BECAME:
            self._metrics.readings.labels(result=result).inc(0)
        self._metrics.updates.labels(result="published").inc(0)

    def learnt(self, seconds: float) -> None:
        """A batch was made private and learnt."""
        if self._metrics is not None:
            self._metrics.learn.observe(seconds)

    def remembered(self, now: float) -> None:
        """A checkpoint was saved."""
        if self._metrics is not None:
            self._metrics.checkpoint_at.set(now)

    def stepped(self, totals: Mapping[str, int], nodes: Mapping[str, int], lag: int) -> None:
        """A step has ended; `nodes` of each model, `lag` readings not read yet."""
        if self._metrics is None:
            return
        for result in READINGS_BECAME:
            new = max(0, totals[result] - self._metrics.counted[result])
            self._metrics.readings.labels(result=result).inc(new)
            self._metrics.counted[result] += new
        for model, number in nodes.items():
            self._metrics.nodes.labels(model=model).set(number)
        self._metrics.lag.labels(topic=READINGS).set(lag)

    def rejected(self, rejected: Sequence[RejectedReading]) -> None:
        """Readings were set aside."""
        for reason, number in Counter(each.reason for each in rejected).items():
            log_event("readings_rejected", reason=reason, readings=number)

    def published(self, updates: Mapping[str, int], learned: int, lag: int) -> None:
        """So many updates of each model went out."""
        for model, number in updates.items():
            if self._metrics is not None:
                self._metrics.updates.labels(result="published").inc(number)
            log_event("updates_published", model=model, updates=number, learned=learned, lag=lag)
