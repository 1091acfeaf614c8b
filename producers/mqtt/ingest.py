"""Ingest of one client's sensors: messages become readings in its log, and topics that fall silent are reported."""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from producers.messages import ParsedPayload, RejectedMessages, TopicField, parse_payload
from producers.mqtt.connection import Connection, Message
from producers.mqtt.readings import AlignedReading, Aligner, Rules, topics_of
from producers.mqtt.settings import MqttSettings, mqtt_settings
from producers.progress import display_on
from producers.publisher import Mark, ReadingsPublisher, client_folder
from producers.source import SourceReadings
from producers.source_type import ProducerTotals
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.logs import open_readings
from shoal.runtime.service import run, stopped_by_signals
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, TopicSettings


class SilenceMonitor:
    """Watches topics. Times are of any steady clock, in seconds; `silent_s` 0 reports nothing."""

    def __init__(self, topics: Iterable[str], silent_s: float) -> None:
        self._silent_s = silent_s
        self._received_at = dict.fromkeys(topics, 0.0)
        self._silent: set[str] = set()

    def start(self, now: float) -> None:
        """Note that a connection begins: messages sent before it are unknown, so silences are counted from now."""
        for topic in self._received_at.keys() - self._silent:
            self._received_at[topic] = now

    def received(self, topic: str, now: float) -> float | None:
        """Note a message of `topic`; the seconds it had been silent, if that silence was reported."""
        before, self._received_at[topic] = self._received_at[topic], now
        if topic not in self._silent:
            return None
        self._silent.remove(topic)
        return now - before

    def newly_silent(self, now: float) -> list[str]:
        """The topics without a message for `silent_s` that were not reported before."""
        if not self._silent_s:
            return []
        silent = [topic for topic, at in self._received_at.items() if now >= at + self._silent_s]
        fresh = sorted(set(silent) - self._silent)
        self._silent.update(fresh)
        return fresh


DELIVERIES_MAX = 1024
"""newest deliveries that are recognised when they are repeated: more than are sent without acknowledgement"""
TICK_S = 1e-6
"""seconds between the times of two messages when the clock does not advance"""
STATE_VERSION = 2


class IngestCounts:
    """Counts since the process started, and the silence of topics: they outlive a connection."""

    def __init__(self, silence: SilenceMonitor) -> None:
        self.silence = silence
        self.position = 0
        """readings made so far, by all processes"""
        self.published = 0
        """readings stored"""
        self.already_there = 0
        """readings that an earlier process had stored"""
        self.faults: Counter[str] = Counter()
        """messages, values and readings that were not used, or changed, by reason (`report.FAULTS`)"""


class IngestResources(NamedTuple):
    """One client's topics, its checkpoint and its readings log."""

    client: str
    width: int
    """number of features of a reading"""
    topics: Mapping[str, Sequence[TopicField]]
    checkpoint: Checkpoint
    readings: Log
    topic_settings: TopicSettings
    """settings that the readings log is declared with"""


