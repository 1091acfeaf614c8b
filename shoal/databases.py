"""SQLite files: one write transaction, and SQLite's errors turned into errors of shoal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.errors import CheckpointInUse, LogUnavailable, SettingsError, ShoalError

FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})
"""there is no room, or the disk fails"""
LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""another process has the file"""
NO_ACCESS: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
)
"""this user may not use the file"""


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """One write transaction. The lock is taken at its start, so that it cannot fail for a lock half-way."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # after some errors SQLite has already rolled back
            db.execute("ROLLBACK")
        raise


@contextmanager
def sqlite_errors(path: Path, owner: str, damaged: Callable[[str], ShoalError]) -> Iterator[None]:
    """Turn errors of SQLite inside into errors of shoal that say what to do, for a file that one process has to itself.

    `owner` is the process, in words; `damaged` makes the error for all that has no other cause. The use of a closed
    file is a programming error and stays `sqlite3.ProgrammingError`.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        code = primary_code(error)
        if code in LOCKED:
            raise CheckpointInUse(f"{path}: in use by another process; is {owner} running already?") from None
        if code in FULL:
            raise LogUnavailable(f"{path}: cannot be written: {error}; make room or repair the disk") from None
        if code in NO_ACCESS:
            raise SettingsError(
                f"{path}: cannot be opened ({error}); it must be a file that this user may write, in a folder that "
                "this user may write"
            ) from None
        raise damaged(str(error)) from None
    except UnicodeDecodeError:
        # SQLite's error text quotes a damaged name.
        raise damaged("its names are not text") from None


def primary_code(error: sqlite3.Error) -> int:
    """The error's code without its details; 0 where it has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
