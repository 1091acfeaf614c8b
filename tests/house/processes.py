"""Real `shoal` processes of a federation, started by the command line and stopped by their process
id."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.forked_python import nodes

TIMEOUT_S = 280
"""pytest's own limit for a test is shortly above; on a busy machine a process takes many times its
usual time"""

SHOWN_CHARACTERS = 2000
"""of the log of a process, at the end of a failed test"""


class Process:
    """One `shoal` process; its standard error is appended to a file that is shown when it fails."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments = arguments
        self._log = log
        log.touch()
        self._log_begins = log.stat().st_size
        """of this process, in what those before it wrote"""
        self._process = nodes().start(arguments, Path(os.devnull), log, log.parent)

    def log_text(self) -> str:
        """Everything that this process and those restarted before it wrote to standard error."""
        return self._log.read_text(encoding="utf-8")

    def own_log_text(self) -> str:
        """What this process wrote to standard error."""
        return self._log.read_bytes()[self._log_begins :].decode()

    def state_text(self) -> str:
        """The command, whether it is running or its exit code, and the end of its log."""
        code = self._process.poll()
        state = "running" if code is None else f"ended with {code}"
        command = " ".join(self.arguments)
        return f"shoal {command}: {state}\n{self.log_text()[-SHOWN_CHARACTERS:]}"

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        kill_all([self])

    def send(self, number: signal.Signals) -> None:
        """Send a signal and return at once."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once the process has ended."""
        return self._process.wait(TIMEOUT_S)

    def resident_bytes(self) -> int:
        """The memory it uses now (Linux)."""
        _, resident, *_ = Path(f"/proc/{self._process.pid}/statm").read_text("ascii").split()
        return int(resident) * resource.getpagesize()

    def open_descriptors(self) -> int:
        """How many files and sockets it has open (Linux)."""
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(TIMEOUT_S)

    def end(self, code: int = 0) -> None:
        """Wait until it ends by itself, with this exit code."""
        assert self._process.wait(TIMEOUT_S) == code, self.log_text()

    def restarted(self) -> Process:
        """A new process with the same arguments and the same log file."""
        return Process(self.arguments, self._log)


def kill_all(processes: Iterable[Process]) -> None:
    """SIGKILL for all of them, before the end of any is waited for."""
    killed = list(processes)
    for process in killed:
        process.send(signal.SIGKILL)
    for process in killed:
        process.wait()


def wait_until(holds: Callable[[], bool]) -> None:
    """Return once the condition holds; only pytest's timeout limits the wait."""
    while not holds():
        time.sleep(0.1)


@contextlib.contextmanager
def killed_on_exit(processes: list[Process]) -> Iterator[None]:
    """Kill whatever of these is still running when the block ends.

    If the block fails, pytest shows with the failure how each process stood and how its log ends: a
    wait that never ended tells nothing by itself.
    """
    try:
        yield
    except BaseException:
        for process in processes:
            print(process.state_text())
        raise
    finally:
        for process in processes:
            if process.running():
                process.kill()
