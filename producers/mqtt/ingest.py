"""What sensors say over MQTT becomes readings of one client, each exactly once.

The order is: remember, store, acknowledge. Every message that came goes into the checkpoint, as a value that waits for
others or in a reading; then readings go into the readings log; only then may the broker forget the messages. After a
kill the checkpoint's readings are stored again where the log lacks them (their rows are numbered, see
`producers.publisher`), and the broker repeats what it may still remember: it says which messages are repeated, and the
checkpoint knows which of those it has.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from producers.mqtt.alignment import AlignedReading, Aligner, Rules
from producers.mqtt.connection import Connection, Message
from producers.mqtt.payloads import TopicField, parse_payload
from producers.mqtt.silence import SilenceMonitor
from producers.publisher import Mark, ReadingsPublisher
from producers.source import SourceRow
from shoal.config.mqtt_settings import MqttSettings
from shoal.errors import InvalidState
from shoal.protocol.topics import READINGS
from shoal.runtime.checkpoint import Checkpoint
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, TopicSettings

DELIVERIES_MAX = 1024
"""messages that are known again when the broker repeats them: more than it sends without an acknowledgement"""
TICK_S = 1e-6
"""between the times of two messages, when the clock stands still or is set back"""
SAY_EVERY_S = 10.0
STATE_VERSION = 1


class IngestCounts:
    """What outlives a connection: what was done since the process began, and who is silent."""

    def __init__(self, silence: SilenceMonitor) -> None:
        self.silence = silence
        self.position = 0
        """readings made so far, in all lives"""
        self.published = 0
        """readings stored"""
        self.already_there = 0
        """readings that were found stored, by the life before"""
        self.faults: Counter[str] = Counter()
        """what was not used or not as it came, by reason (`report.FAULTS`)"""


class IngestResources(NamedTuple):
    """Where a client's sensors are heard, and where it is kept what they say."""

    client: str
    width: int
    """features of a reading"""
    topics: Mapping[str, Sequence[TopicField]]
    checkpoint: Checkpoint
    readings: Log
    kept: TopicSettings
    """how the readings log is declared"""


