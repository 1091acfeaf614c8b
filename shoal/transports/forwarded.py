"""A log in front of another one: every call goes to that one, and a subclass changes some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.transports.base import Headers, Log, Positions, Record, TopicSettings


class ForwardedLog:
    """A `Log` whose calls go to the log that `_using` gives."""

    @contextmanager
    def _using(self) -> Iterator[Log]:
        """The log that a call goes to, for as long as the call takes."""
        raise NotImplementedError
        yield

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`."""
        with self._using() as log:
            log.ensure(topic, settings)

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`."""
        with self._using() as log:
            return log.identity(topic)

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Log.publish`."""
        with self._using() as log:
            log.publish(topic, value, key, headers, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`."""
        with self._using() as log:
            log.flush(timeout_s)

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`."""
        with self._using() as log:
            return log.read(topic, at, limit, timeout_s)

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        with self._using() as log:
            return log.bounds(topic)

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """See `Log.show_progress`."""
        with self._using() as log:
            log.show_progress(reader, topic, at)

    def close(self) -> None:
        """See `Log.close`."""
        with self._using() as log:
            log.close()
