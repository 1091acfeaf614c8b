"""Ingest of sensors: messages become readings in the logs of their clients."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from shoal.config.base import client_name_of
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.privacy.base import Missing
from shoal.producers.files.split import CLIENTS_MAX
from shoal.producers.messages import (
    ParsedPayload,
    RejectedMessages,
    SensorValues,
    parse_payload,
    values_with_gaps,
)
from shoal.producers.mqtt.client_stream import ClientStream, ClientStreamState, IngestCounts
from shoal.producers.mqtt.connection import Connection, Message
from shoal.producers.mqtt.readings import AlignedReading, Rules
from shoal.producers.mqtt.settings import MqttSettings, mqtt_settings
from shoal.producers.mqtt.silence import SilenceMonitor
from shoal.producers.mqtt.topics import TopicTable, topics_of
from shoal.producers.source import identity_of
from shoal.producers.source_type import MessageStream, ProducerTask, ProducerTotals
from shoal.producers.values import missing_of
from shoal.protocol.topics import readings_settings
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.client_folders import client_folder
from shoal.runtime.logs import open_readings
from shoal.saved_state import SavedState, state_type
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, TopicSettings

DELIVERIES_MAX = 1024
"""newest deliveries that are recognised when repeated: more than are sent unacknowledged"""
# Doubles of seconds since 1970 are 2.4e-7 apart: a much smaller step would be lost in rounding.
TICK_S = 1e-6
"""seconds between the times of two messages when the clock does not advance"""
STATE_VERSION = 3
# Among `DELIVERIES_MAX` of them a message is taken for another one with a chance of 2**-54.
DIGEST_BYTES = 8
"""bytes of the digest of a delivery"""


@state_type
class IngestState(SavedState):
    """The newest deliveries, and the sensors of each client."""

    version: ClassVar[int] = STATE_VERSION

    width: int
    delivered: bytes
    """digests of the newest deliveries"""
    clients: dict[str, ClientStreamState]


class IngestResources(NamedTuple):
    """The topics, the checkpoint, and the readings logs of the clients."""

    client: str | None
    """the client of these sensors; where messages name one, the only one to feed, None for all"""
    width: int
    """number of features of a reading"""
    topics: TopicTable
    checkpoint: Checkpoint
    open_log: Callable[[str, str], Log]
    """opens the readings log of a client, which messages call as the second argument says"""
    topic_settings: TopicSettings
    """settings that the readings logs are declared with"""
    missing: Missing
    """treatment of a reading that lacks a value"""
    learns_gaps: bool
    """whether clients learn readings that lack values"""


class MqttIngest:
    """Receives the values of sensors and stores the readings of their clients, step by step.

    clock: seconds since 1970, the time of messages that have none. steady: a clock that never goes
    back. A message is saved in the checkpoint, then stored, then acknowledged; a kill in between
    loses none and repeats none.
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
        """Store what the checkpoint has left, and only then connect.

        Raises `InvalidState`, and as `connect` does.
        """
        self._settings = settings
        self._resources = resources
        self._counts = counts
        self._clock = clock
        self._steady = steady
        self._rules = Rules(
            resources.width,
            settings.tolerance_s,
            settings.wait_s,
            resources.missing,
            settings.hold_s,
            resources.learns_gaps,
        )
        self._delivered: dict[bytes, None] = {}
        self._rejected = RejectedMessages(counts.faults)
        self._streams: dict[str, ClientStream] = {}
        try:
            self._restore(resources.checkpoint.load())
            if not settings.client and not self._streams:
                self._open_stream(str(resources.client), str(resources.client))
            counts.position = self._position
            self._connection = connect()
        except BaseException:
            self._close_streams()
            raise
        self._begin()

    def step(self, timeout_s: float = 0.0) -> bool:
        """Receive messages and store the readings that are complete; True when anything was done.

        Raises `LogUnavailable` (the broker or the disk is unavailable) and `LogError`. After an
        error only a new object, built from the checkpoint, may continue.
        """
        messages = self._connection.receive(timeout_s)
        now = self._steady()
        before = self._aligned_counts()
        for message in messages:
            self._process(message, now)
        for stream in self._streams.values():
            # Event time goes on while no message comes.
            event_time = stream.aligner.newest + now - stream.received_at
            stream.aligned += stream.aligner.advance(event_time)
        self._report_silence(now)
        # `Counter` leaves out what has not grown.
        new_counts = self._aligned_counts() - before
        for reason, number in new_counts.items():
            if reason != "aligned":
                self._counts.faults[reason] += number
        self._rejected.report(now)
        if not messages and not new_counts:
            return False
        # Saved, then stored, then acknowledged: after a kill in between the broker repeats what the
        # checkpoint knows.
        self._save()
        for stream in self._streams.values():
            stream.store(self._counts)
        self._connection.acknowledge(messages)
        return True

    def close(self) -> None:
        """Close the connection and the logs; the broker sends again what was not acknowledged."""
        self._rejected.report(math.inf)
        self._connection.close()
        self._close_streams()

    @property
    def _position(self) -> int:
        return sum(stream.position for stream in self._streams.values())

    def _aligned_counts(self) -> Counter[str]:
        return sum((stream.aligner.counts for stream in self._streams.values()), Counter())

    def _begin(self) -> None:
        now = self._steady()
        self._counts.silence.start(now)
        for stream in self._streams.values():
            stream.received_at = now
        kept = self._connection.session_present
        log_event("mqtt_connected", address=self._settings.address, session_kept=kept)
        if not kept and self._delivered:
            # A new session numbers its deliveries from the beginning.
            log_event("mqtt_session_lost", logging.WARNING, address=self._settings.address)
            self._delivered.clear()

    def _process(self, message: Message, now: float) -> None:
        """Add the readings that a message completes to those of its client."""
        fields = self._resources.topics.find(message.topic)
        if fields is None:
            return self._count_fault("unknown_topic", message.topic)
        if self._known(message):
            return self._count_fault("repeated", message.topic)
        if not message.retained:
            self._end_silence(message.topic, now)
        # A retained message is of any age, and its own time is the only one that says which.
        elif not self._settings.time:
            return self._count_fault("retained", message.topic)
        parsed = parse_payload(message.payload, fields, self._settings, self._clock())
        for reason in parsed.faults:
            self._count_fault(reason, message.topic)
        if parsed.values is None:
            return None
        stream = self._stream_of(message, parsed, now)
        if stream is None:
            return None
        stream.received_at = now
        values = parsed.values
        if not self._settings.time:
            # The clock may stand still, or be set back, between two messages; event time must not.
            later = max(values.time, stream.aligner.newest + TICK_S)
            values = values._replace(time=later)
        if self._settings.user_id:
            stream.aligned += self._of_user(message, values, parsed.user)
        else:
            stream.aligned += stream.aligner.add(values)
        return None

    def _end_silence(self, topic: str, now: float) -> None:
        """Note a message of a topic, and report one after a silence."""
        silent_s = self._counts.silence.received(topic, now)
        if silent_s is not None:
            log_event("sensor_back", topic=topic, silent_s=round(silent_s, 1))

    def _stream_of(
        self, message: Message, parsed: ParsedPayload, now: float
    ) -> ClientStream | None:
        """The client that a message is from; None for one that is not fed, or that cannot be."""
        if not self._settings.client:
            return self._streams[str(self._resources.client)]
        if self._settings.client_field:
            text = parsed.client
        else:
            text = self._settings.client_of_topic(message.topic)
        if not text:
            self._count_fault("nameless", message.topic)
            return None
        client = client_name_of(text)
        if self._resources.client not in (None, client):
            return None
        if client not in self._streams:
            # Anything that publishes could name clients without end, and each has a folder and a
            # log.
            if len(self._streams) >= CLIENTS_MAX:
                self._count_fault("crowded", message.topic)
                return None
            self._open_stream(client, text)
            self._streams[client].received_at = now
        return self._streams[client]

    def _open_stream(self, client: str, text: str, saved: ClientStreamState | None = None) -> None:
        log = self._resources.open_log(client, text)
        stream = ClientStream(client, log, self._rules, self._steady())
        self._streams[client] = stream
        if saved is not None:
            stream.restore(saved)
        stream.open(self._resources.topic_settings)
        stream.store(self._counts)
        stream.skip_used_numbers()

    def _close_streams(self) -> None:
        with ExitStack() as stack:
            for stream in self._streams.values():
                stack.callback(stream.close)
            self._streams = {}

    def _of_user(
        self, message: Message, values: SensorValues, user: str | None
    ) -> list[AlignedReading]:
        """The reading that one message makes by itself.

        It is not aligned with others: values of two users must not become one reading.
        """
        if len(values.values) < self._resources.width:
            if self._resources.missing != "learn":
                self._count_fault("incomplete", message.topic)
                return []
            self._count_fault("with_gaps", message.topic)
        row = values_with_gaps(values.values, self._resources.width)
        return [AlignedReading(values.time, row, user)]

    def _known(self, message: Message) -> bool:
        """Whether this delivery is in the checkpoint already; it is added."""
        if message.acknowledged:
            return False
        delivery = f"{message.number}/{message.topic}/".encode() + message.payload
        digest = hashlib.blake2b(delivery, digest_size=DIGEST_BYTES).digest()
        known = message.repeated and digest in self._delivered
        # Put in again at the end: the oldest deliveries are forgotten first.
        self._delivered.pop(digest, None)
        self._delivered[digest] = None
        if len(self._delivered) > DELIVERIES_MAX:
            del self._delivered[next(iter(self._delivered))]
        return known

    def _count_fault(self, reason: str, topic: str) -> None:
        self._rejected.add(reason, topic)

    def _report_silence(self, now: float) -> None:
        for topic in self._counts.silence.newly_silent(now):
            log_event(
                "sensor_silent", logging.WARNING, topic=topic, silent_s=self._settings.silent_s
            )

    def _save(self) -> None:
        state = IngestState(
            width=self._resources.width,
            delivered=b"".join(self._delivered),
            clients={client: stream.state() for client, stream in self._streams.items()},
        )
        self._counts.position = self._position
        self._resources.checkpoint.save(state.saved())

    def _restore(self, state: dict[str, Any] | None) -> None:
        """Open the clients of the checkpoint, and store what it has left of their readings."""
        if state is None:
            return
        if (state.get("version"), state.get("width")) != (STATE_VERSION, self._resources.width):
            raise InvalidState(
                "the MQTT producer's checkpoint was made under another contract or version; put"
                " the old federation file back, or start under a new client name"
            )
        try:
            saved = IngestState.read(state, {"d": self._resources.width})
        except InvalidState as wrong:
            raise InvalidState(
                f"the MQTT producer's checkpoint cannot be read ({wrong}); restore it, or move it"
                " away"
            ) from None
        for at in range(0, len(saved.delivered), DIGEST_BYTES):
            self._delivered[saved.delivered[at : at + DIGEST_BYTES]] = None
        for client, stream in saved.clients.items():
            self._open_stream(client, client, stream)


