"""Readings that have been learnt and are still to be labelled: where they begin and end in the readings log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from client_nodes.intake import Batch, decode_batch
from shoal.errors import OffsetOutOfRange
from shoal.protocol.topics import READINGS
from shoal.transports.base import Log, Positions


@dataclass
class Backlog:
    """The unlabelled readings of one model, from the oldest to where labelling goes on by itself."""

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

    def take(self, log: Log, limit: int, timeout_s: float, width: int) -> Batch:
        """The next readings of it, oldest first, up to `limit`; what retention has removed is passed over.

        Raises as the log does.
        """
        while True:
            try:
                records, after = log.read(READINGS, self.start, limit, timeout_s)
                break
            except OffsetOutOfRange as gone:
                self._move({gone.partition: gone.first})
                if not self.pending:
                    return decode_batch([], width)
        if not records:
            # A log that was restored from a backup may end earlier.
            ends = {partition: end for partition, (_, end) in log.bounds(READINGS).items()}
            after = {one: self.until[one] if at >= ends.get(one, 0) else at for one, at in self.start.items()}
        own = [record for record in records if record.offset < self.until[record.partition]]
        self._move(after)
        return decode_batch(own, width)

    def state(self) -> dict[str, Any]:
        return {"start": _pairs(self.start), "until": _pairs(self.until), "again": self.again}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Backlog:
        """Raises `KeyError`, `TypeError` or `ValueError` for a damaged state."""
        return cls(dict(state["start"]), dict(state["until"]), bool(state["again"]))

    def _move(self, after: Positions) -> None:
        self.start |= after
        for partition in [one for one, at in self.start.items() if at >= self.until[one]]:
            del self.start[partition], self.until[partition]
        if not self.start:
            self.again = False


def _pairs(positions: Positions) -> list[list[int]]:
    return [[partition, offset] for partition, offset in sorted(positions.items())]
