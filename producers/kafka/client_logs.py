"""The readings logs of the clients of a topic, of which those that were used last are open."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from shoal.producers.publisher import ReadingsPublisher
from shoal.transports.base import Log


class ClientLog:
    """The open readings log of a client."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.publishers: dict[int, ReadingsPublisher] = {}
        """partition of the topic -> what publishes its readings"""


class ClientLogs:
    """The readings logs of clients, at most `open_max` of them open at a time.

    open_log: opens the log of a client, which the data call as the second argument says.
    """

    def __init__(self, open_log: Callable[[str, str], Log], open_max: int) -> None:
        self._open_log = open_log
        self._open_max = open_max
        self._logs: dict[str, ClientLog] = {}
        """client -> its log, in the order of their last use"""

    @property
    def open_max(self) -> int:
        """Logs that are open at a time."""
        return self._open_max

    def get(self, client: str, text: str) -> ClientLog:
        """The log of a client, opened where it is closed; the one used longest ago is closed then.

        What was published to that one must be flushed. Raises as the logs do.
        """
        opened = self._logs.pop(client, None)
        if opened is None:
            while len(self._logs) >= self._open_max:
                oldest = next(iter(self._logs))
                self._logs.pop(oldest).log.close()
            opened = ClientLog(self._open_log(client, text))
        self._logs[client] = opened
        return opened

    def leave(self, partition: int) -> None:
        """Forget what publishes the readings of a partition, which another process may do now."""
        for opened in self._logs.values():
            opened.publishers.pop(partition, None)

    def close(self) -> None:
        """Close all."""
        with ExitStack() as stack:
            for opened in self._logs.values():
                stack.callback(opened.log.close)
            self._logs.clear()
