"""The embedded log: one SQLite file for many processes, with nothing to install.

A flush is one transaction over every topic that it writes. With `durable` (the default) it returns
only after the disk has synced it, because a client deletes its outbox after a flush; without, a
power cut may lose the last flushes (a crash of the process does not). It costs a tenth of the speed
with 100 records per flush, three quarters with one (`benchmarks/log.py` of commit d23b7f79, beside
a plain file). The file must be on a local disk: the write-ahead log needs shared memory.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.errors import LogError, LogUnavailable, TopicMissing
from shoal.files import writing
from shoal.telemetry.slow_files import noting_slowness
from shoal.transports.base import (
    Headers,
    Positions,
    Record,
    RecordBatch,
    TopicSettings,
    check_record,
    check_settings,
    differences,
    partition_of,
)
from shoal.transports.sqlite import schema
from shoal.transports.sqlite.records import (
    MIB,
    Pending,
    pack,
    pack_batch,
    read_records,
    row_bytes_max,
    store,
)
from shoal.transports.sqlite.renewals import RenewalLocks
from shoal.transports.sqlite.schema import (
    Topic,
    connect,
    log_file_errors,
    log_time_ms,
    reading,
    release_free_pages,
)

PENDING_BYTES = 256
"""memory of a buffered row besides its own bytes"""
WAL_BYTES_MAX = 64 * MIB
ROOM_BYTES_MIN = MIB
"""free bytes of the disk below which it counts as full: a flush of few records takes less"""
SWEEP_S = 60.0
"""seconds after which a flush also applies retention to partitions that it does not write"""
POLL_S = (0.001, 0.01)
"""first and longest interval at which a waiting read checks for records; each is twice the one
before"""
QUIET_SHARE = 50
QUIET_POLL_S = 0.25
"""longest interval where nothing has come for long: 1/`QUIET_SHARE` of that time, and never more
than this. A record that ends a silence waits for 2 % of it, and an idle machine rests"""


class SqliteLog:
    """`Log` in the SQLite file `path`, created if there is none. One object per thread; any number
    of processes.

    `file_bytes_max` bounds the file (not its write-ahead log, which stays near 64 MiB): beyond it a
    flush raises `LogUnavailable`. `buffer_bytes_max`: beyond it, publish flushes first.
    `read_bytes_max`: one read returns no more, but always the first record of a partition. `clock`:
    seconds since 1970, for the timestamps of records and their retention; by default the log's own
    time (`shoal.transports.sqlite.schema`).
    `new_identity`: the identity of a topic that is created, by default random.

    Raises `SettingsError` (folder, rights), `LogError` (another program's file, newer layout,
    damaged), `LogUnavailable` (locked longer than `wait_s`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: bool = True,
        file_bytes_max: int | None = None,
        buffer_bytes_max: int = 16 * MIB,
        read_bytes_max: int = 64 * MIB,
        wait_s: float = 30.0,
        clock: Callable[[], float] | None = None,
        new_identity: Callable[[], bytes] = schema.new_identity,
    ) -> None:
        self._path = Path(path).expanduser().absolute()
        self._wal = f"{self._path}-wal"
        self._buffer_bytes_max = buffer_bytes_max
        self._read_bytes_max = read_bytes_max
        self._wait_s = self._busy_s = wait_s
        self._clock = clock
        self._new_identity = new_identity
        self._topics: dict[str, Topic] = {}
        self._pending: dict[str, dict[int, list[Pending]]] = {}
        self._pending_bytes = 0
        self._ended: dict[str, tuple[int, Positions]] = {}
        """topic -> (version of the file, positions) at which a read has found nothing more"""
        self._swept_s = -math.inf
        self._read_s = time.monotonic()
        """time at which a read has last found a record, monotonic"""
        self._wal_bytes_allowed = WAL_BYTES_MAX
        self._durable = durable
        self._file_bytes_max = file_bytes_max
        self._renewals = RenewalLocks(self._path)
        self._inode = 0
        """number of the open file in its file system"""
        self._connection: sqlite3.Connection | None = self._connect()

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """See `Log.ensure`; without settings an existing topic keeps its own. `SettingsError` for
        impossible ones."""
        schema.check_name(topic)
        wanted = settings or TopicSettings()
        check_settings(topic, wanted)
        with self._open() as db:
            found = self._find(db, topic)
            if found is None:
                with writing(db):
                    found = schema.find(db, topic) or schema.create(
                        db, topic, wanted, self._new_identity()
                    )
                self._topics[topic] = found
        if settings is not None and (other := differences(found.settings, wanted)):
            raise LogError(f"topic {topic!r} is kept with other settings than declared: {other}")

    def set_retention(self, topic: str, settings: TopicSettings) -> None:
        """Declare a topic as `ensure` does, but change its `retain_bytes` if it was another.

        Writers remove the oldest records, so a process that has the log open uses the old value
        until it opens the log again.
        """
        check_settings(topic, settings)
        with self._open() as db:
            found = self._find(db, topic)
            if found is not None and found.settings.retain_bytes != settings.retain_bytes:
                with writing(db):
                    self._topics[topic] = schema.set_retention(db, found, settings.retain_bytes)
        self.ensure(topic, settings)

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`."""
        with self._open() as db:
            return self._topic(db, topic).identity

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """See `Log.publish`. A full buffer is flushed first; if that fails, this record was not
        accepted."""
        settings = self._known(topic).settings
        pending = pack(topic, value, key, headers)
        if partition is None:
            partition = partition_of(key, settings.partitions)
        check_record(topic, settings, partition, key, pending.size)
        self._buffer(topic, partition, [pending])

    def publish_batch(self, topic: str, batch: RecordBatch, partition: int) -> None:
        """See `BatchLog.publish_batch`. A full buffer is flushed first; if that fails, the records
        it is for were not accepted."""
        settings = self._known(topic).settings
        pending, largest = pack_batch(topic, batch, row_bytes_max(settings, self._buffer_bytes_max))
        check_record(topic, settings, partition, None, largest)
        if sum(row.size + PENDING_BYTES for row in pending) <= self._buffer_bytes_max:
            self._buffer(topic, partition, pending)
            return
        for row in pending:
            self._buffer(topic, partition, [row])

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`. After an error nothing was stored and the buffer is kept: flushing again
        stores it once."""
        now_s = time.monotonic() if self._clock is None else self._clock()
        # A clock that was set back sweeps too; otherwise no sweep would happen until it has caught
        # up.
        sweep = not 0 <= now_s - self._swept_s < SWEEP_S
        with self._open(timeout_s) as db:
            if not self._pending and not sweep:
                return
            # The version that SQLite gives counts the commits of others only.
            self._ended.clear()
            with noting_slowness(self._path), writing(db):
                now_ms = log_time_ms(db, time.time) if self._clock is None else int(now_s * 1000)
                self._store(db, now_ms, sweep)
                release_free_pages(db)
            self._pending.clear()
            self._pending_bytes = 0
            if sweep:
                self._swept_s = now_s
            self._bound_wal(db)

    def flush_unsynced(self, timeout_s: float = 30.0) -> None:
        """Flush without waiting for the disk: a crash of the process loses nothing, a power cut
        perhaps this flush.

        The next flush of any process syncs these records as well: all write the same write-ahead
        log.
        """
        with self._open(timeout_s) as db:
            (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
            # For this transaction only: it does not wait for the disk.
            db.execute("PRAGMA synchronous = NORMAL")
            try:
                self.flush(timeout_s)
            finally:
                db.execute(f"PRAGMA synchronous = {synchronous}")

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`. `limit` is shared fairly: a busy partition cannot keep readers from the
        others."""
        if limit < 1:
            raise LogError(f"a read of {limit} records was asked for; limit must be 1 or more")
        # SQLite takes no numpy integers
        at = {int(partition): int(position) for partition, position in at.items()}
        until = time.monotonic() + timeout_s
        pause_s = max(POLL_S[0], self._quiet_pause_s())
        with self._open() as db:
            found = self._topic(db, topic)
            while True:
                version = _version(db)
                after = at
                if self._ended.get(topic) != (version, at):
                    with reading(db):
                        records, after, ended = read_records(
                            db, topic, found, at, limit, self._read_bytes_max
                        )
                    if ended and at:
                        self._ended[topic] = (version, dict(after))
                    if records:
                        self._read_s = time.monotonic()
                    if records or not at:
                        return records, after
                while True:
                    left_s = until - time.monotonic()
                    if left_s <= 0:
                        return [], dict(after)
                    if _version(db) != version:
                        break
                    time.sleep(min(pause_s, left_s))
                    # Twice as long each time: a busy log is answered at once, and an idle one costs
                    # next to nothing.
                    pause_s = min(2 * pause_s, max(POLL_S[1], self._quiet_pause_s()))

    def _quiet_pause_s(self) -> float:
        """Seconds between two looks of a reader that has read nothing for long."""
        return min((time.monotonic() - self._read_s) / QUIET_SHARE, QUIET_POLL_S)

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        with self._open() as db:
            watermarks = schema.watermarks(db, self._topic(db, topic))
        return {partition: (mark.first, mark.next) for partition, mark in watermarks.items()}

    def show_progress(self, reader: str, topic: str, at: Positions) -> None:
        """See `Log.show_progress`. Nothing to do: there are no tools for this file."""

    def show_renewal(self, holder: str, count: int) -> bool:
        """See `shoal.transports.base.show_renewal`. Raises `LogUnavailable` where the disk has no
        room: it writes nothing itself, and a holder that can write nothing must not go on."""
        with self._open():
            free = os.statvfs(self._path.parent)
            if free.f_bavail * free.f_frsize < ROOM_BYTES_MIN:
                raise LogUnavailable(f"log {self._path}: disk full; make room, and retry")
            return self._renewals.show(holder, count)

    def shown_renewal(self, holder: str) -> int | None:
        """See `shoal.transports.base.shown_renewal`."""
        return self._renewals.shown(holder)

    def close(self) -> None:
        """Flush and close. Raises if the flush fails (those records are lost); the file is closed
        all the same."""
        if self._connection is None:
            return
        try:
            if self._pending:
                self.flush(self._wait_s)
        finally:
            connection = self._connection
            self._connection = None
            self._renewals.close()
            with log_file_errors(self._path):
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = connect(
            self._path,
            durable=self._durable,
            file_bytes_max=self._file_bytes_max,
            wait_s=self._wait_s,
        )
        self._inode = self._path.stat().st_ino
        return connection

    @contextmanager
    def _open(self, wait_s: float | None = None) -> Iterator[sqlite3.Connection]:
        """The connection, if its file is still the one at the path. `wait_s`: for locks.

        Raises SQLite's errors inside as errors of shoal.
        """
        if self._connection is None:
            raise self._closed()
        try:
            # A connection to a deleted file goes on as if nothing were: what it stores would be
            # lost.
            same = os.stat(self._path).st_ino == self._inode
        except OSError:
            same = False
        if not same:
            raise LogError(
                f"log {self._path}: the file was deleted or replaced while open; open it again"
            )
        with log_file_errors(self._path):
            self._set_lock_wait(self._connection, self._wait_s if wait_s is None else wait_s)
            yield self._connection

    def _set_lock_wait(self, db: sqlite3.Connection, wait_s: float) -> None:
        if wait_s != self._busy_s:
            db.execute(f"PRAGMA busy_timeout = {max(0, math.ceil(1000 * wait_s))}")
            self._busy_s = wait_s

    def _closed(self) -> LogError:
        return LogError(f"log {self._path}: closed; open it again")

    def _known(self, topic: str) -> Topic:
        """The topic, for publish: read from the file at its first use only."""
        if self._connection is None:
            raise self._closed()
        if topic in self._topics:
            return self._topics[topic]
        with self._open() as db:
            return self._topic(db, topic)

    def _topic(self, db: sqlite3.Connection, topic: str) -> Topic:
        found = self._find(db, topic)
        if found is None:
            raise TopicMissing(
                f"topic {topic!r} is not in log {self._path}; shoal topics ensure makes those of a"
                " federation"
            )
        return found

    def _find(self, db: sqlite3.Connection, topic: str) -> Topic | None:
        if topic not in self._topics:
            schema.check_name(topic)
            if (found := schema.find(db, topic)) is None:
                return None
            self._topics[topic] = found
        return self._topics[topic]

    def _buffer(self, topic: str, partition: int, rows: list[Pending]) -> None:
        """Add rows to the buffer, which is flushed first if there is no room for them."""
        weight = sum(row.size + PENDING_BYTES for row in rows)
        if self._pending and self._pending_bytes + weight > self._buffer_bytes_max:
            self.flush(self._wait_s)
        self._pending.setdefault(topic, {}).setdefault(partition, []).extend(rows)
        self._pending_bytes += weight

    def _store(self, db: sqlite3.Connection, now_ms: int, sweep: bool) -> None:
        """Inside a transaction: append the buffer; in a sweep, apply retention to every other
        partition as well."""
        work = {name: dict(batches) for name, batches in self._pending.items()}
        for name in schema.names(db) if sweep else ():
            for partition in range(self._topic(db, name).settings.partitions):
                work.setdefault(name, {}).setdefault(partition, [])
        for name, batches in work.items():
            topic = self._topics[name]
            watermarks = schema.watermarks(db, topic)
            for partition, batch in batches.items():
                store(db, topic, partition, watermarks[partition], batch, now_ms)

    def _bound_wal(self, db: sqlite3.Connection) -> None:
        """Truncate a write-ahead log that readers have kept from being reused; wait only shortly
        for a long read."""
        try:
            size = os.stat(self._wal).st_size
        except FileNotFoundError:
            return
        if size <= WAL_BYTES_MAX:
            self._wal_bytes_allowed = WAL_BYTES_MAX
        elif size > self._wal_bytes_allowed:
            # Tried again once it has grown by as much, or each flush behind a long read would wait.
            self._wal_bytes_allowed = size + WAL_BYTES_MAX
            self._set_lock_wait(db, 0.1)
            # what was flushed is stored; a failing disk raises at the next flush
            with suppress(sqlite3.Error):
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _version(db: sqlite3.Connection) -> int:
    """A number that changes with every commit of another connection: to ask for it costs less than
    a read."""
    version: int = db.execute("PRAGMA data_version").fetchone()[0]
    return version
