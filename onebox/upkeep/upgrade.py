"""The upgrade of a folder: as one step, which is taken when everything in it has been accepted.

The folder is copied, and the copy is upgraded and read whole. Then the two folders exchange their
names, in one call of the system (`renameat2`), so that a kill at any instant leaves the folder as
it was, or upgraded. What it was is kept beside it, FOLDER.before-upgrade. All databases are locked
meanwhile, against processes of whatever version, so that nothing is lost that one would write.

    FOLDER.upgrading.part     the copy, while it is made; of no use after a kill
    FOLDER.upgrading          the copy, upgraded and with its marker; after the exchange, what was
    FOLDER.before-upgrade     what was, once the upgrade has succeeded
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal import __version__
from shoal.errors import InvalidState, SettingsError
from shoal.files import sync_folder, writing
from shoal.onebox.upkeep.databases import (
    HISTORY,
    LOG,
    NUMBERS,
    Database,
    accepted,
    damaged,
    files_in,
    identified,
    is_database,
    looked_at,
)
from shoal.onebox.upkeep.locks import locked
from shoal.read_only import wal_of
from shoal.transports.sqlite import schema

STEPS: Final[dict[tuple[str, int], Callable[[sqlite3.Connection], None]]] = {
    (LOG, schema.BEFORE_BATCHES): schema.add_batches,
    (LOG, schema.BEFORE_CHECKSUMS): schema.add_checksums,
    (LOG, schema.BEFORE_PACKING): schema.add_packing,
}
"""kind and number of a format -> what changes a file of it to the next number, within a
transaction. A release brings those from the formats of the release before"""
MARKER: Final = ".upgraded.json"
"""file in an upgraded folder: the digests of its databases, by which a change since then is
found"""
EXCHANGE: Final = 2
"""Linux's RENAME_EXCHANGE"""
AT_FDCWD: Final = -100
BLOCK_BYTES: Final = 1 << 20


class Upgraded(NamedTuple):
    """What an upgrade has changed."""

    changed: list[Database]
    """the files as they were, by the names that they have"""
    kept: Path | None
    """the folder as it was; None where there was nothing to change"""


def upgrade(folder: Path, logs: Iterable[Path] = ()) -> Upgraded:
    """Bring all databases of a folder to the formats of this version.

    `logs`: files of logs elsewhere, which this version must be able to read. Nothing is changed
    where it raises: `SettingsError` for a folder that cannot be exchanged, `CheckpointInUse` where
    a process runs, `InvalidState` for what this version does not read.
    """
    _check_folder(folder)
    _tidy(folder)
    for path in logs:
        # One in the folder is upgraded with it.
        if not path.absolute().is_relative_to(folder.absolute()):
            _check_log(path)
    paths = [path for path in files_in(folder) if is_database(path)]
    # Before anything is copied: a folder of gigabytes that is refused is refused at once.
    before = _checked(looked_at(path) for path in paths)
    to_change = [database for database in before if _is_older(database)]
    if not to_change:
        return Upgraded([], None)
    kept = beside(folder, "before-upgrade")
    if kept.exists():
        raise SettingsError(
            f"{kept} is the folder before the last upgrade: move it away, or remove it, and run the"
            " command again"
        )
    with locked(paths):
        _make_upgraded(folder)
        upgraded = beside(folder, "upgrading")
        # Of an upgrade before this one: by the marker it is known which folder is the new one.
        (folder / MARKER).unlink(missing_ok=True)
        try:
            exchange(upgraded, folder)
        except BaseException:
            shutil.rmtree(upgraded, ignore_errors=True)
            raise
        upgraded.rename(kept)
        sync_folder(folder.parent)
    return Upgraded(to_change, kept)


def undo(folder: Path) -> Path:
    """Put the folder back that the last upgrade has kept; returns where the upgraded one was.

    Only where nothing was written since: what a client has published meanwhile would be published
    a second time, with other noise. Raises as `upgrade` does.
    """
    _check_folder(folder)
    _tidy(folder)
    kept = beside(folder, "before-upgrade")
    if not kept.is_dir() or not (folder / MARKER).exists():
        raise SettingsError(f"there is no {kept} of an upgrade of {folder}: nothing to undo")
    paths = [path for path in files_in(folder) if is_database(path)]
    with locked(paths):
        recorded: dict[str, str] = json.loads((folder / MARKER).read_text("utf-8"))["files"]
        present = {str(path.relative_to(folder)) for path in paths}
        # Of both: a file that has come since, or has gone, is a change as well.
        for name in sorted(present | recorded.keys()):
            path = folder / name
            # What was written last may stand in the write-ahead log alone, and the file be as it
            # was.
            unchanged = name in present and digest_of(path) == recorded.get(name)
            if not unchanged or _has_content(wal_of(path)):
                raise InvalidState(
                    f"{path}: has changed since the upgrade. To put back what was would publish"
                    " readings a second time: copy the folder of a server back by hand from"
                    f" {kept}, and start a client that has published since under a new name"
                )
        exchange(kept, folder)
        # Since the exchange this is the name of the upgraded folder.
        shutil.rmtree(kept)
    return kept


def beside(folder: Path, ending: str) -> Path:
    """The folder of this name beside a folder."""
    return folder.with_name(f"{folder.name}.{ending}")


