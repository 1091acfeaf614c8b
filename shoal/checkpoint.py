"""The memory of one process: remember, then speak.

One SQLite file holds the newest state and the words (records to publish) that go with it. `save` writes
both in one transaction; only then may the words be published. After a kill at any instant the file is
either before or after a save, never between, and words not known to be stored are published again:
readers drop what they have seen. The open file is locked, so a second process of the same name is
turned away.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from shoal.codec import pack, unpack
from shoal.errors import LogUnavailable, MessageRefused, SettingsError, StateRefused
from shoal.transports.contract import Headers

FORMAT = 1
STATE_BYTES_MAX = 1024 * 1024 * 1024

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    word INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB, value BLOB, headers BLOB NOT NULL);
"""


class Word(NamedTuple):
    """A record that has been decided on and is still to be published."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers


class Checkpoint:
    """What a process must not lose. One owner at a time; one thread.

    Raises `StateRefused` when the file is damaged, belongs to somebody else or is in use, and
    `LogUnavailable` when the disk does not take it (full, read-only).
    """

    def __init__(self, path: Path, owner: str) -> None:
        """`owner` says whose memory this is ("client a of plant"); another owner's file is refused."""
        self._path = path
        self._owner = owner
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as refused:
            raise SettingsError(f"{path.parent}: cannot be made: {refused.strerror}") from None
        with self._explained():
            self._file = sqlite3.connect(path, timeout=0.5, isolation_level=None)
            try:
                self._open()
            except BaseException:
                self._file.close()
                raise

    def load(self) -> dict[str, Any] | None:
        """The newest state, or None when nothing was ever saved. Raises `StateRefused` if it is damaged."""
        with self._explained():
            row = self._file.execute("SELECT value, digest FROM state").fetchone()
        if row is None:
            return None
        value, digest = row
        if hashlib.sha256(value).digest() != digest:
            raise StateRefused(f"{self._path}: the saved state is damaged. {self._what_to_do()}")
        try:
            state = unpack(value, STATE_BYTES_MAX)
        except MessageRefused as broken:
            raise StateRefused(
                f"{self._path}: the saved state cannot be read ({broken}). {self._what_to_do()}"
            ) from None
        if not isinstance(state, dict):
            raise StateRefused(f"{self._path}: the saved state is of another kind. {self._what_to_do()}")
        return state

    def save(self, state: dict[str, Any], words: Sequence[Word] = (), published_up_to: int = 0) -> None:
        """Remember `state` and `words` together, and forget the words up to `published_up_to`; all or nothing."""
        value = pack(state)
        digest = hashlib.sha256(value).digest()
        with self._explained(), self._transaction() as file:
            file.execute("DELETE FROM outbox WHERE word <= ?", (published_up_to,))
            file.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", (value, digest))
            file.executemany(
                "INSERT INTO outbox (topic, key, value, headers) VALUES (?, ?, ?, ?)",
                [(word.topic, word.key, word.value, _headers_out(word.headers)) for word in words],
            )

    def unpublished(self, after: int = 0) -> list[tuple[int, Word]]:
        """(number, word) of every remembered word with a number above `after`, in the order remembered."""
        with self._explained():
            rows = self._file.execute(
                "SELECT word, topic, value, key, headers FROM outbox WHERE word > ? ORDER BY word", (after,)
            ).fetchall()
        return [(number, Word(topic, value, key, _headers_in(headers))) for number, topic, value, key, headers in rows]

    def close(self) -> None:
        """Let go of the file and its lock; closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        # The exclusive locking mode keeps the lock until the process ends, however it ends: no stale lock files.
        self._file.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._file.execute("PRAGMA journal_mode=WAL")
        # The words are published right after a save, so a save must survive a power cut too.
        self._file.execute("PRAGMA synchronous=FULL")
        self._file.execute("PRAGMA journal_size_limit=4194304")
        self._file.execute("BEGIN EXCLUSIVE")
        try:
            for statement in _SCHEMA.split(";"):
                self._file.execute(statement)
            about = dict(self._file.execute("SELECT name, value FROM about").fetchall())
            self._file.execute("INSERT OR IGNORE INTO about VALUES ('format', ?)", (str(FORMAT),))
            self._file.execute("INSERT OR IGNORE INTO about VALUES ('owner', ?)", (self._owner,))
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise
        if about.get("format", str(FORMAT)) != str(FORMAT):
            raise StateRefused(
                f"{self._path}: written by another version of shoal; run that version, or start elsewhere"
            )
        if about.get("owner", self._owner) != self._owner:
            raise StateRefused(f"{self._path}: this is the memory of {about['owner']}, not of {self._owner}")

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
        try:
            yield
        except sqlite3.OperationalError as error:
            reason = str(error)
            if "locked" in reason or "busy" in reason:
                raise StateRefused(
                    f"{self._path}: in use by another process; is {self._owner} running already?"
                ) from None
            raise LogUnavailable(f"{self._path}: cannot be written: {reason}; make room or mend the disk") from None
        except sqlite3.DatabaseError as error:
            raise StateRefused(f"{self._path}: damaged ({error}). {self._what_to_do()}") from None

    def _what_to_do(self) -> str:
        return (
            "Restore it from a backup, or move the folder away to begin again on purpose; "
            "shoal does not start empty by itself"
        )


def _headers_out(headers: Headers) -> bytes:
    return pack([[name, value] for name, value in headers])


def _headers_in(packed: bytes) -> Headers:
    return tuple((name, value) for name, value in unpack(packed))
