"""What keeps the embedded log's file bounded: retention, compaction, and giving free pages back.

All of it happens in the writer's own transaction, in pieces whose work is bounded by what the writer adds.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from shoal.transports.base import TopicSettings
from shoal.transports.sqlite.records import Pending
from shoal.transports.sqlite.topics import Mark, Topic, records_table, store_mark

MIB = 1024 * 1024
PIECE_RECORDS = 20_000
PIECE_BYTES = 64 * MIB
"""one flush drops at most this much and twice what it adds: over many flushes, dropping keeps up with adding"""
TOMBSTONE_S = 24 * 3600.0
"""how long a compacted topic keeps a tombstone, so that a reader who was away learns of it"""
SPARE_PAGES = 256
VACUUM_PAGES = 512


def store(db: sqlite3.Connection, topic: Topic, partition: int, mark: Mark, batch: list[Pending], now_ms: int) -> None:
    """Inside a transaction: append `batch` (perhaps empty) to a partition and keep it within its topic's settings."""
    table, before = records_table(topic.number, partition), replace(mark)
    _retain(db, table, mark, topic.settings, now_ms, batch)
    _append(db, table, mark, batch, now_ms)
    if topic.settings.compact:
        _compact(db, table, mark, batch, now_ms)
    if mark != before:
        store_mark(db, topic, partition, mark)


def _append(db: sqlite3.Connection, table: str, mark: Mark, batch: list[Pending], now_ms: int) -> None:
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
    db: sqlite3.Connection, table: str, mark: Mark, settings: TopicSettings, now_ms: int, incoming: list[Pending]
) -> None:
    """Drop the oldest records that are too old, or in the way of `incoming` under `retain_bytes`.

    Before appending, not after: a file at its limit gets its room from what is dropped. Only a prefix is dropped, so
    a record stamped by a clock that ran ahead holds those behind it until its time, and nothing is dropped too soon.
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
        if freed >= bytes_max or (freed >= excess and timestamp_ms >= expired_ms):
            break
        cut, freed = offset + 1, freed + size
    oldest.close()
    if cut > mark.first:
        db.execute(f"DELETE FROM {table} WHERE offset < ?", (cut,))
        mark.first = cut
        mark.bytes -= freed


def _compact(db: sqlite3.Connection, table: str, mark: Mark, batch: list[Pending], now_ms: int) -> None:
    """Drop what the batch, just appended, supersedes, and tombstones that everybody had time to read."""
    newest = {pending.key: offset for offset, pending in enumerate(batch, mark.next - len(batch))}
    for key, offset in newest.items():
        _drop(db, table, mark, "key = ? AND offset < ?", (key, offset))
    forgotten_ms = now_ms - 1000 * TOMBSTONE_S
    _drop(
        db,
        table,
        mark,
        f"offset IN (SELECT offset FROM {table} WHERE value IS NULL AND timestamp_ms < ? LIMIT {PIECE_RECORDS})",
        (forgotten_ms,),
    )


def shrink(db: sqlite3.Connection) -> None:
    """Give pages back to the disk when much of the file is free; a little stays for the next records."""
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    spare = max(SPARE_PAGES, pages // 4)
    if free > 2 * spare:
        # One page a statement: the statement frees a page each time it is stepped, and sqlite3 steps it only once.
        for _ in range(min(free - spare, VACUUM_PAGES)):
            db.execute("PRAGMA incremental_vacuum(1)")


def _drop(db: sqlite3.Connection, table: str, mark: Mark, where: str, values: tuple[object, ...]) -> None:
    freed, count = db.execute(f"SELECT total(size), count(*) FROM {table} WHERE {where}", values).fetchone()
    if count:
        db.execute(f"DELETE FROM {table} WHERE {where}", values)
        mark.bytes -= int(freed)
