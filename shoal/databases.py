"""SQLite files: a write transaction, and what the errors of SQLite come from."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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


def primary_code(error: sqlite3.Error) -> int:
    """The error's code without its details; 0 where it has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
