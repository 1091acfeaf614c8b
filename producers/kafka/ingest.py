"""Ingest of a topic: JSON messages become readings in the clients' logs, each once.

A kill at any instant loses no message and repeats none, as with the pump: publish, flush, save the
bookmark. Every reading has the offset of its message in a header, for each partition apart, so the
logs themselves say what they hold.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from shoal.config.base import client_name_of
from shoal.errors import InvalidState, LogUnavailable
from shoal.producers.files.split import CLIENTS_MAX
from shoal.producers.kafka.record_reader import RecordReader, decoder_of
from shoal.producers.kafka.settings import KafkaSourceSettings, kafka_settings
from shoal.producers.messages import RejectedMessages
from shoal.producers.publisher import Mark, MarkState, ReadingsPublisher
from shoal.producers.source import SourceReading, SourceReadings, identity_of
from shoal.producers.source_type import MessageStream, ProducerTask, ProducerTotals
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.checkpoint import Checkpoint, open_replaceable, pairs_of, positions_of
from shoal.runtime.client_folders import client_folder
from shoal.runtime.logs import open_readings
from shoal.saved_state import SavedState
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, read_next
from shoal.transports.kafka import KAFKA
from shoal.transports.kafka.settings import BrokerAccess, KafkaSettings

BATCH_RECORDS_MAX = 2000
PARTITIONS_CHECK_S = 60.0
"""seconds after which the number of partitions is looked at again"""
STATE_VERSION = 1


class KafkaCounts:
    """Counts since the process started: they outlive a connection."""

    def __init__(self) -> None:
        self.published: Counter[str] = Counter()
        """readings stored, by client"""
        self.already_there = 0
        """readings that an earlier process had stored"""
        self.faults: Counter[str] = Counter()
        """messages and values that were not used, by reason (see `FAULTS`)"""
        self.starts_again = False
        """whether the next bookmark begins at the first record, and publishes once more"""

    @property
    def position(self) -> int:
        """Readings stored."""
        return self.published.total() + self.already_there


@dataclass(frozen=True, kw_only=True)
class TopicMarkState(SavedState):
    """What the log of one client had of one partition."""

    client: str
    partition: int
    mark: MarkState


@dataclass(frozen=True, kw_only=True)
class KafkaBookmarkState(SavedState):
    """Positions in the topic, and what the logs held then."""

    version: ClassVar[int] = STATE_VERSION

    run: int
    positions: list[list[int]]
    """[partition, offset]"""
    marks: list[TopicMarkState]


class KafkaBookmark:
    """Positions in the topic, and what the logs held when they were saved."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `InvalidState` for what is no bookmark of a topic."""
        self._checkpoint = checkpoint
        self.run = 0
        self.positions: Positions = {}
        self.held: dict[str, Any] = {}
        """the state of `Gaps`: the last values of each client, where they fill missing ones"""
        self.marks: dict[tuple[str, int], Mark] = {}
        """(client, partition) -> what the client's log had of that partition"""
        state = checkpoint.load()
        if state is None:
            return
        try:
            saved = KafkaBookmarkState.read(state)
        except InvalidState as wrong:
            raise InvalidState(
                f"the bookmark of the topic cannot be read ({wrong}); delete it to read from the"
                " first record: what the readings logs hold is found in them"
            ) from None
        self.run = saved.run
        self.positions = positions_of(saved.positions)
        # Of the source's own form, which `Gaps` checks when it takes it.
        self.held = state.get("held", {})
        for entry in saved.marks:
            mark = Mark(entry.mark.identity, entry.mark.end, entry.mark.last_number)
            self.marks[entry.client, entry.partition] = mark

    def save(self) -> None:
        """Store it. Raises `LogUnavailable` if the disk fails."""
        marks = []
        for (client, partition), mark in self.marks.items():
            state = MarkState(**mark._asdict())
            marks.append(TopicMarkState(client=client, partition=partition, mark=state))
        own = KafkaBookmarkState(run=self.run, positions=pairs_of(self.positions), marks=marks)
        self._checkpoint.save({**own.saved(), "held": self.held})

    def start_again(self) -> None:
        """Begin at the first record, and publish what an earlier run has published."""
        self.run += 1
        self.positions = {}
        self.marks = {}
        self.held = {}


class SourceTopic(NamedTuple):
    """The topic, open."""

    log: Log
    name: str
    identity: str
    """identity of the source: another one if the topic is created again, or for another client"""


