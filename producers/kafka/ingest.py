"""Ingest of a topic: messages become readings in the clients' logs, each once.

A kill at any instant loses no message and repeats none, as with the pump: publish, flush, save the
bookmark. Every reading has the offset of its message in a header, for each partition apart, so the
logs themselves say what they hold.

With a consumer group several processes share the partitions. The group says whose a partition is to
be, and the lock on its bookmark whose it is: a process takes a partition only once the one before
has closed its bookmark or has ended, and goes on where that one was.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple, Protocol

from shoal.config.base import client_name_of
from shoal.errors import CheckpointInUse, InvalidState, LogUnavailable
from shoal.files import allow_files
from shoal.producers.kafka.bookmark import KafkaBookmark, TopicBookmarks
from shoal.producers.kafka.client_logs import ClientLogs
from shoal.producers.kafka.record_reader import RecordReader, decoder_of
from shoal.producers.kafka.settings import KafkaSourceSettings, kafka_settings
from shoal.producers.messages import RejectedMessages
from shoal.producers.publisher import ReadingsPublisher
from shoal.producers.source import SourceReading, SourceReadings, identity_of
from shoal.producers.source_type import MessageStream, ProducerTask, ProducerTotals
from shoal.protocol.topics import READINGS, readings_settings
from shoal.runtime.client_folders import client_folder
from shoal.runtime.logs import open_readings, open_readings_brokers
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, read_next
from shoal.transports.kafka import KAFKA
from shoal.transports.kafka.settings import BrokerAccess, KafkaSettings

BATCH_RECORDS_MAX = 2000
"""most messages of a step where there are few clients"""
BATCH_RECORDS_EACH = 20
"""messages of a step for each client, where those are more: a store waits for the disk once for
every client, however many readings of it there are"""
BATCH_RECORDS_LIMIT = 20_000
PARTITIONS_CHECK_S = 60.0
"""seconds after which the number of partitions is looked at again"""
SAVE_EVERY_S = 1.0
"""least seconds between two saves of bookmarks, which only spare the search of later messages"""
SAVE_RATIO = 20.0
"""least interval over the time that a save takes: a twentieth of it with very many clients"""
TAKE_EVERY_S = 0.5
"""interval at which a partition that another process still has is tried again"""
COMMIT_EVERY_S = 5.0
"""interval at which the group is told how far was read"""
FILES_EACH = 3
"""open files of a client's log"""
FILES_SPARE = 128
"""open files of the process itself"""


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
        """whether the next bookmarks begin at the first record, and publish once more"""

    @property
    def position(self) -> int:
        """Readings stored."""
        return self.published.total() + self.already_there


class SourceTopic(NamedTuple):
    """The topic, open."""

    log: Log
    name: str
    identity: str
    """identity of the source: another one if the topic is created again, or for another client"""


class Group(Protocol):
    """The consumer group that a process is a member of, see `GroupMember`."""

    def assigned(self, timeout_s: float = 0.0) -> frozenset[int] | None: ...

    def commit(self, at: Positions, note: str) -> bool: ...

    def notes(self, partitions: Collection[int]) -> dict[int, str]: ...


class OwnPartition:
    """A partition that is this process's to read."""

    def __init__(self, number: int, bookmark: KafkaBookmark, reader: RecordReader) -> None:
        """Raises `InvalidState` for a bookmark with last values that cannot be."""
        self.number = number
        self.bookmark = bookmark
        self.reader = reader
        self.is_saved = True
        """whether its bookmark is stored as it is"""
        if bookmark.held:
            reader.gaps.restore(bookmark.held)

    @property
    def position(self) -> int:
        """Offset of its next message."""
        return self.bookmark.positions[self.number]

    def move_to(self, position: int) -> None:
        """Go on at this offset: what is before it is stored."""
        self.bookmark.positions = {self.number: position}
        self.is_saved = False

    def save(self) -> None:
        """Store its bookmark. Raises `LogUnavailable` if the disk fails."""
        if self.is_saved:
            return
        self.bookmark.held = self.reader.gaps.state()
        self.bookmark.save()
        self.is_saved = True


