"""Clients of a host that are silent: which may be put away, and how their return is seen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from shoal.config.resolved import ResolvedContract
from shoal.config.settings import Config
from shoal.protocol.topics import READINGS
from shoal.runtime.logs import open_client_log
from shoal.transports.base import Log

# SQLite writes what is new to the second file, and moves it to the first one later.
LOG_FILES = ("readings.db", "readings.db-wal")


def why_kept_open(config: Config) -> str:
    """Why clients of this federation must run while they are silent; empty where they need not."""
    contract: ResolvedContract = config.resolved
    if contract.contract.privacy.hide_presence:
        return "hide_presence: that a client is silent must not show, so it publishes all the time"
    if contract.mode.masked:
        return "masked counts: clients take part in rounds by the clock"
    if contract.in_rounds:
        return f"model {contract.in_rounds[0].name}: clients answer its rounds at any time"
    if config.readings.address:
        return "readings on a broker: what comes for a client that is closed is not seen"
    return ""


class FileState(NamedTuple):
    """What a file is like: a process that writes to it changes that."""

    bytes: int
    changed_ns: int


class Arrivals:
    """Finds whether a client that is closed has readings that it has not read."""

    def __init__(self, config: Config, client: str, of_site: Callable[[], Log] | None) -> None:
        """Begin with what is there now: see `has_come`. `of_site`: see `HostedClient`.

        Raises as the log does.
        """
        self._folder = config.readings_folder / client
        self._of_site = of_site
        self.end = 0
        """offset of the next reading"""
        # The files first: what is written after they were looked at changes them.
        self._files = self._file_states()
        if of_site is not None:
            self.end = _end_of(of_site())
            return
        with closing(open_client_log(config, client)) as log:
            self.end = _end_of(log)

    def has_come(self) -> bool:
        """Whether readings may have come since the start.

        A log of the client's own is not opened: its files are looked at, which is done very often.
        """
        if self._of_site is not None:
            return _end_of(self._of_site()) > self.end
        return self._file_states() != self._files

    def _file_states(self) -> list[FileState | None]:
        return [_state_of(self._folder / name) for name in LOG_FILES]


def _end_of(log: Log) -> int:
    return sum(end for _, end in log.bounds(READINGS).values())


def _state_of(file: Path) -> FileState | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return FileState(status.st_size, status.st_mtime_ns)
