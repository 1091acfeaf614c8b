"""A backup of a folder whose processes run on, of one moment.

A process has its checkpoint to itself, so the file and its write-ahead log are copied as files; all
other databases are read in one read transaction each, and copied by SQLite's backup. What belongs
together is of one moment: no log of a federation in the folder is written meanwhile (a lock, for
milliseconds), so nothing is published; and where a checkpoint has changed while the files beside it
were opened, all of them are opened again. A ledger so has at least what was published, and an
outbox what was not. What may take long, the copies of logs, is done when all have been opened.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal import __version__
from shoal.errors import CheckpointInUse, InvalidState, LogUnavailable, SettingsError
from shoal.onebox.upkeep.databases import (
    CHECKPOINT,
    HISTORY,
    LOG,
    NUMBERS,
    Accepted,
    Database,
    accepted,
    damaged,
    files_in,
    identified,
    is_database,
    looked_at,
)
from shoal.onebox.upkeep.locks import locked
from shoal.onebox.upkeep.upgrade import MARKER, beside, digest_of, sync_tree
from shoal.read_only import ReadOnlyFile, wal_of
from shoal.server_node.history.store import DAMAGED_FILE

MANIFEST: Final = "backup.json"
TRIES: Final = 200
"""times that files are opened together before a process is said to be too busy"""
PAUSE_S: Final = 0.02
"""pause before the next try; a clock of a file system may stand still for half of it"""
LOG_WAIT_S: Final = 30.0
"""wait for a process that writes the log of the federation"""
# It has the salts, which change whenever the write-ahead log begins anew.
WAL_HEADER_BYTES: Final = 32
HELPER: Final = "helper with "
"""beginning of the name of the owner of a helper's state, of which there must be no copy: what it
has unmasked since would be unmasked again, with other noise"""


class FileStamp(NamedTuple):
    """What changes whenever a process saves a checkpoint."""

    file: tuple[int, int, int]
    wal: tuple[int, int, int] | None
    wal_header: bytes


class Held(NamedTuple):
    """A checkpoint that a process has to itself."""

    path: Path


def back_up(folder: Path, out: Path) -> dict[str, Any]:
    """Copy all that a restored folder needs to `out`, which must not be there; returns its
    manifest.

    Raises `SettingsError` for folders, `InvalidState` for a damaged file or one of another version,
    and `LogUnavailable` where processes were too busy.
    """
    if not folder.is_dir():
        raise SettingsError(f"{folder}: not a folder; name the one that holds the files")
    if out.exists() or out.resolve().is_relative_to(folder.resolve()):
        raise SettingsError(f"{out}: name a new folder, outside of {folder}")
    part = beside(out, "part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        # For its owner alone: it gets raw readings, and the keys of noise.
        part.mkdir(mode=0o700, parents=True)
        manifest = _copy_all(folder, part)
        text = json.dumps(manifest, indent=1) + "\n"
        (part / MANIFEST).write_text(text, encoding="utf-8")
        # On the disk before it has its name, so that a backup of this name is whole after a power
        # cut.
        sync_tree(part)
        # A backup that was interrupted has another name.
        part.rename(out)
    except OSError as error:
        raise SettingsError(f"{out}: cannot be made ({error.strerror or error})") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return manifest


def _copy_all(folder: Path, out: Path) -> dict[str, Any]:
    """Copy the files, read the copies, and describe them."""
    databases: list[Database | Held] = []
    others = []
    for path in files_in(folder):
        if not is_database(path):
            others.append(path)
            continue
        found = _kind_of(path)
        # A server makes its history again from the log.
        if found is None:
            others.append(path)
        elif isinstance(found, Held) or found.kind != HISTORY:
            databases.append(found)
    with ExitStack() as stack:
        opened = {}
        with _unpublished(databases):
            made_at = time.time()
            for group in _groups(databases):
                opened.update(_opened_together(group, folder, out, stack))
        for path, file in opened.items():
            with closing(sqlite3.connect(_target(path, folder, out))) as target:
                file.connection.backup(target)
            if not file.is_current:
                raise LogUnavailable(f"{path}: a process has started meanwhile; try again")
    for path in others:
        if path.name not in (DAMAGED_FILE, MARKER):
            shutil.copy2(path, _target(path, folder, out))
    return _manifest(folder, out, made_at)


def _kind_of(path: Path) -> Database | Held | None:
    try:
        return looked_at(path)
    except CheckpointInUse:
        return Held(path)


def _groups(databases: Iterable[Database | Held]) -> Iterator[list[Database | Held]]:
    """The databases that belong together: those of one folder; logs of a federation last.

    A server does not start on a log that ends before its own position.
    """
    by_folder: dict[Path, list[Database | Held]] = {}
    last = []
    for database in databases:
        if _is_federation_log(database):
            last.append(database)
        else:
            by_folder.setdefault(database.path.parent, []).append(database)
    yield from by_folder.values()
    yield last


def _is_federation_log(database: Database | Held) -> bool:
    if isinstance(database, Held) or database.kind != LOG:
        return False
    with closing(ReadOnlyFile(database.path)) as file:
        named = file.connection.execute("SELECT name FROM topics").fetchall()
    return any(name.endswith(".updates") for (name,) in named)


@contextmanager
def _unpublished(databases: Iterable[Database | Held]) -> Iterator[None]:
    """No process publishes in a log of a federation until the block ends."""
    with ExitStack() as stack:
        for database in databases:
            # To a log that no process has open nothing is published.
            if _is_federation_log(database) and _is_open(database.path):
                stack.enter_context(_write_locked(database.path))
        yield


def _is_open(path: Path) -> bool:
    try:
        with locked([path]):
            return False
    except CheckpointInUse:
        return True


@contextmanager
def _write_locked(path: Path) -> Iterator[None]:
    """The lock of writers of a log, which is taken and given back without a change."""
    options = f"{path.absolute().as_uri()}?mode=rw"
    with closing(
        sqlite3.connect(options, uri=True, timeout=LOG_WAIT_S, isolation_level=None)
    ) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise LogUnavailable(f"{path}: cannot be locked ({error}); try again") from None
        try:
            yield
        finally:
            db.execute("ROLLBACK")


def _opened_together(
    group: list[Database | Held], folder: Path, out: Path, stack: ExitStack
) -> dict[Path, ReadOnlyFile]:
    """The files of a group, each in a read transaction, all of one moment.

    Checkpoints are copied at once. Raises `LogUnavailable`.
    """
    checkpoints = [
        database.path
        for database in group
        if isinstance(database, Held) or database.kind == CHECKPOINT
    ]
    for _ in range(TRIES):
        before = [_stamp(path) for path in checkpoints]
        with ExitStack() as opening:
            opened = {}
            for database in group:
                if database.path not in checkpoints:
                    file = opening.enter_context(closing(ReadOnlyFile(database.path)))
                    file.connection.execute("BEGIN")
                    # BEGIN alone takes no lock: the moment of a transaction is that of its first
                    # read.
                    file.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                    opened[database.path] = file
            for path in checkpoints:
                _copy_with_wal(path, _target(path, folder, out))
            if before == [_stamp(path) for path in checkpoints]:
                # Left open: their moment stays that of the checkpoints while they are copied.
                stack.push(opening.pop_all())
                return opened
        time.sleep(PAUSE_S)
    raise LogUnavailable(
        f"{group[0].path.parent}: its process saves too often to copy its files of one moment; try"
        " again, or stop it"
    )


def _stamp(path: Path) -> FileStamp:
    """The stamp of a checkpoint, taken when a change would change it.

    Raises `OSError`.
    """
    while True:
        wal = wal_of(path)
        newest = path.stat().st_mtime
        wal_state = None
        header = b""
        try:
            found = wal.stat()
            wal_state = (found.st_ino, found.st_size, found.st_mtime_ns)
            newest = max(newest, found.st_mtime)
            with wal.open("rb") as file:
                header = file.read(WAL_HEADER_BYTES)
        except FileNotFoundError:
            pass
        # A file from the future, as a clock that was set back leaves it, is not waited for.
        if not 0.0 <= time.time() - newest < PAUSE_S:
            state = path.stat()
            return FileStamp((state.st_ino, state.st_size, state.st_mtime_ns), wal_state, header)
        # A second change within one tick of the clock of the file system would not show.
        time.sleep(PAUSE_S)


def _copy_with_wal(path: Path, target: Path) -> None:
    """Copy a checkpoint and its write-ahead log, in this order.

    A page that a process moves from the log into the file meanwhile is in the log, unless that
    begins anew, which changes its header and so the stamp of the file.
    """
    shutil.copyfile(path, target)
    wal = wal_of(target)
    wal.unlink(missing_ok=True)
    try:
        shutil.copyfile(wal_of(path), wal)
    except FileNotFoundError:
        wal.unlink(missing_ok=True)


def _target(path: Path, folder: Path, out: Path) -> Path:
    """The copy of a file, in a folder with the rights of its own."""
    target = out / path.relative_to(folder)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Before it has content: otherwise it would have the rights of the umask while it is copied.
    if not target.exists():
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600))
    return target


def _manifest(folder: Path, out: Path, made_at: float) -> dict[str, Any]:
    """What a backup has, of copies that were read whole. Raises `InvalidState`."""
    files: dict[str, dict[str, Any]] = {}
    left_out = []
    clients: dict[str, dict[str, Any]] = {}
    formats: dict[str, int] = {}
    for path in files_in(out):
        name = str(path.relative_to(out))
        kind = "file"
        if is_database(path):
            found = _accepted_copy(path)
            if found is not None and (found.owner or "").startswith(HELPER):
                path.unlink()
                left_out.append(name)
                continue
            if found is not None:
                kind = found.database.kind
                formats[kind] = found.database.number
                _note_client(found, name, clients)
        files[name] = {"kind": kind, "bytes": path.stat().st_size, "sha256": digest_of(path)}
    return {
        "shoal": __version__,
        "of": str(folder),
        "made_at": datetime.fromtimestamp(made_at, UTC).isoformat(timespec="milliseconds"),
        "formats": formats,
        "clients": clients,
        "left_out": left_out,
        "files": files,
    }


def _accepted_copy(path: Path) -> Accepted | None:
    """A copy that was read whole; None for a database of another program."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            # One file: what was beside a checkpoint is moved into it.
            db.execute("PRAGMA journal_mode = DELETE")
            database = identified(db, path)
    except sqlite3.Error as error:
        raise damaged(path, str(error)) from None
    if database is None:
        return None
    if database.number != NUMBERS[database.kind]:
        raise InvalidState(
            f"{path.name}: {database.kind} of format {database.number}, this version reads"
            f" {NUMBERS[database.kind]}; back it up with the version that has written it"
        )
    found = accepted(database)
    # To read a checkpoint has put it into the mode of a write-ahead log again.
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
    return found


def _note_client(found: Accepted, name: str, clients: dict[str, dict[str, Any]]) -> None:
    """Note the clients whose checkpoints are in a file, each with its folder."""
    for holder in found.holders:
        if not holder.startswith("client "):
            continue
        client = holder.removeprefix("client ").partition(" of ")[0]
        folder = Path(name).parent
        # That of a host lies beside the folders of its clients.
        if holder != found.owner:
            folder = folder / client
        clients[client] = {"folder": str(folder)}
