"""The memory of one process: remember, then speak.

One SQLite file holds the newest state and the words (records to publish) that go with it. `save` writes
both in one transaction; only then may the words be published. After a kill at any instant the file is
either before or after a save, never between, and words not known to be stored are published again:
readers drop what they have seen. The open file is locked, so a second process of the same name is
turned away.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from shoal.errors import InvalidState, LogUnavailable, MessageRejected, SettingsError
from shoal.protocol.codec import pack, unpack
from shoal.transports.base import Headers

FORMAT = 1
STATE_BYTES_MAX = 900 * 1024 * 1024
"""SQLite's own limit is 1e9 bytes a row"""

# Every value has its digest, because SQLite notices a damaged page only where its structure is hurt.
_SCHEMA = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), digest BLOB NOT NULL, value BLOB NOT NULL)",
    "CREATE TABLE outbox (word INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL, record BLOB NOT NULL)",
)
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
_HELD = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_BARRED = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})


class OutboxRecord(NamedTuple):
    """A record that has been decided on and is still to be published."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers


class Checkpoint:
    """What a process must not lose. One owner at a time; one thread.

    Raises `InvalidState` when the file is damaged, belongs to somebody else or is in use, `SettingsError` when this
    user may not write it, and `LogUnavailable` when the disk does not take it.
    """

    def __init__(self, path: Path, owner: str) -> None:
        """`owner` says whose memory this is ("client a of plant"); another owner's file is refused."""
        self._path = path
        self._owner = owner
        with self._explained():
            self._create_if_missing()
            # An existing file is opened and never made: one that is empty or gone by now is not a new beginning.
            self._file = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0.5, isolation_level=None
            )
            try:
                self._open()
            except BaseException:
                self._file.close()
                raise

    @property
    def identity(self) -> str:
        """Names this memory since it was made; a copy has the same."""
        with self._explained():
            # One that was made before memories had names gets its name now.
            self._file.execute("INSERT OR IGNORE INTO about VALUES ('identity', ?)", (secrets.token_hex(16),))
            (identity,) = self._file.execute("SELECT value FROM about WHERE name = 'identity'").fetchone()
        return str(identity)

    def load(self) -> dict[str, Any] | None:
        """The newest state, or None when nothing was ever saved. Raises `InvalidState` if it is damaged."""
        with self._explained():
            row = self._file.execute("SELECT digest, value FROM state").fetchone()
            saved = self._file.execute("SELECT 1 FROM about WHERE name = 'saved'").fetchone()
        if row is None:
            if saved is not None:
                raise self._damaged("the state is gone")
            return None
        state = self._intact(*row)
        if not isinstance(state, dict):
            raise self._damaged("the state is of another kind")
        return state

    def save(self, state: dict[str, Any], words: Sequence[OutboxRecord] = (), published_up_to: int = 0) -> None:
        """Remember `state` and `words` together, and forget the words up to `published_up_to`; all or nothing."""
        value = pack(state)
        if len(value) > STATE_BYTES_MAX:
            raise InvalidState(
                f"{self._path}: a state of {len(value)} bytes cannot be kept, at most {STATE_BYTES_MAX} can; "
                "bound the models, with the option nodes_max for instance"
            )
        records = [pack(list(word)) for word in words]
        with self._explained(), self._transaction() as file:
            file.execute("INSERT OR IGNORE INTO about VALUES ('saved', 'yes')")
            file.execute("DELETE FROM outbox WHERE word <= ?", (published_up_to,))
            file.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (_digest(value), value))
            file.executemany(
                "INSERT INTO outbox (digest, record) VALUES (?, ?)", [(_digest(record), record) for record in records]
            )

    def pending(self, after: int = 0) -> list[tuple[int, OutboxRecord]]:
        """(number, word) of every remembered word with a number above `after`, in the order remembered."""
        with self._explained():
            rows = self._file.execute(
                "SELECT word, digest, record FROM outbox WHERE word > ? ORDER BY word", (after,)
            ).fetchall()
        return [(number, self._word(digest, record)) for number, digest, record in rows]

    def close(self) -> None:
        """Let go of the file and its lock; closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create_if_missing(self) -> None:
        """Made aside and then named, so that the file appears whole: one without its tables is damaged, not new."""
        aside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            if self._path.exists():
                if not os.access(self._path, os.R_OK | os.W_OK):
                    # SQLite would open it all the same, for reading, and then blame the disk.
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(aside, isolation_level=None)) as file:
                file.execute("BEGIN")
                for table in _SCHEMA:
                    file.execute(table)
                file.execute("INSERT INTO about VALUES ('format', ?), ('owner', ?)", (str(FORMAT), self._owner))
                file.execute("INSERT INTO about VALUES ('identity', ?)", (secrets.token_hex(16),))
                file.execute("COMMIT")
            with suppress(FileExistsError):  # another process was faster; who holds it is seen next
                os.link(aside, self._path)
            _settle(self._path.parent)
        except OSError as rejected:
            if rejected.errno in _NO_ROOM:
                raise LogUnavailable(f"{self._path}: cannot be made: {rejected.strerror}; make room") from None
            raise SettingsError(
                f"{self._path}: cannot be used: {rejected.strerror}; name a folder that this user may write"
            ) from None
        finally:
            with suppress(OSError):
                aside.unlink()

    def _open(self) -> None:
        # The exclusive locking mode keeps the lock until the process ends, however it ends: no stale lock files.
        self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
        tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"about", "state", "outbox"} <= tables:
            raise self._damaged("not a checkpoint, or what is left of one")
        self._file.execute("PRAGMA journal_mode=WAL")
        # The words are published right after a save, so a save must survive a power cut too.
        self._file.execute("PRAGMA synchronous=FULL")
        self._file.execute("PRAGMA journal_size_limit=4194304")
        # Nothing is read twice here, so a small machine need not keep SQLite's usual 2 MiB of it.
        self._file.execute("PRAGMA cache_size=-256")
        self._file.execute("BEGIN EXCLUSIVE")
        self._file.execute("COMMIT")
        flaws = self._file.execute("PRAGMA quick_check(1)").fetchall()
        if flaws != [("ok",)]:
            raise self._damaged("its pages contradict each other")
        about = dict(self._file.execute("SELECT name, value FROM about").fetchall())
        if about.get("format") != str(FORMAT):
            raise InvalidState(
                f"{self._path}: written by another version of shoal; run that version, or start elsewhere"
            )
        if about.get("owner") != self._owner:
            raise InvalidState(
                f"{self._path}: this is the memory of {about.get('owner')}, not of {self._owner}; "
                "give each process a folder of its own"
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield self._file
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's complaints as ours. Using a closed checkpoint is a slip of our own and stays what it is."""
        try:
            yield
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in _HELD:
                raise InvalidState(
                    f"{self._path}: in use by another process; is {self._owner} running already?"
                ) from None
            if code in _FULL:
                raise LogUnavailable(f"{self._path}: cannot be written: {error}; make room or mend the disk") from None
            if code in _BARRED:
                raise SettingsError(
                    f"{self._path}: cannot be opened ({error}); it must be a file that this user may write, in a "
                    "folder that this user may write"
                ) from None
            raise self._damaged(str(error)) from None
        except UnicodeDecodeError:
            # Of a complaint of SQLite's that quotes a damaged name.
            raise self._damaged("its own names are no text") from None

    def _intact(self, digest: bytes, value: bytes) -> Any:
        if not isinstance(value, bytes) or _digest(value) != digest:
            raise self._damaged("a value is not the one that was saved")
        try:
            return unpack(value, STATE_BYTES_MAX)
        except MessageRejected as broken:
            raise self._damaged(f"a value cannot be read: {broken}") from None

    def _word(self, digest: bytes, record: bytes) -> OutboxRecord:
        topic, value, key, headers = self._intact(digest, record)
        return OutboxRecord(topic, value, key, tuple((name, content) for name, content in headers))

    def _damaged(self, how: str) -> InvalidState:
        return InvalidState(
            f"{self._path}: damaged ({how}). Restore it from a backup, or move the folder away to begin again on "
            "purpose; shoal does not start empty by itself"
        )


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _settle(folder: Path) -> None:
    """A new name in a folder is on the disk only when the folder is."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
