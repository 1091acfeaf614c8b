"""A pump for tests, what it has stored, and what can happen to it at any call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.producers.publisher import open_bookmark
from shoal.producers.pump import Pump
from shoal.producers.source import Source
from shoal.transports.base import Log
from tests.producers.running_producer import Clock, logs_in, stored_in

ROWS = 60
"""in the file that most tests replay"""


def pump_of(source: Source, folder: Path, clock: Clock | None = None, **options: Any) -> Pump:
    options.setdefault("open_log", logs_in(folder))
    if "bookmark" not in options:
        options["bookmark"] = open_bookmark(folder, source.identity)
    return Pump(source, clock=clock or Clock(), **options)


def drained(pump: Pump) -> Pump:
    """The pump after its source has ended."""
    while not pump.finished:
        pump.step()
    pump.close()
    return pump


def rows_by_client(folder: Path) -> dict[str, list[int]]:
    return {
        client: [reading.row for reading in readings]
        for client, readings in stored_in(folder).items()
    }


def as_it_should_be(rows: int = ROWS, clients: int = 2) -> dict[str, list[int]]:
    return {f"client-{number + 1}": list(range(number, rows, clients)) for number in range(clients)}


class PowerCut(BaseException):
    """Nothing catches it, as nothing catches a kill."""


class Cutting:
    """A real log, and what happens before or after the nth call of one of its methods over all
    logs."""

    def __init__(self, log: Log, cut: Cut) -> None:
        self._log = log
        self._cut = cut

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = getattr(self._log, name)

        def called(*arguments: Any, **named: Any) -> Any:
            now = self._cut.counts(name)
            if now and not self._cut.after:
                raise self._cut.error
            result = real(*arguments, **named)
            if now:
                raise self._cut.error
            return result

        return called


class Cut:
    """The `nth` call of `method` fails, before it does its work or after."""

    def __init__(self, method: str, nth: int, after: bool, error: BaseException) -> None:
        self.method = method
        self.nth = nth
        self.after = after
        self.error = error
        self.calls: Counter[str] = Counter()

    def counts(self, method: str) -> bool:
        self.calls[method] += 1
        return method == self.method and self.calls[method] == self.nth
