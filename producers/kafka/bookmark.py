"""Bookmarks of topics: how far each partition was read, and what the clients' logs held then.

Each partition has a bookmark in a file of its own, which one process at a time can open. So
processes that share a topic hand a partition on with its place, and none reads it while another
one, that may have been slow, still writes what it had read. A bookmark that is old costs a search:
the logs themselves say what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from shoal.errors import CheckpointInUse, InvalidState, LogUnavailable
from shoal.producers.publisher import Mark, MarkState
from shoal.runtime.checkpoint import Checkpoint, open_replaceable, pairs_of, positions_of
from shoal.saved_state import SavedState, state_type
from shoal.transports.base import Positions

STATE_VERSION = 1


@state_type
class TopicMarkState(SavedState):
    """What the log of one client had of one partition."""

    client: str
    partition: int
    mark: MarkState


@state_type
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

    @property
    def identity(self) -> str:
        """Random name given when its file was made; a copy has the same."""
        return self._checkpoint.identity

    def save(self) -> None:
        """Store it. Raises `LogUnavailable` if the disk fails."""
        marks = []
        for (client, partition), mark in self.marks.items():
            state = MarkState(**mark._asdict())
            marks.append(TopicMarkState(client=client, partition=partition, mark=state))
        own = KafkaBookmarkState(run=self.run, positions=pairs_of(self.positions), marks=marks)
        self._checkpoint.save({**own.saved(), "held": self.held})

    def start_again(self, run: int) -> None:
        """Begin at the first record, and publish what an earlier run has published."""
        self.run = run
        self.positions = {}
        self.marks = {}
        self.held = {}

    def close(self) -> None:
        """Close its file, so that another process can open it."""
        self._checkpoint.close()


class TopicBookmarks:
    """The bookmarks of the partitions of a topic, in the folder of the clients' folders.

    Beside them a file has what they begin with: the first position of each partition, and how often
    the topic was published on purpose.
    """

    def __init__(self, folder: Path, source: str, topic: str) -> None:
        """`source`: identity of the source, in the names of the files."""
        self._folder = folder
        self._source = source
        self._owner = f"the producer of topic {topic}"
        self.identity = ""
        """random name of these bookmarks; a copy of the folder has the same"""
        self.run = 0
        self._first: Positions = {}

    def begin(self, bounds: Mapping[int, tuple[int, int]], *, at_newest: bool, again: bool) -> None:
        """Find where partitions begin that have no bookmark yet; `bounds`: those of the topic.

        `at_newest`: at the very first start, at what is new then; a partition that is added later
        is read from its first record. Raises `InvalidState`, and `LogUnavailable` while another
        process does the same.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        # A client's name has no dot, so this is no client's folder.
        file = self._folder / f"producer.{self._source}.db"
        try:
            checkpoint = open_replaceable(file, self._owner)
        except CheckpointInUse as in_use:
            raise LogUnavailable(str(in_use)) from None
        with checkpoint:
            about = KafkaBookmark(checkpoint)
            is_first_start = not about.positions and not about.run
            if again:
                about.start_again(about.run + 1)
            for partition, (first, end) in bounds.items():
                begins = end if at_newest and is_first_start else first
                about.positions.setdefault(partition, begins)
            # Before any message: a kill would have the next start begin at what is newest then.
            about.save()
            self.identity = about.identity
            self.run = about.run
            for partition, (first, _) in bounds.items():
                # Retention may have removed what was there at the very first start.
                self._first[partition] = max(about.positions[partition], first)

    def open(self, partition: int) -> KafkaBookmark:
        """The bookmark of a partition, which is this process's until it is closed.

        A damaged one is set aside: what was published is found in the logs. Raises `InvalidState`,
        and `CheckpointInUse` while another process has it.
        """
        file = self._folder / f"producer.{self._source}.{partition}.db"
        checkpoint = open_replaceable(file, f"{self._owner}, partition {partition}")
        try:
            bookmark = KafkaBookmark(checkpoint)
            if bookmark.run != self.run:
                bookmark.start_again(self.run)
            bookmark.positions.setdefault(partition, self._first[partition])
            bookmark.save()
        except BaseException:
            checkpoint.close()
            raise
        return bookmark