class KafkaIngest:
    """Reads one topic and stores its messages as readings, step by step.

    open_log: opens the readings log of a client, which the data call as the second argument says.
    clock: seconds since 1970. steady: a clock that never goes back.
    """

    def __init__(
        self,
        task: ProducerTask,
        topic: SourceTopic,
        bookmark: KafkaBookmark,
        counts: KafkaCounts,
        open_log: Callable[[str, str], Log],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the first records that may not be stored. Raises as the logs do."""
        self._settings = kafka_settings(task.config)
        self._topic = topic
        self._bookmark = bookmark
        self._counts = counts
        self._only: str | None = task.options["name"]
        self._topic_settings = readings_settings(task.config.client)
        self._open_log = open_log
        self._clock = clock
        self._steady = steady
        self._reader = RecordReader(
            task.config, self._settings, counts.faults, decoder_of(self._settings)
        )
        if bookmark.held:
            self._reader.gaps.restore(bookmark.held)
        self._rejected = RejectedMessages(counts.faults)
        self._check_due = steady() + PARTITIONS_CHECK_S
        self._logs: dict[str, Log] = {}
        self._publishers: dict[tuple[str, int], ReadingsPublisher] = {}
        try:
            self._find_start()
        except BaseException:
            self.close()
            raise

    def step(self, timeout_s: float = 0.0) -> bool:
        """Store the next messages as readings; False when there was none.

        Raises `LogUnavailable`, `LogError` and `OffsetOutOfRange`; after an error only a new object
        may continue.
        """
        now = self._steady()
        self._rejected.report(now)
        if now >= self._check_due:
            self._check_due = now + PARTITIONS_CHECK_S
            self._check_partitions()
        before = self._bookmark.positions
        records, after = read_next(
            self._topic.log,
            self._topic.name,
            before,
            BATCH_RECORDS_MAX,
            timeout_s,
            self._settings.accept_gap,
        )
        # By position and not by records: a gap that compaction left moves on without one.
        if after == before:
            return False
        parts: defaultdict[tuple[str, int], list[tuple[int, SourceReading]]] = defaultdict(list)
        for record in records:
            reading = self._reading(record)
            if reading is not None:
                parts[reading.client, record.partition].append((record.offset, reading))
        self._store(parts)
        # Only now: after a kill in between the same messages are read again, and found in the logs.
        self._bookmark.positions = dict(after)
        self._bookmark.held = self._reader.gaps.state()
        self._bookmark.save()
        return True

    def close(self) -> None:
        """Close the clients' logs."""
        self._rejected.report(math.inf)
        with ExitStack() as stack:
            for log in self._logs.values():
                stack.callback(log.close)
            self._logs.clear()

    def _check_partitions(self) -> None:
        """Raises `LogUnavailable` when the topic has more partitions: a new object reads them."""
        # An open log knows the partitions that there were.
        with closing(open_topic(self._settings)) as log:
            partitions = len(log.bounds(self._topic.name))
        if partitions != len(self._bookmark.positions):
            raise LogUnavailable(
                f"topic {self._topic.name} has {partitions} partitions now; it is opened again to"
                " read all"
            )

    def _find_start(self) -> None:
        bookmark = self._bookmark
        bounds = self._topic.log.bounds(self._topic.name)
        is_first_start = not bookmark.positions and not bookmark.run
        at_newest = is_first_start and self._settings.start == "newest"
        for partition, (first, end) in bounds.items():
            # A partition that was added later is read from its first record.
            bookmark.positions.setdefault(partition, end if at_newest else first)
        for client, partition in list(bookmark.marks):
            publisher = self._publisher(client, partition, client)
            if not publisher.intact:
                log_event("readings_log_replaced", logging.WARNING, client=client)
                # Retention may have removed what the log lacks.
                again = max(publisher.last_number + 1, bounds[partition][0])
                bookmark.positions[partition] = min(bookmark.positions[partition], again)
        # Before any message: a kill would have the next start begin at what is newest then.
        bookmark.save()
        log_event("topic_opened", topic=self._topic.name, partitions=len(bounds))

    def _reading(self, record: Record) -> SourceReading | None:
        """The reading that a message is; None for one that is rejected, or of another client."""
        parsed = self._reader.parse(record, self._clock())
        if parsed.values is None:
            for reason in parsed.faults:
                self._reject(reason, record)
            return None
        client = self._only or ""
        if self._settings.client:
            named = self._client_of(parsed.client, record)
            if named is None:
                return None
            client = named
        reading = self._reader.reading(client, parsed)
        if reading is None:
            self._reject("missing", record)
        return reading

    def _client_of(self, text: str | None, record: Record) -> str | None:
        """The client that a message names; None for one that is rejected, or of another client."""
        if not text:
            self._reject("nameless", record)
            return None
        client = client_name_of(text)
        if self._only is not None and client != self._only:
            return None
        # A writer of the topic can name clients without end, and each has a folder and a log.
        if client not in self._logs and not self._has_room(client, text):
            self._reject("crowded", record)
            return None
        return client

    def _reject(self, reason: str, record: Record) -> None:
        place = {"partition": record.partition, "offset": record.offset}
        self._rejected.add(reason, record.topic, place)

    def _has_room(self, client: str, text: str) -> bool:
        if len(self._logs) >= CLIENTS_MAX:
            return False
        self._logs[client] = self._open_log(client, text)
        return True

    def _store(self, parts: Mapping[tuple[str, int], Sequence[tuple[int, SourceReading]]]) -> None:
        stored: list[tuple[str, int, int]] = []
        for (client, partition), numbered in parts.items():
            publisher = self._publisher(client, partition, client)
            numbers = []
            readings = []
            for number, reading in numbered:
                # The rest was stored before a kill, and the bookmark was not.
                if number > publisher.last_number:
                    numbers.append(number)
                    readings.append(reading)
            if readings:
                publisher.publish(numbers, SourceReadings.of(readings))
            stored.append((client, len(readings), len(numbered) - len(readings)))
        # One flush for each client, after all its partitions, before anything counts as stored.
        for client in dict.fromkeys(client for client, _ in parts):
            self._logs[client].flush()
        for client, new, earlier in stored:
            self._counts.published[client] += new
            self._counts.already_there += earlier
        for place in parts:
            self._bookmark.marks[place] = self._publishers[place].mark()

    def _publisher(self, client: str, partition: int, text: str) -> ReadingsPublisher:
        place = (client, partition)
        if place not in self._publishers:
            if client not in self._logs:
                self._logs[client] = self._open_log(client, text)
            # With the run: what is published once more is another source, and no repeat of this
            # one.
            source = f"{self._topic.identity}.{partition}.{self._bookmark.run}"
            self._publishers[place] = ReadingsPublisher(
                self._logs[client],
                READINGS,
                source,
                self._bookmark.marks.get(place),
                self._topic_settings,
            )
        return self._publishers[place]


def kafka_stream(task: ProducerTask) -> MessageStream:
    """The messages of the topic. Raises `SettingsError`."""
    settings = kafka_settings(task.config)
    counts = KafkaCounts()
    counts.starts_again = bool(task.options["again"])
    where = f"{settings.address}/{settings.topic}"

    def totals(ended: bool) -> ProducerTotals:
        return ProducerTotals(
            ended,
            counts.published,
            counts.already_there,
            counts.position,
            counts.faults,
            where,
        )

    return MessageStream(lambda: open_kafka_ingest(task, counts), lambda: counts.position, totals)


@contextmanager
def open_kafka_ingest(
    task: ProducerTask, counts: KafkaCounts, clock: Callable[[], float] = time.time
) -> Iterator[KafkaIngest]:
    """The ingest as its bookmark has it, closed at the end.

    Raises `InvalidState`, and as the logs do.
    """
    settings = kafka_settings(task.config)

    def open_log(client: str, text: str) -> Log:
        client_folder(task.folder, client, text)
        return open_readings(task.config, client, task.folder)

    with ExitStack() as stack:
        log = stack.enter_context(closing(open_topic(settings)))
        topic_identity = log.identity(settings.topic).hex()
        identity = identity_of("kafka 1", topic_identity, task.options["name"] or "")
        task.folder.mkdir(parents=True, exist_ok=True)
        owner = f"the producer of topic {settings.topic}"
        file = task.folder / f"producer.{identity}.db"
        bookmark = KafkaBookmark(stack.enter_context(open_replaceable(file, owner)))
        if counts.starts_again:
            bookmark.start_again()
            bookmark.save()
            # Once only: after a broker was away this is opened anew, and must go on where it was.
            counts.starts_again = False
        topic = SourceTopic(log, settings.topic, identity)
        yield stack.enter_context(
            closing(KafkaIngest(task, topic, bookmark, counts, open_log, clock=clock))
        )


def open_topic(settings: KafkaSourceSettings) -> Log:
    """The log that has the topic. Raises `SettingsError`, `MissingExtra`."""
    access: dict[str, Any] = {name: getattr(settings, name) for name in BrokerAccess.model_fields}
    return KAFKA.open(settings.address.partition(":")[2], KafkaSettings(**access))
