"""Memory and processor time of processes, from the kernel (Linux), and a `shoal client` to
measure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import click

QUIET_S = 0.5
QUIET_CPU = 0.04
"""processor time that an idle client uses at most, as a share of the time that passes: it polls its
logs"""
STARTED_WITHIN_S = 300.0
STOPPED_WITHIN_S = 60.0
MIB = 1024 * 1024
# Threads of a BLAS would add memory and processor time; no large matrices are multiplied here.
ONE_THREAD = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Footprint(NamedTuple):
    """Memory of a process now and at its peak, and its processor time so far."""

    resident_mib: float
    peak_mib: float
    """highest resident memory so far"""
    cpu_s: float
    """processor time, user and system"""


def footprint_of(process: int) -> Footprint:
    """The footprint of a running process, by its id."""
    lines = (
        line.partition(":") for line in Path(f"/proc/{process}/status").read_text().splitlines()
    )
    status = {name: value.strip() for name, _, value in lines}
    # User and system time are 14 and 15 of all fields.
    ticks = sum(map(int, _fields_after_name(process)[11:13]))
    return Footprint(_mib(status["VmRSS"]), _mib(status["VmHWM"]), ticks / os.sysconf("SC_CLK_TCK"))


def is_asleep(process: int) -> bool:
    """Whether a process waits for something; False while it runs or waits for a processor."""
    return _fields_after_name(process)[0] == "S"


def _fields_after_name(process: int) -> list[str]:
    """The third and later fields of the kernel's line about a process; its name, in brackets, may
    hold anything."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def check_proc() -> None:
    """Raises `click.UsageError` where figures of a process cannot be read from the kernel."""
    if not Path("/proc/self/io").exists():
        raise click.UsageError(
            "this system has no /proc to read figures of a process from; run it on Linux"
        )


def free_port() -> int:
    """A port of loopback that is free now."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def free_ports() -> int:
    """The first of two such ports in a row, as a broker and its controller use."""
    while True:
        port = free_port()
        with closing(socket.socket()) as second:
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


class ClientProcess:
    """A `shoal client` process. As a context manager it is ended on exit, whatever happened."""

    def __init__(
        self,
        python: Path,
        config: Path,
        name: str,
        key: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`key` is the client's noise key; when it exists, the client has started. `variables` are
        set in its environment."""
        command = [
            str(python),
            "-m",
            "shoal",
            "client",
            "--config",
            str(config),
            "--name",
            name,
            "--no-wait",
            "--json",
        ]
        self._key = key
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ONE_THREAD | dict(variables or {}),
            cwd=config.parent,
        )

    def settle(self) -> None:
        """Return when the client waits for readings: it has started, sleeps and hardly used the
        processor of late."""
        now = time.monotonic()
        until = now + STARTED_WITHIN_S
        used = self.footprint().cpu_s
        at = now
        while at < until:
            time.sleep(QUIET_S)
            now = time.monotonic()
            spent = self.footprint().cpu_s
            # On a busy machine the time that passes says little: a process that waits for a
            # processor is not idle.
            if (
                self._key.exists()
                and is_asleep(self._process.pid)
                and spent - used < QUIET_CPU * (now - at)
            ):
                return
            used = spent
            at = now
        raise TimeoutError(f"the client was still busy after {STARTED_WITHIN_S:g} s")

    def wait_until_learned(self, readings: int) -> None:
        """Return when it has logged that updates of this number of readings are published."""
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "updates_published" and event["readings"] >= readings:
                return
        raise RuntimeError(
            f"the client ended before it had learnt {readings} readings:\n{''.join(lines[-20:])}"
        )

    def footprint(self) -> Footprint:
        """The footprint now."""
        return footprint_of(self._process.pid)

    def stop(self) -> dict[str, int]:
        """Stop it (SIGTERM) and return the totals that it prints."""
        self._process.terminate()
        printed, errors = self._process.communicate(timeout=STOPPED_WITHIN_S)
        if self._process.returncode:
            raise RuntimeError(
                f"the client ended with {self._process.returncode}:\n{errors[-2000:]}"
            )
        totals: dict[str, int] = json.loads(printed.splitlines()[-1])
        return totals

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def _mib(kernel: str) -> float:
    """The kernel's `kB` are KiB."""
    return int(kernel.split(maxsplit=1)[0]) * 1024 / MIB
