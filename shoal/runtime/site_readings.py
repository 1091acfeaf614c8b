"""The readings of all clients of a site in one file, each client's with places of their own.

A host takes readings in from one log of its site, in which the client of a record is named by its
key or by a field. Here each client has them as in a readings log of its own: its places count its
own readings from 0, and the log has an identity of its own. Noise, windows and ledgers go by places
and identities, so that they are those of a client with a log of its own. What was taken in and how
far the site's log was read are stored in one transaction, so that a kill loses no reading and takes
none in twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from shoal.errors import InvalidState, LogError, LogUnavailable, OffsetOutOfRange
from shoal.files import create_database, sqlite_errors, writing
from shoal.protocol.topics import READINGS, RELEASES
from shoal.read_only import ReadOnlyFile
from shoal.telemetry.slow_files import noting_slowness
from shoal.transports.base import (
    BytesColumn,
    Headers,
    Log,
    Positions,
    Record,
    RecordColumns,
    TopicSettings,
)
from shoal.transports.sqlite.records import forms_of
from shoal.transports.sqlite.schema import new_identity

FORMAT: Final = "1"
READ_BYTES_MAX: Final = 64 * 1024 * 1024
"""bytes of one read, but for its first record"""
WAIT_S: Final = 30.0
"""wait for a command that reads the file while a host writes it"""
CACHE_KIB: Final = 65536
"""memory for pages of the file: it grows with what clients are there, as pages come into use"""
HEADERS_KEPT: Final = 256
"""different headers of readings whose packed form is kept"""
_PLACE_OF_ROW: Final = itemgetter(0, 1)
"""client and place, the key of a row of readings"""
_SCHEMA: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE clients (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, identity BLOB NOT"
    " NULL, first INTEGER NOT NULL, next INTEGER NOT NULL, bytes INTEGER NOT NULL, notes INTEGER"
    " NOT NULL)",
    # By client and place, so that the readings of one client are read as they lie.
    "CREATE TABLE readings (client INTEGER, place INTEGER, taken_in_ms INTEGER NOT NULL, headers"
    " BLOB NOT NULL, value BLOB, PRIMARY KEY (client, place)) WITHOUT ROWID",
    "CREATE TABLE notes (client INTEGER, place INTEGER, key BLOB NOT NULL, value BLOB, PRIMARY KEY"
    " (client, place)) WITHOUT ROWID",
    "CREATE TABLE positions (source BLOB, partition INTEGER, next INTEGER NOT NULL, PRIMARY KEY"
    " (source, partition)) WITHOUT ROWID",
)


class TakenIn(NamedTuple):
    """A reading of a client, as its log is to have it."""

    client: str
    taken_in_ms: int
    """time at which the site's log took it in, milliseconds since 1970"""
    headers: Headers
    value: bytes | None


@dataclass
class _Client:
    """A client in the file."""

    number: int
    name: str
    identity: bytes
    first: int
    """place of its oldest reading that is kept"""
    next: int
    """place of its next reading"""
    bytes: int
    """bytes of its readings that are kept, with their headers"""
    notes: int
    """place of the next note of what was released"""


class MovedClient(NamedTuple):
    """A client that has come from another host, without its readings."""

    number: int
    name: str
    place: int
    """place of its next reading"""


