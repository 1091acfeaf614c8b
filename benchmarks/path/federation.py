"""A federation of real processes on one log: producer, clients, server, and an observer that reads
the snapshots."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.path.latencies import LoggedUpdate, SeenSnapshot, SnapshotContents, StoredReadings
from benchmarks.process import ONE_THREAD, Footprint, footprint_of, is_asleep
from shoal.config.settings import load_config
from shoal.errors import LogUnavailable, ShoalError
from shoal.protocol.messages import Update
from shoal.protocol.topics import READINGS, ensure_topics
from shoal.transports import open_log
from shoal.transports.base import Log, Positions, Record

QUIET_S = 0.4
QUIET_CPU = 0.075
"""processor time that idle processes use together at most, as a share of the time that passes: they
poll their logs"""
POLL_S = 0.1
PATIENCE_S = 300.0
SERVER = "server"
PRODUCER = "producer"
OBSERVER = "observer"


class FederationProcesses:
    """Processes by name: server, producer, observer, client-1, client-2, ...; a context manager
    that ends them all."""

    def __init__(self, file: Path, stream: Path, clients: int, kernels: str | None = None) -> None:
        """`file` is the federation file, in a folder of its own; `stream` is the file that the
        producer replays.

        `kernels`: SHOAL_KERNELS of all processes; None: as in this process.
        """
        self.folder = file.parent
        self._stream = stream
        self._config = load_config(file)
        self._environment = ONE_THREAD | ({} if kernels is None else {"SHOAL_KERNELS": kernels})
        self.clients = [f"client-{number}" for number in range(1, clients + 1)]
        self._commands = {
            OBSERVER: ["benchmarks.path.observer", str(file)],
            SERVER: ["shoal", "server", "--config", str(file), "--json"],
            **{
                name: ["shoal", "client", "--config", str(file), "--name", name, "--json"]
                for name in self.clients
            },
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._log: Log | None = None
        self._updates: list[LoggedUpdate] = []
        self._stored: dict[str, tuple[list[int], list[float]]] = {}
        self._read_to: dict[tuple[str, str], Positions] = {}
        self.before: dict[str, Footprint] = {}
        """footprint of each process before the first reading"""
        self.after: dict[str, Footprint] = {}
        """footprint of each process at the last sample"""

    def __enter__(self) -> Self:
        """Start all processes but the producer, and wait until they are idle."""
        with closing(open_log(self._config.log)) as log:
            ensure_topics(log, self._config.contract)
        try:
            for name in self._commands:
                self.start(name)
            self._wait_until_idle()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def start(self, name: str) -> None:
        """Start a process, for the first time or again."""
        with (
            (self.folder / f"{name}.out").open("ab") as out,
            (self.folder / f"{name}.err").open("ab") as err,
        ):
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", *self._commands[name]],
                stdout=out,
                stderr=err,
                env=self._environment,
            )

    def produce(self, *, rate: int | None = None, limit: int | None = None) -> None:
        """Start the producer: `rate` readings per second over all clients, or as fast as possible;
        `limit` readings."""
        pace = ["--speed", "max"] if rate is None else ["--rate", f"{rate}/s"]
        end = [] if limit is None else ["--limit", str(limit)]
        config = str(self.folder / "federation.toml")
        options = [
            "--config",
            config,
            "--clients",
            str(len(self.clients)),
            "--split",
            "round-robin",
            "--loop",
            "--json",
        ]
        self._commands[PRODUCER] = [
            "shoal",
            "producer",
            str(self._stream),
            *options,
            *pace,
            *end,
            "--json",
        ]
        self.start(PRODUCER)

    def kill(self, name: str) -> float:
        """Kill a process (SIGKILL) and start it again at once, as a supervisor does; the time of
        the kill."""
        process = self._running[name]
        at = time.time()
        process.kill()
        process.wait(PATIENCE_S)
        self.start(name)
        return at

    def stop(self, name: str) -> None:
        """Stop a process (SIGTERM) and wait for its end."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        if process.wait(PATIENCE_S):
            raise RuntimeError(f"{name} ended with {process.returncode}:\n{self._last_lines(name)}")

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait for a condition. Raises `TimeoutError`, and RuntimeError when a process has ended
        too early."""
        until = time.monotonic() + PATIENCE_S
        while not reached():
            if time.monotonic() > until:
                raise TimeoutError(
                    f"not within {PATIENCE_S:g} s; the last lines of the"
                    f" server:\n{self._last_lines(SERVER)}"
                )
            self.sample()
            time.sleep(POLL_S)

    def sample(self) -> None:
        """Check that all processes run, and take their memory and processor time."""
        for name, process in self._running.items():
            if process.poll() is None:
                try:
                    self.after[name] = footprint_of(process.pid)
                except (FileNotFoundError, KeyError, ProcessLookupError):
                    continue  # the process has just ended
            elif process.returncode or name != PRODUCER:
                raise RuntimeError(
                    f"{name} ended with {process.returncode}:\n{self._last_lines(name)}"
                )

    def contents(self) -> SnapshotContents:
        """The snapshots read so far, and the readings in each."""
        seen = [
            SeenSnapshot(*json.loads(line))
            for line in _whole_lines(self.folder / f"{OBSERVER}.out")
        ]
        return SnapshotContents(self.updates(), seen)

    def updates(self) -> list[LoggedUpdate]:
        """All updates in the log so far."""
        try:
            if self._log is None:
                self._log = open_log(self._config.log)
            self._updates += map(
                _logged_update, self._read_new(self._log, self._config.contract.updates_topic)
            )
        except LogUnavailable:
            self._close_log()  # the broker may have been killed; the next call tries again
        return list(self._updates)

    def stored(self, client: str) -> StoredReadings:
        """The readings in a client's readings log so far."""
        rows, moments = self._stored.setdefault(client, ([], []))
        with closing(open_log(f"sqlite:{self.folder / 'clients' / client / 'readings.db'}")) as log:
            for record in self._read_new(log, READINGS, client):
                rows.append(int(dict(record.headers)["number"]))
                moments.append(record.timestamp_ms / 1000)
        return StoredReadings(np.array(rows, dtype=np.int64), np.array(moments))

    def _read_new(self, log: Log, topic: str, owner: str = "") -> Iterator[Record]:
        """The records since the last call."""
        while True:
            records, self._read_to[owner, topic] = log.read(
                topic, self._read_to.get((owner, topic), {0: 0}), 5000
            )
            if not records:
                return
            yield from records

    def _close_log(self) -> None:
        log = self._log
        self._log = None
        if log is not None:
            with suppress(ShoalError):
                log.close()

    def _wait_until_idle(self) -> None:
        """Return when every process has started and sleeps. A busy machine gives them little time,
        so this may last."""
        now = time.monotonic()
        until = now + PATIENCE_S
        used = 0.0
        at = now
        while at < until:
            time.sleep(QUIET_S)
            self.sample()
            now = time.monotonic()
            spent = sum(usage.cpu_s for usage in self.after.values())
            sleeping = all(is_asleep(process.pid) for process in self._running.values())
            if self._begun() and sleeping and spent - used < QUIET_CPU * (now - at):
                self.before = dict(self.after)
                return
            used = spent
            at = now
        raise TimeoutError(f"the processes were still busy after {PATIENCE_S:g} s")

    def _begun(self) -> bool:
        """Whether the server has its checkpoint, and each client its key."""
        keys = [self.folder / "clients" / name / "noise.key" for name in self.clients]
        return all(file.exists() for file in [self._config.server.folder / "checkpoint.db", *keys])

    def _end(self) -> None:
        self._close_log()
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _last_lines(self, name: str) -> str:
        return "\n".join(
            (self.folder / f"{name}.err").read_text(encoding="utf-8").splitlines()[-20:]
        )


def _logged_update(record: Record) -> LoggedUpdate:
    update = Update.decode(record.value, record.headers)
    size = (
        len(record.value or b"")
        + len(record.key or b"")
        + sum(len(n) + len(c) for n, c in record.headers)
    )
    return LoggedUpdate(update.client, update.sequence, update.readings, size)


def _whole_lines(file: Path) -> list[str]:
    """All lines but the last one if it is not complete."""
    return file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