def mqtt_stream(task: ProducerTask) -> MessageStream:
    """The values of the sensors: of the client that is named, or of all that messages name.

    Raises `SettingsError`.
    """
    config = task.config
    client: str | None = task.options["name"]
    settings = mqtt_settings(config)
    topics = topics_of(settings, config.contract, client or "")
    # Topics that match a wildcard are known when their first message comes.
    exact = [topic for topic in topics if "+" not in topic and "#" not in topic]
    counts = IngestCounts(SilenceMonitor(exact, settings.silent_s))

    def totals(ended: bool) -> ProducerTotals:
        return ProducerTotals(
            ended,
            counts.by_client,
            counts.already_there,
            counts.position,
            counts.faults,
            settings.address,
        )

    return MessageStream(
        lambda: open_mqtt_ingest(config, client, task.folder, counts),
        lambda: counts.position,
        totals,
    )


@contextmanager
def open_mqtt_ingest(
    config: Config,
    client: str | None,
    folder: Path,
    counts: IngestCounts,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
) -> Iterator[MqttIngest]:
    """The ingest as its checkpoint has it, closed at the end.

    Raises `InvalidState`, and as `Connection` does.
    """
    settings = mqtt_settings(config)
    contract = config.contract
    topics = TopicTable(topics_of(settings, contract, client or ""))
    client_id = settings.client_id.replace("{client}", client or "all")
    if not client_id:
        client_id = f"shoal-{contract.federation}"
        if client:
            client_id += f"-{client}"

    def open_log(name: str, text: str) -> Log:
        client_folder(folder, name, text)
        return open_readings(config, name, folder)

    with ExitStack() as stack:
        if settings.client:
            folder.mkdir(parents=True, exist_ok=True)
            place = folder / f"producer.{identity_of('mqtt', settings.address, client_id)}.db"
        else:
            place = client_folder(folder, str(client)) / "mqtt.db"
        of_client = f"client {client} of " if client else ""
        owner = f"the MQTT producer of {of_client}{contract.federation}"
        checkpoint = stack.enter_context(Checkpoint(place, owner))
        resources = IngestResources(
            client,
            contract.width,
            topics,
            checkpoint,
            open_log,
            readings_settings(config.client),
            missing_of(settings.missing, contract),
            contract.learns_gaps,
        )

        def connect() -> Connection:
            with_retained = bool(settings.time)
            return Connection(
                settings, client_id, topics.filters, with_retained=with_retained, steady=steady
            )

        ingest = MqttIngest(settings, resources, counts, connect, clock=clock, steady=steady)
        yield stack.enter_context(closing(ingest))
