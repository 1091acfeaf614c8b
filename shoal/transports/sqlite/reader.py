"""The embedded log for commands that only read: they change no file, of whatever version it is.

They read beside running processes, and also in a folder that they may not write.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from shoal.errors import LogError, LogFolderMissing
from shoal.read_only import ReadOnlyFile
from shoal.transports.base import (
    Headers,
    Positions,
    Record,
    RecordBatch,
    TopicSettings,
    check_settings,
    differences,
)
from shoal.transports.sqlite import schema
from shoal.transports.sqlite.log import SqliteLog
from shoal.transports.sqlite.schema import Topic, log_file_errors

T = TypeVar("T")


class SqliteLogReader(SqliteLog):
    """`Log` in the SQLite file `path`, read only. One object per thread.

    A topic that is declared with `ensure` and is not there yet has no records; neither has a file
    that is not there. Raises `LogFolderMissing`, `LogError` (another program's file, another
    layout, damaged) and `SettingsError` (rights).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file: ReadOnlyFile | None = None
        self._declared: dict[str, TopicSettings] = {}
        """topics that are not in the file, with the settings that they were declared with"""
        super().__init__(path)

    def ensure(self, topic: str, settings: TopicSettings | None = None) -> None:
        """Check that the topic has these settings, where it is there."""
        schema.check_name(topic)
        wanted = settings or TopicSettings()
        check_settings(topic, wanted)
        found = self._steady(lambda: self._found(topic))
        if found is None:
            self._declared[topic] = wanted
        elif settings is not None and (other := differences(found.settings, wanted)):
            raise LogError(f"topic {topic!r} is kept with other settings than declared: {other}")

    def set_retention(self, topic: str, settings: TopicSettings) -> None:
        """Nothing is retained otherwise than the file says: retention belongs to writers."""
        if self._steady(lambda: self._found(topic)) is None:
            self._declared[topic] = settings

    def identity(self, topic: str) -> bytes:
        """See `Log.identity`."""
        return self._steady(lambda: super(SqliteLogReader, self).identity(topic))

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Raises `LogError`."""
        raise self._read_only()

    def publish_batch(self, topic: str, batch: RecordBatch, partition: int) -> None:
        """Raises `LogError`."""
        raise self._read_only()

    def flush(self, timeout_s: float = 30.0) -> None:
        """See `Log.flush`: there is nothing to store."""

    def read(
        self, topic: str, at: Positions, limit: int = 500, timeout_s: float = 0.0
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`."""

        def read() -> tuple[Sequence[Record], Positions]:
            if self._found(topic) is None and topic in self._declared:
                # As long as any log without new records waits: a caller that polls must not spin.
                time.sleep(timeout_s)
                return [], dict(at)
            return super(SqliteLogReader, self).read(topic, at, limit, timeout_s)

        return self._steady(read)

    def bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        """See `Log.bounds`."""
        return self._steady(lambda: self._bounds(topic))

    def close(self) -> None:
        """Close the file. Closing twice has no effect."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if not self._path.parent.is_dir():
            raise LogFolderMissing(
                f"log {str(self._path)!r}: must be a file in an existing folder; create the folder"
                " first"
            )
        with log_file_errors(self._path):
            return self._opened()

    def _opened(self) -> sqlite3.Connection:
        """A connection to a file whose layout is read, or to an empty log where there is none."""
        # What was known of another file does not hold for this one.
        self._topics.clear()
        self._ended.clear()
        self._file = None
        if not self._path.exists():
            return _empty_log()
        file = ReadOnlyFile(self._path, self._wait_s)
        file.connection.text_factory = schema.as_text
        try:
            version = schema.layout_of(file.connection, self._path)
        except BaseException:
            file.close()
            raise
        if version is None:
            # Another process is about to make it.
            file.close()
            return _empty_log()
        self._file = file
        return file.connection

    @contextmanager
    def _open(self, wait_s: float | None = None) -> Iterator[sqlite3.Connection]:
        if self._connection is None:
            raise self._closed()
        with log_file_errors(self._path):
            yield self._connection

    def _steady(self, read: Callable[[], T]) -> T:
        """What `read` gives, of a file that was not changed meanwhile but by its processes."""
        while True:
            self._renew()
            try:
                found = read()
            except LogError:
                # Pages of two moments look like damage.
                if self._is_current():
                    raise
                continue
            if self._is_current():
                return found

    def _is_current(self) -> bool:
        if self._file is None:
            return True
        return self._file.is_current

    def _renew(self) -> None:
        """Open the file again where it has appeared, or is used otherwise than when it was
        opened."""
        if self._connection is None:
            raise self._closed()
        if self._file is None and not self._path.exists():
            return
        if self._file is not None and self._file.is_current:
            return
        self._connection.close()
        self._connection = self._connect()

    def _found(self, topic: str) -> Topic | None:
        with self._open() as db:
            return self._find(db, topic)

    def _bounds(self, topic: str) -> dict[int, tuple[int, int]]:
        if self._found(topic) is None and topic in self._declared:
            return dict.fromkeys(range(self._declared[topic].partitions), (0, 0))
        return super().bounds(topic)

    def _read_only(self) -> LogError:
        return LogError(f"log {self._path}: opened to be read, so nothing is published to it")


def _empty_log() -> sqlite3.Connection:
    """A log without topics, in memory."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    schema.create_tables(db)
    return db
