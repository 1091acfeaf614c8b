"""The history on disk: the newest version of every bin and of the names, from the records of the
topic of the history.

This file is the topic's index: one that is missing, damaged, or of another log, is filled from the
topic again. The server writes it; the threads of the page and other processes read it meanwhile.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

from shoal.config.resolved import ResolvedContract
from shoal.errors import LogUnavailable, MessageRejected, SettingsError
from shoal.files import FULL, LOCKED, NO_ACCESS, make_private, primary_code, writing
from shoal.protocol.history import (
    BINS_KEPT,
    WITH_PLACES,
    BinKey,
    HistoryBin,
    HistoryMessage,
    HistoryNames,
    key_of,
)
from shoal.runtime.checkpoint import OutboxRecord
from shoal.telemetry.events import log_event
from shoal.telemetry.slow_files import noting_slowness
from shoal.transports.base import Log, Positions, Record, beginning


@dataclass(frozen=True)
class HistoryRecord:
    """A record of the topic: a bin, the names of a model, or None for a bin kept no longer."""

    key: bytes
    message: HistoryMessage | None

    @cached_property
    def value(self) -> bytes | None:
        """The message as it travels; None for a tombstone."""
        return None if self.message is None else self.message.encode()

    def outbox_record(self, topic: str) -> OutboxRecord:
        """The record to publish; a tombstone for a bin that is kept no longer."""
        headers = () if self.message is None else self.message.headers()
        return OutboxRecord(topic, self.value, self.key, headers)


def decode_record(record: Record, contract: ResolvedContract) -> HistoryRecord | None:
    """The content of a record of the topic; None for one that is not of this contract's history.

    Of a model that began anew the counts go on, but not where its clusters lay: the features are
    others.
    """
    if record.key is None:
        return None
    if record.value is None:
        return HistoryRecord(record.key, None)
    message = _decoded_message(record)
    if message is None or message.federation != contract.federation:
        return None
    standing = contract.standing(message.contract, message.model)
    # A record under the key of another would take its place.
    if message.record_key != record.key or standing not in {"same", "anew"}:
        return None
    if isinstance(message, HistoryBin) and standing == "anew":
        message = message.without_places()
    return HistoryRecord(record.key, message)


def _decoded_message(record: Record) -> HistoryMessage | None:
    """The message of a record; None for one that cannot be read."""
    assert record.value is not None
    named = dict(record.headers).get("type", b"").decode(errors="replace")
    form = HistoryNames if named == HistoryNames.TYPE else HistoryBin
    try:
        return form.decode(record.value, record.headers)
    except MessageRejected:
        return None


HISTORY_FILE = "history.db"
"""name of the file in the server's folder"""
DAMAGED_FILE = "history.db.damaged"
"""name that a damaged file gets; one that was set aside before is replaced"""
FORMAT = 6
"""version of the tables; a file of another one is made again from the topic"""
CHECKSUM_BYTES = 4
"""CRC-32 before what a row holds: else a flipped bit in a count would be another count"""
NOTE_S: Final = 60.0
"""how often it is noted how far the topic is read"""
READ_AT_ONCE: Final = 200
"""records of the topic that are read and stored together: some hundredths of a second"""
STARTS_AT_ONCE = 500
"""bins that are asked for together: SQLite takes no more than some values in a query"""
EXPIRED_MAX = 100
"""bins removed at once; later ones follow with the next snapshot"""
BIN_TABLES: Final = [f"bins_{width}" for width in BINS_KEPT]
_BIN_TABLE: Final = "(model TEXT, start INTEGER, value BLOB NOT NULL, PRIMARY KEY (model, start))"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS names (model TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    # A table for each width: small bins that stay for a year, between large ones that are removed
    # after two days, would leave most of their pages empty. With row ids, as else a value of a
    # quarter of a page has pages of its own.
    *(f"CREATE TABLE IF NOT EXISTS {table} {_BIN_TABLE}" for table in BIN_TABLES),
)


