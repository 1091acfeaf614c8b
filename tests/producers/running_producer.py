"""What the tests of producers share: a settable clock, files, and the content of readings logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.producers.files.replay import Columns, Replay
from shoal.producers.files.split import RoundRobin, Split
from shoal.producers.source import SourceReading
from shoal.protocol.readings import Reading, number_of
from shoal.protocol.topics import READINGS
from shoal.transports import open_log
from shoal.transports.base import Log, beginning


class Clock:
    """A clock that tests set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Stored(NamedTuple):
    """One reading in a log."""

    row: int
    time: float | None
    values: list[Any]


def logs_in(folder: Path) -> Callable[[str], Log]:
    """Opens the readings log of a client below `folder`."""

    def opened(client: str) -> Log:
        (folder / client).mkdir(parents=True, exist_ok=True)
        return open_log(f"sqlite:{folder / client / 'readings.db'}")

    return opened


def stored_in(folder: Path) -> dict[str, list[Stored]]:
    """Every client's readings, in the order of the log."""
    return {
        path.parent.name: list(_readings(path)) for path in sorted(folder.glob("*/readings.db"))
    }


def _readings(path: Path) -> Iterable[Stored]:
    with closing(open_log(f"sqlite:{path}")) as log:
        at = beginning(log, READINGS)
        records = None
        while records is None or records:
            records, at = log.read(READINGS, at)
            for record in records:
                reading = Reading.decode(record.value, record.headers)
                number = number_of(record.headers)
                assert number is not None, "the producer numbers its readings"
                yield Stored(number, reading.time, list(reading.values))


def csv_of(path: Path, rows: Iterable[Sequence[Any]], header: str = "t,a,b,label") -> Path:
    """A CSV file."""
    path.write_text(
        "".join(f"{line}\n" for line in [header, *(",".join(map(str, row)) for row in rows)])
    )
    return path


def plain_rows(count: int, classes: int = 3) -> list[tuple[Any, ...]]:
    """(time, a, b, label): a counts the rows, so each row is different."""
    return [
        (float(number), float(number), 0.5, f"kind {number % classes}") for number in range(count)
    ]


def replay(*files: Path, split: Split | None = None, **options: Any) -> Replay:
    """A replay of files made by `csv_of`."""
    columns = Columns(("a", "b"), time=("t",), label="label")
    return Replay(files, columns, split or RoundRobin(2), **options)


def all_of(source: Any, at_once: int = 7) -> list[SourceReading]:
    """Everything a source gives."""
    rows: list[SourceReading] = []
    while found := source.read(at_once):
        rows += found
    return rows


def comparable(rows: Iterable[SourceReading]) -> list[tuple[Any, ...]]:
    """Rows that can be compared: NaN is equal to NaN."""
    return [
        (row.client, row.time, repr(np.asarray(row.values).tolist()), row.label) for row in rows
    ]
