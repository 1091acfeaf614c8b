"""SQLite files that are read and not changed: no byte of them, and no file appears beside them.

SQLite's own read-only mode makes a write-ahead log and an index of it beside a file that has none,
and leaves them there; it cannot read such a file in a folder that it may not write. A file without
a write-ahead log is therefore opened as one that nobody changes (`immutable`). Every writer of
shoal's files makes a write-ahead log before it changes anything, so a look at the folder after a
read tells whether that was true; if not, the file is opened and read again. A file with a
write-ahead log is in use, or its process was killed: there SQLite's read-only mode changes nothing
but the index, `-shm`, by which processes share the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeVar

WAIT_S = 5.0
"""wait for a process that has the file for a moment"""

T = TypeVar("T")


class FileState(NamedTuple):
    """What changes when a process writes a file that had no write-ahead log."""

    inode: int
    size: int
    changed_ns: int
    has_wal: bool


def state_of(path: Path) -> FileState | None:
    """The state of a file; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return FileState(found.st_ino, found.st_size, found.st_mtime_ns, wal_of(path).exists())


def wal_of(path: Path) -> Path:
    """The write-ahead log of a file, which is there while a process has the file open."""
    return path.with_name(f"{path.name}-wal")


class ReadOnlyFile:
    """A connection that changes nothing. `is_current` says whether what it gave was there."""

    def __init__(self, path: Path, wait_s: float = WAIT_S) -> None:
        """Raises as `sqlite3` does; `sqlite3.OperationalError` where there is no file."""
        self._path = path
        self._state = state_of(path)
        shared = self._state is not None and self._state.has_wal
        options = "mode=ro" if shared else "mode=ro&immutable=1"
        # As a URI, in which a ? or % of the name is escaped: it would otherwise begin the options.
        self.connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}", uri=True, timeout=wait_s, isolation_level=None
        )

    @property
    def is_current(self) -> bool:
        """Whether the file is still the one that was opened, in the state that the mode needs."""
        state = state_of(self._path)
        if self._state is None or state is None:
            return state == self._state
        if self._state.has_wal:
            # Processes share it: SQLite itself sees to it that a read is of one moment.
            return state.inode == self._state.inode and state.has_wal
        return state == self._state

    def close(self) -> None:
        """Close the file. Closing twice has no effect."""
        self.connection.close()


def read_unchanged(path: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    """What `read` finds in a file, at one moment; it is called again where the file changed.

    Raises as `read` and `sqlite3` do.
    """
    while True:
        with closing(ReadOnlyFile(path)) as file:
            try:
                found = read(file.connection)
            except sqlite3.DatabaseError:
                # Pages of two moments are no database.
                if file.is_current:
                    raise
                continue
            if file.is_current:
                return found