def _check_folder(folder: Path) -> None:
    """Raises `SettingsError` for a folder that cannot be exchanged with another one."""
    # The exchange would be of the link, and not of the folder that it names.
    if not folder.is_dir() or folder.is_symlink():
        raise SettingsError(f"{folder}: not a folder; name the one that holds the files")
    if os.path.ismount(folder):
        raise SettingsError(
            f"{folder}: a file system is mounted here, so that it cannot be replaced in one step;"
            " name the folders in it, one after the other"
        )


def _tidy(folder: Path) -> None:
    """Remove what a run that was killed has left, or finish it where its step was taken."""
    shutil.rmtree(beside(folder, "upgrading.part"), ignore_errors=True)
    kept = beside(folder, "before-upgrade")
    if (kept / MARKER).exists() and not (folder / MARKER).exists():
        # An upgrade was undone: this is the upgraded folder, to which nothing was written.
        shutil.rmtree(kept)
    upgrading = beside(folder, "upgrading")
    if not upgrading.exists():
        return
    if (upgrading / MARKER).exists():
        # It was made, and not exchanged.
        shutil.rmtree(upgrading)
    else:
        upgrading.rename(kept)


def _check_log(path: Path) -> None:
    """Raises `InvalidState` for a log elsewhere that this version does not read."""
    if not path.exists():
        return
    found = looked_at(path)
    if found is None or found.kind != LOG or found.number != NUMBERS[LOG]:
        number = "no" if found is None else found.number
        raise InvalidState(
            f"{path}: the log is in layout {number}, this version reads {NUMBERS[LOG]}; upgrade"
            " its folder first. Nothing was changed"
        )


def _checked(databases: Iterable[Database | None]) -> list[Database]:
    """The databases, each of which this version reads, or makes readable by its steps.

    Raises `InvalidState`.
    """
    known = []
    for database in databases:
        if database is None:
            continue
        # A server makes a history of another format again from the log.
        if database.kind != HISTORY:
            _check_number(database)
        known.append(database)
    return known


def _check_number(database: Database) -> None:
    path, kind, number = database
    newest = NUMBERS[kind]
    if number > newest:
        raise InvalidState(
            f"{path}: {kind} of format {number}, newer than {newest}, which this version"
            f" ({__version__}) writes; install the version that has written it. Nothing was changed"
        )
    for step in range(number, newest):
        if (kind, step) not in STEPS:
            raise InvalidState(
                f"{path}: {kind} of format {number}, older than this version ({__version__}) can"
                f" upgrade to {newest}; install the version between them first, and upgrade with"
                " it. Nothing was changed"
            )


def _is_older(database: Database) -> bool:
    return database.kind != HISTORY and database.number < NUMBERS[database.kind]


def _make_upgraded(folder: Path) -> None:
    """Make the upgraded copy of a folder, whole with its marker. Raises as `upgrade` does."""
    part = beside(folder, "upgrading.part")
    try:
        copy_tree(folder, part)
        digests = {}
        for path in files_in(part):
            if is_database(path) and _upgrade_file(path):
                digests[str(path.relative_to(part))] = digest_of(path)
        marker: dict[str, Any] = {"shoal": __version__, "files": digests}
        (part / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
        sync_tree(part)
        part.rename(beside(folder, "upgrading"))
        sync_folder(folder.parent)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError):
            raise SettingsError(
                f"{part}: cannot be made ({error.strerror}); the copy needs as much room as"
                f" {folder}, beside it. Nothing was changed"
            ) from None
        raise


def _upgrade_file(path: Path) -> bool:
    """Bring a copy to the formats of this version and read it whole.

    False for a file of another program. Raises `InvalidState`.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        try:
            database = identified(db, path)
            if database is None:
                return False
            _checked([database])
            if database.kind != HISTORY:
                with writing(db):
                    for number in range(database.number, NUMBERS[database.kind]):
                        STEPS[database.kind, number](db)
                database = identified(db, path)
                assert database is not None
                assert database.number == NUMBERS[database.kind], "each step raises the number"
        except sqlite3.Error as error:
            raise damaged(path, str(error)) from None
    accepted(database)
    return True


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with the rights and owners of its files, but no index of shared memory.

    Raises `OSError`.
    """

    def ignored(folder: str, names: list[str]) -> list[str]:
        # SQLite makes the index anew from the write-ahead log.
        return [name for name in names if name.endswith("-shm") or name == MARKER]

    try:
        # Links stay links: what they name lies elsewhere, and is not upgraded.
        shutil.copytree(source, target, symlinks=True, ignore=ignored)
    except shutil.Error as several:
        # It collects the errors of all files; the first one tells enough.
        first = several.args[0][0]
        raise OSError(errno.EIO, str(first[2])) from None
    for path in (target, *target.rglob("*")):
        found = source / path.relative_to(target)
        owner = found.lstat()
        # What root copies is root's: the user of the service could not write it.
        if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def sync_tree(folder: Path) -> None:
    """Wait until everything in a folder is on the disk."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders in one step. Raises `SettingsError` where the system
    cannot."""
    # With a copy of errno of its own, which Python's calls in between do not change.
    library = ctypes.CDLL(None, use_errno=True)
    rename = getattr(library, "renameat2", None)
    failed = rename is None or rename(
        AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), EXCHANGE
    )
    if failed:
        why = os.strerror(ctypes.get_errno()) if rename is not None else "no renameat2"
        raise SettingsError(
            f"{other}: this file system cannot exchange two folders in one step ({why}); copy the"
            " folder to another one and upgrade it there. Nothing was changed"
        )


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
