"""The file of the embedded log: its layout, its time, how it is opened, and the topics declared in
it.

One table per topic and partition, the offset as rowid, pages of 16 KiB, and a write-ahead log.
Tables are named by number, never by topic, so a topic's name is always a value and never part of a
statement. A row is one record, or several of one batch: its offset is that of the first, and
`batch_records` is their number; small rows are packed into one later (`packing`). `checksum` is
the CRC-32 of all other values of the row: SQLite has none, so that a bit that flips in a value
would be read as if it had been written. It is no protection from who writes the file: that is what
signatures are for.

The log has a time of its own, by which it stamps records and retains them, as Kafka does with
LogAppendTime. Processes that write the same file may disagree about the date: a clock was set
wrong, or is corrected while they run. If a writer's date decided, one that is eight days ahead
would remove all records of the last seven. So the file keeps a time that only advances as fast as
the machine's steady clock, which all its processes share and no user can set. After a restart of
the machine, when that clock begins again, the time goes on from the date, and never back.
"""

from __future__ import annotations

import secrets
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from shoal.errors import LogError, LogFolderMissing, LogUnavailable, SettingsError, ShoalError
from shoal.files import make_private, primary_code, writing
from shoal.transports.base import TopicSettings

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TABLE = (
    "CREATE TABLE IF NOT EXISTS time (boot TEXT NOT NULL, steady_ms INTEGER NOT NULL, now_ms"
    " INTEGER NOT NULL)"
)


def log_time_ms(db: sqlite3.Connection, wall: Callable[[], float]) -> int:
    """The log's time in milliseconds since 1970, within a transaction. `wall`: this process's date,
    in seconds."""
    boot = _boot()
    steady_ms = _steady_ms()
    newest = "SELECT boot, steady_ms, now_ms FROM time"
    try:
        row = db.execute(newest).fetchone()
    except sqlite3.OperationalError:
        # Made again where it is gone: it must not stop what cannot be made again, the records.
        # Where the error is another one, this raises it again.
        db.execute(TABLE)
        row = db.execute(newest).fetchone()
    if row is None or not (isinstance(row[1], int) and isinstance(row[2], int)):
        now_ms = int(1000 * wall())
    elif row[0] == boot and steady_ms >= row[1]:
        return int(row[2] + steady_ms - row[1])
    else:
        now_ms = max(int(row[2]), int(1000 * wall()))
    db.execute("DELETE FROM time")
    db.execute("INSERT INTO time VALUES (?, ?, ?)", (boot, steady_ms, now_ms))
    return now_ms


def _steady_ms() -> int:
    """Milliseconds since the machine was started; while it slept, where the system counts that."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return int(1000 * time.clock_gettime(time.CLOCK_BOOTTIME))
    return int(1000 * time.monotonic())


@cache
def _boot() -> str:
    """An identity of this run of the machine; empty where the system has none."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


APPLICATION_ID = 0x53484F4C
"""'SHOL', which `file` and `PRAGMA application_id` show for a log of shoal"""
SCHEMA_VERSION = 5
BEFORE_BATCHES = 2
"""layout whose rows are one record each: `shoal upgrade` adds the column `batch_records`"""
BEFORE_CHECKSUMS = 3
"""layout whose rows have no checksum: `shoal upgrade` computes that of what it finds"""
BEFORE_PACKING = 4
"""layout whose rows are never packed: `shoal upgrade` leaves them as they are"""

PAGE_BYTES = 16 * 1024
CACHE_BYTES = 512 * 1024
"""cache of a connection; records are written and read once and in order, so a larger cache has no
use"""
WAL_PAGES = 1000
"""pages (16 MiB) after which a commit moves the write-ahead log into the file"""
WAL_BYTES_KEPT = 16 * 1024 * 1024
"""size to which the write-ahead log is cut after it was moved"""

_TABLES = (
    """CREATE TABLE topics (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, identity BLOB NOT NULL,
        partitions INTEGER NOT NULL, compact INTEGER NOT NULL,
        retain_bytes INTEGER, retain_s REAL, record_bytes_max INTEGER NOT NULL)""",
    # `next` is the high-water mark: offsets go on from it even when retention has emptied the
    # table. `first` is moved by retention only, so that a gap left by compaction is not taken for a
    # loss. `loose` is the number of rows at the end that are to be packed.
    """CREATE TABLE marks (
        topic INTEGER NOT NULL, partition INTEGER NOT NULL,
        first INTEGER NOT NULL, next INTEGER NOT NULL, bytes INTEGER NOT NULL,
        loose INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (topic, partition)) WITHOUT ROWID""",
    TABLE,
)

