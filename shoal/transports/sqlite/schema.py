"""The file of the embedded log: its layout, how it is opened, and SQLite's errors as errors of shoal.

One table per topic and partition, the offset as rowid, pages of 16 KiB, and a write-ahead log. Tables are named by
number, never by topic, so a topic's name is always a value and never part of a statement.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.databases import primary_code, writing
from shoal.errors import LogError, LogFolderMissing, LogUnavailable, SettingsError, ShoalError
from shoal.transports.sqlite import log_time

APPLICATION_ID = 0x53484F4C
"""'SHOL', which `file` and `PRAGMA application_id` show for a log of shoal"""
SCHEMA_VERSION = 2

PAGE_BYTES = 16 * 1024
CACHE_BYTES = 512 * 1024
"""of a connection; records are written and read once and in order, so a larger cache has no use"""
WAL_PAGES = 1000
"""pages (16 MiB) after which a commit moves the write-ahead log into the file"""
WAL_BYTES_KEPT = 16 * 1024 * 1024
"""size to which the write-ahead log is cut after it was moved"""

_TABLES = (
    """CREATE TABLE topics (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, identity BLOB NOT NULL,
        partitions INTEGER NOT NULL, compact INTEGER NOT NULL,
        retain_bytes INTEGER, retain_s REAL, record_bytes_max INTEGER NOT NULL)""",
    # `next` is the high-water mark: offsets go on from it even when retention has emptied the table. `first` is
    # moved by retention only, so that a gap left by compaction is not taken for a loss.
    """CREATE TABLE marks (
        topic INTEGER NOT NULL, partition INTEGER NOT NULL,
        first INTEGER NOT NULL, next INTEGER NOT NULL, bytes INTEGER NOT NULL,
        PRIMARY KEY (topic, partition)) WITHOUT ROWID""",
    log_time.TABLE,
)

_MEANINGS: dict[int, tuple[type[ShoalError], str]] = {
    sqlite3.SQLITE_FULL: (LogUnavailable, "disk full or file_bytes_max reached; make room, or retain less, and retry"),
    sqlite3.SQLITE_IOERR: (LogUnavailable, "the disk refused to read or write; check its space, quota and health"),
    sqlite3.SQLITE_BUSY: (LogUnavailable, "another process held the lock too long; retry, or find that process"),
    sqlite3.SQLITE_LOCKED: (LogUnavailable, "another process held the lock too long; retry, or find that process"),
    sqlite3.SQLITE_PROTOCOL: (LogUnavailable, "too many processes opened the log at once; retry"),
    sqlite3.SQLITE_READONLY: (SettingsError, "not writable; give this user the right to write the file and its folder"),
    sqlite3.SQLITE_PERM: (SettingsError, "not accessible; give this user the right to read and write the file"),
    sqlite3.SQLITE_CANTOPEN: (SettingsError, "cannot be opened; check that the folder exists and may be written"),
    sqlite3.SQLITE_NOTADB: (LogError, "not a log of shoal; give another path, or move the file away"),
    sqlite3.SQLITE_CORRUPT: (LogError, "damaged; move it away to start with an empty log, or restore a copy"),
}


@contextmanager
def log_file_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite inside into errors of shoal, each with one line that says what to do."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise LogError(f"{path}: used from another thread; open one log per thread ({error})") from error
    except UnicodeDecodeError as error:
        # An error message of SQLite quotes a damaged name.
        advice = _MEANINGS[sqlite3.SQLITE_CORRUPT][1]
        raise LogError(f"log {path}: {advice} (its table names are not text)") from error
    except sqlite3.Error as error:
        kind, advice = _MEANINGS.get(primary_code(error), (LogError, "SQLite refused"))
        raise kind(f"log {path}: {advice} ({error})") from error


@contextmanager
def reading(db: sqlite3.Connection) -> Iterator[None]:
    """One consistent view of the file; it must be short, because the write-ahead log cannot be reused meanwhile."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")


def connect(path: Path, *, durable: bool, file_bytes_max: int | None, wait_s: float) -> sqlite3.Connection:
    """Open the log at `path`, created if there is none. Raises `SettingsError`, `LogError`, `LogUnavailable`."""
    if "\0" in str(path):
        raise SettingsError(f"log {str(path)!r}: holds a NUL character; give another path")
    if path.is_dir():
        raise SettingsError(f"log {str(path)!r}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise LogFolderMissing(f"log {str(path)!r}: must be a file in an existing folder; create the folder first")
    with log_file_errors(path):
        db = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
        try:
            _when_unlocked(db, path, wait_s)
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            if durable:  # on macOS fsync alone leaves commits in the drive's cache
                db.execute("PRAGMA fullfsync = ON")
            db.execute("PRAGMA secure_delete = FAST")
            db.execute(f"PRAGMA cache_size = -{CACHE_BYTES // 1024}")
            db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            if file_bytes_max is not None:
                db.execute(f"PRAGMA max_page_count = {max(1, file_bytes_max // PAGE_BYTES)}")
        except BaseException:
            db.close()
            raise
    return db


def _when_unlocked(db: sqlite3.Connection, path: Path, wait_s: float) -> None:
    """Check and prepare the file. SQLite does not wait its busy timeout for the change to WAL, so the wait is here."""
    until = time.monotonic() + wait_s
    while True:
        try:
            return _prepare(db, path)
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.005)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    empty = _check(db, path)
    if empty:  # both have an effect only before the first page is written
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    if not empty:
        return
    with writing(db):
        if _check(db, path):  # another process may have been faster
            for table in _TABLES:
                db.execute(table)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _check(db: sqlite3.Connection, path: Path) -> bool:
    """Whether the file has no tables yet. Raises `LogError`, before any write, for another program's database."""
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return True
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LogError(f"log {path}: a database of another program; give the log another path")
    if version != SCHEMA_VERSION:
        raise LogError(
            f"log {path}: in layout {version}, this shoal knows {SCHEMA_VERSION}; upgrade shoal, or move the file"
        )
    return False
