"""Replay: the rows of files, one file after the other, as a source of readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from producers.files.numbers import Row
from producers.files.parsing import seconds_of, text_of, user_of, values_of_rows
from producers.files.split import CLASSES_MAX, Split
from producers.files.tables import open_table, require_columns
from producers.source import SourceRow, identity_of
from shoal.errors import SettingsError, ShoalError

AssignedRow = tuple[str, Row | None]
"""(client, wanted cells or None for a broken row)"""


@dataclass(frozen=True)
class Columns:
    """The columns that are read."""

    features: tuple[str, ...]
    """d columns in the order of the contract"""
    time: str | None = None
    label: str | None = None
    user: str | None = None


class Replay:
    """A `Source` over `files`, in the order given. Rows are read as they are asked for: memory does not grow.

    loop: start again after the last row; the times of each repetition follow those of the one before.
    shuffle: each repetition in another order; only this keeps all rows in memory.
    only: the rows of this client only, numbered among themselves, so that a producer at each site replays its part.
    Raises `SettingsError` (no such file or column) and `InvalidData` (damaged), here or from `read`.
    """

    def __init__(
        self,
        files: Sequence[Path],
        columns: Columns,
        split: Split,
        *,
        loop: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        only: str | None = None,
    ) -> None:
        self._faults: Counter[str] = Counter()
        self._tables = [open_table(Path(file), self._faults) for file in files]
        self._columns, self._split = columns, split
        self._loop, self._shuffle, self._seed, self._only = loop, shuffle, seed, only
        extra = (columns.time, columns.label, columns.user, split.column)
        self._others = [name for name in extra if name is not None]
        for table in self._tables:
            # An empty file has no rows that lack a column: one day without rows must not stop the replay of a year.
            if table.columns:
                require_columns(table, list(dict.fromkeys((*columns.features, *self._others))))
        self._counts = self._counted() if split.counts_first else {}
        self._position = self._repetition = 0
        self._span = Span()
        self._shift_s = 0.0
        self._broken: ShoalError | None = None
        self._kept: list[AssignedRow] | None = None
        self._total: int | None = None
        self._rows = self._one_pass()

    @property
    def identity(self) -> str:
        """See `Source.identity`. It depends on paths and first rows: a file that grew is the same, a new one is not."""
        heads = tuple((str(table.path.resolve()), table.columns, _first_row(table.path)) for table in self._tables)
        order = self._seed if self._shuffle else None
        # Where the counts decide about the split, other counts make another source.
        counts = tuple(sorted(self._counts.items()))
        # A part is another source: its rows have other numbers.
        part = () if self._only is None else (self._only,)
        return identity_of("replay 1", heads, self._columns, self._split.name, counts, order, *part)

    @property
    def position(self) -> int:
        """See `Source.position`; it increases through the repetitions of a loop."""
        return self._position

    @property
    def total(self) -> int | None:
        """See `Source.total`; the number of rows of `only` one client is not counted."""
        if self._loop or self._only is not None:
            return None
        if self._total is None:
            self._total = sum(self._counts.values()) or sum(table.count() for table in self._tables)
        return self._total

    @property
    def timed(self) -> bool:
        """See `Source.timed`."""
        return self._columns.time is not None and not self._shuffle

    @property
    def faults(self) -> Mapping[str, int]:
        """See `Source.faults`: "ragged", "unreadable", "no_time"."""
        return self._faults

    def read(self, limit: int) -> list[SourceRow]:
        """See `Source.read`. All rows before a damaged place are given out first."""
        rows: list[SourceRow] = []
        while len(rows) < limit and self._broken is None:
            of_one_pass = self._next_rows(limit - len(rows))
            rows += self._sourced(of_one_pass)
            if not of_one_pass and not self._repeat():
                break
        self._position += len(rows)
        if self._broken is not None and not rows:
            raise self._broken
        return rows

    def skip(self, rows: int) -> None:
        """See `Source.skip`; whole repetitions of a loop are not read."""
        self._position += rows
        while rows > 0:
            skipped = sum(1 for _ in islice(self._rows, rows))
            rows -= skipped
            if rows > 0 and not self._repeat(ahead=rows):
                return
            if self._loop and rows >= self._span.rows:
                rows %= self._span.rows

    def _next_rows(self, limit: int) -> list[AssignedRow]:
        """The next rows of this pass, at most `limit`; those before a damaged place, which is kept in `_broken`."""
        rows: list[AssignedRow] = []
        try:
            for row in islice(self._rows, limit):
                rows.append(row)
        except ShoalError as broken:
            self._broken = broken
        return rows

    def _repeat(self, ahead: int = 0) -> bool:
        """Start again at the first row, if this loops and there are rows. `ahead`: rows still to be skipped."""
        if not self._loop or self._span.rows == 0:
            return False
        self._repetition += 1 + ahead // self._span.rows
        self._shift_s = self._repetition * self._span.period_s
        self._rows = self._one_pass()
        return True

    def _one_pass(self) -> Iterator[AssignedRow]:
        rows = self._shuffled() if self._shuffle else self._assigned()
        return self._spanned(rows) if self._loop and self._repetition == 0 else rows

    def _spanned(self, rows: Iterator[AssignedRow]) -> Iterator[AssignedRow]:
        """The first pass of a loop: count the rows and find the time they cover."""
        for client, row in rows:
            self._span.add(self._time(row))
            yield client, row

    def _shuffled(self) -> Iterator[AssignedRow]:
        if self._kept is None:
            self._kept = list(self._assigned())
        order = np.random.default_rng([self._seed, self._repetition]).permutation(len(self._kept))
        return (self._kept[place] for place in order)

    def _assigned(self) -> Iterator[AssignedRow]:
        assign = self._split.assigner(self._counts)
        found = self._only is None
        for row, text in self._with_split_text():
            client = assign(text)
            if self._only in (None, client):
                found = True
                yield client, row
        if not found:
            raise SettingsError(f"no row belongs to client {self._only!r} by the split {self._split.name}")

    def _with_split_text(self) -> Iterator[tuple[Row | None, str]]:
        """Each row, with the text by which the split assigns it."""
        by_column = self._split.column is not None
        for table in self._tables:
            if not table.columns:
                continue
            for row in table.rows_apart(self._columns.features, self._others):
                yield row, text_of(row.others[-1]) if by_column and row is not None else ""

    def _counted(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for _, text in self._with_split_text():
            counts[text] += 1
            if len(counts) > CLASSES_MAX:
                raise SettingsError(
                    f"column {self._split.column!r} has more than {CLASSES_MAX} classes; is it the label?"
                )
        self._faults.clear()
        return dict(counts)

    def _sourced(self, rows: Sequence[AssignedRow]) -> list[SourceRow]:
        """The rows as readings; one whose cells could not be read has no values."""
        columns = self._columns
        label_at = int(columns.time is not None)
        user_at = label_at + (columns.label is not None)
        texts = [row.features for _, row in rows if row is not None and not isinstance(row.features, np.ndarray)]
        converted = iter(values_of_rows(texts))
        sourced = []
        for client, row in rows:
            if row is None:
                sourced.append(SourceRow(client, None, []))
                continue
            values = row.features if isinstance(row.features, np.ndarray) else next(converted)
            label = None if columns.label is None else text_of(row.others[label_at])
            user = None if columns.user is None else user_of(row.others[user_at])
            sourced.append(SourceRow(client, self._shifted_time(row), values, label, user))
        return sourced

    def _shifted_time(self, row: Row) -> float | None:
        """The event time of a row, in its repetition."""
        if self._columns.time is None:
            return None
        time = self._time(row)
        if time is None:
            self._faults["no_time"] += 1
            return None
        return time + self._shift_s

    def _time(self, row: Row | None) -> float | None:
        return None if self._columns.time is None or row is None else seconds_of(row.others[0])


@dataclass
class Span:
    """The rows of one repetition and the time they cover."""

    rows: int = 0
    first: float | None = None
    last: float | None = None

    def add(self, time: float | None) -> None:
        """Include one more row."""
        self.rows += 1
        if time is not None:
            self.first = time if self.first is None else min(self.first, time)
            self.last = time if self.last is None else max(self.last, time)

    @property
    def period_s(self) -> float:
        """Seconds from the first row of one repetition to that of the next: one mean gap follows the last row."""
        covered = (self.last or 0.0) - (self.first or 0.0)
        return covered * self.rows / (self.rows - 1) if covered > 0 else 1.0


def _first_row(path: Path) -> str:
    table = open_table(path, Counter())
    cells: Any = next(iter(table.rows(table.columns)), None) if len(set(table.columns)) == len(table.columns) else None
    return repr(cells)
