"""A real Kafka broker for tests: the one that is named, or one of their own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from deploy.kafka import broker


class Broker:
    """A broker in a folder, on a port of its own, that can be stopped, killed and started again."""

    def __init__(self, folder: Path, more: str = "", format_words: Sequence[str] = ()) -> None:
        self.folder = folder
        self._more, self._format_words = more, format_words
        self.port = free_ports()
        self.start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = broker.start(self.folder, self.port, self._more, self._format_words)

    def stop(self) -> None:
        """SIGTERM, and wait: a controlled shutdown."""
        self._process.terminate()
        self._process.wait()

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        self._process.kill()
        self._process.wait()


def free_ports() -> int:
    """A port that nobody uses, and the next one too."""
    while True:
        with closing(socket.socket()) as one, closing(socket.socket()) as next_one:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
