"""Real processes of a federation, started by the command line and stopped by their process id."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
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
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self._process.terminate()
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        """Wait until it ends by itself, in order."""
        assert self._process.wait(PATIENCE_S) == 0, self.said()

    def again(self) -> Process:
        """The same process once more."""
        return Process(self.words, self._log)


@contextlib.contextmanager
def none_left_over(processes: list[Process]) -> Iterator[None]:
    """Whatever happens, what was started is stopped."""
    try:
        yield
    finally:
        for process in processes:
            if process.running():
                process.kill()
