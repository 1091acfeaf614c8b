"""The readings from before the first snapshot, which are labelled once it comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.client_nodes.intake import Batch, decode_batch
from shoal.errors import OffsetOutOfRange
from shoal.protocol.topics import READINGS
from shoal.runtime.checkpoint import pairs_of, positions_of
from shoal.saved_state import SavedState, require, state_type
from shoal.transports.base import Log, Positions


@state_type
class BacklogState(SavedState):
    """The unlabelled readings of one model, as pairs of partition and offset."""

    start: list[list[int]]
    until: list[list[int]]
    again: bool

    def check(self) -> None:
        require(
            positions_of(self.start).keys() == positions_of(self.until).keys(),
            "a backlog that begins must end",
        )


@dataclass
class Backlog:
    """The unlabelled readings of one model, from the oldest to where labelling goes on."""

    start: Positions = field(default_factory=dict)
    """the oldest unlabelled reading"""
    until: Positions = field(default_factory=dict)
    """the first reading that does not belong to it any more; partitions as in `start`"""
    again: bool = False
    """whether they have been labelled before"""

    @property
    def pending(self) -> bool:
        """Whether there is any reading in it."""
        return bool(self.start)

    def extend(self, batch: Batch) -> None:
        """The readings of a batch cannot be labelled yet."""
        for partition, offset in batch.places:
            self.start.setdefault(partition, offset)
            self.until[partition] = offset + 1

    def take(self, log: Log, limit: int, timeout_s: float, width: int, gaps: bool = False) -> Batch:
        """The next readings of it, oldest first, up to `limit`.

        What retention has removed is passed over. `width`, `gaps`: as `decode_batch` takes them.
        Raises as the log does.
        """
        while True:
            try:
                records, after = log.read(READINGS, self.start, limit, timeout_s)
                break
            except OffsetOutOfRange as gone:
                # Retention has removed readings, which then get no label.
                self._move({gone.partition: gone.first})
                if not self.pending:
                    return decode_batch([], width)
        if not records:
            # A log that was restored from a backup may end earlier.
            ends = {partition: end for partition, (_, end) in log.bounds(READINGS).items()}
            after = {}
            for partition, at in self.start.items():
                is_at_end = at >= ends.get(partition, 0)
                after[partition] = self.until[partition] if is_at_end else at
        own = [record for record in records if record.offset < self.until[record.partition]]
        self._move(after)
        return decode_batch(own, width, gaps=gaps)

    def state(self) -> dict[str, Any]:
        start = pairs_of(self.start)
        until = pairs_of(self.until)
        return BacklogState(start=start, until=until, again=self.again).saved()

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Backlog:
        """Raises `InvalidState`."""
        saved = BacklogState.read(state)
        return cls(positions_of(saved.start), positions_of(saved.until), saved.again)

    def _move(self, after: Positions) -> None:
        self.start |= after
        for partition in list(self.start):
            if self.start[partition] >= self.until[partition]:
                del self.start[partition]
                del self.until[partition]
        if not self.start:
            self.again = False