WAIT_S: Final = 5.0
"""how long a use of the file waits for another process that holds its lock"""
UNUSABLE_S: Final = 300.0
"""how long a file that could not be used is left alone"""
_UNUSABLE_UNTIL: Final[dict[Path, float]] = {}
"""files that could not be used, and the monotonic time at which each is tried again; until then
the history is in memory"""
_FOUND_DAMAGED: Final[set[Path]] = set()
"""files that a reader of this process has found damaged; a reader changes no file, so the store of
the process sets them aside"""


@dataclass(frozen=True)
class _Unread:
    """What is left to read of the topic."""

    firsts: Positions
    at: Positions
    ends: Positions

    @property
    def records(self) -> int:
        """The number of offsets that are left."""
        return sum(max(0, end - self.at[partition]) for partition, end in self.ends.items())

    @property
    def share(self) -> float:
        """The share that has been read."""
        wanted = sum(end - self.firsts[partition] for partition, end in self.ends.items())
        return 1.0 - self.records / wanted if wanted else 1.0


class HistoryReader:
    """Reads the history that a server keeps in a file. For any thread: each call opens the file
    anew.

    While the server makes the file again from the log, every call but `share_read` raises
    `LogUnavailable`: a part of a history looks like the history of a plant that stood still.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def share_read(self) -> float:
        """The share of the topic that the file has; 1 once it has all."""
        with self._opened(whole=False) as file:
            return _share_read(file)

    def bins(
        self, model: str, width_s: int, first: float, last: float, limit: int
    ) -> list[HistoryBin]:
        """The bins of this width that start from `first` to `last`, seconds since 1970, at most
        `limit`, oldest first.

        Raises `LogUnavailable` when the file cannot be read at present.
        """
        return list(islice(self.each_bin(model, width_s, first, last), limit))

    def each_bin(self, model: str, width_s: int, first: float, last: float) -> Iterator[HistoryBin]:
        """All such bins, one after the other: never in memory together."""
        with self._opened() as file:
            yield from _bins(file, model, width_s, first, last)

    def newest_bins(self, model: str, width_s: int, limit: int) -> list[HistoryBin]:
        """The newest bins of this width, the newest first."""
        query = f"SELECT value FROM bins_{width_s} WHERE model = ? ORDER BY start DESC LIMIT ?"
        with self._opened() as file:
            return list(_decoded(file.execute(query, (model, limit))))

    def bins_at(self, model: str, width_s: int, starts: Sequence[int]) -> list[HistoryBin]:
        """The bins of this width that start at these times, as many as there are."""
        with self._opened() as file:
            return list(_bins_at(file, model, width_s, starts))

    def extent(self, model: str, width_s: int) -> tuple[int, int] | None:
        """The starts of the oldest and the newest bin of this width; None if there is none."""
        query = f"SELECT min(start), max(start) FROM bins_{width_s} WHERE model = ?"
        with self._opened() as file:
            first, last = file.execute(query, (model,)).fetchone()
        return None if first is None else (first, last)

    def number(self, model: str, width_s: int, first: float) -> int:
        """Number of bins of this width that start at `first` or later."""
        query = f"SELECT count(*) FROM bins_{width_s} WHERE model = ? AND start >= ?"
        with self._opened() as file:
            return int(file.execute(query, (model, first)).fetchone()[0])

    def names(self, model: str) -> HistoryNames | None:
        """The clients and clusters that the bins name by number; None before the first bin."""
        with self._opened() as file:
            return _names(file, model)

    @contextmanager
    def _opened(self, *, whole: bool = True) -> Iterator[sqlite3.Connection]:
        address = f"{self._path.absolute().as_uri()}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True)) as file:
                file.execute("PRAGMA cache_size=-128")  # KiB of pages, each of which is read once
                share = _share_read(file)
                if whole and share < 1.0:
                    raise LogUnavailable(
                        f"{self._path}: is made again from the log, {share:.0%} of which has been"
                        " read"
                    )
                yield file
        except FILE_ERRORS as error:
            # A slip of ours, as the use of a closed file: to report it as a full disk would hide
            # it.
            if isinstance(error, sqlite3.ProgrammingError):
                raise
            if not _is_damage(error):
                raise _unavailable(self._path, error) from None
            # A reader has no right to change the file: it notes the damage, and the store acts at
            # its next use.
            _FOUND_DAMAGED.add(self._path.absolute())
            raise LogUnavailable(
                f"{self._path}: damaged ({error}); the server that writes it makes it again, at "
                "its next start at the latest"
            ) from None


class HistoryStore:
    """The file of the history, as the server writes it. For one thread.

    Each call raises `LogUnavailable` when the disk is full or fails, or another process holds the
    file, and `SettingsError` when this user may not write it. A damaged file is set aside before
    the call raises `LogUnavailable`: the next store begins with an empty one, which `catch_up`
    fills, a part with each call. So is one in memory, where the file cannot be used: the models do
    not wait for it.
    """

    def __init__(self, contract: ResolvedContract, path: Path | None = None) -> None:
        """`path` None keeps it in memory. Raises `SettingsError` where this user may not write."""
        self._contract = contract
        self._topic = contract.contract.history_topic
        self._path = path
        self._unusable: Path | None = None
        """the file, where what it should have is in memory"""
        self._file = self._open()
        self._unread: _Unread | None = None
        """what `catch_up` has still to read of the topic; None: nothing"""
        self._at: Positions = {}
        """how far the topic was read, and records published since then"""
        self._published = 0
        self._noted_s = -math.inf
        self._none_expired: dict[tuple[str, int], int] = {}
        """(model, width) -> start of the newest bin for which no bin was too old"""
        self.reader = None if path is None else HistoryReader(path)

    @property
    def whole(self) -> bool:
        """Whether `catch_up` has nothing left to read."""
        return self._unread is None

    @property
    def share_read(self) -> float:
        """The share of the topic that has been read; 1 once all has."""
        return 1.0 if self._unread is None else self._unread.share

    def catch_up(self, log: Log, for_s: float = math.inf) -> None:
        """Read what the topic has beyond what was read before; from its start in a file of another
        log.

        For about `for_s` seconds: `whole` is False where something is left, and the next call goes
        on from there, in this process or another one. Raises as the log does.
        """
        until_s = time.monotonic() + for_s
        if self._unread is None:
            self._unread = self._begin_to_read(log)
        unread = self._unread
        while unread.records:
            records, at = log.read(self._topic, unread.at, READ_AT_ONCE)
            decoded = (decode_record(record, self._contract) for record in records)
            unread = replace(unread, at=at)
            self._apply([record for record in decoded if record is not None], unread)
            self._unread = unread
            if unread.records and time.monotonic() >= until_s:
                return
        self._unread = None
        self._at = unread.at
        self._published = 0

    def _begin_to_read(self, log: Log) -> _Unread:
        """What is to be read of the topic; empties a file of another log."""
        identity = log.identity(self._topic).hex()
        at = beginning(log, self._topic)
        with self._used() as file:
            about = dict(file.execute("SELECT name, value FROM about").fetchall())
            read_to = {}
            if "positions" in about:
                read_to = dict(json.loads(_checked(about["positions"])))
        # Positions count within one log: in a log that was made anew the same number is another
        # record.
        if about.get("log") == identity:
            for partition, first in at.items():
                # Not before the beginning: the log may have removed what was not read yet.
                at[partition] = max(first, read_to.get(partition, first))
        # To the ends as they are now: a server that publishes meanwhile must not keep this from
        # ending.
        bounds = log.bounds(self._topic)
        firsts = {partition: first for partition, (first, _) in bounds.items()}
        unread = _Unread(firsts, at, _ends(bounds))
        with self._transaction() as file:
            if about.get("log") != identity:
                for table in (*BIN_TABLES, "names", "about"):
                    file.execute(f"DELETE FROM {table}")
                file.execute("INSERT INTO about VALUES ('log', ?)", (identity,))
            values = ", ".join("?" * len(self._contract.models))
            query = f"DELETE FROM names WHERE model NOT IN ({values})"  # of models that are gone
            file.execute(query, list(self._contract.models))
            _note_read(file, unread)
        return unread

    def apply(self, records: Sequence[HistoryRecord], log: Log | None = None) -> None:
        """Take in records that have just been published; there are none before it is `whole`.

        With `log`, it is noted now and then that the topic has been read as far as these: else the
        next start would read all of them again. Raises as the log does.
        """
        self._published += len(records)
        read = None
        if records and log is not None and time.monotonic() >= self._noted_s + NOTE_S:
            self._noted_s = time.monotonic()
            read = self._own_alone(log)
        self._apply(records, read)
        if read is not None:
            self._at = read.at
            self._published = 0
        self._try_again()

    def _own_alone(self, log: Log) -> _Unread | None:
        """The end of the topic, with nothing left to read; None where others have written to it as
        well, which the next start reads."""
        ends = _ends(log.bounds(self._topic))
        new = sum(end - self._at.get(partition, 0) for partition, end in ends.items())
        return _Unread({}, ends, ends) if new == self._published else None

    def expired(self, records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
        """The bins to remove now that `records` are published: those of the same model and width
        that are too old."""
        newest: dict[tuple[str, int], int] = {}
        for record in records:
            message = record.message
            if isinstance(message, HistoryBin):
                key = (message.model, message.width_s)
                newest[key] = max(message.start, newest.get(key, message.start))
        removed = []
        with self._used() as file:
            for (model, width), end in newest.items():
                # A bin is published with each snapshot, and begins only once in a while.
                if self._none_expired.get((model, width)) == end:
                    continue
                rows = file.execute(
                    f"SELECT start FROM bins_{width} WHERE model = ? AND start <= ?"
                    " ORDER BY start LIMIT ?",
                    (model, end - BINS_KEPT[width] * width, EXPIRED_MAX),
                ).fetchall()
                removed += [_tombstone(model, width, start) for (start,) in rows]
                if not rows:
                    self._none_expired[model, width] = end
        return removed

    def forgotten(
        self, models: Sequence[str], records: Iterable[HistoryRecord] = ()
    ) -> list[HistoryRecord]:
        """The bins to remove of models whose history begins again with `records`."""
        kept = {record.key for record in records}
        removed = []
        with self._used() as file:
            for model in models:
                for width in BINS_KEPT:
                    query = f"SELECT start FROM bins_{width} WHERE model = ? ORDER BY start"
                    rows = file.execute(query, [model])
                    removed += [_tombstone(model, width, start) for (start,) in rows]
        return [record for record in removed if record.key not in kept]

    def without_places(self, models: Sequence[str]) -> list[HistoryRecord]:
        """The bins that hold places, without these: of models that have other features by now."""
        stripped = []
        with self._used() as file:
            for model in models:
                for width in WITH_PLACES:
                    query = f"SELECT value FROM bins_{width} WHERE model = ? ORDER BY start"
                    for held in _decoded(file.execute(query, (model,))):
                        if held.places is not None:
                            bare = held.without_places()
                            stripped.append(HistoryRecord(bare.record_key, bare))
        return stripped

    def bin(self, key: BinKey) -> HistoryBin | None:
        """The newest version of a bin; None if there is none."""
        with self._used() as file:
            return next(_bins(file, key.model, key.width_s, key.start, key.start), None)

    def names(self, model: str) -> HistoryNames | None:
        """The newest names of a model; None if there are none."""
        with self._used() as file:
            return _names(file, model)

    def newest(self, model: str, width_s: int) -> int | None:
        """The start of the newest bin of this width; None if there is none."""
        query = f"SELECT max(start) FROM bins_{width_s} WHERE model = ?"
        with self._used() as file:
            newest: tuple[int | None] = file.execute(query, (model,)).fetchone()
        return newest[0]

    def bins_at(self, model: str, width_s: int, starts: Sequence[int]) -> list[HistoryBin]:
        """The bins of this width that start at these times, as many as there are."""
        bins: list[HistoryBin] = []
        with self._used() as file:
            for first in range(0, len(starts), STARTS_AT_ONCE):
                bins += _bins_at(file, model, width_s, starts[first : first + STARTS_AT_ONCE])
        return bins

    def close(self) -> None:
        """Close the file. Closing twice has no effect."""
        self._file.close()

    def _open(self) -> sqlite3.Connection:
        if self._path is None:
            return self._created(":memory:")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"{self._path.parent}: cannot be used: {error.strerror}") from None
        why = "it could not be used a moment ago"
        if time.monotonic() >= _UNUSABLE_UNTIL.get(self._path.absolute(), -math.inf):
            try:
                return self._open_file(self._path)
            except LogUnavailable as error:
                why = str(error)
        log_event("history_in_memory", logging.WARNING, file=str(self._path), detail=why)
        _note_unusable(self._path)
        self._unusable = self._path
        self._path = None
        return self._created(":memory:")

    def _open_file(self, path: Path) -> sqlite3.Connection:
        with _file_errors(path), _rights_errors(path):
            try:
                return self._created(str(path))
            except FILE_ERRORS as error:
                if not _is_damage(error):
                    raise
                self._set_aside(str(error))
            except _OtherFormat:
                self._remove()
            return self._created(str(path))

    def _try_again(self) -> None:
        """Look whether a file that could not be used can be used by now.

        Raises `LogUnavailable` where it can: the next store reads on from what it has.
        """
        path = self._unusable
        if path is None or time.monotonic() < _UNUSABLE_UNTIL[path.absolute()]:
            return
        try:
            with closing(sqlite3.connect(path, timeout=0.0, isolation_level=None)) as file:
                file.execute("BEGIN IMMEDIATE")
                file.execute("ROLLBACK")
        except sqlite3.Error as error:
            # What a damage or missing rights mean is for the store that opens it.
            if _is_unusable(error):
                _note_unusable(path)
                return
        del _UNUSABLE_UNTIL[path.absolute()]
        raise LogUnavailable(f"{path}: can be used again; what it lacks is read from the log")

    def _set_aside(self, why: str) -> None:
        """Give a damaged file another name. Raises `OSError`."""
        assert self._path is not None
        aside = self._path.with_name(DAMAGED_FILE)
        _FOUND_DAMAGED.discard(self._path.absolute())
        if self._path.exists():
            self._path.replace(aside)
        self._remove()
        log_event("history_set_aside", logging.WARNING, file=str(aside), detail=why)

    def _remove(self) -> None:
        """Remove the file, and what SQLite keeps beside it. Raises `OSError`."""
        assert self._path is not None
        for name in (self._path.name, f"{self._path.name}-wal", f"{self._path.name}-shm"):
            self._path.with_name(name).unlink(missing_ok=True)

    def _created(self, name: str) -> sqlite3.Connection:
        if self._path is not None:
            # Before SQLite creates it, so that no other user can open it in between: it has the
            # names of clients, and when each of them sent readings.
            make_private(self._path)
        # A command may read the file while the server writes; neither takes longer than a moment.
        # `isolation_level=None`: `writing` begins and ends transactions, and Python's own would
        # begin others.
        file = sqlite3.connect(name, timeout=WAIT_S, isolation_level=None)
        try:
            # With a write-ahead log, readers (the page, commands) never wait for the writer.
            file.execute("PRAGMA journal_mode=WAL")
            # What a power cut takes away is read from the topic again.
            file.execute("PRAGMA synchronous=NORMAL")
            file.execute("PRAGMA cache_size=-512")
            (version,) = file.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                raise _OtherFormat
            # `quick_check` sees that pages hang together; the checksums below see what is in them.
            # Both only when the file is opened, as they read all of it.
            if file.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise _Damaged("its pages are not as SQLite writes them")
            for table in _SCHEMA:
                file.execute(table)
            file.execute(f"PRAGMA user_version={FORMAT}")
            for table in (*BIN_TABLES, "names"):
                for (value,) in file.execute(f"SELECT value FROM {table}"):
                    _checked(value)
        except BaseException:
            file.close()
            raise
        return file

    def _apply(self, records: Sequence[HistoryRecord], unread: _Unread | None) -> None:
        if not records and unread is None:
            return
        with self._transaction() as file:
            for record in records:
                _apply_record(file, record)
                self._note_expiry(record)
            if unread is not None:
                _note_read(file, unread)

    def _note_expiry(self, record: HistoryRecord) -> None:
        """Look for bins to remove again where one was stored that is too old."""
        message = record.message
        if not isinstance(message, HistoryBin):
            return
        width = message.width_s
        end = self._none_expired.get((message.model, width))
        if end is not None and message.start <= end - BINS_KEPT[width] * width:
            del self._none_expired[message.model, width]

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        with _file_errors(self._path), _rights_errors(self._path):
            try:
                if self._path is not None and self._path.absolute() in _FOUND_DAMAGED:
                    raise _Damaged("a reader has found it")
                yield self._file
            except FILE_ERRORS as error:
                if self._path is None:
                    raise
                if not _is_damage(error):
                    if _is_unusable(error):
                        _note_unusable(self._path)
                    raise
                # Closed first: what an open connection still writes would go into the file that was
                # set aside.
                self._file.close()
                self._set_aside(str(error))
                raise LogUnavailable(
                    f"{self._path}: was damaged ({error}); it is made again from the log"
                ) from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._used() as file, noting_slowness(self._path), writing(file):
            yield file


def _ends(bounds: Mapping[int, tuple[int, int]]) -> Positions:
    return {partition: end for partition, (_, end) in bounds.items()}


def _note_read(file: sqlite3.Connection, unread: _Unread) -> None:
    """Note how far the topic is read, in the transaction of what was read: no reader takes a part
    for the whole."""
    saved = _with_checksum(json.dumps(sorted(unread.at.items())).encode())
    file.execute("INSERT OR REPLACE INTO about VALUES ('positions', ?)", (saved,))
    file.execute("DELETE FROM about WHERE name = 'share_read'")
    if unread.records:
        file.execute("INSERT INTO about VALUES ('share_read', ?)", (str(unread.share),))


def _apply_record(file: sqlite3.Connection, record: HistoryRecord) -> None:
    message = record.message
    if isinstance(message, HistoryNames):
        row = (message.model, _with_checksum(record.value))
        file.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", row)
    elif message is not None:
        # In its place, so that the bins of a year stay side by side.
        file.execute(
            f"INSERT INTO bins_{message.width_s} VALUES (?, ?, ?) "
            "ON CONFLICT (model, start) DO UPDATE SET value = excluded.value",
            (message.model, message.start, _with_checksum(record.value)),
        )
    else:
        gone = key_of(record.key)
        # A writer of the topic may write any key; only those of bins have a table.
        if gone is not None and gone.width_s in BINS_KEPT:
            query = f"DELETE FROM bins_{gone.width_s} WHERE model = ? AND start = ?"
            file.execute(query, (gone.model, gone.start))


def _share_read(file: sqlite3.Connection) -> float:
    about = dict(file.execute("SELECT name, value FROM about").fetchall())
    if "share_read" in about:
        return float(about["share_read"])
    # A file that was made a moment ago: not even what there is to read is known.
    if "log" not in about and _is_empty(file):
        return 0.0
    return 1.0


def _is_empty(file: sqlite3.Connection) -> bool:
    for table in ("names", *BIN_TABLES):
        if file.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:
            return False
    return True


def _tombstone(model: str, width: int, start: int) -> HistoryRecord:
    return HistoryRecord(BinKey(model, width, start).encode(), None)


def _bins(file: sqlite3.Connection, model: str, width: int, *span: float) -> Iterator[HistoryBin]:
    query = (
        f"SELECT value FROM bins_{width} WHERE model = ? AND start BETWEEN ? AND ? ORDER BY start"
    )
    return _decoded(file.execute(query, (model, *span)))


def _bins_at(
    file: sqlite3.Connection, model: str, width: int, starts: Sequence[int]
) -> Iterator[HistoryBin]:
    values = ", ".join("?" * len(starts))
    query = f"SELECT value FROM bins_{width} WHERE model = ? AND start IN ({values})"
    return _decoded(file.execute(query, (model, *starts)))


def _decoded(rows: Iterable[tuple[bytes]]) -> Iterator[HistoryBin]:
    return (HistoryBin.decode(_checked(value), HistoryBin.headers()) for (value,) in rows)


def _names(file: sqlite3.Connection, model: str) -> HistoryNames | None:
    row = file.execute("SELECT value FROM names WHERE model = ?", (model,)).fetchone()
    if row is None:
        return None
    return HistoryNames.decode(_checked(row[0]), HistoryNames.headers())


def _with_checksum(encoded: bytes | None) -> bytes:
    assert encoded is not None
    return zlib.crc32(encoded).to_bytes(CHECKSUM_BYTES, "big") + encoded


def _checked(value: object) -> bytes:
    """What a row holds, without its checksum. Raises `_Damaged`."""
    if not isinstance(value, bytes):
        raise _Damaged("a row holds no bytes")
    encoded = value[CHECKSUM_BYTES:]
    if zlib.crc32(encoded).to_bytes(CHECKSUM_BYTES, "big") != value[:CHECKSUM_BYTES]:
        raise _Damaged("a row is not as it was written")
    return encoded


class _Damaged(sqlite3.DatabaseError):
    """A row or a page is not as it was written."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class _OtherFormat(Exception):
    """The tables are of another version of shoal."""


