"""The logs that are measured: the embedded one, and Kafka, at a given address or started for the
run."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.process import free_ports
from deploy.kafka import broker

EMBEDDED = "sqlite"
KAFKA = "kafka"
KINDS = (EMBEDDED, KAFKA)


class LogPlace:
    """Address of the federation's log, and the broker's process if it was started for the run."""

    def __init__(self, kind: str, address: str, folder: Path | None = None, port: int = 0) -> None:
        self.kind = kind
        self.address = address
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the broker, if it was started for the run."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the broker, if it is not a given one."""
        if self._folder is not None:
            (self._process,) = broker.start(broker.cluster_of(self._folder, self._port))

    def kill(self) -> float:
        """Kill the broker (SIGKILL) and start it again at once; the time of the kill."""
        assert self._process is not None
        at = time.time()
        self.end()
        self.start()
        return at

    def end(self) -> None:
        """End the broker; its data are not needed any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def log_place(kind: str, folder: Path) -> Iterator[LogPlace]:
    """A log that is ready to use. Kafka is at KAFKA_BOOTSTRAP, or started in `folder`."""
    named = os.environ.get("KAFKA_BOOTSTRAP")
    if kind == EMBEDDED:
        yield LogPlace(kind, "sqlite:federation.db")
    elif named:
        yield LogPlace(kind, f"kafka://{named}")
    else:
        port = free_ports()
        place = LogPlace(kind, f"kafka://127.0.0.1:{port}", folder, port)
        place.start()
        try:
            yield place
        finally:
            place.end()
