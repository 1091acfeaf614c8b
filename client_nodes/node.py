"""The client's step: take readings in, make them private, learn them once, remember, speak."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from client_nodes.intake import Intake, RejectedReading, take_in
from client_nodes.labels import Labeller
from client_nodes.learner import Learner
from client_nodes.monitoring import READINGS_BECAME, ClientMonitoring
from client_nodes.publisher import Publisher, Said, signer
from client_nodes.resources import ClientResources
from client_nodes.round_answers import RoundAnswers
from client_nodes.snapshots import Snapshots
from shoal.algorithms.registry import is_in_rounds
from shoal.algorithms.streaming import Rows
from shoal.config.contract import Contract, client_name
from shoal.config.limits import UPDATE_RECORD_BYTES_MAX
from shoal.config.privacy_terms import privacy_terms_of
from shoal.config.settings import ClientSettings
from shoal.errors import InvalidState
from shoal.privacy import mechanism_for
from shoal.protocol.messages import VERSION
from shoal.protocol.topics import LOCAL_SETTINGS, READINGS, REJECTED, readings_settings
from shoal.protocol.validation import Validator
from shoal.runtime.outbox import Outbox
from shoal.runtime.reader import read_next
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, beginning

if TYPE_CHECKING:
    from shoal.telemetry.metrics import ClientMetrics

STATE_VERSION = 1
CALLS_POLL_S = 0.02
"""how often one looks for the next call, while readings are waited for and a model is in the midst of its rounds"""
TOTALS = (*READINGS_BECAME, "updates")


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
        premises: ClientResources,
        log: Log,
        metrics: ClientMetrics | None = None,
        clock: Callable[[], float] = time.time,
        update_bytes_max: int = UPDATE_RECORD_BYTES_MAX,
    ) -> None:
        """`log` is the federation's, with its topics in it; a record of updates may have `update_bytes_max`.

        Raises `InvalidState` and `SettingsError`.
        """
        client = client_name(client)
        readings, checkpoint, key, signing_key = premises
        self._contract = contract
        self._settings = settings
        self._readings = readings
        self._clock = clock
        self.metrics = metrics
        """None: nobody looks at them"""
        self._counting = ClientMonitoring(metrics)
        readings.ensure(READINGS, readings_settings(settings))
        readings.ensure(REJECTED, LOCAL_SETTINGS)
        self._source = readings.identity(READINGS)
        self._listener = log.identity(contract.updates_topic)
        self._mechanism = mechanism_for(privacy_terms_of(contract), key, client, self._source)
        border = Validator(contract)
        streaming = [model for model in contract.models if not is_in_rounds(model.algorithm)]
        voice = Publisher(contract, border, update_bytes_max)
        self._learners = [Learner(contract, model, client, voice) for model in streaming]
        snapshots = Snapshots(contract, border, log)
        self._answers = RoundAnswers(contract, client, voice, snapshots, settings)
        self._labeller = Labeller(contract, snapshots, readings) if settings.label else None
        self._outbox = Outbox(checkpoint, log, signer(signing_key))
        self._since_update = 0
        self._unheard = False
        self._newest_reading_at: float | None = None
        self._totals: Counter[str] = Counter()
        self._spoke_at = clock()
        self._checkpoint = checkpoint
        self._positions: Positions = {}

    def resume(self) -> None:
        """Restore the checkpoint and publish its outbox again; a node may step only after this.

        Raises `InvalidState` when the checkpoint does not fit the contract or the readings log, and as the logs do.
        """
        self._positions = self._restore(self._checkpoint.load())
        self._counting.watch_event_time(self._clock, lambda: self._newest_reading_at)
        self._counting.begun(self._mechanism.statement, privacy_terms_of(self._contract), self._totals, self._lag())
        self._outbox.publish_pending()

    @property
    def totals(self) -> dict[str, int]:
        """`TOTALS` since the client first started. For its own premises only."""
        return {name: self._totals[name] for name in TOTALS}

    @property
    def nodes(self) -> int:
        """Nodes of all models."""
        return sum(learner.nodes for learner in self._learners)

    @property
    def window(self) -> Rows:
        """(n, d) the private rows from which calls are answered; none where no model is in rounds."""
        return self._answers.window.rows

    @property
    def up_to_date(self) -> bool:
        """Whether every reading in the log is learnt and nothing learnt waits to be said."""
        ends = self._readings.bounds(READINGS)
        read = all(self._positions.get(partition, 0) >= end for partition, (_, end) in ends.items())
        return read and not self._since_update and not self._unheard

    def step(self, timeout_s: float = 0.0) -> bool:
        """Learn one batch of readings and say what is due. True when anything was done.

        Raises `LogUnavailable` (try again later), `LogError` and `OffsetOutOfRange`; after an error only a new node
        from the checkpoint may go on.
        """
        records, after = self._read(timeout_s)
        intake = take_in(records, self._contract.width)
        began = time.perf_counter()
        updates = self._learn(intake)
        if records:
            self._counting.learnt(time.perf_counter() - began)
        if (self._since_update or self._unheard) and self._waited_long_enough():
            updates += self._make_updates()
        now = self._clock()
        updates += self._answers.make_answers(self._mechanism.statement, now)
        self._keep_locally(intake)
        self._positions = after
        if updates or self._outbox.should_store(len(records), self._settings.batch_readings_max, now):
            self._remember(updates, now)
            self._outbox.publish_pending()
        if records or updates:
            self._count(intake, updates)
        return bool(records or updates)

    def _read(self, timeout_s: float) -> tuple[Sequence[Record], Positions]:
        """The next readings. Who waits for readings must not keep others waiting for an answer."""
        limit, gaps, left_s = self._settings.batch_readings_max, self._settings.accept_gap, timeout_s
        while True:
            wait_s = min(left_s, CALLS_POLL_S) if self._answers.expects_calls else left_s
            records, after = read_next(self._readings, READINGS, self._positions, limit, wait_s, gaps)
            left_s -= wait_s
            if records or left_s <= 0 or self._answers.due(self._clock()):
                return records, after

    def _learn(self, intake: Intake) -> list[Said]:
        """Updates fall due after a number of readings, wherever the batches happen to begin and end."""
        released = self._mechanism.privatise(intake.values, np.array(intake.places, dtype=np.int64).reshape(-1, 2))
        self._totals["clipped"] += released.clipped
        self._totals["withheld"] += len(intake.places) - len(released.rows)
        times = [time for time, kept in zip(intake.times, released.kept, strict=True) if kept]
        self._answers.keep(released.rows, times, self._clock())
        updates: list[Said] = []
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
                updates += self._make_updates()
        return updates

    def _waited_long_enough(self) -> bool:
        now = self._clock()
        # A clock that was set back must not make the wait longer than it ever was.
        self._spoke_at = min(self._spoke_at, now)
        return now >= self._spoke_at + self._settings.publish_s

    def _make_updates(self) -> list[Said]:
        now = self._clock()
        said = [
            learner.make_updates(self._mechanism.statement, now, self._newest_reading_at) for learner in self._learners
        ]
        self._since_update, self._unheard = 0, False
        self._spoke_at = now
        return [words for words in said if words]

    def _keep_locally(self, intake: Intake) -> None:
        """What is for these premises alone. Keyed by place, so that a repeat after a kill changes nothing."""
        for rejected in intake.rejected:
            self._set_aside(rejected)
        if self._labeller is not None:
            self._labeller.label(intake)
        if intake.rejected or (self._labeller is not None and intake.places):
            self._readings.flush()

    def _set_aside(self, rejected: RejectedReading) -> None:
        record = rejected.record
        key = f"{record.partition}/{record.offset}".encode()
        headers = (("type", b"rejected"), ("v", str(VERSION).encode()), ("reason", rejected.reason.encode()))
        # No value would mean that nothing was refused here: it is set aside as an empty one.
        self._readings.publish(REJECTED, record.value or b"", key, headers)
        self._totals["rejected"] += 1

    def _remember(self, updates: Sequence[Said], now: float) -> None:
        self._totals["updates"] += len(updates)
        state = {
            "version": STATE_VERSION,
            "contract": self._contract.digest,
            "source": self._source,
            "listener": self._listener,
            "positions": [[partition, offset] for partition, offset in sorted(self._positions.items())],
            "privacy": self._mechanism.state(),
            "models": {learner.name: learner.state() for learner in self._learners},
            "since_update": self._since_update,
            "newest_reading_at": self._newest_reading_at,
            "totals": dict(self._totals),
        }
        if self._answers:
            state["answers"] = self._answers.state()
        self._outbox.store(state, [word for words in updates for word in words], now)
        self._counting.remembered(now)

    def _restore(self, state: dict[str, Any] | None) -> Positions:
        if state is None:
            return beginning(self._readings, READINGS)
        if state.get("version") != STATE_VERSION:
            raise InvalidState("the client's checkpoint is of another version of shoal; run that one")
        if state["contract"] != self._contract.digest:
            raise InvalidState(
                "the client's checkpoint was made under another contract; put the old federation file back, "
                "or begin under a new client name"
            )
        if state["source"] != self._source:
            raise InvalidState(
                "the readings log was made anew since the checkpoint was saved, so positions in it mean nothing; "
                "restore the readings log, or begin under a new client name"
            )
        self._mechanism.restore(state["privacy"])
        for learner in self._learners:
            learner.restore(state["models"][learner.name])
        if self._answers:
            self._answers.restore(state["answers"])
        if state.get("listener", self._listener) != self._listener:
            self._unsay()
        self._since_update = state["since_update"]
        self._newest_reading_at = state["newest_reading_at"]
        self._totals.update(state["totals"])
        log_event("checkpoint_restored", learned=self._totals["learned"], updates=self._totals["updates"])
        return dict(state["positions"])

    def _unsay(self) -> None:
        """The federation's log was made anew: whoever reads it has heard nothing of this client yet."""
        log_event("log_made_anew", logging.WARNING)
        for learner in self._learners:
            learner.reset_published()
        self._answers.reset_published()
        self._unheard = True

    def _count(self, intake: Intake, updates: Sequence[Said]) -> None:
        self._counting.rejected(intake.rejected)
        if not updates and not self._counting.asked:
            return
        lag = self._lag()
        self._counting.stepped(self._totals, {learner.name: learner.nodes for learner in self._learners}, lag)
        if updates:
            models = Counter((words[0].key or b"").decode() for words in updates)
            self._counting.published(models, self._totals["learned"], lag)

    def _lag(self) -> int:
        """Readings not read yet."""
        ends = self._readings.bounds(READINGS)
        return sum(end - self._positions.get(partition, 0) for partition, (_, end) in ends.items())