class MqttIngest:
    """One client's sensors. `step` is what runs and tests drive.

    clock: seconds since 1970, gives the times of messages that have none. steady: any origin, never back.
    """

    def __init__(
        self,
        settings: MqttSettings,
        place: IngestResources,
        counts: IngestCounts,
        connect: Callable[[], Connection],
        *,
        clock: Callable[[], float],
        steady: Callable[[], float],
    ) -> None:
        """Stores what the life before has left, and only then connects. Raises `InvalidState`, or as `connect`."""
        self._settings, self._place, self._counts = settings, place, counts
        self._clock, self._steady = clock, steady
        rules = Rules(place.width, settings.tolerance_s, settings.wait_s, settings.missing, settings.hold_s)
        self._aligner = Aligner(rules)
        self._delivered: dict[bytes, None] = {}
        self._source, self._next_row = secrets.token_hex(8), 0
        self._mark: Mark | None = None
        self._unsaid: Counter[tuple[str, str]] = Counter()
        self._said_at = -math.inf
        left = self._restore(place.checkpoint.load())
        self._publisher = ReadingsPublisher(place.readings, READINGS, self._source, self._mark, place.kept)
        if not self._publisher.intact:
            log_event("readings_log_replaced", logging.WARNING, client=place.client)
        self._store(left)
        # An older checkpoint put back from a backup: its numbers are taken.
        self._next_row = counts.position = max(self._next_row, self._publisher.last_row + 1)
        self._connection = connect()
        self._begin()

    def step(self, timeout_s: float = 0.0) -> bool:
        """Take in what came, store what is whole; True when anything was done.

        Raises `LogUnavailable` (the broker or the disk is away), `LogError`; after an error only a new listener from
        the checkpoint may go on.
        """
        messages = self._connection.receive(timeout_s)
        now = self._steady()
        before = self._aligner.counts.copy()
        joined = [reading for message in messages for reading in self._absorb(message, now)]
        if messages:
            self._came_at = now
        # Event time goes on while nobody says anything.
        joined += self._aligner.wait(self._aligner.newest + now - self._came_at)
        self._look_for_silence(now)
        became = self._aligner.counts - before
        self._counts.faults.update({name: number for name, number in became.items() if name != "joined"})
        self._say(now)
        if not (messages or became):
            return False
        self._remember(joined)
        self._store([(self._next_row - len(joined) + number, *reading) for number, reading in enumerate(joined)])
        self._connection.acknowledge(messages)
        return True

    def close(self) -> None:
        """Let go of the connection; what was not acknowledged is left to the next start."""
        self._say(math.inf)
        self._connection.close()

    def _begin(self) -> None:
        now = self._steady()
        self._counts.silence.listen(now)
        self._came_at = now
        kept = self._connection.session_present
        log_event("mqtt_connected", address=self._settings.address, session_kept=kept)
        if not kept and self._delivered:
            # A new session numbers its deliveries from the beginning.
            log_event("mqtt_session_lost", logging.WARNING, address=self._settings.address)
            self._delivered.clear()

    def _absorb(self, message: Message, now: float) -> list[AlignedReading]:
        if message.topic not in self._place.topics:
            return self._reject("unknown_topic", message.topic)
        if self._known(message):
            return self._reject("repeated", message.topic)
        if not message.retained and (silent_s := self._counts.silence.hear(message.topic, now)) is not None:
            log_event("sensor_back", topic=message.topic, silent_s=round(silent_s, 1))
        if message.retained and not self._settings.time:
            return self._reject("retained", message.topic)
        said = parse_payload(message.payload, self._place.topics[message.topic], self._settings, self._arrival())
        for reason in said.rejected:
            self._reject(reason, message.topic)
        return [] if said.part is None else self._aligner.add(said.part)

    def _arrival(self) -> float:
        if self._settings.time:
            return self._clock()
        return max(self._clock(), self._aligner.newest + TICK_S)

    def _known(self, message: Message) -> bool:
        """Whether this is in the checkpoint already; from now on it is."""
        if message.acknowledged:
            return False
        said = f"{message.number}/{message.topic}/".encode() + message.payload
        digest = hashlib.blake2b(said, digest_size=8).digest()
        known = message.repeated and digest in self._delivered
        self._delivered.pop(digest, None)
        self._delivered[digest] = None
        if len(self._delivered) > DELIVERIES_MAX:
            del self._delivered[next(iter(self._delivered))]
        return known

    def _reject(self, reason: str, topic: str) -> list[AlignedReading]:
        self._counts.faults[reason] += 1
        self._unsaid[reason, topic] += 1
        return []

    def _look_for_silence(self, now: float) -> None:
        for topic in self._counts.silence.newly_silent(now):
            log_event("sensor_silent", logging.WARNING, topic=topic, silent_s=self._settings.silent_s)

    def _say(self, now: float) -> None:
        """What was refused, without a word of it, now and then."""
        if not self._unsaid or now < self._said_at + SAY_EVERY_S:
            return
        self._said_at = now
        for (reason, topic), number in sorted(self._unsaid.items()):
            log_event("messages_rejected", logging.WARNING, reason=reason, topic=topic, messages=number)
        self._unsaid.clear()

    def _remember(self, joined: Sequence[AlignedReading]) -> None:
        rows = [[self._next_row + number, reading.time, reading.values] for number, reading in enumerate(joined)]
        self._next_row += len(joined)
        self._counts.position = self._next_row
        self._place.checkpoint.save(
            {
                "version": STATE_VERSION,
                "width": self._place.width,
                "source": self._source,
                "joiner": self._aligner.state(),
                "heard": b"".join(self._delivered),
                "next_row": self._next_row,
                "rows": rows,
                "mark": None if self._mark is None else list(self._mark),
            }
        )

    def _store(self, rows: Sequence[Sequence[Any]]) -> None:
        """Put these into the readings log, if they are not there."""
        stored = 0
        for row, time, values in rows:
            if row > self._publisher.last_row:
                self._publisher.publish(row, SourceRow(self._place.client, time, values))
                stored += 1
        if stored:
            self._publisher.flush()
        if rows:
            self._mark = self._publisher.mark()
        self._counts.published += stored
        self._counts.already_there += len(rows) - stored

    def _restore(self, state: dict[str, Any] | None) -> list[Any]:
        """The rows that may not be stored yet."""
        if state is None:
            return []
        try:
            if state["version"] != STATE_VERSION or state["width"] != self._place.width:
                raise InvalidState(
                    "the MQTT producer's memory was made under another contract or version; put the old federation "
                    "file back, or begin under a new client name"
                )
            self._aligner.restore(state["joiner"])
            heard: bytes = state["heard"]
            self._delivered = dict.fromkeys(heard[at : at + 8] for at in range(0, len(heard), 8))
            self._source, self._next_row = str(state["source"]), int(state["next_row"])
            self._mark = None if state["mark"] is None else Mark(*state["mark"])
            return list(state["rows"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidState("the MQTT producer's memory cannot be read; restore it, or move it away") from None
