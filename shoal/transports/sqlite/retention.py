"""Retention and compaction of the embedded log, and the release of free pages: they bound the file.

They run in the writer's own transaction; the work of each is bounded by what the writer adds.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from shoal.transports.base import TopicSettings
from shoal.transports.sqlite.records import Pending
from shoal.transports.sqlite.topics import Topic, Watermarks, records_table, store_watermarks

MIB = 1024 * 1024
PIECE_RECORDS = 20_000
PIECE_BYTES = 64 * MIB
"""one flush removes at most this and twice what it adds, so over many flushes removing keeps up with adding"""
TOMBSTONE_S = 24 * 3600.0
"""how long a compacted topic keeps a tombstone, so that a reader that was not running sees it"""
SPARE_PAGES = 256
VACUUM_PAGES = 512


def store(
    db: sqlite3.Connection, topic: Topic, partition: int, mark: Watermarks, batch: list[Pending], now_ms: int
) -> None:
    """Inside a transaction: append `batch`, perhaps empty, to a partition, and apply retention and compaction to it."""
    table, before = records_table(topic.number, partition), replace(mark)
    _retain(db, table, mark, topic.settings, now_ms, batch)
    _append(db, table, mark, batch, now_ms)
    if topic.settings.compact:
        _compact(db, table, mark, batch, now_ms)
    if mark != before:
        store_watermarks(db, topic, partition, mark)


def _append(db: sqlite3.Connection, table: str, mark: Watermarks, batch: list[Pending], now_ms: int) -> None:
    db.executemany(
        f"INSERT INTO {table} (offset, timestamp_ms, size, key, headers, value) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (offset, now_ms, size, key, headers, value)
            for offset, (size, key, headers, value) in enumerate(batch, mark.next)
        ),
    )
    mark.next += len(batch)
    mark.bytes += sum(pending.size for pending in batch)


def _retain(
    db: sqlite3.Connection, table: str, mark: Watermarks, settings: TopicSettings, now_ms: int, incoming: list[Pending]
) -> None:
    """Remove the oldest records that are too old, or that with `incoming` exceed `retain_bytes`.

    It runs before the append: a file at its limit gets the room from what is removed. Only a prefix is removed, so a
    record with a timestamp in the future keeps later records until then, and nothing is removed too soon.
    """
    if settings.retain_bytes is None and settings.retain_s is None:
        return
    added = sum(pending.size for pending in incoming)
    excess = 0 if settings.retain_bytes is None else mark.bytes + added - settings.retain_bytes
    expired_ms = -1.0 if settings.retain_s is None else now_ms - 1000 * settings.retain_s
    bytes_max = PIECE_BYTES + 2 * added
    cut, freed = mark.first, 0
    oldest = db.execute(
        f"SELECT offset, timestamp_ms, size FROM {table} ORDER BY offset LIMIT ?",
        (PIECE_RECORDS + 2 * len(incoming),),
    )
    for offset, timestamp_ms, size in oldest:
        if not (isinstance(timestamp_ms, int) and isinstance(size, int)):
            cut = offset + 1  # not written by a log: it goes when it is the oldest
            continue
        if freed >= bytes_max or (freed >= excess and timestamp_ms >= expired_ms):
            break
        cut, freed = offset + 1, freed + size
    oldest.close()
    if cut > mark.first:
        db.execute(f"DELETE FROM {table} WHERE offset < ?", (cut,))
        mark.first = cut
        mark.bytes -= freed


def _compact(db: sqlite3.Connection, table: str, mark: Watermarks, batch: list[Pending], now_ms: int) -> None:
    """Remove the records that the batch, just appended, replaces, and tombstones that are old enough."""
    newest = {pending.key: offset for offset, pending in enumerate(batch, mark.next - len(batch))}
    for key, offset in newest.items():
        _drop(db, table, mark, "key = ? AND offset < ?", (key, offset))
    expired_ms = now_ms - 1000 * TOMBSTONE_S
    _drop(
        db,
        table,
        mark,
        f"offset IN (SELECT offset FROM {table} WHERE value IS NULL AND timestamp_ms < ? LIMIT {PIECE_RECORDS})",
        (expired_ms,),
    )


def release_free_pages(db: sqlite3.Connection) -> None:
    """Return pages to the disk when much of the file is free; some stay for the next records."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    spare = max(SPARE_PAGES, pages // 4)
    if free > 2 * spare:
        # One page per statement: it frees a page each time it is stepped, and the sqlite3 module steps it only once.
        for _ in range(min(free - spare, VACUUM_PAGES)):
            db.execute("PRAGMA incremental_vacuum(1)")


def _drop(db: sqlite3.Connection, table: str, mark: Watermarks, where: str, values: tuple[object, ...]) -> None:
    # A row that no log has written may have a size that is no whole number, and infinite ones have no sum.
    size = "CASE typeof(size) WHEN 'integer' THEN size END"
    freed, count = db.execute(f"SELECT total({size}), count(*) FROM {table} WHERE {where}", values).fetchone()
    if count:
        db.execute(f"DELETE FROM {table} WHERE {where}", values)
        mark.bytes -= int(freed)