_MEANINGS: dict[int, tuple[type[ShoalError], str]] = {
    sqlite3.SQLITE_FULL: (
        LogUnavailable,
        "disk full or file_bytes_max reached; make room, or retain less, and retry",
    ),
    sqlite3.SQLITE_IOERR: (
        LogUnavailable,
        "the disk refused to read or write; check its space, quota and health",
    ),
    sqlite3.SQLITE_BUSY: (
        LogUnavailable,
        "another process held the lock too long; retry, or find that process",
    ),
    sqlite3.SQLITE_LOCKED: (
        LogUnavailable,
        "another process held the lock too long; retry, or find that process",
    ),
    sqlite3.SQLITE_PROTOCOL: (LogUnavailable, "too many processes opened the log at once; retry"),
    sqlite3.SQLITE_READONLY: (
        SettingsError,
        "not writable; give this user the right to write the file and its folder",
    ),
    sqlite3.SQLITE_PERM: (
        SettingsError,
        "not accessible; give this user the right to read and write the file",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        SettingsError,
        "cannot be opened; check that the folder exists and may be written",
    ),
    sqlite3.SQLITE_NOTADB: (
        LogError,
        "not a log of shoal; give another path, or move the file away",
    ),
    sqlite3.SQLITE_CORRUPT: (
        LogError,
        "damaged; move it away to start with an empty log, or restore a copy",
    ),
}


@contextmanager
def log_file_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite inside into errors of shoal, each with a line that says what to do."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise LogError(
            f"{path}: used from another thread; open one log per thread ({error})"
        ) from error
    except UnicodeDecodeError as error:
        # An error message of SQLite quotes a damaged name.
        advice = _MEANINGS[sqlite3.SQLITE_CORRUPT][1]
        raise LogError(f"log {path}: {advice} (its table names are not text)") from error
    except sqlite3.Error as error:
        kind, advice = _MEANINGS.get(primary_code(error), (LogError, "SQLite refused"))
        raise kind(f"log {path}: {advice} ({error})") from error


