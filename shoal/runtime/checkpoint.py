"""The checkpoint of one process: its newest state, and the records that it must publish.

One SQLite file holds both. `save` writes them in one transaction; only then may the records be
published (`Outbox`). A `StoredPart` of a state is a row of its own, which is written once: a state
that is saved again with the same part, such as a window of rows that has not changed, costs what
has changed. After a kill at any instant the file is as before or as after a save. The open file is
locked, so a second process of the same name cannot open it. The state is put together from named
parts (`SavedParts`).

A file has one owner, a process, and the checkpoint of each holder in it. A process that is a single
node is the one holder of its file; a host has its clients as holders of one (`CheckpointFile`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

import msgpack

from shoal.errors import CheckpointDamaged, InvalidState, MessageRejected
from shoal.files import create_database, sqlite_errors, writing
from shoal.protocol.codec import PART, PART_DEPTH_MAX, Resolve, StoredPart, pack, unpack
from shoal.saved_state import require
from shoal.telemetry.events import log_event
from shoal.telemetry.slow_files import noting_slowness
from shoal.transports.base import Headers, Log, Positions

FORMAT = 4
STATE_BYTES_MAX = 900 * 1024 * 1024
"""largest state with its parts, so that it can be read into memory; SQLite's own limit is 1e9 bytes
a row"""
REFERENCE_BYTES = 16
"""bytes of the digest of a part's value, by which the state refers to the part"""

# Every value has a digest, because SQLite notices a damaged page only where its own structures are
# in it. That of a part is in the state, whose own digest so covers its parts: a page of an earlier
# state, whole in itself, is noticed.
_SCHEMA = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE holders (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, identity TEXT NOT"
    " NULL, saved INTEGER NOT NULL, newest INTEGER NOT NULL)",
    "CREATE TABLE state (holder INTEGER PRIMARY KEY, saved_at REAL NOT NULL, digest BLOB NOT NULL,"
    " value BLOB NOT NULL)",
    # The numbers of a holder's rows begin with its own number (`HOLDER_BITS`), so that they lie
    # together and no index is needed.
    "CREATE TABLE parts (number INTEGER PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE outbox (number INTEGER PRIMARY KEY, digest BLOB NOT NULL, record BLOB NOT NULL)",
)
ROW_KEYS: Final = {"holders": "number", "state": "holder", "parts": "number", "outbox": "number"}
"""table -> its key, which is the number of a row"""
HOLDER_BITS: Final = 40
"""bits of a row's number within its holder: 10^12 rows, and 2^23 holders in SQLite's 63 bits"""


class _Row(NamedTuple):
    """The place of a stored part of a state."""

    reference: msgpack.ExtType
    """what the state has in place of the part"""
    number: int
    size: int
    """bytes of the value of the part"""


class _Split(NamedTuple):
    """A state in the form in which it is stored."""

    value: bytes
    """the packed state, with references to its parts"""
    parts: dict[StoredPart, _Row]
    parts_size: int
    """bytes of all parts"""
    added: list[tuple[int, bytes]]
    """numbers and values of the parts that are not stored yet"""
    removed: list[_Row]
    """stored parts of the state before that this one does not have"""


class SavedPart(Protocol):
    """A part of a process that its checkpoint keeps."""

    def state(self) -> Any:
        """Plain values, arrays and `StoredPart`s for `restore`, which takes them as a checkpoint
        loads them."""
        ...

    def restore(self, state: Any) -> None:
        """Become the saved part.

        Raises `InvalidState`, or any of `DAMAGED` for a state that is not whole.
        """
        ...


DAMAGED: Final = (AttributeError, LookupError, TypeError, ValueError, MessageRejected)
"""errors of reading a state that is not as it was saved; `InvalidData` is a `ValueError`"""


class SavedValue(NamedTuple):
    """A part that its owner keeps as one value, by functions that give its state and take one."""

    state: Callable[[], Any]
    restore: Callable[[Any], None]


def pairs_of(positions: Positions) -> list[list[int]]:
    """Positions as a state has them, [partition, offset]; see `positions_of`."""
    # In the order of partitions: equal positions must be equal bytes.
    return [[partition, offset] for partition, offset in sorted(positions.items())]


