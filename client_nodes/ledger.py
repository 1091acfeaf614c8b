"""The ledger: what a client has spent of its readings' privacy, charged and on the disk before anything is published.

Each release of a window is one row. A release that is computed again after a kill has the same window, plan and
counts, hence the same noise, and costs nothing more. If the plan has changed meanwhile, the second release is charged
as well although the first was never published: the ledger may exceed what was spent, and is never below it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from shoal.errors import InvalidState

_SCHEMA = """
CREATE TABLE IF NOT EXISTS owner (name TEXT NOT NULL, fingerprint TEXT NOT NULL, stored INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS releases (
    model TEXT NOT NULL, number INTEGER NOT NULL, plan BLOB NOT NULL, counts BLOB NOT NULL,
    places INTEGER NOT NULL, epsilon REAL NOT NULL, charged_at REAL NOT NULL,
    PRIMARY KEY (model, number, plan, counts)
) WITHOUT ROWID;
"""


class Spent(NamedTuple):
    """What the ledger holds of one model."""

    model: str
    windows: int
    """numbers of windows that were released"""
    places: int
    """readings in them, refused ones included"""
    epsilon: float
    """of one reading at most: the sum over the releases of the window that was charged most often"""


class Release(NamedTuple):
    """What is charged for one window of one model."""

    model: str
    number: int
    """of the window, from 0"""
    plan: bytes
    """digest of the plan under which it was counted"""
    counts: bytes
    """digest of its private counts"""
    places: int
    epsilon: float


class Ledger:
    """An SQLite file in the client's folder. Every charge is flushed to the disk before `charge` returns."""

    def __init__(self, path: Path, owner: str, fingerprint: str) -> None:
        """`owner` names the client; `fingerprint` its noise key. Raises `InvalidState` for a ledger of another one."""
        self._path = path
        try:
            self._file = sqlite3.connect(path, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.executescript(_SCHEMA)
            held = self._file.execute("SELECT name, fingerprint FROM owner").fetchall()
            if not held:
                self._file.execute("INSERT INTO owner VALUES (?, ?, 0)", (owner, fingerprint))
        except sqlite3.DatabaseError as damaged:
            raise InvalidState(
                f"{path} is no ledger that can be read ({damaged}): restore it from a backup of the same moment as the "
                "checkpoint, or start under a new client name"
            ) from None
        if held and held != [(owner, fingerprint)]:
            self.close()
            raise InvalidState(
                f"{path} is the ledger of another client or noise key: restore the one that belongs to this folder, or "
                "start under a new client name"
            )

    def charge(self, release: Release, now: float) -> None:
        """Charge a release, unless this very release is charged already. It is on the disk when this returns."""
        self._file.execute("INSERT OR IGNORE INTO releases VALUES (?, ?, ?, ?, ?, ?, ?)", (*release, now))

    def windows(self, model: str) -> int:
        """One more than the number of the newest window charged for a model; 0 without any."""
        newest = self._file.execute("SELECT MAX(number) FROM releases WHERE model = ?", (model,)).fetchone()[0]
        return 0 if newest is None else int(newest) + 1

    def spent(self) -> list[Spent]:
        """What each model has spent, by name."""
        found = self._file.execute(
            "SELECT model, COUNT(*), SUM(places), MAX(epsilon) FROM (SELECT model, number, MAX(places) AS places, "
            "SUM(epsilon) AS epsilon FROM releases GROUP BY model, number) GROUP BY model ORDER BY model"
        )
        return [Spent(*row) for row in found.fetchall()]

    def mark_stored(self, windows: int) -> None:
        """Note that a checkpoint which has released `windows` windows is on the disk."""
        self._file.execute("UPDATE owner SET stored = MAX(stored, ?)", (windows,))

    def check_continues(self, models: Sequence[str], windows: int) -> None:
        """Raises `InvalidState` unless the ledger fits a checkpoint that has released `windows` windows.

        A kill after a charge leaves the ledger ahead of the checkpoint, but never behind it, and the ledger has never
        seen a later checkpoint.
        """
        for model in models:
            if self.windows(model) < windows:
                raise InvalidState(
                    f"{self._path} has {self.windows(model)} windows of model {model}, the checkpoint {windows}: the "
                    "ledger is missing or older than the checkpoint. Restore both from one moment, or start under a "
                    "new client name"
                )
        stored = int(self._file.execute("SELECT stored FROM owner").fetchone()[0])
        if stored > windows:
            raise InvalidState(
                f"{self._path} knows a checkpoint with {stored} windows, this one has {windows}: the checkpoint is "
                "older than the ledger, and going on would publish the same readings with other noise. Restore both "
                "from one moment, or start under a new client name"
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_spent(path: Path) -> list[Spent]:
    """What a ledger holds, read without changing it. Raises `InvalidState` if there is none."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            reader = Ledger.__new__(Ledger)
            reader._file = file
            return reader.spent()
    except sqlite3.DatabaseError as damaged:
        raise InvalidState(f"{path} is no ledger that can be read ({damaged})") from None
