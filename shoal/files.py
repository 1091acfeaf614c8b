"""Files: written whole or not at all, readable by their owner only, and SQLite files with errors of
shoal."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from shoal.errors import CheckpointInUse, LogUnavailable, SettingsError, ShoalError


@contextmanager
def atomic_file(path: Path, *, replace: bool = False, syncs: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`; the file written there gets the name `path` when the block
    ends without an error.

    A process that is killed leaves either no file at `path` (or the old one) or the whole new one,
    also after a power cut, if the block has synced the content to the disk. An existing file is
    replaced with `replace`, otherwise kept: then the file of the process that was faster counts,
    and this one is dropped. `syncs`: whether its name survives a power cut. Raises `OSError`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield temporary
        if replace:
            temporary.replace(path)
        else:
            with suppress(FileExistsError):
                # A link fails where the name exists, unlike a rename: of two processes one makes
                # the file.
                os.link(temporary, path)
        if syncs:
            sync_folder(path.parent)
    finally:
        # After a rename it is gone already.
        with suppress(OSError):
            temporary.unlink()


def write_secret(path: Path, content: bytes, *, replace: bool = False, syncs: bool = True) -> None:
    """Write a file that only its owner may read (mode 0600), as `atomic_file` does. `syncs`:
    whether it survives a power cut. Raises `OSError`."""
    with (
        atomic_file(path, replace=replace, syncs=syncs) as temporary,
        os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
    ):
        file.write(content)
        file.flush()
        if syncs:
            os.fsync(file.fileno())


def allow_files(needed: int) -> int:
    """Let this process have so many files open, or as many as it may; returns how many it can have
    now, which may be more."""
    try:
        import resource  # noqa: PLC0415 - Windows has none, and no such limit
    except ImportError:
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return needed
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def make_private(path: Path, *, syncs: bool = True) -> None:
    """Make an empty file that only its owner may read (mode 0600), unless there is one.

    For databases: SQLite would give a new one the rights of the umask, and gives the files beside
    it the rights of the database. `syncs`: see `atomic_file`. Where the file cannot be made, its
    opening reports that.
    """
    if path.exists():
        return
    # Never a descriptor of the database itself: to close one ends all locks that this process has
    # on the file (POSIX), so that others would take SQLite's open connections for closed.
    with suppress(OSError), atomic_file(path, syncs=syncs) as temporary:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def read_secret(path: Path, bytes_max: int, *, kind: str, risk: str, remedy: str) -> bytes:
    """The first `bytes_max` + 1 bytes of a file that only its owner may read, so that a longer one
    can be recognised.

    Raises `OSError` when it cannot be read, and `SettingsError` when other users have any right to
    it, but for the group of a file that is another user's, by which this one reads it: "`kind` PATH
    is open to others (mode 644), who could `risk`. Run chmod 600 PATH if no other user had access,
    else `remedy`".
    """
    with path.open("rb") as file:
        # Of the file that is open: under its name there may be another one a moment later.
        status = os.fstat(file.fileno())
        content = file.read(bytes_max + 1)
    mode = stat.S_IMODE(status.st_mode)
    open_to = 0o077
    if os.name == "posix" and status.st_uid != os.geteuid():
        # Secrets that Kubernetes mounts are root's, and the user reads them by their group.
        open_to = 0o037
    if os.name == "posix" and mode & open_to:
        raise SettingsError(
            f"{kind} {path} is open to others (mode {mode:o}), who could {risk}. "
            f"Run chmod 600 {path} if no other user had access, else {remedy}"
        )
    return content


def read_password(path: Path, section: str) -> str:
    """The text in a small file that a setting of `section` names, such as a password, without
    surrounding spaces.

    Its mode is not checked: secrets that Docker or Kubernetes mount belong to other users. Raises
    `SettingsError`, which contains nothing of the text.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"[{section}] {path}: cannot be read ({type(error).__name__}); name a file this user "
            "may read"
        ) from None


def sync_folder(folder: Path) -> None:
    """A new name in a folder survives a power cut only once the folder has been synced."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        # The name of a new file is content of its folder, which a power cut can take away.
        os.fsync(opened)
    finally:
        os.close(opened)


NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


def create_database(path: Path, statements: Iterable[tuple[str, tuple[str, ...]]]) -> None:
    """Create an SQLite file that appears whole, unless there is one: a file without its tables is
    damaged and not new.

    `statements`: each with its parameters. Raises `LogUnavailable` where there is no room, and
    `SettingsError` where this user may not write.
    """
    try:
        if path.exists():
            if not os.access(path, os.R_OK | os.W_OK):
                # SQLite would open it read-only and later report an error of the disk.
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            make_private(temporary)
            with closing(sqlite3.connect(temporary, isolation_level=None)) as file:
                file.execute("BEGIN")
                for statement, parameters in statements:
                    file.execute(statement, parameters)
                file.execute("COMMIT")
    except OSError as error:
        if error.errno in NO_ROOM:
            raise LogUnavailable(
                f"{path}: cannot be created: {error.strerror}; make room"
            ) from None
        raise SettingsError(
            f"{path}: cannot be used: {error.strerror}; name a folder that this user may write"
        ) from None


FULL: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})
"""there is no room, or the disk fails"""
LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""another process has the file"""
NO_ACCESS: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
)
"""this user may not use the file"""


@contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """One write transaction. The lock is taken at its start, so that it cannot fail for a lock
    half-way."""
    # The lock for writing at once: two that read first and then write could not both go on.
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # after some errors SQLite has already rolled back
            db.execute("ROLLBACK")
        raise


@contextmanager
def sqlite_errors(path: Path, owner: str, damaged: Callable[[str], ShoalError]) -> Iterator[None]:
    """Turn errors of SQLite inside into errors of shoal that say what to do, for a file that one
    process has to itself.

    `owner` is the process, in words; `damaged` makes the error for all that has no other cause. The
    use of a closed file is a programming error and stays `sqlite3.ProgrammingError`.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except sqlite3.Error as error:
        code = primary_code(error)
        if code in LOCKED:
            raise CheckpointInUse(
                f"{path}: in use by another process; is {owner} running already?"
            ) from None
        if code in FULL:
            raise LogUnavailable(
                f"{path}: cannot be written: {error}; make room or repair the disk"
            ) from None
        if code in NO_ACCESS:
            raise SettingsError(
                f"{path}: cannot be opened ({error}); it must be a file that this user may write, "
                "in a folder that this user may write"
            ) from None
        raise damaged(str(error)) from None
    except UnicodeDecodeError:
        # SQLite's error text quotes a damaged name.
        raise damaged("its names are not text") from None


def primary_code(error: sqlite3.Error) -> int:
    """The error's code without its details; 0 where it has none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def csv_cell(value: Any) -> Any:
    """A value for a cell of CSV; a text that would be a formula begins with an apostrophe.

    Names come from outside, and a spreadsheet that opens the file would compute them.

    >>> csv_cell("=1+1"), csv_cell("kitchen"), csv_cell(-2.5)
    ("'=1+1", 'kitchen', -2.5)
    """
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