def positions_of(pairs: Sequence[Sequence[int]]) -> Positions:
    """The positions that `pairs_of` has made pairs of. Raises `InvalidState`."""
    positions = {}
    for pair in pairs:
        require(len(pair) == 2, "a position is a partition and an offset")
        partition, offset = pair
        positions[partition] = offset
    return positions


class SavedFields:
    """Base of a dataclass that is a part: its fields, which have plain values, are its state.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Progress(SavedFields):
    ...     updates: int = 0
    >>> Progress(3).state()
    {'updates': 3}
    """

    def state(self) -> dict[str, Any]:
        """The value of each field by its name."""
        return dict(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set every field. Raises `KeyError` for one that is missing."""
        for name in vars(self):
            setattr(self, name, state[name])


class Required(NamedTuple):
    """A value that a state must have to belong to this process, and the error for another one."""

    value: Any
    error: InvalidState


def required_version(version: int, whole: str) -> Required:
    """The version that a state must have to be read here; `whole` names the state ("the server's
    checkpoint")."""
    return Required(
        version, InvalidState(f"{whole} is of another version of shoal; run that version")
    )


def check_required(state: Mapping[str, Any], required: Mapping[str, Required]) -> None:
    """Raises the error of the first required value that a state does not have."""
    for name, expected in required.items():
        if state.get(name) != expected.value:
            raise expected.error


class SavedParts:
    """A part that is made of named parts: the whole of a process, a model, or all models of a
    server.

    Its state names each part. It is restored in the order of the parts, once the required values
    are found.
    """

    def __init__(
        self,
        whole: str,
        parts: Mapping[str, SavedPart],
        required: Mapping[str, Required] | None = None,
        optional: Collection[str] = (),
    ) -> None:
        """`whole` names the state in errors ("the server's checkpoint").

        A part that is `optional` may be missing.
        """
        self._whole = whole
        self._parts = parts
        self._required = required or {}
        self._optional = optional

    def state(self) -> dict[str, Any]:
        """The required values, and the state of every part."""
        state = {name: required.value for name, required in self._required.items()}
        for name, part in self._parts.items():
            state[name] = part.state()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore every part. Raises `InvalidState`."""
        # Before any part changes: a checkpoint of another process must leave this one as it is.
        check_required(state, self._required)
        for name, part in self._parts.items():
            if name in state:
                self._restore_part(name, part, state[name])
            elif name not in self._optional:
                raise InvalidState(f"{self._whole} lacks its part {name}; it is damaged")

    def _restore_part(self, name: str, part: SavedPart, state: Any) -> None:
        try:
            part.restore(state)
        except DAMAGED as broken:
            raise InvalidState(f"{self._whole} is damaged: {broken} in its part {name}") from None


class OutboxRecord(NamedTuple):
    """A record to publish: arguments of `Log.publish`."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers


class CheckpointFile:
    """A file with the checkpoints of one or several holders, which one process has to itself.

    Every method raises `InvalidState` when the file is damaged, belongs to another owner or is in
    use, `SettingsError` when this user may not write it, and `LogUnavailable` when the disk is full
    or fails.
    """

    def __init__(self, path: Path, owner: str) -> None:
        """`owner` names the process ("client a of plant"); the file of another owner is refused."""
        self.path = path
        self.owner = owner
        self._together = False
        """whether saves are kept in one transaction that is open"""
        tables = self._tables()
        with self.errors():
            create_database(path, tables)
            # mode=rw does not create a file: one that was emptied or deleted by now must not pass
            # for a new one.
            self.connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0.5, isolation_level=None
            )
            try:
                self._open()
            # For an interrupt as well: the lock would keep out the next try in this process.
            except BaseException:
                self.connection.close()
                raise

    def holder(self, name: str, *, makes: bool = True) -> int:
        """The number of a holder, which is made where there is none of this name.

        `makes`: see `Checkpoint`.
        """
        with self.errors():
            row = self._holder(name)
            if row is None:
                if not makes:
                    raise self.damaged(f"the checkpoint of {name} is gone")
                self._make_holder(name)
                row = self._holder(name)
        return self.number_in(row)

    def holders(self) -> list[str]:
        """The names of all holders, in the order in which they were made."""
        with self.errors():
            rows = self.connection.execute("SELECT name FROM holders ORDER BY number").fetchall()
        return [str(name) for (name,) in rows]

    def has_saved(self, name: str) -> bool:
        """Whether a holder of this name has saved a state."""
        with self.errors():
            row = self.connection.execute(
                "SELECT saved FROM holders WHERE name = ?", (name,)
            ).fetchone()
        return row is not None and bool(row[0])

    def saved_at(self, name: str) -> float:
        """The time of the newest save of a holder of this name, seconds since 1970; 0 before it."""
        with self.errors():
            row = self.connection.execute(
                "SELECT saved_at FROM state JOIN holders ON number = holder WHERE name = ?", (name,)
            ).fetchone()
        return 0.0 if row is None else float(row[0])

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is saved inside is in the file once this ends, and none of it before.

        What one holder could not save, which raised, leaves the others' saves alone.
        """
        with self.errors(), noting_slowness(self.path), writing(self.connection):
            self._together = True
            try:
                yield
            finally:
                self._together = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One write, whole or not at all."""
        if not self._together:
            with noting_slowness(self.path), writing(self.connection):
                yield
            return
        self.connection.execute("SAVEPOINT one_holder")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:  # after some errors SQLite has already rolled back
                self.connection.execute("ROLLBACK TO one_holder")
                self.connection.execute("RELEASE one_holder")
            raise
        self.connection.execute("RELEASE one_holder")

    def close(self) -> None:
        """Close the file and release its lock. Closing twice has no effect."""
        self.connection.close()

    def errors(self) -> AbstractContextManager[None]:
        """Turns errors of SQLite inside into those of this class."""
        return sqlite_errors(self.path, self.owner, self.damaged)

    def damaged(self, how: str) -> InvalidState:
        """The error for a file that is not as it was written."""
        return CheckpointDamaged(
            f"{self.path}: damaged ({how}). Restore it from a backup, or move the folder away to "
            "start again without it, a client under a new name; shoal does not start from nothing "
            "by itself"
        )

    def number_in(self, row: tuple[Any, ...] | None) -> int:
        """The number in a row of one column, which a damaged one need not be."""
        if row is None or not isinstance(row[0], int):
            raise self.damaged("a number of a holder is gone")
        return row[0]

    def _holder(self, name: str) -> tuple[int] | None:
        found: tuple[int] | None = self.connection.execute(
            "SELECT number FROM holders WHERE name = ?", (name,)
        ).fetchone()
        return found

    def _make_holder(self, name: str) -> None:
        # From 0, so that the rows of a single holder are numbered from 1.
        (number,) = self.connection.execute(
            "SELECT COALESCE(MAX(number) + 1, 0) FROM holders"
        ).fetchone()
        states = self.connection.execute("SELECT 1 FROM state WHERE holder >= ?", (number,))
        if states.fetchone() is not None:
            raise self.damaged("the identity of a state is gone")
        # The one holder of a file has the name of its owner: another name is a damaged one, and a
        # new holder would begin from nothing.
        if name == self.owner and number:
            raise self.damaged("its holder has another name")
        with self.writing():
            self.connection.execute(
                "INSERT INTO holders VALUES (?, ?, ?, 0, ?)",
                (number, name, secrets.token_hex(16), number << HOLDER_BITS),
            )

    def _tables(self) -> list[tuple[str, tuple[str, ...]]]:
        """The statements that make a new file, with their parameters."""
        statements: list[tuple[str, tuple[str, ...]]] = []
        for table in _SCHEMA:
            statements.append((table, ()))
        about = ("format", str(FORMAT), "owner", self.owner)
        statements.append(("INSERT INTO about VALUES (?, ?), (?, ?)", about))
        return statements

    def _open(self) -> None:
        # The exclusive locking mode keeps the lock until the process ends, however it ends: no
        # stale lock files.
        self.connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        owner = self._checked_owner()
        self.connection.execute("PRAGMA journal_mode=WAL")
        # Records are published right after a save, so a save must survive a power cut.
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute("PRAGMA journal_size_limit=4194304")
        # Nothing is read twice, so SQLite's default cache of 2 MiB would be wasted on a small
        # machine.
        self.connection.execute("PRAGMA cache_size=-256")
        # Nothing is written: it takes the lock that a second process on this folder then does not
        # get.
        self.connection.execute("BEGIN EXCLUSIVE")
        self.connection.execute("COMMIT")
        if self.connection.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise self.damaged("its pages are inconsistent")
        if owner != self.owner:
            raise InvalidState(
                f"{self.path}: this is the checkpoint of {owner}, not of {self.owner}; "
                "give each process a folder of its own"
            )

    def _checked_owner(self) -> str | None:
        """The owner in a file of this version.

        A file of another version may have other tables, and is not written to.
        """
        rows = self.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in rows}
        about = {}
        if "about" in tables:
            about = dict(self.connection.execute("SELECT name, value FROM about"))
        if about.get("format", str(FORMAT)) != str(FORMAT):
            # With another folder and the same name, a client would publish the same readings with
            # other noise.
            raise InvalidState(
                f"{self.path}: written by another version of shoal; run that version. In this "
                "version, start a client under a new name, and a server in a new folder with "
                "--rebuild"
            )
        if "format" not in about or not tables >= ROW_KEYS.keys():
            raise self.damaged("not a checkpoint, or only a part of one")
        for table, key in ROW_KEYS.items():
            found = self.connection.execute(
                "SELECT type, pk FROM pragma_table_info(?) WHERE name = ?", (table, key)
            ).fetchone()
            # With another type it is no number of a row any more, and rows are not found by it.
            if found != ("INTEGER", 1):
                raise self.damaged(f"the key of {table} is another one")
        # They would never be published.
        stray = self.connection.execute(
            "SELECT 1 FROM outbox WHERE number < 1 OR (number - 1) >> ? NOT IN (SELECT number FROM"
            " holders)",
            (HOLDER_BITS,),
        )
        if stray.fetchone() is not None:
            raise self.damaged("a record in its outbox is of no holder")
        return about.get("owner")