@contextmanager
def reading(db: sqlite3.Connection) -> Iterator[None]:
    """One consistent view of the file; it must be short, because the write-ahead log cannot be
    reused meanwhile."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")


def connect(
    path: Path, *, durable: bool, file_bytes_max: int | None, wait_s: float
) -> sqlite3.Connection:
    """Open the log at `path`, created if there is none. Raises `SettingsError`, `LogError`,
    `LogUnavailable`."""
    if "\0" in str(path):
        raise SettingsError(f"log {str(path)!r}: holds a NUL character; give another path")
    if path.is_dir():
        raise SettingsError(f"log {str(path)!r}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise LogFolderMissing(
            f"log {str(path)!r}: must be a file in an existing folder; create the folder first"
        )
    with log_file_errors(path):
        make_private(path)
        db = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
        db.text_factory = as_text
        try:
            _when_unlocked(db, path, wait_s)
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            if durable:  # on macOS fsync alone leaves commits in the drive's cache
                db.execute("PRAGMA fullfsync = ON")
            # What retention removes is overwritten: readings must not outlive it in free pages.
            # Most of these are used again within the transaction that frees them, so this costs
            # next to nothing.
            db.execute("PRAGMA secure_delete = ON")
            db.execute(f"PRAGMA cache_size = -{CACHE_BYTES // 1024}")
            db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
            # A write-ahead log that a slow reader let grow is cut to this when it is next reused.
            db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            if file_bytes_max is not None:
                # SQLite refuses beyond it as on a full disk, before the disk of the site is full.
                db.execute(f"PRAGMA max_page_count = {max(1, file_bytes_max // PAGE_BYTES)}")
        except BaseException:
            db.close()
            raise
    return db


def as_text(content: bytes) -> str:
    """A text of the file, whatever bytes it has.

    One bit makes a text of bytes; sqlite3 would refuse the row, and all behind it.
    """
    return content.decode("utf-8", "surrogateescape")


def _when_unlocked(db: sqlite3.Connection, path: Path, wait_s: float) -> None:
    """Check and prepare the file. SQLite does not wait its busy timeout for the change to WAL, so
    the wait is here."""
    until = time.monotonic() + wait_s
    while True:
        try:
            return _prepare(db, path)
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            # The process that makes the file holds its lock for milliseconds.
            time.sleep(0.005)


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    found = layout_of(db, path)
    if found is None:  # both have an effect only before the first page is written
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    if found == SCHEMA_VERSION:
        return
    with writing(db):
        if layout_of(db, path) is None:  # another process may have been faster
            create_tables(db)


def create_tables(db: sqlite3.Connection) -> None:
    """Make a log of an empty database."""
    for table in _TABLES:
        db.execute(table)
    # Tells a log from the database of any other program, before anything is written into it.
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def layout_of(db: sqlite3.Connection, path: Path) -> int | None:
    """The layout of the file; None as long as it has no tables.

    Raises `LogError`, before any write, for another program's database and for a layout that is not
    this one.
    """
    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return None
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise LogError(f"log {path}: a database of another program; give the log another path")
    if version > SCHEMA_VERSION:
        raise LogError(
            f"log {path}: in layout {version}, this shoal knows {SCHEMA_VERSION}; upgrade shoal, "
            "or move the file"
        )
    if version < SCHEMA_VERSION:
        raise LogError(
            f"log {path}: in layout {version} of an older shoal, this one has {SCHEMA_VERSION};"
            " stop all processes that use it, then run `shoal upgrade` on its folder"
        )
    return int(version)


def add_batches(db: sqlite3.Connection) -> None:
    """Change a log of layout `BEFORE_BATCHES` to the next one, within a transaction."""
    for number, partitions in db.execute("SELECT number, partitions FROM topics").fetchall():
        for partition in range(partitions):
            table = rows_table(number, partition)
            db.execute(f"ALTER TABLE records_{number:d}_{partition:d} RENAME TO {table}")
            db.execute(f"ALTER TABLE {table} ADD COLUMN batch_records INTEGER")
    db.execute(f"PRAGMA user_version = {BEFORE_BATCHES + 1}")


def add_checksums(db: sqlite3.Connection) -> None:
    """Change a log of layout `BEFORE_CHECKSUMS` to the next one, within a transaction."""
    db.create_function("row_checksum", len(_CHECKED), row_checksum, deterministic=True)
    for number, partitions in db.execute("SELECT number, partitions FROM topics").fetchall():
        for partition in range(partitions):
            table = rows_table(number, partition)
            db.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
            db.execute(f"UPDATE {table} SET checksum = row_checksum({', '.join(_CHECKED)})")
    db.execute(f"PRAGMA user_version = {BEFORE_CHECKSUMS + 1}")


def add_packing(db: sqlite3.Connection) -> None:
    """Change a log of layout `BEFORE_PACKING` to the next one, within a transaction."""
    db.execute("ALTER TABLE marks ADD COLUMN loose INTEGER NOT NULL DEFAULT 0")
    db.execute(f"PRAGMA user_version = {BEFORE_PACKING + 1}")


_CHECKED = ("offset", "timestamp_ms", "size", "key", "headers", "value", "batch_records")
"""columns that a checksum is of, in the order of `row_checksum`"""
_NUMBERS = struct.Struct("<7q")
_ABSENT = -1
"""length of what a row does not have, to tell it from what is empty"""


def row_checksum(
    offset: int,
    timestamp_ms: int,
    size: int,
    key: bytes | None,
    headers: bytes | None,
    value: bytes | None,
    batch_records: int | None,
) -> int | None:
    """The CRC-32 of a row's values, as a number from -2**31 on, which takes 4 bytes in the file.

    None where a value is of a type that no log writes: no checksum equals it.
    """
    try:
        packed = _NUMBERS.pack(
            offset,
            timestamp_ms,
            size,
            _ABSENT if batch_records is None else batch_records,
            _ABSENT if key is None else len(key),
            _ABSENT if headers is None else len(headers),
            _ABSENT if value is None else len(value),
        )
        # A call for each of the short ones would take longer than to copy them.
        checked = crc32(value or b"", crc32(b"".join((packed, key or b"", headers or b""))))
    except (struct.error, TypeError):
        return None
    return checked - 2**31


SPARE_PAGES = 256
VACUUM_PAGES = 512


def release_free_pages(db: sqlite3.Connection) -> None:
    """Return pages to the disk when much of the file is free; some stay for the next records."""
    # Both numbers are in the header of the file: to ask for them reads no page.
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    # A quarter stays, or the file would shrink and grow with every sweep of a busy topic.
    spare = max(SPARE_PAGES, pages // 4)
    if free > 2 * spare:
        # One page per statement: it frees a page each time it is stepped, and the sqlite3 module
        # steps it only once.
        for _ in range(min(free - spare, VACUUM_PAGES)):
            db.execute("PRAGMA incremental_vacuum(1)")


TOPIC_CHARACTERS_MAX = 249
"""the limit of Kafka, so that a federation can move there"""


class Topic(NamedTuple):
    """A topic as the file has it; only its `retain_bytes` can change."""

    number: int
    identity: bytes
    settings: TopicSettings


@dataclass
class Watermarks:
    """Bounds and size of a partition, known without reading its records."""

    first: int
    """the oldest offset that retention has kept"""
    next: int
    """offset of the next record"""
    bytes: int
    """bytes of keys, values and headers, before rows were packed"""
    loose: int = 0
    """rows at the end that are packed once there are enough"""


def rows_table(number: int, partition: int) -> str:
    """The table of a partition, named by its topic's number."""
    return f"rows_{number:d}_{partition:d}"


