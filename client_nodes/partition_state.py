"""The state of all clients of one partition of a site's readings, which moves from host to host.

A host of a group has the clients of a partition in a folder of the partition: their readings,
checkpoints, keys and ledgers, in the files of any host. That folder is a working copy. What counts
is a changelog, a compacted topic on the site's own broker with a partition for each partition of
the readings: every row that a step has stored is written there, in one transaction for all clients
that stepped, before anything of it is published. So another host that reads the changelog has the
ledger, the state and the outbox of each client as of the newest step of which anything can have
been published, and publishes the outbox again, to the byte.

Readings are not in the changelog. It has, for each client, a place of its readings and an offset of
the site's topic from which on they come, and the offset at which a new owner begins to read: what
clients had read and not stored is read again from there, and gets the same places.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgpack

from shoal.client_nodes.bootstrap import (
    HOST_CHECKPOINTS,
    NOISE_KEY,
    checkpoint_owner,
    host_owner,
)
from shoal.client_nodes.row_changes import Row, RowChanges
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.files import writing
from shoal.privacy import derive_key, load_or_create_key
from shoal.privacy.ledger import FORMAT as LEDGER_FORMAT
from shoal.privacy.ledger import LEDGER, LedgerRow, LedgersFile, NoteRow
from shoal.runtime.checkpoint import DAMAGED, ROW_KEYS, CheckpointFile
from shoal.runtime.checkpoint import FORMAT as CHECKPOINT_FORMAT
from shoal.runtime.client_folders import client_folder
from shoal.runtime.site_readings import MovedClient, SiteReadings

FORMAT: Final = 1
"""number of the form of a changelog, beside those of the files whose rows it has"""
_FORMATS: Final = [FORMAT, CHECKPOINT_FORMAT, int(LEDGER_FORMAT)]
_ROW: Final = "row"
_LEDGER: Final = "ledger"
_CLIENT: Final = "client"
_POSITION: Final = "position"


_DAMAGED: Final = (*DAMAGED, msgpack.UnpackException)
"""errors of reading a record that no host has written"""


class Changelog(Protocol):
    """See `PartitionChangelog`."""

    def read(self) -> Iterator[tuple[bytes, bytes | None]]: ...

    def commit(self, changes: Mapping[bytes, bytes | None]) -> None: ...

    def close(self) -> None: ...


class SiteTopic(NamedTuple):
    """The topics that a partition is of."""

    readings: bytes
    """identity of the topic with the readings"""
    changelog: bytes
    """identity of that with the changelog"""


class _Readings:
    """How far the readings of a client have come: entries (place, offset), each saying that its
    readings from this place on are at this offset of the partition or behind it."""

    def __init__(self, number: int, text: str, stored: int = 0) -> None:
        self.number = number
        """number of the client in the file of readings"""
        self.text = text
        """what the data call the client"""
        self.stored = stored
        """place up to which its stored state has its readings"""
        self.entries: list[tuple[int, int]] = []
        """entries of what is beyond that, in the order of both"""

    def forget(self, end: int) -> None:
        """Forget what the stored state has; `end`: place of the client's next reading."""
        if self.stored >= end:
            self.entries = []
            return
        used = 0
        for place, _ in self.entries[1:]:
            if place > self.stored:
                break
            used += 1
        del self.entries[:used]