class Checkpoint:
    """The state and the outbox of one holder, in one file. For one thread.

    Every method raises `InvalidState` when the file is damaged, belongs to another owner or is in
    use, `SettingsError` when this user may not write it, and `LogUnavailable` when the disk is full
    or fails.
    """

    def __init__(
        self,
        path: Path,
        owner: str,
        shared: CheckpointFile | None = None,
        *,
        process: str = "",
        makes: bool = True,
    ) -> None:
        """`owner` names the holder ("client a of plant"); the file of another owner is refused.

        `process`: the owner of the file, where that is another one, with several holders; `shared`:
        that file, which is open and stays so. `makes`: whether a holder without a checkpoint gets
        one; otherwise `InvalidState` is raised.
        """
        self._owner = owner
        self._is_shared = shared is not None
        self._stored: dict[StoredPart, _Row] | None = None
        """the parts of the newest state saved; None: before the first save"""
        self._stored_size = 0
        """bytes of these parts"""
        self._whole = shared or CheckpointFile(path, process or owner)
        self._path = self._whole.path
        self._file = self._whole.connection
        try:
            self._holder = self._whole.holder(owner, makes=makes)
            first = self._holder << HOLDER_BITS
            self._rows = (first, first + (1 << HOLDER_BITS))
            """the numbers of its rows: above the first, up to the second"""
            self._deleted_up_to = first
            """records of the outbox up to this number are deleted"""
            self._numbers = count(first + 1)
            """numbers of the rows of parts"""
            self._newest = self._newest_record()
            """number of the newest record that was ever in the outbox: none is used again"""
        except BaseException:
            self.close()
            raise

    @property
    def identity(self) -> str:
        """Random name given when the checkpoint was created; a copy has the same."""
        with self._whole.errors():
            row = self._file.execute(
                "SELECT identity FROM holders WHERE number = ?", (self._holder,)
            ).fetchone()
        if row is None:
            raise self._damaged("its identity is gone")
        return str(row[0])

    def load(self) -> dict[str, Any] | None:
        """The newest state saved, None before the first."""
        with self._whole.errors():
            row = self._file.execute(
                "SELECT digest, value FROM state WHERE holder = ?", (self._holder,)
            ).fetchone()
            stored_parts = self._file.execute(
                "SELECT value FROM parts WHERE number > ? AND number <= ?", self._rows
            ).fetchall()
        if row is None:
            # Without this a damaged file would be taken for a new one, and a client would publish
            # what it has published already with other noise.
            if self._whole.has_saved(self._owner):
                raise self._damaged("the state is gone")
            return None
        parts = {}
        for (value,) in stored_parts:
            # A damaged row may be of any type; the state then lacks the part.
            if isinstance(value, bytes):
                parts[_reference(value)] = value

        def resolve(reference: bytes) -> Any:
            if reference not in parts:
                raise self._damaged("a part of the state is gone, or not as it was saved")
            return self._unpacked(parts[reference])

        digest, value = row
        state = self._intact(0, digest, value, resolve)
        if not isinstance(state, dict):
            raise self._damaged("the state is not a mapping")
        return state

    def save(
        self, state: dict[str, Any], records: Sequence[OutboxRecord] = (), published_up_to: int = 0
    ) -> int:
        """Replace the state, add `records` to the outbox, and delete published ones from it.

        All in one transaction. `published_up_to` is the number of the last record that is
        published. Returns the number of the last record, 0 without any. Raises
        `InvalidState` for a state that is larger than `STATE_BYTES_MAX` with its parts, and
        `TypeError` for one that `pack` does not take.
        """
        split = self._split(state)
        packed = [pack(list(record)) for record in records]
        with self._whole.errors(), self._whole.writing():
            # In the same transaction as the new ones: a kill in between must neither lose a record
            # nor keep it for ever.
            if published_up_to > self._deleted_up_to:
                self._delete_published(published_up_to)
            self._file.execute(
                "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)",
                (self._holder, time.time(), self._digest_of(0, split.value), split.value),
            )
            if self._stored is None or packed:
                self._file.execute(
                    "UPDATE holders SET saved = 1, newest = ? WHERE number = ?",
                    (self._newest + len(packed), self._holder),
                )
            if self._stored is None:
                # Parts are known by their objects, and none of those of the process before is here.
                self._file.execute("DELETE FROM parts WHERE number > ? AND number <= ?", self._rows)
            if split.removed:
                self._file.executemany(
                    "DELETE FROM parts WHERE number = ?", [(row.number,) for row in split.removed]
                )
            if split.added:
                self._file.executemany("INSERT INTO parts VALUES (?, ?)", split.added)
            for number, record in enumerate(packed, self._newest + 1):
                self._file.execute(
                    "INSERT INTO outbox VALUES (?, ?, ?)",
                    (number, self._digest_of(number, record), record),
                )
        self._newest += len(packed)
        self._stored = split.parts
        self._stored_size = split.parts_size
        self._deleted_up_to = max(self._deleted_up_to, published_up_to)
        return self._newest if packed else 0

    def pending(self, after: int = 0) -> list[tuple[int, OutboxRecord]]:
        """(number, record) of every record in the outbox with a number above `after`.

        They are in the order in which they were saved.
        """
        first, stop = self._rows
        with self._whole.errors():
            rows = self._file.execute(
                "SELECT number, digest, record FROM outbox WHERE number > ? AND number <= ? ORDER"
                " BY number",
                (max(first, after), stop),
            ).fetchall()
        pending = []
        for number, digest, record in rows:
            pending.append((number, self._outbox_record(number, digest, record)))
        return pending

    def has_records(self) -> bool:
        """Whether there is any record in the outbox."""
        with self._whole.errors():
            row = self._file.execute(
                "SELECT 1 FROM outbox WHERE number > ? AND number <= ? LIMIT 1", self._rows
            ).fetchone()
        return row is not None

    def delete_published(self, published_up_to: int) -> None:
        """Delete the records that are published from the outbox, up to the last one's number.

        `save` does it as well; between two saves no new process needs to publish them again.
        """
        if published_up_to <= self._deleted_up_to:
            return
        with self._whole.errors(), self._whole.writing():
            self._delete_published(published_up_to)
        self._deleted_up_to = published_up_to

    def _delete_published(self, published_up_to: int) -> None:
        self._file.execute(
            "DELETE FROM outbox WHERE number > ? AND number <= ?",
            (self._rows[0], published_up_to),
        )

    def close(self) -> None:
        """Close the file, unless it is shared, and release its lock. Closing twice has no
        effect."""
        if not self._is_shared:
            self._whole.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _newest_record(self) -> int:
        with self._whole.errors():
            row = self._file.execute(
                "SELECT newest FROM holders WHERE number = ?", (self._holder,)
            ).fetchone()
        return self._whole.number_in(row)

    def _split(self, state: dict[str, Any]) -> _Split:
        before = self._stored or {}
        parts: dict[StoredPart, _Row] = {}
        added: list[tuple[int, bytes]] = []

        def refer(part: StoredPart) -> msgpack.ExtType:
            row = before.get(part) or parts.get(part)
            if row is None:
                value = pack(part.value, depth_max=PART_DEPTH_MAX)
                row = _Row(
                    msgpack.ExtType(PART, _reference(value)), next(self._numbers), len(value)
                )
                added.append((row.number, value))
            parts[part] = row
            return row.reference

        value = pack(state, refer)
        # What this state does not refer to goes in the same transaction, so that no part is left
        # without a state.
        removed = [before[part] for part in before.keys() - parts.keys()]
        # By what has changed: a model may have thousands of parts, and one save changes a few.
        size = self._stored_size
        for _, part_value in added:
            size += len(part_value)
        for row in removed:
            size -= row.size
        whole = len(value) + size
        if whole > STATE_BYTES_MAX:
            raise InvalidState(
                f"{self._path}: a state of {whole} bytes is too large, at most {STATE_BYTES_MAX} "
                "can be saved; bound the models, with the option nodes_max for instance"
            )
        return _Split(value, parts, size, added, removed)

    def _digest_of(self, number: int, value: bytes) -> bytes:
        """The digest of a value of this holder: of its state (0), or of a record by its number. One
        that lies elsewhere in the file is another one."""
        return _digest(f"{self._owner}\0{number}\0".encode() + value)

    def _intact(
        self, number: int, digest: bytes, value: bytes, resolve: Resolve | None = None
    ) -> Any:
        if not isinstance(value, bytes) or self._digest_of(number, value) != digest:
            raise self._damaged("a value is not as it was saved")
        return self._unpacked(value, resolve)

    def _unpacked(self, value: bytes, resolve: Resolve | None = None) -> Any:
        try:
            return unpack(value, STATE_BYTES_MAX, resolve=resolve)
        except MessageRejected as broken:
            raise self._damaged(f"a value cannot be read: {broken}") from None

    def _outbox_record(self, number: int, digest: bytes, record: bytes) -> OutboxRecord:
        topic, value, key, headers = self._intact(number, digest, record)
        # msgpack has lists where a record has tuples.
        return OutboxRecord(topic, value, key, tuple((name, content) for name, content in headers))

    def _damaged(self, how: str) -> InvalidState:
        return self._whole.damaged(how)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _reference(part: bytes) -> bytes:
    return _digest(part)[:REFERENCE_BYTES]