class MqttIngest:
    """Receives one client's sensor values and stores its readings, step by step.

    clock: seconds since 1970, the time of messages that have none. steady: a clock that never goes back.
    """

    def __init__(
        self,
        settings: MqttSettings,
        resources: IngestResources,
        counts: IngestCounts,
        connect: Callable[[], Connection],
        *,
        clock: Callable[[], float],
        steady: Callable[[], float],
    ) -> None:
        """Store what the checkpoint has left, and only then connect. Raises `InvalidState`, and as `connect` does."""
        self._settings, self._resources, self._counts = settings, resources, counts
        self._clock, self._steady = clock, steady
        rules = Rules(resources.width, settings.tolerance_s, settings.wait_s, settings.missing, settings.hold_s)
        self._aligner = Aligner(rules)
        self._delivered: dict[bytes, None] = {}
        self._source, self._next_number = secrets.token_hex(8), 0
        self._mark: Mark | None = None
        self._rejected = RejectedMessages(counts.faults)
        left = self._restore(resources.checkpoint.load())
        self._publisher = ReadingsPublisher(
            resources.readings, READINGS, self._source, self._mark, resources.topic_settings
        )
        if not self._publisher.intact:
            log_event("readings_log_replaced", logging.WARNING, client=resources.client)
        self._store(left)
        # With an older checkpoint, restored from a backup, some of its next numbers are in use.
        self._next_number = counts.position = max(self._next_number, self._publisher.last_number + 1)
        self._connection = connect()
        self._begin()

    def step(self, timeout_s: float = 0.0) -> bool:
        """Receive messages and store the readings that are complete; True when anything was done.

        Raises `LogUnavailable` (the broker or the disk is unavailable) and `LogError`. After an error only a new
        object, built from the checkpoint, may continue.
        """
        messages = self._connection.receive(timeout_s)
        now = self._steady()
        before = self._aligner.counts.copy()
        aligned = [reading for message in messages for reading in self._process(message, now)]
        if messages:
            self._received_at = now
        # Event time goes on while no message comes.
        aligned += self._aligner.advance(self._aligner.newest + now - self._received_at)
        self._report_silence(now)
        became = self._aligner.counts - before
        self._counts.faults.update({name: number for name, number in became.items() if name != "aligned"})
        self._rejected.report(now)
        if not (messages or became):
            return False
        self._save(aligned)
        self._store([(self._next_number - len(aligned) + number, *reading) for number, reading in enumerate(aligned)])
        self._connection.acknowledge(messages)
        return True

    def close(self) -> None:
        """Close the connection; the broker sends again what was not acknowledged."""
        self._rejected.report(math.inf)
        self._connection.close()

    def _begin(self) -> None:
        now = self._steady()
        self._counts.silence.start(now)
        self._received_at = now
        kept = self._connection.session_present
        log_event("mqtt_connected", address=self._settings.address, session_kept=kept)
        if not kept and self._delivered:
            # A new session numbers its deliveries from the beginning.
            log_event("mqtt_session_lost", logging.WARNING, address=self._settings.address)
            self._delivered.clear()

    def _process(self, message: Message, now: float) -> list[AlignedReading]:
        if message.topic not in self._resources.topics:
            return self._count_fault("unknown_topic", message.topic)
        if self._known(message):
            return self._count_fault("repeated", message.topic)
        if not message.retained and (silent_s := self._counts.silence.received(message.topic, now)) is not None:
            log_event("sensor_back", topic=message.topic, silent_s=round(silent_s, 1))
        if message.retained and not self._settings.time:
            return self._count_fault("retained", message.topic)
        parsed = parse_payload(message.payload, self._resources.topics[message.topic], self._settings, self._arrival())
        for reason in parsed.faults:
            self._count_fault(reason, message.topic)
        if parsed.values is None:
            return []
        return self._of_user(message, parsed) if self._settings.user_id else self._aligner.add(parsed.values)

    def _of_user(self, message: Message, parsed: ParsedPayload) -> list[AlignedReading]:
        """The reading that one message makes by itself: values of two users must not become one reading."""
        assert parsed.values is not None
        time, values = parsed.values
        if len(values) < self._resources.width:
            return self._count_fault("incomplete", message.topic)
        numbers = np.array([values[feature] for feature in range(self._resources.width)])
        return [AlignedReading(time, numbers, parsed.user)]

    def _arrival(self) -> float:
        if self._settings.time:
            return self._clock()
        return max(self._clock(), self._aligner.newest + TICK_S)

    def _known(self, message: Message) -> bool:
        """Whether this delivery is in the checkpoint already; it is added."""
        if message.acknowledged:
            return False
        delivery = f"{message.number}/{message.topic}/".encode() + message.payload
        digest = hashlib.blake2b(delivery, digest_size=8).digest()
        known = message.repeated and digest in self._delivered
        self._delivered.pop(digest, None)
        self._delivered[digest] = None
        if len(self._delivered) > DELIVERIES_MAX:
            del self._delivered[next(iter(self._delivered))]
        return known

    def _count_fault(self, reason: str, topic: str) -> list[AlignedReading]:
        self._rejected.add(reason, topic)
        return []

    def _report_silence(self, now: float) -> None:
        for topic in self._counts.silence.newly_silent(now):
            log_event("sensor_silent", logging.WARNING, topic=topic, silent_s=self._settings.silent_s)

    def _save(self, aligned: Sequence[AlignedReading]) -> None:
        readings = [[self._next_number + number, *reading] for number, reading in enumerate(aligned)]
        self._next_number += len(aligned)
        self._counts.position = self._next_number
        self._resources.checkpoint.save(
            {
                "version": STATE_VERSION,
                "width": self._resources.width,
                "source": self._source,
                "aligner": self._aligner.state(),
                "delivered": b"".join(self._delivered),
                "next_number": self._next_number,
                "readings": readings,
                "mark": None if self._mark is None else list(self._mark),
            }
        )

    def _store(self, readings: Sequence[Sequence[Any]]) -> None:
        """Publish these readings, unless they are in the readings log."""
        stored = 0
        for number, moment, values, user in readings:
            if number > self._publisher.last_number:
                self._publisher.publish(
                    [number], SourceReadings([self._resources.client], [moment], [values], users=[user])
                )
                stored += 1
        if stored:
            self._publisher.flush()
        if readings:
            self._mark = self._publisher.mark()
        self._counts.published += stored
        self._counts.already_there += len(readings) - stored

    def _restore(self, state: dict[str, Any] | None) -> list[Any]:
        """The readings that may not be stored yet."""
        if state is None:
            return []
        try:
            if state["version"] != STATE_VERSION or state["width"] != self._resources.width:
                raise InvalidState(
                    "the MQTT producer's checkpoint was made under another contract or version; put the old federation "
                    "file back, or start under a new client name"
                )
            self._aligner.restore(state["aligner"])
            delivered: bytes = state["delivered"]
            self._delivered = dict.fromkeys(delivered[at : at + 8] for at in range(0, len(delivered), 8))
            self._source, self._next_number = str(state["source"]), int(state["next_number"])
            self._mark = None if state["mark"] is None else Mark(*state["mark"])
            return list(state["readings"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidState("the MQTT producer's checkpoint cannot be read; restore it, or move it away") from None


def run_ingest(config: Config, client: str, folder: Path, as_events: bool = False) -> ProducerTotals:
    """Receive the values of `client`'s sensors until SIGTERM or SIGINT; wait while a broker or a disk is unavailable.

    folder: the folder of the clients' folders; as_events: progress is logged as events.
    Raises `ShoalError` for what waiting cannot mend.
    """
    settings = mqtt_settings(config)
    counts = IngestCounts(SilenceMonitor(topics_of(settings, config.contract, client), settings.silent_s))
    with stopped_by_signals() as stop, closing(display_on(sys.stderr, time.monotonic, as_events)) as display:

        def build() -> AbstractContextManager[MqttIngest]:
            return open_mqtt_ingest(config, client, folder, counts)

        run(build, stop, on_step=lambda _: display.show(counts.position, None))
    return ProducerTotals(
        False, {client: counts.published}, counts.already_there, counts.position, counts.faults, settings.address
    )


@contextmanager
def open_mqtt_ingest(
    config: Config,
    client: str,
    folder: Path,
    counts: IngestCounts,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
) -> Iterator[MqttIngest]:
    """The ingest as its checkpoint has it, closed at the end. Raises `InvalidState`, and as `Connection` does."""
    settings, contract = mqtt_settings(config), config.contract
    topics = topics_of(settings, contract, client)
    client_id = settings.client_id.replace("{client}", client) or f"shoal-{contract.federation}-{client}"
    own_folder = client_folder(folder, client)
    with ExitStack() as stack:
        owner = f"the MQTT producer of client {client} of {contract.federation}"
        checkpoint = stack.enter_context(Checkpoint(own_folder / "mqtt.db", owner))
        readings = stack.enter_context(closing(open_readings(config, client, folder)))
        ingest = MqttIngest(
            settings,
            IngestResources(client, contract.width, topics, checkpoint, readings, readings_settings(config.client)),
            counts,
            lambda: Connection(settings, client_id, topics, with_retained=bool(settings.time), steady=steady),
            clock=clock,
            steady=steady,
        )
        yield stack.enter_context(closing(ingest))
