"""The databases in a folder: which file is of which kind, and in which format it is.

A file is known by what is in it, not by its name: a log may have any name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal.cli.formats import Format
from shoal.errors import CheckpointInUse, InvalidState
from shoal.files import LOCKED, primary_code
from shoal.privacy import ledger
from shoal.read_only import read_unchanged
from shoal.runtime import checkpoint, site_readings
from shoal.runtime.checkpoint import Checkpoint, CheckpointFile
from shoal.server_node.history import store
from shoal.transports.sqlite import renewals, schema

HEADER: Final = b"SQLite format 3\0"
LOG: Final = "log"
CHECKPOINT: Final = "checkpoint"
LEDGER: Final = "ledger"
SITE: Final = "readings of a host"
HISTORY: Final = "history"
NUMBERS: Final = {
    LOG: schema.SCHEMA_VERSION,
    CHECKPOINT: checkpoint.FORMAT,
    LEDGER: int(ledger.FORMAT),
    SITE: int(site_readings.FORMAT),
    HISTORY: store.FORMAT,
}
"""kind of a file -> the number of the format that this version reads and writes"""
STATES: Final = {
    "client ": Format("client", "shoal.client_nodes.node:STATE_VERSION"),
    "server of ": Format("server", "shoal.server_node.node:STATE_VERSION"),
    "helper with ": Format("helper", "shoal.helper_node.node:STATE_VERSION"),
}
"""beginning of the name of a checkpoint's owner -> the form of its state. Its number is looked up
where there is such a checkpoint: a site of clients has no extras of a helper"""
BESIDE: Final = ("-wal", "-shm", "-journal", renewals.ENDING)
"""endings of the names of files that are kept beside a database while processes have it open"""


class Database(NamedTuple):
    """A file of a kind that this version knows."""

    path: Path
    kind: str
    number: int
    """the number of its format"""


class Accepted(NamedTuple):
    """A database that was read whole."""

    database: Database
    owner: str | None
    """the process whose checkpoint it is"""
    holders: Sequence[str] = ()
    """whose states it has: the owner's, or those of the clients of a host"""


def files_in(folder: Path) -> Iterator[Path]:
    """All files of a folder but links, and but what is kept beside a database in use."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and not _is_beside(path):
            yield path


def _is_beside(path: Path) -> bool:
    """Whether this file is kept beside a database in use."""
    for ending in BESIDE:
        if path.name.endswith(ending) and path.with_name(path.name.removesuffix(ending)).exists():
            return True
    return False


def is_database(path: Path) -> bool:
    """Whether a file is one of SQLite, of whatever program. Raises `OSError`."""
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER


def looked_at(path: Path) -> Database | None:
    """The kind and format of a file, which is not changed; None for one of another program.

    Raises `CheckpointInUse` where a process has it to itself, and `InvalidState` for a damaged one.
    """
    try:
        return read_unchanged(path, lambda db: identified(db, path))
    except sqlite3.Error as error:
        if primary_code(error) in LOCKED:
            raise in_use(path) from None
        raise damaged(path, str(error)) from None


def identified(db: sqlite3.Connection, path: Path) -> Database | None:
    """The kind and format of an open file; None for one of another program.

    Raises `InvalidState` for a format without a number, and as `sqlite3` does.
    """
    rows = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    tables = {str(name) for (name,) in rows}
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application == schema.APPLICATION_ID:
        return Database(path, LOG, int(version))
    if "names" in tables and any(name.startswith("bins_") for name in tables):
        return Database(path, HISTORY, int(version))
    if "about" not in tables:
        return None
    # In the order of what is the clearest sign: later formats may have more tables.
    for kind, sign in ((CHECKPOINT, "outbox"), (LEDGER, "releases"), (SITE, "readings")):
        if sign in tables:
            row = db.execute("SELECT value FROM about WHERE name = 'format'").fetchone()
            if row is None or not str(row[0]).isdecimal():
                raise damaged(path, "its format has no number")
            return Database(path, kind, int(row[0]))
    return None


def accepted(database: Database) -> Accepted:
    """A database in the format of this version, read whole: its pages, and what was saved.

    The file may be changed: it is a copy. Raises `InvalidState`, and as opening a checkpoint does.
    """
    with closing(sqlite3.connect(database.path, isolation_level=None)) as db:
        try:
            # Not `integrity_check`, which compares every index with its table, in more than linear
            # time.
            if db.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
                raise damaged(database.path, "its pages are inconsistent")
            owner = None
            if database.kind == CHECKPOINT:
                row = db.execute("SELECT value FROM about WHERE name = 'owner'").fetchone()
                owner = None if row is None else str(row[0])
        except sqlite3.Error as error:
            raise damaged(database.path, str(error)) from None
    if database.kind != CHECKPOINT:
        return Accepted(database, None)
    if owner is None:
        raise damaged(database.path, "it has no owner")
    with closing(CheckpointFile(database.path, owner)) as file:
        holders = file.holders()
        for holder in holders:
            checkpoint = Checkpoint(database.path, holder, file)
            state = checkpoint.load()
            # Records that wait to be published, each with its digest.
            checkpoint.pending()
            _check_state(database.path, holder, state)
    return Accepted(database, owner, holders)


def _check_state(path: Path, owner: str, state: dict[str, Any] | None) -> None:
    """Raises `InvalidState` for a state in a form that this version does not read."""
    for beginning, form in STATES.items():
        if state is None or not owner.startswith(beginning):
            continue
        saved = state.get("version")
        number = form.number
        if number is not None and saved != number:
            raise InvalidState(
                f"{path}: the state of {owner} has form {saved}, this version reads {number};"
                " nothing was changed. Go on with the version that has written it, or see the"
                " changelog for what becomes of it"
            )


def in_use(path: Path) -> CheckpointInUse:
    """The error for a file that a process has open."""
    return CheckpointInUse(f"{path}: in use by a running process; stop all that use this folder")


def damaged(path: Path, how: str) -> InvalidState:
    """The error for a file that cannot be read whole."""
    return InvalidState(f"{path}: damaged ({how}); restore it from a backup")