class PartitionState:
    """What moves with one partition. Made once its changelog is open; `restore`, then the rest."""

    def __init__(
        self,
        config: Config,
        partition: int,
        topic: SiteTopic,
        changelog: Changelog,
        site_key: bytes,
    ) -> None:
        """`config`: with the folder of the partition as that of clients, which is not there yet;
        `site_key`: 32 secret bytes."""
        self.partition = partition
        self.resumes_at: dict[str, int] = {}
        """client -> offset before which its readings are stored, while readings are read again"""
        self.frontier = 0
        """offset up to which readings are read again, before any client may step"""
        self.position: int | None = None
        """offset of the next record to take in; None: none was taken in so far"""
        self.clients = 0
        """clients that have come with the partition"""
        self._config = config
        self._folder = config.client.folder
        self._topic = topic
        self._changelog = changelog
        self._site_key = site_key
        self._rows = RowChanges()
        self._readings: dict[str, _Readings] = {}
        self._changed: set[str] = set()
        """clients of which the changelog has not the place and the offset as they are"""
        self._newest_position: bytes | None = None
        """what the changelog has of positions; None: nothing"""
        self._charges: dict[bytes, bytes | None] = {}
        """key and value of what ledgers were charged since the newest commit"""
        self._made: set[str] = set()
        """clients whose folder is there"""
        self._saved: set[str] = set()
        """owners of checkpoints that have come with the partition"""
        self._ledgers: LedgersFile | None = None

    def restore(self) -> None:
        """Read the changelog, and make the working copy of it. Raises as it and the files do, and
        `InvalidState` for records that no host has written."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ledgers = LedgersFile(self._folder / LEDGER, is_copy=True)
        path = self._folder / HOST_CHECKPOINTS
        with closing(CheckpointFile(path, host_owner(self._config))) as checkpoints:
            checkpoints.connection.execute("PRAGMA synchronous = OFF")
            with checkpoints.errors(), writing(checkpoints.connection):
                try:
                    self._restore_rows(checkpoints.connection, self._ledgers)
                except _DAMAGED as broken:
                    raise self._damaged(f"a record cannot be read ({broken})") from None

    def _restore_rows(self, copy: sqlite3.Connection, ledgers: LedgersFile) -> None:
        """Write what the changelog has to the working copy."""
        charges: dict[bytes, bytes | None] = {}
        known: dict[int, list[Any]] = {}
        position: list[Any] | None = None
        for key, value in self._changelog.read():
            kind, *where = _unpacked(key)
            row = None if value is None else _unpacked(value)
            if kind == _ROW:
                _write_row(copy, where[0], where[1], row)
            elif kind == _LEDGER:
                charges[key] = value
            elif kind == _CLIENT and row is not None:
                known[where[0]] = row
            elif kind == _POSITION:
                position = row
                self._newest_position = value
        ledgers.restore(_charged(charges))
        saved = copy.execute("SELECT name FROM holders WHERE saved = 1")
        self._saved = {name for (name,) in saved}
        self._adopt(known, position)

    def _adopt(self, known: Mapping[int, list[Any]], position: list[Any] | None) -> None:
        if position is None:
            if known:
                raise self._damaged("it has clients, and no position")
            return
        formats, frontier, restart = position
        if formats != _FORMATS:
            raise self._damaged("it is of another version of shoal; run that version")
        self.frontier = frontier
        self.position = restart
        clients = []
        for number in sorted(known):
            name, text, place, offset, stored = known[number]
            clients.append(MovedClient(number, name, place))
            self.resumes_at[name] = offset
            self._readings[name] = _Readings(number, text, stored)
        if not self.is_behind:
            self.resumes_at = {}
        self.clients = len(clients)
        with closing(self.open_site()) as site:
            site.adopt(clients, self._topic.readings, {self.partition: restart})

    def open_site(self) -> SiteReadings:
        """The file with the readings of the clients. Its identity, and those of its clients, are
        the same on each host: noise goes by them."""
        return SiteReadings(
            self._folder / "site.db",
            self._config.client.readings_bytes_max,
            partial(readings_identity, self._topic.readings),
            identity=readings_identity(self._topic.readings, "").hex(),
            is_copy=True,
        )

    def note(self) -> bytes:
        """What says, in the site's log, in which changelog and partition a client is."""
        return f"group {self._topic.changelog.hex()} {self.partition}".encode()

    @property
    def ledgers(self) -> LedgersFile:
        """The open file with the ledgers of the clients."""
        assert self._ledgers is not None, "it is restored first"
        return self._ledgers

    def prepare(self, client: str) -> None:
        """Make the folder of a client as the changelog has it, before it is opened here first."""
        if client in self._made:
            return
        known = self._readings.get(client)
        folder = client_folder(self._folder, client, None if known is None else known.text)
        key = self.noise_key(client)
        # Without a key it has stored no state yet, and is new: `open_client` makes it.
        if checkpoint_owner(self._config, client) in self._saved:
            load_or_create_key(folder / NOISE_KEY, key, syncs=False)
        self._made.add(client)

    def noise_key(self, client: str) -> bytes:
        """The noise key of a client, which is no other client's and no other federation's."""
        return noise_key_of(self._site_key, self._config.contract.federation, client)

    def charge_notes(self, client: str) -> NoteRow:
        """What notes the charges of a client's ledger."""
        return partial(self._note_charge, client)

    def watch(self, checkpoints: CheckpointFile) -> None:
        """Note what is stored in this open file of checkpoints from now on."""
        with checkpoints.errors():
            # What counts after a power cut is the changelog.
            checkpoints.connection.execute("PRAGMA synchronous = OFF")
            self._rows.watch(checkpoints.connection)

    def took_in(
        self,
        firsts: Mapping[str, tuple[int, str]],
        numbers: Mapping[str, int],
        offset: int,
        after: int,
    ) -> None:
        """Readings were taken in from `offset` up to `after`. `firsts`: client -> the place of the
        first of its readings among them, and what the data call it; `numbers`: client -> its number
        in the file of readings."""
        for client, (place, text) in firsts.items():
            known = self._readings.get(client)
            if known is None:
                known = _Readings(numbers[client], text)
                self._readings[client] = known
                self._changed.add(client)
            known.entries.append((place, offset))
        self.position = after
        if not self.is_behind:
            self.resumes_at = {}

    @property
    def is_behind(self) -> bool:
        """Whether readings that clients had read, or had been taken in, are to be read again."""
        return self.position is not None and self.position < self.frontier

    def stored(self, client: str, place: int) -> None:
        """A client has stored a state with its readings up to this place."""
        known = self._readings[client]
        if known.stored != place:
            known.stored = place
            self._changed.add(client)

    def commit(self, checkpoints: CheckpointFile, site: SiteReadings) -> None:
        """Write to the changelog what was stored and charged since the newest commit. Nothing of it
        may be published before. Raises as the changelog does."""
        with checkpoints.errors():
            rows = self._rows.take()
        if not rows and not self._charges:
            return
        changes = self._charges
        self._charges = {}
        for table, number, row in rows:
            value = None if row is None else _packed(row)
            changes[_packed((_ROW, table, number))] = value
        assert self.position is not None
        restart = self.position
        for client, known in self._readings.items():
            if known.entries:
                known.forget(site.client(client).next)
            if known.entries:
                restart = min(restart, known.entries[0][1])
        for client in self._changed:
            known = self._readings[client]
            place = site.client(client).next
            offset = self.position
            if known.entries:
                place, offset = known.entries[0]
            value = _packed((client, known.text, place, offset, known.stored))
            changes[_packed((_CLIENT, known.number))] = value
        position = _packed((_FORMATS, self.position, restart))
        changes[_packed((_POSITION,))] = position
        self._changelog.commit(changes)
        self._newest_position = position
        self._changed = set()

    def confirm(self) -> None:
        """Raises `PartitionLost` where another host has the partition by now, and as the changelog
        does."""
        # The record that is there already: only its owner may write it. Without one no client has
        # stored anything.
        if self._newest_position is not None:
            self._changelog.commit({_packed((_POSITION,)): self._newest_position})

    def close(self) -> None:
        """Give the changelog up."""
        self._changelog.close()
        if self._ledgers is not None:
            self._ledgers.close()

    def _note_charge(self, client: str, table: str, key: LedgerRow, row: LedgerRow | None) -> None:
        value = None if row is None else _packed((table, row))
        self._charges[_packed((_LEDGER, client, table, key))] = value

    def _damaged(self, how: str) -> InvalidState:
        return InvalidState(
            f"the changelog of partition {self.partition} is not as a host writes it: {how}. It is"
            f" on {self._config.host.address}, topic {self._config.host.topic}.clients"
        )


