"""The places a log can be, for the laws. A transport joins them by one line in `PLACES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from shoal.transports.contract import Log, Positions, Record, beginning

WAIT_S = 30.0
"""how long a read may take to see what was flushed; the embedded log needs none of it"""


@dataclass(frozen=True)
class Place:
    """Where a log is, and how to make it lose a topic for good."""

    address: str
    delete: Callable[[str], None]


def sqlite_place(folder: Path) -> Place:
    path = folder / "log.db"
    return Place(f"sqlite:{path}", lambda topic: path.unlink())


PLACES: dict[str, Callable[[Path], Place]] = {
    "sqlite": sqlite_place,
}


def publish(log: Log, topic: str, *texts: bytes, partition: int = 0) -> None:
    for text in texts:
        log.publish(topic, text, partition=partition)
    log.flush()


def everything(log: Log, topic: str, at: Positions | None = None, limit: int = 500) -> list[Record]:
    """All records from `at` (or the beginning) to the end that the log has now."""
    ends = {partition: end for partition, (_, end) in log.bounds(topic).items()}
    at = beginning(log, topic) if at is None else at
    records: list[Record] = []
    while any(at[partition] < ends[partition] for partition in at):
        some, at = log.read(topic, at, limit, WAIT_S)
        assert len(some) <= limit
        records += some
    return records


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]
