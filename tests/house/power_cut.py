"""Simulates power cuts: the disks that cuts would leave are kept, and each of them is continued
from.

A process that is killed leaves what it has written by then, and one that starts knows nothing else.
So one run whose folder is copied at each call of some methods gives the disk of a cut before and
after each of these calls. Most calls leave the disk as it was, such as those that read: equal disks
are continued from once. `cut_power_at` kills for real.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

Method = tuple[type, str]
THINNED = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.integration)])
"""`every` of `cut_at_every_call`: all disks take minutes, and what a run does repeats, window by
window and update by update, so that a fault of one place shows in each of them"""


def run_forked(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; the signal that ended it, or 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, (
        "the process failed without a power cut"
    )
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def cut_power_at(kind: type, name: str, number: int, after: bool) -> None:
    """From now on, this process dies at the `number`-th call of the method, before or after the
    call."""
    real = getattr(kind, name)
    calls = itertools.count(1)

    def cut(self: Any, *args: Any, **kwargs: Any) -> Any:
        now = next(calls) == number
        if now and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(self, *args, **kwargs)
        if now:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, name, cut)


class Disks:
    """The different disks of a run, in the order in which it left them."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self._folder = folder
        self._copies = copies
        self.calls = Counter[str]()
        self.copies: dict[bytes, tuple[str, Path]] = {}
        """what is on the disk -> when it was first, and a copy of it"""

    def keep(self, when: str) -> None:
        """Copy the folder, unless it is as it was at an earlier call."""
        content = hashlib.sha256()
        for path in sorted(self._folder.rglob("*")):
            # SQLite makes its index of a write-ahead log anew when it opens a file that no process
            # has open.
            if path.is_file() and not path.name.endswith("-shm"):
                content.update(f"{path.relative_to(self._folder)} {path.stat().st_size} ".encode())
                content.update(path.read_bytes())
        if content.digest() not in self.copies:
            copy = self._copies / f"{len(self.copies)}"
            shutil.copytree(self._folder, copy)
            self.copies[content.digest()] = when, copy

    @contextlib.contextmanager
    def kept_at(self, methods: Sequence[Method]) -> Iterator[None]:
        """Keep the disk before and after every call of these methods while the block runs."""
        reals = [(kind, name, getattr(kind, name)) for kind, name in methods]
        for kind, name, real in reals:
            setattr(kind, name, self._keeping(f"{kind.__name__}.{name}", real))
        try:
            yield
        finally:
            for kind, name, real in reals:
                setattr(kind, name, real)

    def _keeping(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            number = self.calls[name]
            self.keep(f"before call {number} of {name}")
            result = real(*args, **kwargs)
            self.keep(f"after call {number} of {name}")
            return result

        return kept


def cut_at_every_call(
    methods: Sequence[Method],
    file: Path,
    copies: Path,
    run: Callable[[Path], None],
    outcome: Callable[[Path], Any],
    every: int = 1,
) -> Any:
    """Check that a run that is cut at any call and then continued has the outcome of the
    undisturbed run; returns it.

    `file` is the federation file in a folder of its own; copies go to the folder `copies`. `every`:
    of the disks that appeared before the calls of one method, each `every`-th is continued from,
    and so of those that appeared after them: no place of a cut is left out, whatever repeats in a
    run.
    """
    disks = Disks(file.parent, copies)
    with disks.kept_at(methods):
        run(file)
    assert len(disks.calls) == len(methods), "a method was never called"
    wanted = outcome(file)
    continued = list(each_of_its_place(disks.copies.values(), every))
    assert len(continued) > 5, "the power was cut hardly anywhere"
    for when, copy in continued:
        again = copy / file.name
        run(again)
        assert outcome(again) == wanted, when
        shutil.rmtree(copy)
    return wanted


def each_of_its_place(disks: Iterable[tuple[str, Path]], every: int) -> Iterator[tuple[str, Path]]:
    """Each `every`-th of the disks that appeared before, or after, calls of one method, and the
    first of them."""
    seen = Counter[str]()
    for when, copy in disks:
        place = re.sub(r"\d+", "", when)
        if seen[place] % every == 0:
            yield when, copy
        seen[place] += 1
