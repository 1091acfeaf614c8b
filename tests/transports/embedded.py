"""The embedded log in hand, for the tests of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from shoal.transports.base import Positions, Record, TopicSettings, beginning
from shoal.transports.sqlite.log import SqliteLog
from shoal.transports.sqlite.schema import connect

MIB = 1024 * 1024
TOPIC = "readings"


class Clock:
    """Seconds since 1970, moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1.8e9

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def opened(
    path: Path, settings: TopicSettings | None = None, **options: object
) -> Iterator[SqliteLog]:
    with closing(SqliteLog(path, **options)) as log:  # type: ignore[arg-type]  # of several types
        log.ensure(TOPIC, settings)
        yield log


def everything(log: SqliteLog, topic: str = TOPIC, at: Positions | None = None) -> list[Record]:
    records, _ = log.read(topic, at or beginning(log, topic), limit=10**6)
    return list(records)


def values(log: SqliteLog) -> list[bytes | None]:
    return [record.value for record in everything(log)]


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's write transaction, from the file's point of view."""
    with closing(connect(path, durable=False, file_bytes_max=None, wait_s=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