class KafkaIngest:
    """Reads one topic and stores its messages as readings, step by step.

    open_log: opens the readings log of a client, which the data call as the second argument says.
    group: divides the partitions; None: all are this process's. clock: seconds since 1970. steady:
    a clock that never goes back.
    """

    def __init__(
        self,
        task: ProducerTask,
        topic: SourceTopic,
        bookmarks: TopicBookmarks,
        counts: KafkaCounts,
        open_log: Callable[[str, str], Log],
        *,
        group: Group | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find the first records that may not be stored. Raises as the logs do."""
        self._settings = kafka_settings(task.config)
        self._config = task.config
        self._topic = topic
        self._bookmarks = bookmarks
        self._counts = counts
        self._only: str | None = task.options["name"]
        self._topic_settings = readings_settings(task.config.client)
        self._group = group
        self._clock = clock
        self._steady = steady
        self._decode = decoder_of(self._settings)
        self._rejected = RejectedMessages(counts.faults)
        self._check_due = steady() + PARTITIONS_CHECK_S
        self._save_due = steady() + SAVE_EVERY_S
        self._take_due = -math.inf
        self._commit_due = steady() + COMMIT_EVERY_S
        self._waits_for: set[int] = set()
        """partitions that were assigned to this process, and that another one still has"""
        self._is_whole = True
        """whether bookmarks may be saved: not within a step, nor after one that has failed"""
        clients_max = self._settings.clients_max if self._settings.client else 1
        files = allow_files(FILES_SPARE + FILES_EACH * clients_max)
        can_be_open = max(1, (files - FILES_SPARE) // FILES_EACH)
        self._logs = ClientLogs(open_log, min(clients_max, can_be_open))
        self._clients: set[str] = set()
        """clients that this process has fed, or those before it"""
        self._partitions: dict[int, OwnPartition] = {}
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @property
    def positions(self) -> Positions:
        """Offsets of the next messages of the partitions that are this process's."""
        return {number: own.position for number, own in self._partitions.items()}

    def step(self, timeout_s: float = 0.0) -> bool:
        """Store the next messages as readings; False when there was none.

        Raises `LogUnavailable`, `LogError` and `OffsetOutOfRange`; after an error only a new object
        may continue.
        """
        now = self._steady()
        self._rejected.report(now)
        # A process whose partitions are still to come is not idle.
        is_waiting = False
        if self._group is not None:
            is_waiting = not self._follow(self._group, now, timeout_s)
        elif now >= self._check_due:
            self._check_due = now + PARTITIONS_CHECK_S
            self._check_partitions()
        before = self.positions
        if not before:
            return is_waiting
        self._is_whole = False
        records, after = read_next(
            self._topic.log,
            self._topic.name,
            before,
            self._batch_records(),
            timeout_s,
            self._settings.accept_gap,
        )
        # By position and not by records: a gap that compaction left moves on without one.
        if after != before:
            self._store(self._readings_in(records))
            # Only now: after a kill in between the same messages are read again, and found in the
            # logs.
            for number, own in self._partitions.items():
                if after[number] != own.position:
                    own.move_to(after[number])
        self._is_whole = True
        if now >= self._save_due:
            self._save()
        return is_waiting or after != before

    def close(self) -> None:
        """Save the bookmarks, close them, and close the clients' logs."""
        self._rejected.report(math.inf)
        with ExitStack() as stack:
            stack.callback(self._logs.close)
            for own in self._partitions.values():
                stack.callback(own.bookmark.close)
            # With older ones the next start reads more again, and the logs show what they have.
            if self._is_whole:
                with suppress(LogUnavailable):
                    self._save()
                    if self._group is not None and self._partitions:
                        self._group.commit(self.positions, self._note)

    def _begin(self) -> None:
        bounds = self._topic.log.bounds(self._topic.name)
        self._known_partitions = len(bounds)
        self._bookmarks.begin(
            bounds,
            at_newest=self._settings.start == "newest",
            again=self._counts.starts_again,
        )
        # Once only: after a broker was away this is opened anew, and must go on where it was.
        self._counts.starts_again = False
        if self._group is None:
            for partition, (first, _) in bounds.items():
                self._own(partition, first, self._bookmarks.open(partition))
        log_event("topic_opened", topic=self._topic.name, partitions=len(bounds))

    @property
    def _note(self) -> str:
        """What a commit to the group says of the member: which bookmarks go on from there."""
        return f"shoal {self._bookmarks.identity}"

    def _own(self, partition: int, first: int, bookmark: KafkaBookmark) -> None:
        """Read a partition from its bookmark on; `first`: the first message that is kept."""
        reader = RecordReader(self._config, self._settings, self._counts.faults, self._decode)
        own = OwnPartition(partition, bookmark, reader)
        self._partitions[partition] = own
        for client, _ in list(bookmark.marks):
            self._clients.add(client)
            publisher = self._publisher(client, partition, client)
            if not publisher.intact:
                log_event("readings_log_replaced", logging.WARNING, client=client)
                # Retention may have removed what the log lacks.
                again = max(publisher.last_number + 1, first)
                own.move_to(min(own.position, again))

    def _follow(self, group: Group, now: float, timeout_s: float) -> bool:
        """Have the partitions that the group has assigned to this process; False while one is still
        to come. Raises as the log does, and `InvalidState` for members with other bookmarks."""
        # With partitions to read it is the read that waits.
        assigned = group.assigned(0.0 if self._partitions else timeout_s)
        if assigned is None:
            return False
        for partition in self._partitions.keys() - assigned:
            self._leave(partition)
        missing = assigned - self._partitions.keys()
        self._waits_for &= missing
        if missing and now >= self._take_due:
            self._take_due = now + TAKE_EVERY_S
            self._take(group, sorted(missing))
        if self._partitions and now >= self._commit_due:
            self._commit_due = now + COMMIT_EVERY_S
            group.commit(self.positions, self._note)
        return assigned == self._partitions.keys()

    def _take(self, group: Group, partitions: Sequence[int]) -> None:
        # An open log knows the partitions that there were, and where they began.
        with closing(open_topic(self._settings)) as log:
            bounds = log.bounds(self._topic.name)
        self._check_number(len(bounds))
        with ExitStack() as opened:
            bookmarks: dict[int, KafkaBookmark] = {}
            for partition in partitions:
                try:
                    bookmark = self._bookmarks.open(partition)
                except CheckpointInUse:
                    if partition not in self._waits_for:
                        self._waits_for.add(partition)
                        log_event("partition_in_use", topic=self._topic.name, partition=partition)
                    continue
                opened.callback(bookmark.close)
                bookmarks[partition] = bookmark
            at = {number: bookmark.positions[number] for number, bookmark in bookmarks.items()}
            # Before a reading is stored: members of two folders would each store a part of them.
            self._check_notes(group.notes(bounds.keys()))
            if not bookmarks or not group.commit(at, self._note):
                return
            # Once more: another folder's first member may have looked at the same moment.
            self._check_notes(group.notes(bounds.keys()))
            for partition, bookmark in bookmarks.items():
                self._own(partition, bounds[partition][0], bookmark)
                log_event("partition_taken", topic=self._topic.name, partition=partition)
            opened.pop_all()

    def _check_notes(self, notes: Mapping[int, str]) -> None:
        # An empty one is of a tool that has set the group's offsets, and names no folder.
        others = sorted(number for number, note in notes.items() if note not in ("", self._note))
        if others:
            raise InvalidState(
                f"consumer group {self._settings.group}: partitions {others} of topic"
                f" {self._topic.name} were read by a producer with another folder of readings, or"
                " with another --name. All processes of a group share one folder, on one machine."
                " Where that folder is lost, name another group"
            )

    def _leave(self, partition: int) -> None:
        """Let another process have a partition."""
        own = self._partitions[partition]
        own.save()
        self._logs.leave(partition)
        del self._partitions[partition]
        own.bookmark.close()
        log_event("partition_left", topic=self._topic.name, partition=partition)

    def _save(self) -> None:
        began = self._steady()
        for own in self._partitions.values():
            own.save()
        now = self._steady()
        self._save_due = now + max(SAVE_EVERY_S, SAVE_RATIO * (now - began))

    def _check_partitions(self) -> None:
        """Raises `LogUnavailable` when the topic has more partitions: a new object reads them."""
        # An open log knows the partitions that there were.
        with closing(open_topic(self._settings)) as log:
            self._check_number(len(log.bounds(self._topic.name)))

    def _check_number(self, partitions: int) -> None:
        if partitions != self._known_partitions:
            raise LogUnavailable(
                f"topic {self._topic.name} has {partitions} partitions now; it is opened again to"
                " read all"
            )

    def _batch_records(self) -> int:
        return min(
            max(BATCH_RECORDS_MAX, BATCH_RECORDS_EACH * len(self._clients)), BATCH_RECORDS_LIMIT
        )

    def _readings_in(
        self, records: Sequence[Record]
    ) -> dict[str, dict[int, list[tuple[int, SourceReading]]]]:
        """The readings in messages by client and partition, each with its offset."""
        readings: defaultdict[str, dict[int, list[tuple[int, SourceReading]]]] = defaultdict(dict)
        for record in records:
            reading = self._reading(record)
            if reading is not None:
                of_partition = readings[reading.client].setdefault(record.partition, [])
                of_partition.append((record.offset, reading))
        return readings

    def _reading(self, record: Record) -> SourceReading | None:
        """The reading that a message is; None for one that is rejected, or of another client."""
        reader = self._partitions[record.partition].reader
        parsed = reader.parse(record, self._clock())
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
        reading = reader.reading(client, parsed)
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
        if client not in self._clients:
            # A writer of the topic can name clients without end, and each has a folder and a log.
            if len(self._clients) >= self._settings.clients_max:
                self._reject("crowded", record)
                return None
            self._logs.get(client, text)
            self._clients.add(client)
        return client

    def _reject(self, reason: str, record: Record) -> None:
        place = {"partition": record.partition, "offset": record.offset}
        self._rejected.add(reason, record.topic, place)

    def _store(
        self, readings: Mapping[str, Mapping[int, Sequence[tuple[int, SourceReading]]]]
    ) -> None:
        clients = iter(readings)
        # As many as can be open: a log may be closed only once it is flushed.
        while part := list(islice(clients, self._logs.open_max)):
            self._store_part({client: readings[client] for client in part})

    def _store_part(
        self, readings: Mapping[str, Mapping[int, Sequence[tuple[int, SourceReading]]]]
    ) -> None:
        stored: list[tuple[str, int, int]] = []
        for client, partitions in readings.items():
            for partition, numbered in partitions.items():
                new = self._publish(self._publisher(client, partition, client), numbered)
                stored.append((client, new, len(numbered) - new))
        # One flush for each client, after all its partitions, before anything counts as stored.
        for client in readings:
            self._logs.get(client, client).log.flush()
        for client, new, earlier in stored:
            self._counts.published[client] += new
            self._counts.already_there += earlier
        for client, partitions in readings.items():
            for partition in partitions:
                mark = self._publisher(client, partition, client).mark()
                self._partitions[partition].bookmark.marks[client, partition] = mark

    def _publish(
        self, publisher: ReadingsPublisher, numbered: Sequence[tuple[int, SourceReading]]
    ) -> int:
        """Publish those of these readings that the log does not have; returns how many."""
        numbers = []
        readings = []
        for number, reading in numbered:
            # The rest was stored before a kill, and the bookmark was not.
            if number > publisher.last_number:
                numbers.append(number)
                readings.append(reading)
        if readings:
            publisher.publish(numbers, SourceReadings.of(readings))
        return len(readings)

    def _publisher(self, client: str, partition: int, text: str) -> ReadingsPublisher:
        opened = self._logs.get(client, text)
        publisher = opened.publishers.get(partition)
        if publisher is None:
            # With the run: what is published once more is another source, and no repeat of this
            # one.
            source = f"{self._topic.identity}.{partition}.{self._bookmarks.run}"
            publisher = ReadingsPublisher(
                opened.log,
                READINGS,
                source,
                self._partitions[partition].bookmark.marks.get((client, partition)),
                self._topic_settings,
            )
            opened.publishers[partition] = publisher
        return publisher


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
    """The ingest as its bookmarks have it, closed at the end.

    Raises `InvalidState`, and as the logs do.
    """
    settings = kafka_settings(task.config)
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_topic(settings)))
        topic_identity = log.identity(settings.topic).hex()
        identity = identity_of("kafka 1", topic_identity, task.options["name"] or "")
        bookmarks = TopicBookmarks(task.folder, identity, settings.topic)
        # One connection for the readings of all clients, where these are on brokers.
        brokers = stack.enter_context(open_readings_brokers(task.config))

        def open_log(client: str, text: str) -> Log:
            client_folder(task.folder, client, text)
            return open_readings(task.config, client, task.folder, brokers)

        group = None
        if settings.group:
            # Only a process that shares the topic needs it.
            from shoal.transports.kafka.group import GroupMember  # noqa: PLC0415 - with a group

            group = stack.enter_context(
                closing(
                    GroupMember(
                        place_of(settings), access_of(settings), settings.group, settings.topic
                    )
                )
            )
        topic = SourceTopic(log, settings.topic, identity)
        yield stack.enter_context(
            closing(KafkaIngest(task, topic, bookmarks, counts, open_log, group=group, clock=clock))
        )


def open_topic(settings: KafkaSourceSettings) -> Log:
    """The log that has the topic. Raises `SettingsError`, `MissingExtra`."""
    return KAFKA.open(place_of(settings), access_of(settings))


def place_of(settings: KafkaSourceSettings) -> str:
    """The address of the brokers without its scheme."""
    return settings.address.partition(":")[2]


def access_of(settings: KafkaSourceSettings) -> KafkaSettings:
    """How the brokers of the topic are reached."""
    access: dict[str, Any] = {name: getattr(settings, name) for name in BrokerAccess.model_fields}
    return KafkaSettings(**access)
