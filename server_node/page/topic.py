"""One topic of a federation, read from its beginning on by a process that writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
            self._ends_at_start = _ends(log, name)
            self._identity = log.identity(name)
        except TopicMissing as missing:
            # Processes may start in any order, so the server may not have made it yet.
            raise _not_there(missing) from None

    def ends(self) -> Positions:
        """partition -> offset of the next record. Raises as `read`."""
        with self._noticing_its_end():
            return _ends(self._log, self.name)

    @property
    def caught_up(self) -> bool:
        """Whether every record that was there at the start has been read."""
        ends = self._ends_at_start.items()
        return all(self._positions.get(partition, 0) >= end for partition, end in ends)

    def read(self, limit: int, timeout_s: float = 0.0) -> Sequence[Record]:
        """The next records, as `Log.read`.

        Raises `LogUnavailable` where records were removed before they were read, or the topic was
        deleted or made anew: a new reader begins at its beginning.
        """
        with self._noticing_its_end():
            records, self._positions = self._log.read(self.name, self._positions, limit, timeout_s)
        return records

    @contextmanager
    def _noticing_its_end(self) -> Iterator[None]:
        """Raises `LogUnavailable` inside where the topic that was opened is no more."""
        try:
            yield
        except OffsetOutOfRange as gone:
            raise LogUnavailable(f"{gone.topic} is read from its beginning again: {gone}") from None
        except LogError as error:
            raise self._reason(error) from None

    def _reason(self, error: LogError) -> LogError | LogUnavailable:
        """`error`, or in its place that the topic was deleted or made anew. Raises as the log does
        while it is away."""
        try:
            if self._log.identity(self.name) == self._identity:
                return error
        except TopicMissing as missing:
            return _not_there(missing)
        except LogError:
            # Kafka's log tells so by an error. What else is wrong shows when it is opened again.
            pass
        return LogUnavailable(
            f"{self.name} was deleted or made anew: it is read from its beginning"
        )


def _ends(log: Log, name: str) -> Positions:
    return {partition: end for partition, (_, end) in log.bounds(name).items()}


def _not_there(missing: TopicMissing) -> LogUnavailable:
    return LogUnavailable(
        f"{missing}. Start the server or the replicas of the federation, or check [federation]"
        " name and [log] address"
    )