FILE_ERRORS: Final = (sqlite3.Error, OSError, MessageRejected, UnicodeDecodeError, ValueError)
"""errors of the use of a file, of its disk, or of what is in it"""
DAMAGE: Final = frozenset(
    {
        # A statement that was right until now: a table or a column of it is gone.
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_MISMATCH,
    }
)
UNREADABLE_DISK: Final = frozenset({sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ})
"""a block that the disk gives no more will not come back; the topic has what was in it"""


def _is_damage(error: Exception) -> bool:
    """Whether the file itself is at fault, and not the disk, its rights or another process."""
    if isinstance(error, sqlite3.ProgrammingError | OSError):
        return False
    if not isinstance(error, sqlite3.Error):
        return True
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return primary_code(error) in DAMAGE or extended in UNREADABLE_DISK


def _is_unusable(error: Exception) -> bool:
    """Whether another process has the file, or its disk is full or fails."""
    return isinstance(error, sqlite3.Error) and primary_code(error) in FULL | LOCKED


def _note_unusable(path: Path) -> None:
    _UNUSABLE_UNTIL[path.absolute()] = time.monotonic() + UNUSABLE_S


def _unavailable(path: Path | None, error: Exception) -> LogUnavailable:
    advice = "make room"
    if isinstance(error, sqlite3.Error) and primary_code(error) in LOCKED:
        advice = "another process holds it"
    return LogUnavailable(f"{path}: cannot be read or written ({error}); {advice}")


@contextmanager
def _file_errors(path: Path | None) -> Iterator[None]:
    """Turns errors of SQLite and of the disk into ours."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except FILE_ERRORS as error:
        raise _unavailable(path, error) from None


@contextmanager
def _rights_errors(path: Path | None) -> Iterator[None]:
    """Turns missing rights into `SettingsError`, for the server: unlike a full disk, they do not
    pass with time."""
    try:
        yield
    except (sqlite3.Error, PermissionError) as error:
        if isinstance(error, sqlite3.Error) and primary_code(error) not in NO_ACCESS:
            raise
        raise SettingsError(
            f"{path}: cannot be written ({error}); it must be a file that this user may write, in a"
            " folder that this user may write"
        ) from None
