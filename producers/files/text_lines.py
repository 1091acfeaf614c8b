"""Lines of text files, also compressed, in bounded memory."""

from __future__ import annotations

import gzip
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, StringIO
from itertools import chain, islice
from pathlib import Path
from typing import cast

from shoal.errors import InvalidData, SettingsError
from shoal.producers.files.dialect import (
    HEAD_BYTES,
    HEAD_LINES,
)

LINE_CHARS_MAX = 1024 * 1024
"""longest line, 4096 features of 250 characters each; a longer one is a broken row"""


OVERLONG = "\0\n"
"""replacement of a longer line: neither a number in CSV nor JSON"""


# Read in blocks, so that a file larger than the memory can be looked through.
BLOCK_BYTES = 1024 * 1024


PIECE_BYTES = 8192
"""bytes that are decompressed at once, so that the rows just before a damaged place are read"""


def beginning_of(path: Path, limit: int = HEAD_BYTES) -> bytes:
    """The first `limit` bytes of a file at most, decompressed; none if it is damaged there."""
    with suppress(InvalidData), _file_errors(path), _opened(path) as file:
        return file.read(limit)
    return b""


def head_lines(path: Path, encoding: str) -> list[str]:
    """The first lines of a file, in bounded memory; those before a damaged place."""
    lines: list[str] = []
    left = HEAD_BYTES
    with suppress(InvalidData):
        for line in islice(lines_of(path, encoding), HEAD_LINES):
            lines.append(line)
            left -= len(line)
            if left < 0:
                break
    return lines


def lines_of(path: Path, encoding: str = "utf-8-sig") -> Iterator[str]:
    """The lines of a text file; `OVERLONG` replaces one that is longer than `LINE_CHARS_MAX`."""
    return chain.from_iterable(_blocks_of_lines(path, encoding))


def _blocks_of_lines(path: Path, encoding: str) -> Iterator[list[str]]:
    with _file_errors(path), _opened(path) as file:
        # Wrong bytes must not stop the file: in a name they show as a missing column, in a cell as
        # text.
        decode = getincrementaldecoder(encoding)(errors="replace").decode
        begun = _BegunLine()
        held = ""
        while piece := file.read1(PIECE_BYTES):
            # With newline="", as the csv module wants it: a line break within quotes stays as it
            # was written.
            lines = StringIO(held + decode(piece), newline="").readlines()
            # The last line may go on, also after a \r, which is held back: a \n may follow.
            rest = lines.pop() if lines and lines[-1][-1] != "\n" else ""
            if lines:
                lines[0] = begun.ended(lines[0])
            held = rest[-1:] if rest.endswith("\r") else ""
            begun.go_on(rest.removesuffix(held))
            yield lines
        lines = StringIO(held + decode(b"", final=True), newline="").readlines()
        last = begun.ended(lines[0] if lines else "")
        yield [last, *lines[1:]] if last else []


class _BegunLine:
    """The beginning of a line that goes on in the next piece.

    Its parts are joined once: to look through all of it with each piece would take a time that
    grows with the square of its length, and a file of some kilobytes can hold a line of gigabytes.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._chars = 0

    def go_on(self, part: str) -> None:
        """Add a part, which has no line break; those of an overlong line are forgotten."""
        self._chars += len(part)
        if self._chars > LINE_CHARS_MAX:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def ended(self, end: str) -> str:
        """The whole line, and begin with an empty one."""
        is_overlong = self._chars + len(end) > LINE_CHARS_MAX
        line = OVERLONG if is_overlong else "".join(self._parts) + end
        self._parts.clear()
        self._chars = 0
        return line


def count_lines(path: Path) -> int:
    """The number of lines of a file, decompressed. Raises `InvalidData`."""
    lines = 0
    last = b""
    with _file_errors(path), _opened(path) as file:
        while block := file.read(BLOCK_BYTES):
            lines += block.count(b"\n")
            last = block
    # The last line often has no line break.
    if last and not last.endswith(b"\n"):
        lines += 1
    return lines


def _opened(path: Path) -> BufferedReader:
    if path.name.lower().endswith(".gz"):
        return cast(BufferedReader, gzip.open(path))
    return path.open("rb")


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Raise errors of the file and of its compression inside as `InvalidData`, and a right that is
    lacking as `SettingsError`."""
    try:
        yield
    # Before `OSError`, as `BadGzipFile` is one.
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InvalidData(
            f"{path}: damaged or cut short; the rows before that place were read. Fetch it again"
        ) from None
    except PermissionError:
        raise SettingsError(f"{path}: this user may not read it; give it the right to") from None
    except OSError as unreadable:
        raise InvalidData(f"{path}: cannot be read: {unreadable.strerror}") from None
