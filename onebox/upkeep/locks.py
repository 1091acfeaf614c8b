"""Locks on databases against every process, of whatever version.

SQLite's connections hold a lock on some bytes of a file as long as they have it open with a
write-ahead log. A process that gets the exclusive lock on these bytes knows that no other has the
file open, and keeps all others from opening it. It is a lock of an open file description
(`F_OFD_SETLK`): unlike those of a process, it is not lost when another descriptor of the file is
closed.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from shoal.errors import SettingsError
from shoal.onebox.upkeep.databases import in_use

FIRST_BYTE: Final = 0x40000000
"""SQLite's pending byte, before the reserved byte and those that readers share"""
BYTES: Final = 512
OFD_SETLK: Final = 37
"""Linux's F_OFD_SETLK, for builds of Python that do not name it"""


@contextmanager
def locked(paths: Iterable[Path]) -> Iterator[None]:
    """No process has one of these files open, or can open it, until the block ends.

    Raises `CheckpointInUse` where one has, and `SettingsError` for a file that this user may not
    write.
    """
    with ExitStack() as stack:
        for path in paths:
            stack.callback(os.close, _lock(path))
        yield


def _lock(path: Path) -> int:
    """A descriptor that holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from None
    # struct flock of Linux on 64 bits: type, whence, start, length, and a process id that is 0.
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, FIRST_BYTE, BYTES, 0)
    try:
        # Without waiting: a process has its files open for as long as it runs.
        fcntl.fcntl(descriptor, getattr(fcntl, "F_OFD_SETLK", OFD_SETLK), request)
    except OSError:
        os.close(descriptor)
        raise in_use(path) from None
    return descriptor