class SiteReadings:
    """The file with the readings of all clients of a site. One process writes it: the host.

    Methods raise `LogUnavailable` where there is no room, and `InvalidState` for a damaged file.
    """

    def __init__(
        self,
        path: Path,
        retain_bytes: int,
        identity_of: Callable[[str], bytes] = lambda _: new_identity(),
        *,
        identity: str = "",
        is_copy: bool = False,
        read_only: bool = False,
    ) -> None:
        """`retain_bytes`: bytes of the newest readings that are kept of each client.

        `identity_of`: 16 bytes for a client that is new, by default random; `identity`: of a new
        file, by default random. `is_copy`: whether it is a working copy, which is made anew after
        a power cut. `read_only`: for a command, which changes no file. Raises `SettingsError` for
        a file that this user may not write.
        """
        self._path = path
        self._retain_bytes = retain_bytes
        self._identity_of = identity_of
        self._is_copy = is_copy
        statements: list[tuple[str, tuple[str, ...]]] = [(table, ()) for table in _SCHEMA]
        about = ("format", FORMAT, "identity", identity or new_identity().hex())
        statements.append(("INSERT INTO about VALUES (?, ?), (?, ?)", about))
        self._unchanged: ReadOnlyFile | None = None
        with self._errors():
            if read_only:
                self._unchanged = ReadOnlyFile(path, WAIT_S)
                self._file = self._unchanged.connection
            else:
                create_database(path, statements)
                self._file = sqlite3.connect(
                    f"{path.absolute().as_uri()}?mode=rw",
                    uri=True,
                    timeout=WAIT_S,
                    isolation_level=None,
                )
            try:
                self._open()
            except BaseException:
                self._file.close()
                raise

    @property
    def names(self) -> list[str]:
        """The clients that have readings, in the order in which they have come."""
        return list(self._clients)

    def __len__(self) -> int:
        """The number of clients that have readings."""
        return len(self._clients)

    def __contains__(self, client: str) -> bool:
        return client in self._clients

    def positions(self, source: bytes) -> Positions:
        """partition -> next offset to read, of the site's log with this identity; none for one that
        was never read."""
        with self._errors():
            rows = self._file.execute(
                "SELECT partition, next FROM positions WHERE source = ?", (source,)
            ).fetchall()
        return dict(rows)

    def take_in(
        self, readings: Iterable[TakenIn], source: bytes, before: Positions, after: Positions
    ) -> None:
        """Store readings, in their order, and that the site's log was read from `before` to
        `after`.

        All in one transaction. Raises `InvalidState` where another process has read on meanwhile.
        """
        touched: dict[str, _Client] = {}
        rows = []
        for name, taken_in_ms, unpacked, value in readings:
            client = touched.get(name)
            if client is None:
                client = self._copy_of(name, len(touched))
                touched[name] = client
            headers = _packed(unpacked)
            rows.append((client.number, client.next, taken_in_ms, headers, value))
            client.next += 1
            client.bytes += len(headers) + len(value or b"")
        # In the order of the file: those of one client, which lie together, are written at once.
        rows.sort(key=_PLACE_OF_ROW)
        with self._errors(), noting_slowness(self._path), writing(self._file):
            # Within the transaction, so that no other process can write between the look and the
            # write.
            if self.positions(source) not in (before, {}):
                raise InvalidState(
                    f"{self._path}: another host has taken in readings of this site meanwhile; a"
                    " folder is for one host"
                )
            self._file.executemany(
                "INSERT INTO clients VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE"
                " SET next = excluded.next, bytes = excluded.bytes",
                [tuple(vars(client).values()) for client in touched.values()],
            )
            self._file.executemany("INSERT INTO readings VALUES (?, ?, ?, ?, ?)", rows)
            for client in touched.values():
                self._retain(client)
            self._file.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?)",
                [(source, partition, position) for partition, position in after.items()],
            )
        # Only once they are stored: after an error the same readings come again.
        self._clients.update(touched)

    def adopt(self, clients: Sequence[MovedClient], source: bytes, at: Positions) -> None:
        """Begin with these clients, and read the site's log on from here; the file is new."""
        adopted = {}
        for number, name, place in clients:
            adopted[name] = _Client(number, name, self._identity_of(name), place, place, 0, 0)
        rows = [tuple(vars(client).values()) for client in adopted.values()]
        positions = [(source, partition, position) for partition, position in at.items()]
        with self._errors(), writing(self._file):
            self._file.executemany("INSERT INTO clients VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._file.executemany("INSERT INTO positions VALUES (?, ?, ?)", positions)
        self._clients = adopted

    def log_of(self, client: str, *, closes_file: bool = False) -> Log:
        """The readings log of a client, and the notes of what was released of it.

        `closes_file`: closing it closes the file, for a process that needs the one client. Raises
        `LogError` for a client that has no readings.
        """
        if client not in self._clients:
            raise LogError(f"{self._path}: no reading of client {client!r} has come yet")
        return _ClientReadings(self, client, closes_file)

    def close(self) -> None:
        """Close the file. Closing twice has no effect."""
        self._file.close()

    def client(self, name: str) -> _Client:
        """What the file has of a client."""
        return self._clients[name]

    def read(self, name: str, place: int, limit: int) -> Sequence[Record]:
        """Up to `limit` readings of a client from a place on, and about `READ_BYTES_MAX` bytes."""
        read: list[tuple[Any, ...]] = []
        size = 0
        with self._errors():
            rows = self._file.execute(
                "SELECT place, taken_in_ms, headers, value FROM readings WHERE client = ? AND place"
                " >= ? ORDER BY place LIMIT ?",
                (self._clients[name].number, place, limit),
            )
            with closing(rows):
                for row in rows:
                    size += len(row[2]) + len(row[3] or b"")
                    if read and size > READ_BYTES_MAX:
                        break
                    read.append(row)
        if self._unchanged is not None and not self._unchanged.is_current:
            # It was opened as a file that nobody writes.
            raise LogUnavailable(f"{self._path}: a host has opened it meanwhile; try again")
        return _records(read)

    def notes(self, name: str, place: int, limit: int) -> list[Record]:
        """Up to `limit` notes of what was released of a client's readings, from a place on."""
        with self._errors():
            rows = self._file.execute(
                "SELECT place, key, value FROM notes WHERE client = ? AND place >= ? ORDER BY place"
                " LIMIT ?",
                (self._clients[name].number, place, limit),
            ).fetchall()
        return [Record(RELEASES, 0, at, 0, key, value, ()) for at, key, value in rows]

    def note(self, name: str, key: bytes, value: bytes | None) -> None:
        """Note what was released of a client's readings; the newest note of a key counts."""
        client = self._clients[name]
        with self._errors(), noting_slowness(self._path), writing(self._file):
            self._file.execute(
                "DELETE FROM notes WHERE client = ? AND key = ?", (client.number, key)
            )
            self._file.execute(
                "INSERT INTO notes VALUES (?, ?, ?, ?)", (client.number, client.notes, key, value)
            )
            self._file.execute(
                "UPDATE clients SET notes = ? WHERE number = ?", (client.notes + 1, client.number)
            )
        client.notes += 1

    def _copy_of(self, name: str, new: int) -> _Client:
        """What the file has of a client, to be changed; a new one with a number `new` further."""
        known = self._clients.get(name)
        if known is not None:
            return _Client(**vars(known))
        number = len(self._clients) + new
        return _Client(number, name, self._identity_of(name), 0, 0, 0, 0)

    def _retain(self, client: _Client) -> None:
        """Remove the oldest readings beyond `retain_bytes`, but never the newest one."""
        excess = client.bytes - self._retain_bytes
        if excess <= 0:
            return
        freed = 0
        cut = client.first
        rows = self._file.execute(
            "SELECT place, length(headers) + coalesce(length(value), 0) FROM readings WHERE client"
            " = ? AND place < ? ORDER BY place",
            (client.number, client.next - 1),
        )
        with closing(rows):
            for place, size in rows:
                if freed >= excess:
                    break
                freed += size
                cut = place + 1
        client.first = cut
        client.bytes -= freed
        self._file.execute(
            "DELETE FROM readings WHERE client = ? AND place < ?", (client.number, cut)
        )
        self._file.execute(
            "UPDATE clients SET first = ?, bytes = ? WHERE number = ?",
            (client.first, client.bytes, client.number),
        )

    def _open(self) -> None:
        about = dict(self._file.execute("SELECT name, value FROM about").fetchall())
        if about.get("format") != FORMAT:
            raise InvalidState(f"{self._path}: written by another version of shoal; run that one")
        self.identity = str(about["identity"])
        """name given at random when the file was made; a copy has the same"""
        if self._unchanged is None:
            self._prepare()
        rows = self._file.execute("SELECT * FROM clients ORDER BY number").fetchall()
        clients = [_Client(*row) for row in rows]
        self._clients = {client.name: client for client in clients}

    def _prepare(self) -> None:
        self._file.execute("PRAGMA journal_mode = WAL")
        # How far was read is stored with what was read, and clients publish what they learnt from
        # it at once: a power cut must take neither back.
        self._file.execute(f"PRAGMA synchronous = {'OFF' if self._is_copy else 'FULL'}")
        self._file.execute("PRAGMA fullfsync = ON")
        # What retention removes is overwritten: readings must not outlive it in free pages.
        self._file.execute("PRAGMA secure_delete = ON")
        self._file.execute("PRAGMA journal_size_limit = 67108864")
        # Readings of thousands of clients go to as many pages at a time.
        self._file.execute(f"PRAGMA cache_size = -{CACHE_KIB}")

    def _errors(self) -> AbstractContextManager[None]:
        return sqlite_errors(
            self._path,
            "the host of this site",
            lambda how: InvalidState(
                f"{self._path}: damaged ({how}). Restore it, with the clients' folders, from one"
                " backup"
            ),
        )


@lru_cache(maxsize=HEADERS_KEPT)
def _packed(headers: Headers) -> bytes:
    packed: bytes = msgpack.packb(headers)
    return packed


def _records(rows: Sequence[tuple[Any, ...]]) -> Sequence[Record]:
    """The records of rows: place, time in ms, packed headers, value. By column, which takes less
    time, where their headers are of few forms."""
    if not rows:
        return []
    places, times, headers, values = zip(*rows, strict=True)
    found = forms_of(headers)
    if found is not None:
        contents = values if None in values else BytesColumn.of(values)
        columns = (places, times, [None] * len(rows), contents)
        return RecordColumns(READINGS, 0, columns, *found)
    records = []
    for place, taken_in_ms, packed, value in rows:
        unpacked = msgpack.unpackb(packed, use_list=False)
        records.append(Record(READINGS, 0, place, taken_in_ms, None, value, unpacked))
    return records


class _ClientReadings:
    """`Log` with the topics `READINGS` and `RELEASES` of one client of a site."""

    def __init__(self, site: SiteReadings, client: str, closes_file: bool) -> None:
        self._site = site
        self._client = client
        self._closes_file = closes_file

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`: both topics are there, as the host keeps them."""
        _check_topic(topic)

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`."""
        _check_topic(topic)
        return self._site.client(self._client).identity

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Log.publish`. Stored at once. Raises `LogError` for readings, which come from the
        site's log alone."""
        if topic != RELEASES or key is None:
            raise LogError(f"topic {topic!r} of a client of a site is written by its host alone")
        self._site.note(self._client, key, value)

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`."""

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`. It never waits: a host looks at what has come for all its clients."""
        place = at.get(0)
        if place is None:
            return [], dict(at)
        first, end = self.bounds(topic)[0]
        if place < first:
            raise OffsetOutOfRange(topic, 0, place, first)
        if place > end:
            raise LogError(
                f"{topic}/0 of client {self._client}: position {place} was asked for but the log"
                f" ends at {end}: this is not the log that the position is from. Restore the site's"
                " file and the clients' folders from one backup"
            )
        if place == end:
            return [], {0: end}
        records: Sequence[Record]
        if topic == READINGS:
            records = self._site.read(self._client, place, limit)
        else:
            records = self._site.notes(self._client, place, limit)
        after = records[-1].offset + 1 if records else end
        return records, {0: after}

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        _check_topic(topic)
        client = self._site.client(self._client)
        if topic == RELEASES:
            return {0: (0, client.notes)}
        return {0: (client.first, client.next)}

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """See `Log.show_progress`. Nothing to do: there are no tools for this file."""

    def close(self) -> None:
        """See `Log.close`."""
        if self._closes_file:
            self._site.close()


def _check_topic(topic: str) -> None:
    if topic not in (READINGS, RELEASES):
        raise LogError(f"topic {topic!r}: only {READINGS} and what was released of them are here")
