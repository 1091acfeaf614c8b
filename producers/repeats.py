"""Repeats: files whose readings a client has already, fed again under another name or with other
options.

A client's folder keeps how each file begins that was fed to it: the length and SHA-256 of its first
bytes after decompression. A file that begins as one of these did, longer or not, is a repeat if it
comes as another source; the same source continues instead. Nothing of this leaves the site.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import click

from shoal.errors import SettingsError

# Not the whole file: one that a logger still appends to is longer at every start.
BEGINNING_BYTES = 64 * 1024
"""most bytes by which a file is recognised"""
FED_FILE = "fed.jsonl"
"""file in a client's folder with the sources of files that were fed to it"""
# One line of log, however many clients repeat.
CLIENTS_NAMED_MAX = 3


class Beginning(NamedTuple):
    """The beginning of a file."""

    file: str
    length: int
    """bytes that `digest` is of, at most `BEGINNING_BYTES`"""
    digest: str
    """SHA-256, hex"""


class Fed(NamedTuple):
    """The files of one source that was fed to a client."""

    source: str
    """identity of the source"""
    split: str
    """identity of the rule that assigns rows to clients"""
    only: str | None
    """the client whose part was fed alone; None for all clients"""
    files: tuple[Beginning, ...]

    @classmethod
    def of_line(cls, line: str) -> Fed | None:
        """A line of `FED_FILE`; None for one that was not written whole."""
        try:
            # A kill may have cut the last line short: it counts as not written.
            source, split, only, files = json.loads(line)
            return cls(source, split, only, tuple(Beginning(*file) for file in files))
        except (ValueError, TypeError):
            return None


class SourceFiles:
    """The files of a source, for comparison with those that were fed earlier."""

    def __init__(
        self,
        source: str,
        split: str,
        only: str | None,
        beginnings: Callable[[], Iterable[tuple[str, bytes]]],
    ) -> None:
        """See `Fed`. `beginnings()`: name and first bytes of each file that has rows."""
        self.source = source
        self._split = split
        self._only = only
        self._beginnings = beginnings

    @cached_property
    def fed(self) -> Fed:
        """Entry of these files in a client's folder."""
        files = []
        for name, content in self._beginnings():
            digest = hashlib.sha256(content).hexdigest()
            files.append(Beginning(name, len(content), digest))
        return Fed(self.source, self._split, self._only, tuple(files))

    def keep(self, own: Path) -> None:
        """Note in the client's folder `own` that it gets these files. Raises `SettingsError`."""
        if any(fed.source == self.source for fed in _fed_to(own)):
            return
        try:
            with (own / FED_FILE).open("a", encoding="utf-8") as file:
                # A line that a power cut has left unfinished must not spoil this one.
                file.write(f"\n{json.dumps(self.fed)}")
        except OSError as error:
            raise SettingsError(f"{own / FED_FILE}: cannot be written: {error.strerror}") from None

    def repeat_in(self, folder: Path) -> str | None:
        """The file for people: which one it is, and which clients below `folder` have it already.

        None where no client has one.
        """
        earlier: dict[tuple[int, str], dict[str, str]] = {}
        # Sorted: the message names the first clients, and a folder lists them in no order.
        for path in sorted(folder.glob(f"*/{FED_FILE}")):
            for fed in _fed_to(path.parent):
                if fed.source == self.source:
                    return None
                if self._is_other_part(fed):
                    continue
                for file in fed.files:
                    earlier.setdefault((file.length, file.digest), {})[path.parent.name] = file.file
        if not earlier:
            return None
        lengths = sorted({length for length, _ in earlier})
        for name, content in self._beginnings():
            for key in _digests(content, lengths):
                if key in earlier:
                    return _repeat_text(name, earlier[key])
        return None

    def _is_other_part(self, fed: Fed) -> bool:
        """Whether no row of `fed` can be one of this source: parts of two clients by one rule."""
        if self._only is None or fed.only is None:
            return False
        return self._split == fed.split and self._only != fed.only


def _repeat_text(name: str, clients: Mapping[str, str]) -> str:
    """`clients`: client -> the name under which it got the file."""
    named = ", ".join(list(clients)[:CLIENTS_NAMED_MAX])
    more = len(clients) - CLIENTS_NAMED_MAX
    if more > 0:
        named += f" and {more} more"
    first_name = next(iter(clients.values()))
    subject = name
    if first_name != name:
        subject = f"{name} begins as {first_name} does, which"
    return f"{subject} was fed to {named} before"


def refuse_repeats(files: SourceFiles, folder: Path, *, ask: bool) -> None:
    """Ask on a terminal whether to go on if a client below `folder` has one of the files already.

    Without a terminal, or without `ask`, raises `SettingsError`; so does the answer no.
    """
    repeat = files.repeat_in(folder)
    if repeat is None:
        return
    message = (
        f"{repeat}, under another name or with other options. Fed once more, its readings count"
        " twice, and each spends its epsilon twice"
    )
    if not (ask and sys.stdin.isatty() and sys.stdout.isatty()):
        raise SettingsError(f"{message}; give --again to feed it all the same")
    click.echo(f"{message}.", err=True)
    if not click.confirm("Feed it all the same?", default=False):
        raise SettingsError("nothing was fed")


def _fed_to(own: Path) -> Iterator[Fed]:
    """The sources of files that were fed to the client with the folder `own`."""
    try:
        lines = (own / FED_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        raise SettingsError(f"{own / FED_FILE}: cannot be read: {error.strerror}") from None
    for line in lines:
        fed = Fed.of_line(line)
        if fed is not None:
            yield fed


def _digests(content: bytes, lengths: Iterable[int]) -> Iterator[tuple[int, str]]:
    """(length, digest) of the first `length` bytes, for ascending lengths that `content` has."""
    digest = hashlib.sha256()
    at = 0
    for length in lengths:
        if length > len(content):
            return
        digest.update(content[at:length])
        at = length
        yield length, digest.hexdigest()