def check_name(name: str) -> None:
    """Raises `LogError` for a name that a topic cannot have."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise LogError(
            f"topic {name!r} cannot be written in UTF-8; give it another name"
        ) from error
    if not 1 <= len(name) <= TOPIC_CHARACTERS_MAX:
        raise LogError(
            f"topic {name[:20]!r} has {len(name)} characters; give it 1 to {TOPIC_CHARACTERS_MAX}"
        )


def find(db: sqlite3.Connection, name: str) -> Topic | None:
    """The topic of that name, or None."""
    row = db.execute(
        "SELECT number, identity, partitions, compact, retain_bytes, retain_s, record_bytes_max "
        "FROM topics WHERE name = ?",
        (name,),
    ).fetchone()
    if row is None:
        return None
    number, identity, partitions, compact, *rest = row
    return Topic(number, identity, TopicSettings(partitions, bool(compact), *rest))


def new_identity() -> bytes:
    """A random identity for a topic."""
    return secrets.token_bytes(16)


def create(db: sqlite3.Connection, name: str, settings: TopicSettings, identity: bytes) -> Topic:
    """Create the topic and a table for each of its partitions, within a transaction.

    The value is the last column, so that reading the others need not follow a large value's
    overflow pages.
    """
    number = db.execute(
        "INSERT INTO topics (name, identity, partitions, compact, retain_bytes, retain_s, "
        "record_bytes_max) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (name, identity, *asdict(settings).values()),
    ).lastrowid
    assert number is not None
    for partition in range(settings.partitions):
        table = rows_table(number, partition)
        db.execute(
            f"CREATE TABLE {table} (offset INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, "
            "size INTEGER NOT NULL, batch_records INTEGER, checksum INTEGER, key BLOB, "
            "headers BLOB, value BLOB)"
        )
        if settings.compact:
            db.execute(f"CREATE INDEX {table}_keys ON {table} (key)")
            db.execute(
                f"CREATE INDEX {table}_tombstones ON {table} (timestamp_ms) WHERE value IS NULL"
            )
        db.execute("INSERT INTO marks VALUES (?, ?, 0, 0, 0, 0)", (number, partition))
    return Topic(number, identity, settings)


def set_retention(db: sqlite3.Connection, topic: Topic, retain_bytes: int | None) -> Topic:
    """Change how many bytes of a topic are kept, within a transaction."""
    db.execute("UPDATE topics SET retain_bytes = ? WHERE number = ?", (retain_bytes, topic.number))
    return topic._replace(settings=replace(topic.settings, retain_bytes=retain_bytes))


def names(db: sqlite3.Connection) -> list[str]:
    """All topics, in the order of their creation."""
    return [name for (name,) in db.execute("SELECT name FROM topics ORDER BY number")]


def watermarks(db: sqlite3.Connection, topic: Topic) -> dict[int, Watermarks]:
    """partition -> its watermarks. Raises `LogError` where the file holds something else in their
    place."""
    rows = db.execute(
        "SELECT partition, first, next, bytes, loose FROM marks WHERE topic = ? ORDER BY partition",
        (topic.number,),
    ).fetchall()
    if not all(isinstance(number, int) for row in rows for number in row):
        raise LogError(
            "the log's file is damaged: a place in a topic is no number; restore it from a backup"
        )
    return {partition: Watermarks(*numbers) for partition, *numbers in rows}


def store_watermarks(
    db: sqlite3.Connection, topic: Topic, partition: int, mark: Watermarks
) -> None:
    """Store a partition's watermarks, within a transaction."""
    db.execute(
        "UPDATE marks SET first = ?, next = ?, bytes = ?, loose = ? WHERE topic = ? AND partition"
        " = ?",
        (mark.first, mark.next, mark.bytes, mark.loose, topic.number, partition),
    )
