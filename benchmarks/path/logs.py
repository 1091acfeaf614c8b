"""The logs a path goes over: the embedded one, and Kafka, which is named or started for the run."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from deploy.kafka import broker

EMBEDDED, KAFKA = "sqlite", "kafka"
KINDS = (EMBEDDED, KAFKA)


class Place:
    """Where the federation's log is; for a broker of our own, also its process."""

    def __init__(self, kind: str, address: str, folder: Path | None = None, port: int = 0) -> None:
        self.kind, self.address = kind, address
        self._folder, self._port = folder, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the broker, if it is our own."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the broker, if it is our own."""
        if self._folder is not None:
            (self._process,) = broker.start(broker.cluster_of(self._folder, self._port))

    def kill(self) -> float:
        """SIGKILL the broker, and start it again at once; the moment of the kill."""
        assert self._process is not None
        at = time.time()
        self.end()
        self.start()
        return at

    def end(self) -> None:
        """Nothing that it holds is needed any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def place_of(kind: str, folder: Path) -> Iterator[Place]:
    """A place for logs, ready. Kafka is at KAFKA_BOOTSTRAP, or started in `folder`."""
    named = os.environ.get("KAFKA_BOOTSTRAP")
    if kind == EMBEDDED:
        yield Place(kind, "sqlite:federation.db")
    elif named:
        yield Place(kind, f"kafka://{named}")
    else:
        port = _free_ports()
        place = Place(kind, f"kafka://127.0.0.1:{port}", folder, port)
        place.start()
        try:
            yield place
        finally:
            place.end()


def _free_ports() -> int:
    """A port that nobody uses, nor the next one, which is the controller's."""
    while True:
        with closing(socket.socket()) as one, closing(socket.socket()) as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
