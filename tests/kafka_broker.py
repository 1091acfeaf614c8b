"""Real Kafka brokers for tests: the one that is named, or some of their own."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from deploy.kafka import broker

PORTS = range(20_000, 32_000)
"""ports for brokers, and for whatever is told its port before it starts"""
WORKERS = 12
"""workers among which they are divided"""


class Broker:
    """A broker in a folder, on a port of its own, that can be stopped, killed and started again."""

    def __init__(
        self,
        folder: Path,
        more: str = "",
        format_options: Sequence[str] = (),
        java_options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._more = more
        self._format_options = format_options
        self._java_options = java_options
        self.port = free_ports()
        self.start()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        cluster = broker.cluster_of(self.folder, self.port)
        (self._process,) = broker.start(
            cluster,
            more=self._more,
            format_options=self._format_options,
            java_options=self._java_options,
        )

    def stop(self) -> None:
        """SIGTERM, and wait: a controlled shutdown."""
        self._process.terminate()
        self._process.wait()

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        self._process.kill()
        self._process.wait()


class SharedBroker:
    """The broker of all processes of a test run: the first one that needs it starts it, the last
    one stops it.

    A broker of its own for each would compute as long again, most of it while it waits for work.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._users = (folder / "users").open("w")
        with self._alone():
            fcntl.flock(self._users, fcntl.LOCK_SH)
            port = folder / "port"
            if broker.pid_of(folder) is None:
                port.write_text(str(free_ports()), encoding="utf-8")
                self._start(port.read_text(encoding="utf-8"))
            self.bootstrap = f"127.0.0.1:{port.read_text(encoding='utf-8')}"

    def _start(self, port: str) -> None:
        """Start it by a process that ends: the broker may outlive this one, and is no child
        of it."""
        command = [
            sys.executable,
            broker.__file__,
            "start",
            "--dir",
            str(self._folder),
            "--port",
            port,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def leave(self) -> None:
        """This process needs it no more."""
        with self._alone(), self._users:
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process has not left yet
            broker.stop(self._folder)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process starts or stops it meanwhile."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class Cluster:
    """Several brokers of one cluster, each of which can be killed and started again; numbers begin
    at 1."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self._nodes = broker.cluster_of(folder, free_ports(2 * nodes), nodes)
        self._processes = dict(zip(range(1, nodes + 1), broker.start(self._nodes), strict=True))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    def kill(self, number: int) -> None:
        """SIGKILL, whatever it is doing."""
        self._processes[number].kill()
        self._processes[number].wait()

    def start(self, number: int) -> None:
        """Once more, after it was killed."""
        (self._processes[number],) = broker.start(self._nodes, only=[self._nodes[number - 1]])

    def end(self) -> None:
        """No more of it is needed: no client is left for which to shut down in order."""
        for number in self._processes:
            self.kill(number)


class WorkerPorts:
    """The share of `PORTS` of one worker of pytest-xdist, in turn from a place drawn at random, as
    other runs may go on beside this one."""

    def __init__(self, worker: int) -> None:
        size = len(PORTS) // WORKERS
        self._share = PORTS[size * (worker % WORKERS) :][:size]
        self._at = random.SystemRandom().randrange(size)

    def next(self, count: int) -> int:
        """The first of the next `count` ports."""
        if self._at + count > len(self._share):
            self._at = 0
        first = self._share[self._at]
        self._at += count
        return first


_ports_of_worker = WorkerPorts(int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


def free_ports(count: int = 2) -> int:
    """A port that no process uses, nor the ones after it, `count` in all.

    Each worker of a run has ports of its own, and gives none twice, so that no other test takes one
    before its process has started.

    Connections get ports of their own from 32768 on, unless the system is set otherwise. These are
    below, so that no connection takes one between this call and the start of a process, or while a
    broker is away.
    """
    while True:
        port = _ports_of_worker.next(count)
        try:
            with ExitStack() as held:
                for number in range(count):
                    held.enter_context(closing(socket.socket())).bind(("127.0.0.1", port + number))
        except OSError:
            continue
        return port
