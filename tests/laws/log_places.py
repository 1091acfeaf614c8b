"""The places a log can be, for the laws. A transport joins them by one line in `PLACES`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from shoal.transports.base import Log, Positions, Record, beginning

WAIT_S = 120.0
"""how long a read may take to see what was flushed; the embedded log needs none of it"""


@dataclass(frozen=True)
class Place:
    """Where a log is, and how to make it lose a topic for good."""

    address: str
    delete: Callable[[str], None]
    examples: int = 50
    """how many sequences of calls are tried on it"""


def sqlite_place(folder: Path) -> Place:
    path = folder / "log.db"
    return Place(f"sqlite:{path}", lambda topic: path.unlink())


def kafka_place(bootstrap: str) -> Place:
    def delete(topic: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.delete_topics([topic])
        while topic in admin.list_topics():
            pass
        admin.close()

    return Place(f"kafka://{bootstrap}", delete, examples=3)


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "sqlite": lambda request: sqlite_place(request.getfixturevalue("memory_folder")),
    "kafka": lambda request: kafka_place(request.getfixturevalue("kafka_bootstrap")),
}
EXTERNAL = {"kafka"}
"""places that another program keeps: `make check` leaves them out"""


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
