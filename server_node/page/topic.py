"""One topic of a federation, read from its beginning on by a process that writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.errors import LogError, LogUnavailable, OffsetOutOfRange, TopicMissing
from shoal.transports.base import Log, Positions, Record, beginning


class FollowedTopic:
    """The records of a topic, in their order, each once."""

    def __init__(self, log: Log, name: str) -> None:
        """Raises `LogUnavailable` where the topic is not there yet, and as the log does."""
        self._log = log
        self.name = name
        try:
            self._positions: Positions = beginning(log, name)
            self._ends_at_start = self.ends()
            self._identity = log.identity(name)
        except TopicMissing as missing:
            # Processes may start in any order, so the server may not have made it yet.
            raise LogUnavailable(
                f"{missing}. Start the server or the replicas of the federation, or check"
                " [federation] name and [log] address"
            ) from None

    def ends(self) -> Positions:
        """partition -> offset of the next record."""
        return {partition: end for partition, (_, end) in self._log.bounds(self.name).items()}

    @property
    def caught_up(self) -> bool:
        """Whether every record that was there at the start has been read."""
        ends = self._ends_at_start.items()
        return all(self._positions.get(partition, 0) >= end for partition, end in ends)

    def read(self, limit: int, timeout_s: float = 0.0) -> Sequence[Record]:
        """The next records, as `Log.read`.

        Raises `LogUnavailable` where records were removed before they were read, or the topic was
        made anew: a new reader begins at its beginning.
        """
        try:
            records, self._positions = self._log.read(self.name, self._positions, limit, timeout_s)
        except OffsetOutOfRange as gone:
            raise LogUnavailable(f"{gone.topic} is read from its beginning again: {gone}") from None
        except LogError:
            if self._was_made_anew():
                raise LogUnavailable(
                    f"{self.name} was made anew: it is read from its beginning"
                ) from None
            raise
        return records

    def _was_made_anew(self) -> bool:
        try:
            return self._log.identity(self.name) != self._identity
        except LogError:
            # Kafka's log tells so by an error. What else is wrong shows when it is opened again.
            return True
