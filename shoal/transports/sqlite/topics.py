"""The topics of the embedded log: how one is declared, found again, and how far its partitions have come."""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from shoal.errors import LogError
from shoal.transports.base import TopicSettings

TOPIC_CHARACTERS_MAX = 249
"""Kafka's limit too, so that a federation can move"""


class Topic(NamedTuple):
    """A topic as the file has it; of it only how many bytes are retained can change."""

    number: int
    identity: bytes
    settings: TopicSettings


@dataclass
class Mark:
    """What is known of a partition without looking at its records."""

    first: int
    """the oldest offset that retention has left"""
    next: int
    """the offset the next record gets"""
    bytes: int
    """keys, values and headers kept"""


def records_table(number: int, partition: int) -> str:
    """The table of a partition, by its topic's number: a name never becomes part of a statement."""
    return f"records_{number:d}_{partition:d}"


def check_name(name: str) -> None:
    """Raises `LogError` for a name that no log could keep."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise LogError(f"topic {name!r} is not text that UTF-8 can write; give it another name") from error
    if not 1 <= len(name) <= TOPIC_CHARACTERS_MAX:
        raise LogError(f"topic {name[:20]!r} has {len(name)} characters; give it 1 to {TOPIC_CHARACTERS_MAX}")


def find(db: sqlite3.Connection, name: str) -> Topic | None:
    """The topic of that name, or None."""
    row = db.execute(
        "SELECT number, identity, partitions, compact, retain_bytes, retain_s, record_bytes_max "
        "FROM topics WHERE name = ?",
        (name,),
    ).fetchone()
    if row is None:
        return None
    number, identity, partitions, compact, *rest = row
    return Topic(number, identity, TopicSettings(partitions, bool(compact), *rest))


def create(db: sqlite3.Connection, name: str, settings: TopicSettings) -> Topic:
    """Inside a transaction: the topic and a table for each of its partitions.

    The value is a table's last column: a look at the others need not walk a large value's overflow pages.
    """
    identity = secrets.token_bytes(16)
    number = db.execute(
        "INSERT INTO topics (name, identity, partitions, compact, retain_bytes, retain_s, record_bytes_max) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (name, identity, *asdict(settings).values()),
    ).lastrowid
    assert number is not None
    for partition in range(settings.partitions):
        table = records_table(number, partition)
        db.execute(
            f"CREATE TABLE {table} (offset INTEGER PRIMARY KEY, timestamp_ms INTEGER NOT NULL, size INTEGER NOT NULL, "
            "key BLOB, headers BLOB, value BLOB)"
        )
        if settings.compact:
            db.execute(f"CREATE INDEX {table}_keys ON {table} (key)")
            db.execute(f"CREATE INDEX {table}_tombstones ON {table} (timestamp_ms) WHERE value IS NULL")
        db.execute("INSERT INTO marks VALUES (?, ?, 0, 0, 0)", (number, partition))
    return Topic(number, identity, settings)


def keep(db: sqlite3.Connection, topic: Topic, retain_bytes: int | None) -> Topic:
    """Inside a transaction: the topic, of which so much is kept from now on."""
    db.execute("UPDATE topics SET retain_bytes = ? WHERE number = ?", (retain_bytes, topic.number))
    return topic._replace(settings=replace(topic.settings, retain_bytes=retain_bytes))


def names(db: sqlite3.Connection) -> list[str]:
    """All topics, in the order they were made."""
    return [name for (name,) in db.execute("SELECT name FROM topics ORDER BY number")]


def marks(db: sqlite3.Connection, topic: Topic) -> dict[int, Mark]:
    """partition -> how far it has come."""
    rows = db.execute(
        "SELECT partition, first, next, bytes FROM marks WHERE topic = ? ORDER BY partition", (topic.number,)
    )
    return {partition: Mark(first, next_, bytes_) for partition, first, next_, bytes_ in rows}


def store_mark(db: sqlite3.Connection, topic: Topic, partition: int, mark: Mark) -> None:
    """Inside a transaction: how far a partition has come now."""
    db.execute(
        "UPDATE marks SET first = ?, next = ?, bytes = ? WHERE topic = ? AND partition = ?",
        (mark.first, mark.next, mark.bytes, topic.number, partition),
    )
