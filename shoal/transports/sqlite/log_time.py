"""The embedded log's own time, by which it stamps records and retains them, as Kafka does with LogAppendTime.

Processes that write the same file may disagree about the date: a clock was set wrong, or is corrected while they run.
If a writer's date decided, one that is eight days ahead would remove all records of the last seven. So the file keeps a
time that only advances as fast as the machine's steady clock, which all its processes share and no user can set. After
a restart of the machine, when that clock begins again, the time goes on from the date, and never back.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TABLE = "CREATE TABLE time (boot TEXT NOT NULL, steady_ms INTEGER NOT NULL, now_ms INTEGER NOT NULL)"


def log_time_ms(db: sqlite3.Connection, wall: Callable[[], float]) -> int:
    """Inside a transaction: the log's time in milliseconds since 1970. `wall`: this process's date, in seconds."""
    boot, steady_ms = _boot(), _steady_ms()
    row = db.execute("SELECT boot, steady_ms, now_ms FROM time").fetchone()
    if row is None:
        now_ms = int(1000 * wall())
    elif row[0] == boot and steady_ms >= row[1]:
        return int(row[2] + steady_ms - row[1])
    else:
        now_ms = max(int(row[2]), int(1000 * wall()))
    db.execute("DELETE FROM time")
    db.execute("INSERT INTO time VALUES (?, ?, ?)", (boot, steady_ms, now_ms))
    return now_ms


def _steady_ms() -> int:
    """Milliseconds since the machine was started, also while it slept where the system counts that."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return int(1000 * time.clock_gettime(clock))


@cache
def _boot() -> str:
    """What identifies this run of the machine; empty where the system has nothing alike."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
