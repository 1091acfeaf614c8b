"""Real processes of a federation, started by the command line and stopped by their process id."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PATIENCE_S = 120


class Process:
    """One `shoal` process; its standard error goes to a file that is shown when it fails."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.words = words
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "shoal", *words], stdout=subprocess.DEVNULL, stderr=said, cwd=log.parent
            )

    def said(self) -> str:
        """Everything it wrote to standard error, in all its lives."""
        return self._log.read_text(encoding="utf-8")

    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        kill_at_once([self])

    def send(self, number: signal.Signals) -> None:
        """A signal, without waiting for what comes of it."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(PATIENCE_S)

    def resident_bytes(self) -> int:
        """What it holds in memory now."""
        told = subprocess.run(["ps", "-o", "rss=", "-p", str(self._process.pid)], capture_output=True, check=True)
        return 1024 * int(told.stdout)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def end(self, code: int = 0) -> None:
        """Wait until it ends by itself, in order or with this exit code."""
        assert self._process.wait(PATIENCE_S) == code, self.said()

    def again(self) -> Process:
        """The same process once more."""
        return Process(self.words, self._log)


def kill_at_once(processes: Iterable[Process]) -> None:
    """SIGKILL for all of them before the first is mourned."""
    killed = list(processes)
    for process in killed:
        process.send(signal.SIGKILL)
    for process in killed:
        process.wait()


def wait_until(holds: Callable[[], bool]) -> None:
    """pytest's own timeout is the patience."""
    while not holds():
        time.sleep(0.1)


@contextlib.contextmanager
def none_left_over(processes: list[Process]) -> Iterator[None]:
    """Whatever happens, what was started is stopped."""
    try:
        yield
    finally:
        for process in processes:
            if process.running():
                process.kill()
