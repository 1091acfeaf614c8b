"""Simulates a power cut: a forked process kills itself with SIGKILL at its n-th call of a method."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


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
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the process failed without a power cut"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def cut_power_at(kind: type, name: str, number: int, after: bool) -> None:
    """From now on, this process dies at the `number`-th call of the method, before or after the call."""
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


def cut_at_every_call(
    kind: type,
    name: str,
    after: bool,
    create: Callable[[int], Path],
    run: Callable[[Path], None],
    outcome: Callable[[Path], Any],
    undisturbed: Any,
    every: int = 1,
) -> None:
    """Check that a run that is cut at a call and then repeated has the outcome of the undisturbed run.

    For each call of a method, or each `every`-th. `create` makes the federation file of a run in a folder of its own.
    """
    for number in itertools.count(1, every):
        file = create(number)

        def run_until_cut(file: Path = file, number: int = number) -> None:
            cut_power_at(kind, name, number, after)
            run(file)

        ended_by = run_forked(run_until_cut)
        if ended_by == 0:
            assert number > 5, "the power was never cut"
            return
        assert ended_by == signal.SIGKILL
        assert run_forked(lambda file=file: run(file)) == 0
        assert outcome(file) == undisturbed, f"call {number} of {name}"
        shutil.rmtree(file.parent)