def open_replaceable(path: Path, owner: str) -> Checkpoint:
    """A checkpoint of what can be found again elsewhere: a damaged one is set aside, and a new one
    is made.

    So a file that only spares a search stops nothing. Raises `InvalidState` as `Checkpoint` does,
    but for damage.
    """
    try:
        checkpoint = Checkpoint(path, owner)
        try:
            checkpoint.load()
        except BaseException:
            checkpoint.close()
            raise
    except CheckpointDamaged as damaged:
        aside = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(aside)
            for name in (f"{path.name}-wal", f"{path.name}-shm"):
                path.with_name(name).unlink(missing_ok=True)
        except OSError:
            raise damaged from None
        log_event("checkpoint_set_aside", logging.WARNING, file=str(aside), detail=str(damaged))
        return Checkpoint(path, owner)
    return checkpoint


STORE_INTERVAL_S = 1.0
"""most seconds of learning that are repeated after a kill. Each store waits for the disk, so that
not every step can afford one"""


class Outbox:
    """Publishes the records stored in a checkpoint, in order, each at least once; readers drop
    repeated ones.

    A step that makes records must store them before they are published. A step that only learns may
    store later: until then a new process learns the same again from the log. So may one whose
    records it would make again, too.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        log: Log,
        sign: Callable[[OutboxRecord], Headers] = lambda _: (),
        interval_s: float = STORE_INTERVAL_S,
    ) -> None:
        """`sign` returns headers to add when a record is published.

        They are not stored with it: a key may change between two runs. `interval_s`: most seconds
        of learning that are repeated after a kill. Beyond `STORE_INTERVAL_S` also a step that has
        nothing to learn waits for it: one of many processes that share a core.
        """
        self._checkpoint = checkpoint
        self._log = log
        self._sign = sign
        self._interval_s = interval_s
        self._published_up_to = 0
        self._stored_up_to = 0
        self._pending: list[OutboxRecord] | None = None
        """those that are stored and not known to be published; None: not read from the checkpoint
        yet"""
        self._unstored = 0
        self._records_wait = False
        self._stored_at = -math.inf

    def should_store(
        self, learnt: int, unstored_max: int, now: float, *, made: bool = False, more: bool = False
    ) -> bool:
        """Whether a step that learnt from `learnt` more records must store the state now.

        `made`: whether it made records, which a new process would make again from the log; `more`:
        whether there is more to learn at once, for which they may wait. True if anything is not
        stored yet and the step had nothing to learn (so there is time), at least `unstored_max`
        records are not stored, or the newest store is an interval ago.
        """
        self._unstored += learnt
        self._records_wait |= made
        # A clock that was set back must not lengthen the interval.
        self._stored_at = min(self._stored_at, now)
        if self._unstored == 0 and not self._records_wait:
            return False
        if self._records_wait and not more:
            return True
        has_time = learnt == 0 and self._interval_s <= STORE_INTERVAL_S
        return (
            has_time or self._unstored >= unstored_max or now >= self._stored_at + self._interval_s
        )

    @property
    def has_unstored(self) -> bool:
        """Whether something was learnt or made since the newest store."""
        return self._unstored > 0 or self._records_wait

    @property
    def due_at(self) -> float:
        """Time at which `should_store` says so though nothing more is learnt, seconds since 1970;
        inf: never, -inf: at the next step."""
        if not self.has_unstored:
            return math.inf
        if self._records_wait or self._interval_s <= STORE_INTERVAL_S:
            return -math.inf
        return self._stored_at + self._interval_s

    @property
    def has_pending(self) -> bool:
        """Whether records are stored that may not be published."""
        return self._pending is None or bool(self._pending)

    def store(self, state: dict[str, Any], records: Sequence[OutboxRecord], now: float) -> None:
        """Save the state and its records in one transaction, and delete those that are published.

        A record counts as published once the log has flushed it.
        """
        last = self._checkpoint.save(state, records, self._published_up_to)
        if self._pending is not None and records:
            self._pending += records
            self._stored_up_to = last
        self._unstored = 0
        self._records_wait = False
        self._stored_at = now

    def delete_published(self) -> None:
        """Delete from the checkpoint what is published. Raises as it does."""
        self._checkpoint.delete_published(self._published_up_to)

    def publish_pending(self) -> int:
        """Publish every stored record that is not known to be published; returns how many.

        A record published again after a kill has the same bytes. Raises as the log does; after
        `LogUnavailable` all of them stay stored.
        """
        if self._pending is None:
            self._pending = []
            for number, record in self._checkpoint.pending():
                self._pending.append(record)
                self._stored_up_to = number
        pending = self._pending
        for record in pending:
            self._log.publish(
                record.topic, record.value, record.key, record.headers + self._sign(record)
            )
        if pending:
            self._log.flush()
            self._published_up_to = self._stored_up_to
            self._pending = []
        return len(pending)
