"""Renewals of a lease beside an embedded log, without a write to the disk.

A renewal as a record of the log costs three pages and a sync of the disk, every few seconds for as
long as a server runs. All processes of an embedded log are on one machine, so the holder of a lease
can show that it lives by a lock instead: it keeps one byte of an empty file locked, and moves on to
the next byte with each renewal. Others ask the kernel which byte is locked. A lock ends with its
process; a process that was stopped moves no lock.

The locks are those of an open file description (`F_OFD_SETLK`, Linux): unlike those of a process,
they are not lost when another descriptor of the file is closed, and two holders in one process see
each other's. Where the system has none, `show` says so, and the renewal has to be a record.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from shoal.errors import SettingsError

try:
    import fcntl

    HAS_LOCKS = sys.platform.startswith("linux")
except ImportError:
    # Windows has no locks of this kind, and the module is loaded with every embedded log.
    HAS_LOCKS = False

ENDING: Final = "-lease"
"""what the name of the file adds to that of its log"""
OFD_GETLK: Final = 36
OFD_SETLK: Final = 37
"""Linux's numbers, for builds of Python that do not name them"""
HOLDER_BYTES: Final = 2**20
"""bytes that are one holder's: its renewals are counted up to this, which takes two months at one
every five seconds, and then from 0 again"""
_FLOCK: Final = struct.Struct("hhqqi0q")
"""struct flock of Linux, in the order and alignment of its compiler: type, whence, start, length,
and a process id that must be 0"""


class RenewalLocks:
    """The file of one log, opened when it is first needed. One object per thread."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._path = log.with_name(f"{log.name}{ENDING}")
        self._descriptor: int | None = None
        self._writable = False
        self._locked: int | None = None
        """the byte that this object has locked"""

    def show(self, holder: str, count: int) -> bool:
        """Show the renewal number `count` of a holder; False where the system cannot.

        `holder`: a random name. Raises `SettingsError` where this user may not write the file.
        """
        if not HAS_LOCKS:
            return False
        self._open(create=True)
        byte = _first_byte(holder) + count % HOLDER_BYTES
        if not self._set(fcntl.F_WRLCK, byte):
            return False
        # Only then is the one before given up: at no moment is the holder seen without a lock.
        if self._locked is not None and self._locked != byte:
            self._set(fcntl.F_UNLCK, self._locked)
        self._locked = byte
        return True

    def shown(self, holder: str) -> int | None:
        """The number of a holder's newest renewal that is shown; None without one.

        Raises `SettingsError` where this user may not read the file: it cannot tell then whether
        the holder lives.
        """
        if not HAS_LOCKS or not self._open(create=False):
            return None
        first = _first_byte(holder)
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, HOLDER_BYTES, 0)
        assert self._descriptor is not None
        try:
            answer = fcntl.fcntl(self._descriptor, getattr(fcntl, "F_OFD_GETLK", OFD_GETLK), asked)
        except OSError:
            return None
        kind, _, start, _, _ = _FLOCK.unpack(answer)
        if kind == fcntl.F_UNLCK:
            return None
        return int(start) - first

    def close(self) -> None:
        """Close the file, which ends the lock. Closing twice has no effect."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        self._locked = None

    def _open(self, create: bool) -> bool:
        """Open the file that has the name now; whether there is one."""
        # Other processes do not see a lock on a file that was deleted; and a server that has
        # watched the lease and holds it now has opened the file to read only.
        if self._descriptor is not None and (create > self._writable or not self._is_current()):
            self.close()
        if self._descriptor is not None:
            return True
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        try:
            self._descriptor = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise SettingsError(
                f"{self._path}: cannot be opened: {error.strerror}; give this user the rights that"
                f" it has to {self._log.name}"
            ) from None
        self._writable = create
        if create:
            self._share_as_log()
        return True

    def _share_as_log(self) -> None:
        """Give the file the rights of the log: who may use that one must see who holds a lease."""
        assert self._descriptor is not None
        with suppress(OSError):
            log = os.stat(self._log)
            os.fchmod(self._descriptor, stat.S_IMODE(log.st_mode))
            os.fchown(self._descriptor, -1, log.st_gid)

    def _is_current(self) -> bool:
        assert self._descriptor is not None
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            return False

    def _set(self, kind: int, byte: int) -> bool:
        assert self._descriptor is not None
        request = _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self._descriptor, getattr(fcntl, "F_OFD_SETLK", OFD_SETLK), request)
        except OSError:
            # No such locks on this kernel or file system.
            return False
        return True


def _first_byte(holder: str) -> int:
    """The first of the bytes that are this holder's: by 40 bits, no two holders have the same."""
    digest = hashlib.sha256(holder.encode()).digest()
    return int.from_bytes(digest[:5], "big") * HOLDER_BYTES
