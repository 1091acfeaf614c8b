"""Publishes a source's readings, each exactly once, and keeps the bookmark to continue at.

Every record has the number of its reading in a header, so the logs themselves say what has been
published; the bookmark only spares the search for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from shoal.errors import InvalidState, OffsetOutOfRange
from shoal.producers.source import SourceReadings
from shoal.protocol.readings import NUMBER, USER_ID, Reading, number_contents, number_of
from shoal.protocol.topics import READINGS_SETTINGS
from shoal.runtime.checkpoint import Checkpoint, open_replaceable
from shoal.saved_state import SavedState, Whole, state_type
from shoal.transports.base import Headers, Log, Record, RecordBatch, TopicSettings, publish_batch

# A readings log has one partition, so that its readings have one order.
PARTITION = 0
# Read in blocks: what was written since the mark is never whole in memory.
SCAN_RECORDS = 2000


class Mark(NamedTuple):
    """The part of a source that is in a log."""

    identity: str
    """identity of the topic: a log that was created again has another one"""
    end: int
    """offset after the last examined record"""
    last_number: int
    """the last reading of the source that is in the log; -1 for none"""


class ReadingsPublisher:
    """An open readings log, declared with `settings`; `source` marks the records of this run."""

    def __init__(
        self,
        log: Log,
        topic: str,
        source: str,
        known: Mark | None,
        settings: TopicSettings = READINGS_SETTINGS,
    ) -> None:
        self._log = log
        self._topic = topic
        self._source = source.encode()
        log.ensure(topic, settings)
        self._identity = log.identity(topic).hex()
        _, end = log.bounds(topic)[PARTITION]
        self.intact = known is None or (known.identity == self._identity and known.end <= end)
        """whether everything that was in the log when `known` was saved is still there"""
        self._end = 0
        self.last_number = -1
        if known is not None and self.intact:
            self._end = known.end
            self.last_number = known.last_number
        self._catch_up()

    def publish(self, numbers: Sequence[int], readings: SourceReadings) -> None:
        """Append readings, in order, with their numbers; they are stored only after `flush`."""
        if not numbers:
            return
        encoded = Reading.encode_many(readings.times, readings.values)
        of_source: Headers = (*Reading.headers(), ("source", self._source))
        users = readings.users
        runs: Iterable[tuple[bool, slice]] = [(False, slice(0, len(numbers)))]
        if users:
            runs = _alike(users)
        # Records of a batch have the same headers: those with a user id have one more.
        for has_user, part in runs:
            contents = number_contents(numbers[part], readings.times[part])
            varying: list[tuple[str, list[bytes]]] = [(NUMBER, contents)]
            if users and has_user:
                varying.append((USER_ID, [(user or "").encode() for user in users[part]]))
            batch = RecordBatch(encoded[part], of_source, varying)
            publish_batch(self._log, self._topic, batch, PARTITION)
            self.last_number = numbers[part][-1]

    def flush(self) -> None:
        """Return when everything published is stored."""
        self._log.flush()

    def mark(self) -> Mark:
        """The part of the source that is in the log now; only after a flush."""
        return Mark(self._identity, self._log.bounds(self._topic)[PARTITION][1], self.last_number)

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _catch_up(self) -> None:
        """Search the records after the mark for readings of this source."""
        first, end = self._log.bounds(self._topic)[PARTITION]
        # Retention may have removed what was at the mark.
        at = max(self._end, first)
        while at < end:
            try:
                records, after = self._log.read(self._topic, {PARTITION: at}, SCAN_RECORDS)
            # Retention removes records while they are read.
            except OffsetOutOfRange as gone:
                at = gone.first
                continue
            at = after[PARTITION]
            self.last_number = max([self.last_number, *map(self._number_of, records)])

    def _number_of(self, record: Record) -> int:
        """The reading's number if the record is one of ours, else -1."""
        if dict(record.headers).get("source") != self._source:
            return -1
        number = number_of(record.headers)
        return -1 if number is None else number


def _alike(users: Sequence[str | None]) -> Iterator[tuple[bool, slice]]:
    """Runs of readings that have a user id, or none."""
    for has_user, same in groupby(range(len(users)), lambda place: bool(users[place])):
        places = list(same)
        yield has_user, slice(places[0], places[-1] + 1)


@state_type
class MarkState(SavedState):
    """What the log of one client held of a source."""

    identity: str
    end: int
    last_number: Annotated[int, Whole(least=-1)]


@state_type
class BookmarkState(SavedState):
    """The position in one source, and what each log held then."""

    version: ClassVar[int] = 1

    run: int
    number: int
    marks: dict[str, MarkState]
    """name of the client -> its mark"""


class Bookmark:
    """The position in one source, in a file for one producer at a time, or in memory only.

    All readings before `number` were stored, in the logs that `marks` describes, when the bookmark
    was saved. Later ones may be stored too: `ReadingsPublisher` finds them. `run` counts how often
    the source was published on purpose.
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint
        self.run = 0
        self.number = 0
        self.marks: dict[str, Mark] = {}
        state = None if checkpoint is None else checkpoint.load()
        if state is not None:
            self._restore(state)

    def save(self, number: int, marks: dict[str, Mark]) -> None:
        """Record that all readings before `number` are stored.

        Raises `LogUnavailable` if the disk fails.
        """
        self.number = number
        self.marks = dict(marks)
        if self._checkpoint is not None:
            states = {client: MarkState(**mark._asdict()) for client, mark in marks.items()}
            state = BookmarkState(run=self.run, number=number, marks=states)
            self._checkpoint.save(state.saved())

    def start_again(self) -> None:
        """Start from the first reading; publishes readings that an earlier run has published."""
        self.run += 1
        self.save(0, {})

    def close(self) -> None:
        """Close the file."""
        if self._checkpoint is not None:
            self._checkpoint.close()

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            saved = BookmarkState.read(state)
        except InvalidState as wrong:
            raise InvalidState(
                f"the producer's bookmark cannot be read ({wrong}); delete it: the position is"
                " found in the logs"
            ) from None
        self.run = saved.run
        self.number = saved.number
        for client, mark in saved.marks.items():
            self.marks[client] = Mark(mark.identity, mark.end, mark.last_number)


def open_bookmark(folder: Path, source: str) -> Bookmark:
    """The bookmark of the source with identity `source`, in the folder of the clients' folders.

    A damaged one is set aside: the position is found in the logs. Raises `InvalidState` while
    another producer of the same source runs.
    """
    # A client's name has no dot, so this is no client's folder.
    file = folder / f"producer.{source}.db"
    checkpoint = open_replaceable(file, f"the producer of source {source}")
    try:
        return Bookmark(checkpoint)
    except BaseException:
        checkpoint.close()
        raise
