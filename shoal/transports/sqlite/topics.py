"""The topics of the embedded log: declaring and finding them, and the watermarks of their partitions."""

from __future__ import annotations

import secrets
import sqlite3
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from shoal.errors import LogError
from shoal.transports.base import TopicSettings

TOPIC_CHARACTERS_MAX = 249
"""the limit of Kafka, so that a federation can move there"""


class Topic(NamedTuple):
    """A topic as the file has it; only its `retain_bytes` can change."""

    number: int
    identity: bytes
    settings: TopicSettings


@dataclass
class Watermarks:
    """Bounds and size of a partition, known without reading its records."""

    first: int
    """the oldest offset that retention has kept"""
    next: int
    """offset of the next record"""
    bytes: int
    """of keys, values and headers"""


def records_table(number: int, partition: int) -> str:
    """The table of a partition, named by its topic's number."""
    return f"records_{number:d}_{partition:d}"


def check_name(name: str) -> None:
    """Raises `LogError` for a name that a topic cannot have."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise LogError(f"topic {name!r} cannot be written in UTF-8; give it another name") from error
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


def new_identity() -> bytes:
    """A random identity for a topic."""
    return secrets.token_bytes(16)


def create(db: sqlite3.Connection, name: str, settings: TopicSettings, identity: bytes) -> Topic:
    """Inside a transaction: create the topic and a table for each of its partitions.

    The value is the last column, so that reading the others need not follow a large value's overflow pages.
    """
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


def set_retention(db: sqlite3.Connection, topic: Topic, retain_bytes: int | None) -> Topic:
    """Inside a transaction: change how many bytes of a topic are kept."""
    db.execute("UPDATE topics SET retain_bytes = ? WHERE number = ?", (retain_bytes, topic.number))
    return topic._replace(settings=replace(topic.settings, retain_bytes=retain_bytes))


def names(db: sqlite3.Connection) -> list[str]:
    """All topics, in the order of their creation."""
    return [name for (name,) in db.execute("SELECT name FROM topics ORDER BY number")]


def watermarks(db: sqlite3.Connection, topic: Topic) -> dict[int, Watermarks]:
    """partition -> its watermarks. Raises `LogError` where the file holds something else in their place."""
    rows = db.execute(
        "SELECT partition, first, next, bytes FROM marks WHERE topic = ? ORDER BY partition", (topic.number,)
    ).fetchall()
    if not all(isinstance(number, int) for row in rows for number in row):
        raise LogError("the log's file is damaged: a place in a topic is no number; restore it from a backup")
    return {partition: Watermarks(first, next_, bytes_) for partition, first, next_, bytes_ in rows}


def store_watermarks(db: sqlite3.Connection, topic: Topic, partition: int, mark: Watermarks) -> None:
    """Inside a transaction: store a partition's watermarks."""
    db.execute(
        "UPDATE marks SET first = ?, next = ?, bytes = ? WHERE topic = ? AND partition = ?",
        (mark.first, mark.next, mark.bytes, topic.number, partition),
    )
