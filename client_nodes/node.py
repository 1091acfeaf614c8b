"""The client's step: take readings in, make them private, learn them once, remember, speak."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from client_nodes.intake import Intake, Refused, take_in
from client_nodes.labels import Labeller
from client_nodes.learner import Learner
from shoal.border import Border, terms_of
from shoal.checkpoint import Checkpoint, Word
from shoal.contract import Contract
from shoal.downlink import read_on
from shoal.errors import StateRefused
from shoal.events import log_event
from shoal.messages import VERSION
from shoal.metrics import ClientMetrics
from shoal.privacy import mechanism_for
from shoal.settings import ClientSettings
from shoal.topics import LOCAL_SETTINGS, READINGS, READINGS_SETTINGS, REFUSED, ensure_topics
from shoal.transports.contract import Log, Positions, beginning
from shoal.uplink import Uplink

STATE_VERSION = 1


class Premises(NamedTuple):
    """What a client has of its own; nothing of it leaves the place."""

    readings: Log
    """raw readings, and what is kept about each of them"""
    checkpoint: Checkpoint
    key: bytes | None
    """the noise key; none is needed where no noise is added"""


class ClientNode:
    """Learns one client's readings and publishes what it has learnt. `step` is what runs and tests drive.

    The readings log alone decides what is learnt. `clock` (seconds since 1970) decides only when an update is
    published before enough readings came, and what it decided is in the checkpoint.
    """

    def __init__(
        self,
        contract: Contract,
        client: str,
        settings: ClientSettings,
        premises: Premises,
        log: Log,
        metrics: ClientMetrics | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`log` is the federation's. Raises `StateRefused` and `SettingsError`."""
        readings, checkpoint, key = premises
        self._contract = contract
        self._settings = settings
        self._readings = readings
        self._clock = clock
        self.metrics = metrics or ClientMetrics()
        readings.ensure(READINGS, READINGS_SETTINGS)
        readings.ensure(REFUSED, LOCAL_SETTINGS)
        ensure_topics(log, contract)
        self._source = readings.identity(READINGS)
        self._mechanism = mechanism_for(terms_of(contract), key, client, self._source)
        border = Border(contract)
        self._learners = [Learner(contract, model, client, border) for model in contract.models]
        self._labeller = Labeller(contract, border, log, readings) if settings.label else None
        self._uplink = Uplink(checkpoint, log)
        self._since_update = 0
        self._newest_reading_at: float | None = None
        self._totals: Counter[str] = Counter()
        self._spoke_at = clock()
        self._positions = self._restore(checkpoint.load())
        self._announce()
        self._uplink.speak()

    @property
    def totals(self) -> dict[str, int]:
        """learned, rejected, withheld, clipped, updates: since the client first started. For its own premises only."""
        return dict(self._totals)

    @property
    def nodes(self) -> int:
        """Nodes of all models."""
        return sum(learner.nodes for learner in self._learners)

    @property
    def up_to_date(self) -> bool:
        """Whether every reading in the log is learnt and nothing learnt waits to be said."""
        ends = self._readings.bounds(READINGS)
        read = all(self._positions.get(partition, 0) >= end for partition, (_, end) in ends.items())
        return read and not self._since_update

    def step(self, timeout_s: float = 0.0) -> bool:
        """Learn one batch of readings and say what is due. True when anything was done.

        Raises `LogUnavailable` (try again later), `LogRefused` and `OffsetGone`; after an error only a new node
        from the checkpoint may go on.
        """
        limit, gaps = self._settings.batch_readings_max, self._settings.accept_gap
        records, after = read_on(self._readings, READINGS, self._positions, limit, timeout_s, gaps)
        intake = take_in(records, self._contract.width)
        began = time.perf_counter()
        words = self._learn(intake)
        if records:
            self.metrics.learn.observe(time.perf_counter() - began)
        if self._since_update and self._clock() >= self._spoke_at + self._settings.publish_s:
            words += self._speak()
        if not records and not words:
            return False
        self._keep_locally(intake)
        self._positions = after
        self._remember(words)
        self._uplink.speak()
        self._count(intake, words)
        return True

    def _learn(self, intake: Intake) -> list[Word]:
        """Updates fall due after a number of readings, wherever the batches happen to begin and end."""
        released = self._mechanism.privatise(intake.values, np.array(intake.places, dtype=np.int64).reshape(-1, 2))
        self._totals["clipped"] += released.clipped
        self._totals["withheld"] += len(intake.places) - len(released.rows)
        times = [time for time, kept in zip(intake.times, released.kept, strict=True) if kept]
        words: list[Word] = []
        start = 0
        while start < len(released.rows):
            stop = start + self._settings.publish_readings - self._since_update
            rows = released.rows[start:stop]
            for learner in self._learners:
                learner.learn(rows)
            known = [time for time in (*times[start:stop], self._newest_reading_at) if time is not None]
            self._newest_reading_at = max(known, default=None)
            self._since_update += len(rows)
            self._totals["learned"] += len(rows)
            start += len(rows)
            if self._since_update >= self._settings.publish_readings:
                words += self._speak()
        return words

    def _speak(self) -> list[Word]:
        now = self._clock()
        said = [learner.speak(self._mechanism.statement, now, self._newest_reading_at) for learner in self._learners]
        self._since_update = 0
        self._spoke_at = now
        return [word for word in said if word is not None]

    def _keep_locally(self, intake: Intake) -> None:
        """What is for these premises alone. Keyed by place, so that a repeat after a kill changes nothing."""
        for refused in intake.refused:
            self._set_aside(refused)
        if self._labeller is not None:
            self._labeller.label(intake)
        if intake.refused or (self._labeller is not None and intake.places):
            self._readings.flush()

    def _set_aside(self, refused: Refused) -> None:
        record = refused.record
        key = f"{record.partition}/{record.offset}".encode()
        headers = (("type", b"refused"), ("v", str(VERSION).encode()), ("reason", refused.reason.encode()))
        self._readings.publish(REFUSED, record.value, key, headers)
        self._totals["rejected"] += 1

    def _remember(self, words: Sequence[Word]) -> None:
        self._totals["updates"] += len(words)
        state = {
            "version": STATE_VERSION,
            "contract": self._contract.digest,
            "source": self._source,
            "positions": [[partition, offset] for partition, offset in sorted(self._positions.items())],
            "privacy": self._mechanism.state(),
            "models": {learner.name: learner.state() for learner in self._learners},
            "since_update": self._since_update,
            "newest_reading_at": self._newest_reading_at,
            "totals": dict(self._totals),
        }
        self._uplink.remember(state, words)

    def _restore(self, state: dict[str, Any] | None) -> Positions:
        if state is None:
            return beginning(self._readings, READINGS)
        if state.get("version") != STATE_VERSION:
            raise StateRefused("the client's checkpoint is of another version of shoal; run that one")
        if state["contract"] != self._contract.digest:
            raise StateRefused(
                "the client's checkpoint was made under another contract; put the old federation file back, "
                "or begin under a new client name"
            )
        if state["source"] != self._source:
            raise StateRefused(
                "the readings log was made anew since the checkpoint was saved, so positions in it mean nothing; "
                "restore the readings log, or begin under a new client name"
            )
        self._mechanism.restore(state["privacy"])
        for learner in self._learners:
            learner.restore(state["models"][learner.name])
        self._since_update = state["since_update"]
        self._newest_reading_at = state["newest_reading_at"]
        self._totals.update(state["totals"])
        log_event("checkpoint_restored", learned=self._totals["learned"], updates=self._totals["updates"])
        return dict(state["positions"])

    def _announce(self) -> None:
        statement = self._mechanism.statement
        labels = {name: str(statement[name]) for name in ("mode", "unit", "mechanism")}
        self.metrics.guarantee.labels(**labels).set(1)
        self.metrics.epsilon.set(statement["epsilon_per_reading"] if statement["formal"] else float("inf"))

    def _count(self, intake: Intake, words: Sequence[Word]) -> None:
        self.metrics.readings.labels(result="learned").inc(len(intake.places))
        self.metrics.readings.labels(result="rejected").inc(len(intake.refused))
        self.metrics.updates.labels(result="published").inc(len(words))
        for learner in self._learners:
            self.metrics.nodes.labels(model=learner.name).set(learner.nodes)
        ends = self._readings.bounds(READINGS)
        lag = sum(end - self._positions.get(partition, 0) for partition, (_, end) in ends.items())
        self.metrics.lag.labels(topic=READINGS).set(lag)
        if self._newest_reading_at is not None:
            self.metrics.behind.set(self._clock() - self._newest_reading_at)
        for reason, number in Counter(refused.reason for refused in intake.refused).items():
            log_event("readings_refused", reason=reason, readings=number)
        if words:
            log_event("updates_published", updates=len(words), learned=self._totals["learned"], lag=lag)