def noise_key_of(site_key: bytes, federation: str, client: str) -> bytes:
    """The noise key of a client of a site with this secret."""
    # With the federation: the same noise under two contracts could be subtracted. No name has a
    # line feed.
    return derive_key(site_key, f"shoal noise key 1\n{federation}\n{client}")


def readings_identity(topic: bytes, client: str) -> bytes:
    """The 16 bytes that identify the readings of a client of the topic with this identity, as those
    of a log of its own have some at random; of all clients for an empty name."""
    # No secret, and the same on each host. The readings of a topic that was made anew are others,
    # and get other noise.
    return hashlib.sha256(b"shoal readings 1\n" + topic + client.encode()).digest()[:16]


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _unpacked(value: bytes) -> Any:
    return msgpack.unpackb(value, strict_map_key=False)


def _write_row(copy: sqlite3.Connection, table: str, number: int, row: Row | None) -> None:
    """Write a row of the file of checkpoints, or delete it."""
    key = ROW_KEYS[table]
    if row is None:
        copy.execute(f"DELETE FROM {table} WHERE {key} = ?", (number,))
        return
    places = ", ".join("?" * len(row))
    copy.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", tuple(row))


def _charged(
    charges: Mapping[bytes, bytes | None],
) -> Iterator[tuple[str, LedgerRow, LedgerRow | None]]:
    """What these records say of ledgers, as a ledger notes its rows."""
    for where, value in charges.items():
        _, _, table, key = _unpacked(where)
        row = None
        if value is not None:
            _, columns = _unpacked(value)
            row = tuple(columns)
        yield table, tuple(key), row
