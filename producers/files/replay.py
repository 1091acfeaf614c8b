"""Replay: the rows of CSV, JSON lines and Parquet files as a source of readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.errors import InvalidData, SettingsError, ShoalError
from shoal.producers.files.csv_table import CsvTable
from shoal.producers.files.form import AS_FOUND, FileForm
from shoal.producers.files.parsing import text_of, user_of
from shoal.producers.files.rows import NumberRows, Row, Rows, others_of, values_in
from shoal.producers.files.split import CLASSES_MAX, ByColumn, Split
from shoal.producers.files.tables import Table, open_table, require_columns
from shoal.producers.files.text_lines import beginning_of
from shoal.producers.files.times import TimeReader, time_reader, with_times
from shoal.producers.quality import QualityColumns
from shoal.producers.repeats import BEGINNING_BYTES, SourceFiles
from shoal.producers.source import SourceReadings, identity_of, joined
from shoal.producers.values import Categories, Gaps, NoValues
from shoal.protocol.readings import Codes, RowsOfValues


class AssignedRows(NamedTuple):
    """Consecutive rows, and the client of each."""

    clients: Sequence[str]
    rows: Rows

    def part(self, first: int, end: int | None) -> AssignedRows:
        """The rows from place `first` to `end`."""
        return AssignedRows(self.clients[first:end], self.rows[first:end])


NO_ROWS = AssignedRows((), ())
# A day above 12, by which it is known, comes within twelve days: within these rows from a reading
# every 6 s on.
ROWS_UNDERSTOOD = 200_000
"""most rows of a file that are read to find whether days or months come first"""


@dataclass(frozen=True)
class Columns:
    """The columns that are read."""

    features: tuple[str, ...]
    """d columns in the order of the contract"""
    time: tuple[str, ...] = ()
    """columns of the time: several where it is a date and a time of day"""
    label: str | None = None
    user: str | None = None
    codes: Mapping[int, Codes] = field(default_factory=dict)
    """position -> the values of each feature that is a category"""
    # No part of the representation, which makes the identity of a source.
    quality: Mapping[int, str] = field(default_factory=dict, repr=False)
    """position of a feature -> the column that says how good its values are"""
    bad_quality: tuple[str, ...] = field(default=(), repr=False)
    """what means bad there, as the setting has it"""
    na_values_of: Mapping[int, tuple[str, ...]] = field(default_factory=dict, repr=False)
    """position of a feature -> what means "no value" for it alone"""


class Replay:
    """A `Source` over `files`, in the order given. Rows are read as they are asked for: memory does
    not grow.

    loop: start again after the last row; the times of each repetition follow those of the one
    before. shuffle: each repetition in another order; only this keeps all rows in memory.
    only: the rows of this client only, numbered among themselves, so that a producer at each site
    replays its part. form: how the files are written, where they do not show it themselves, and
    what becomes of missing values. Raises `SettingsError` (no such file or column) and
    `InvalidData` (damaged), here or from `read`.
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
        form: FileForm = AS_FOUND,
    ) -> None:
        self._faults: Counter[str] = Counter()
        self._form = form
        self._tables = [
            open_table(Path(file), self._faults, form.dialect, columns.features) for file in files
        ]
        self._columns = columns
        self._split = split
        self._loop = loop
        self._shuffle = shuffle
        self._seed = seed
        self._only = only
        self._no_values = NoValues(form.dialect.na_values, columns.codes, columns.na_values_of)
        self._categories = Categories(columns.codes, self._faults)
        self._gaps = Gaps(form.missing, form.learns_gaps, self._faults)
        self._quality = QualityColumns(columns.quality, columns.bad_quality)
        own = (*columns.time, columns.label, columns.user)
        extra = (*own, *self._quality.names, split.column)
        self._others = [name for name in extra if name is not None]
        for table in self._tables:
            # An empty file has no rows that lack a column: one day without rows must not stop the
            # replay of a year.
            if table.columns:
                require_columns(table, list(dict.fromkeys((*columns.features, *self._others))))
        self._readers: dict[Path, TimeReader] = {}
        for table in self._tables:
            if columns.time and table.columns:
                self._readers[table.path] = self._reader(table)
        self._counts = self._counted() if split.counts_first else {}
        self._position = 0
        self._repetition = 0
        self._span = Span()
        self._shift_s = 0.0
        self._broken: ShoalError | None = None
        self._kept: list[tuple[str, Row | None]] | None = None
        self._total: int | None = None
        self._blocks = self._one_pass()
        self._ahead = NO_ROWS

    @cached_property
    def identity(self) -> str:
        """See `Source.identity`.

        It depends on paths and first rows: a file that grew is the same, a new one is not.
        """
        form = self._form
        # They are read once more when it is their turn.
        with self._faults_forgotten():
            heads = tuple(
                (str(table.path.resolve()), table.columns, _first_row(table))
                for table in self._tables
            )
        order = self._seed if self._shuffle else None
        # Where the counts decide about the split, other counts make another source.
        counts = tuple(sorted(self._counts.items()))
        # A part is another source: its rows have other numbers.
        part = () if self._only is None else (self._only,)
        if self._columns.quality:
            quality = tuple(sorted(self._columns.quality.items()))
            part = (*part, quality, self._columns.bad_quality)
        if self._columns.na_values_of:
            part = (*part, tuple(sorted(self._columns.na_values_of.items())))
        # The same rows with other numbers or times are another source.
        understood = tuple(self.sentences())
        return identity_of(
            "replay 2",
            heads,
            self._columns,
            self._split.name,
            counts,
            order,
            understood,
            form,
            *part,
        )

    @property
    def source_files(self) -> SourceFiles:
        """The files, by which a repeat is found."""
        split = identity_of(self._split.name, tuple(sorted(self._counts.items())))
        return SourceFiles(self.identity, split, self._only, self._beginnings)

    def _beginnings(self) -> Iterator[tuple[str, bytes]]:
        for table in self._tables:
            # A damaged beginning is met again when the rows are read.
            with suppress(InvalidData):
                # A header alone is the beginning of every file of its kind.
                if table.columns and next(table.row_lines(), None) is not None:
                    yield table.path.name, beginning_of(table.path, BEGINNING_BYTES)

    @property
    def texts(self) -> Mapping[str, str]:
        """client -> its text in the column that names clients, of those met so far."""
        if not isinstance(self._split, ByColumn):
            return {}
        return self._split.texts

    def clients(self) -> list[str]:
        """The names of the clients that the rows belong to, in the order in which they come.

        One pass over the column of the split, which ends when all clients are found that there can
        be. Raises `InvalidData` where there are no rows.
        """
        assign = self._split.assigner(self._counts)
        clients: dict[str, None] = {}
        with self._faults_forgotten():
            for text in self._split_texts():
                clients[assign(text)] = None
                # All are met, and the other rows need not be read.
                if len(clients) == self._split.clients_max:
                    break
        if not clients:
            raise InvalidData("the files have no rows, so there is nothing to cluster")
        return list(clients)

    def _split_texts(self) -> Iterator[str]:
        """The text of each row by which the split assigns it."""
        for table in self._tables:
            if not table.columns:
                continue
            if self._split.column is None:
                for _ in table.row_lines():
                    yield ""
                continue
            text = ""
            for cells in table.rows([self._split.column]):
                # A broken row names no client: it counts for the client of the row before it.
                if cells is not None:
                    text = text_of(cells[0])
                yield text

    @contextmanager
    def _faults_forgotten(self) -> Iterator[None]:
        """Count no faults of rows that are read inside: the rows are read once more."""
        faults = self._faults.copy()
        try:
            yield
        finally:
            self._faults.clear()
            self._faults.update(faults)

    def places(self, numbers: Sequence[int]) -> dict[int, str]:
        """File and line of these readings, of those that are numbered as the rows of the files are.

        One pass over the files, up to the last of them.
        """
        places: dict[int, str] = {}
        # Shuffled rows, and those of one client, have other numbers than the rows of the files.
        wanted = set() if self._shuffle or self._only is not None else set(numbers)
        for number, (table, line) in enumerate(self._all_lines()):
            if len(places) == len(wanted):
                break
            if number in wanted:
                noun = "row" if table.path.suffix in (".parquet", ".pq") else "line"
                places[number] = f"{table.path.name}, {noun} {line}"
        return places

    def _all_lines(self) -> Iterator[tuple[Table, int]]:
        """The file and line of every row."""
        for table in self._tables:
            if table.columns:
                for line in table.row_lines():
                    yield table, line

    def sentences(self) -> list[str]:
        """How each file was understood, for people."""
        sentences = []
        for table in self._tables:
            parts = []
            if isinstance(table, CsvTable):
                parts.append(table.dialect.sentence())
            if table.path in self._readers:
                parts.append(self._readers[table.path].sentence())
            if parts:
                sentences.append(f"{table.path.name}: {'; '.join(parts)}")
        return sentences

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
        return bool(self._columns.time) and not self._shuffle

    @property
    def faults(self) -> Mapping[str, int]:
        """See `Source.faults`: "ragged", "unreadable", "no_time", "bad_quality"."""
        return self._faults

    def read(self, limit: int) -> SourceReadings:
        """See `Source.read`. All rows before a damaged place are given out first."""
        parts: list[SourceReadings] = []
        left = limit
        while left and self._broken is None:
            of_one_pass = self._next_rows(left)
            if of_one_pass.clients:
                parts.append(self._sourced(of_one_pass))
                left -= len(parts[-1])
            elif not self._repeat():
                break
        self._position += limit - left
        if self._broken is not None and not parts:
            raise self._broken
        return joined(parts)

    def skip(self, rows: int) -> None:
        """See `Source.skip`; whole repetitions of a loop are not read."""
        self._position += rows
        while rows > 0:
            skipped = self._next_rows(rows)
            if skipped.clients:
                if self._form.missing == "hold":
                    # Their last values fill what the rows after them lack.
                    self._gaps.treat(skipped.clients, self._treated(skipped.rows))
                rows -= len(skipped.clients)
                continue
            if self._broken is not None:
                raise self._broken
            if not self._repeat(ahead=rows):
                return
            if rows >= self._span.rows:
                # `_repeat` has counted the whole repetitions, of which no row needs to be read.
                rows %= self._span.rows

    def _next_rows(self, limit: int) -> AssignedRows:
        """Next rows of this pass, at most `limit`: all of them in one array of numbers, or none.

        No rows at the end of the pass, or at a damaged place, which is kept in `_broken`.
        """
        clients: list[str] = []
        rows: list[Row | None] = []
        while len(rows) < limit and self._has_more():
            part = self._ahead.part(0, limit - len(rows))
            if isinstance(part.rows, NumberRows) and rows:
                break
            self._ahead = self._ahead.part(len(part.clients), None)
            if isinstance(part.rows, NumberRows):
                return part
            clients += part.clients
            rows += part.rows
        return AssignedRows(clients, rows)

    def _has_more(self) -> bool:
        """Whether `_ahead` has rows of this pass; reads the next block if it has none."""
        while not self._ahead.clients:
            try:
                self._ahead = next(self._blocks)
            except StopIteration:
                return False
            except ShoalError as broken:
                # Kept and not raised: `read` gives out the rows before the damaged place first.
                self._broken = broken
                return False
        return True

    def _repeat(self, ahead: int = 0) -> bool:
        """Start again at the first row, if this loops and there are rows.

        `ahead`: rows still to be skipped.
        """
        if not self._loop or self._span.rows == 0:
            return False
        self._repetition += 1 + ahead // self._span.rows
        # Of the number of repetitions and not added up: those that are skipped give the same times.
        self._shift_s = self._repetition * self._span.period_s
        self._blocks = self._one_pass()
        return True

    def _one_pass(self) -> Iterator[AssignedRows]:
        blocks = self._shuffled() if self._shuffle else self._assigned()
        if self._loop and self._repetition == 0:
            return self._spanned(blocks)
        return blocks

    def _spanned(self, blocks: Iterator[AssignedRows]) -> Iterator[AssignedRows]:
        """The first pass of a loop: count the rows and find the time they cover."""
        for block in blocks:
            times = [time for time in self._times(block.rows) if time is not None]
            self._span.add(len(block.clients), times)
            yield block

    def _shuffled(self) -> Iterator[AssignedRows]:
        if self._kept is None:
            self._kept = []
            for block in self._assigned():
                self._kept += zip(block.clients, block.rows, strict=True)
        order = np.random.default_rng([self._seed, self._repetition]).permutation(len(self._kept))
        kept = self._kept
        return (AssignedRows([kept[place][0]], [kept[place][1]]) for place in order)

    def _assigned(self) -> Iterator[AssignedRows]:
        assign = self._split.assigner(self._counts)
        has_own = False
        for rows, texts in self._with_split_texts():
            clients = list(map(assign, texts))
            if self._only is None:
                yield AssignedRows(clients, rows)
                continue
            own = [place for place, client in enumerate(clients) if client == self._only]
            has_own = has_own or bool(own)
            own_rows: Rows
            if isinstance(rows, NumberRows):
                own_rows = rows.select(own)
            else:
                own_rows = [rows[place] for place in own]
            yield AssignedRows([self._only] * len(own), own_rows)
        if self._only is not None and not has_own:
            raise SettingsError(
                f"no row belongs to client {self._only!r} by the split {self._split.name}"
            )

    def _with_split_texts(self) -> Iterator[tuple[Rows, Sequence[str]]]:
        """Blocks of rows, with the text of each row by which the split assigns it."""
        for table in self._tables:
            if not table.columns:
                continue
            text = ""
            for block in table.blocks_apart(self._columns.features, self._others):
                rows = block
                if self._readers:
                    rows = with_times(block, len(self._columns.time), self._readers[table.path])
                if self._split.column is None:
                    yield rows, [""] * len(rows)
                    continue
                texts = []
                for cells in others_of(rows):
                    # A broken row names no client: it counts for the client of the row before it.
                    if cells is not None:
                        text = text_of(cells[-1]) if cells else ""
                    texts.append(text)
                yield rows, texts

    def _reader(self, table: Table) -> TimeReader:
        def cells() -> Iterator[Sequence[Any]]:
            # A damaged place is met again when the rows before it have been given.
            with suppress(InvalidData):
                whole = (row for row in table.rows(self._columns.time) if row)
                yield from islice(whole, ROWS_UNDERSTOOD)

        with self._faults_forgotten():
            return time_reader(cells, self._form.times, str(table.path), self._columns.time)

    def _counted(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        with self._faults_forgotten():
            for text in self._split_texts():
                counts[text] += 1
                if len(counts) > CLASSES_MAX:
                    raise SettingsError(
                        f"column {self._split.column!r} has more than {CLASSES_MAX} classes; is it"
                        " the label?"
                    )
        return dict(counts)

    def _sourced(self, assigned: AssignedRows) -> SourceReadings:
        """The rows as readings; one whose cells could not be read has no values."""
        clients, rows = assigned
        columns = self._columns
        others = others_of(rows)
        label_at = int(bool(columns.time))
        user_at = label_at + (columns.label is not None)
        times = self._times(rows)
        if columns.time:
            # A broken row has another fault.
            without_time = times.count(None) - list(others).count(None)
            if without_time:
                self._faults["no_time"] += without_time
            times = [None if time is None else time + self._shift_s for time in times]
        labels = None
        users = None
        if columns.label is not None:
            labels = [None if cells is None else text_of(cells[label_at]) for cells in others]
        if columns.user is not None:
            users = [None if cells is None else user_of(cells[user_at]) for cells in others]
        values = self._gaps.treat(clients, self._treated(rows))
        return SourceReadings(clients, times, values, labels, users)

    def _treated(self, rows: Rows) -> RowsOfValues:
        """The values of the rows: none where a cell stands for none or its quality is bad, places
        for categories."""
        values = self._no_values.treat(values_in(rows))
        if self._quality.names:
            columns = self._columns
            first = bool(columns.time) + (columns.label is not None) + (columns.user is not None)
            end = first + len(self._quality.names)
            cells = [None if row is None else row[first:end] for row in others_of(rows)]
            values = self._quality.treat(values, cells, self._faults)
        return self._categories.treat(values)

    def _times(self, rows: Rows) -> list[float | None]:
        """The event time of each row, where it has one that can be read."""
        if not self._columns.time:
            return [None] * len(rows)
        return [None if cells is None else cells[0] for cells in others_of(rows)]


@dataclass
class Span:
    """The rows of one repetition and the time they cover."""

    rows: int = 0
    first: float | None = None
    last: float | None = None

    def add(self, rows: int, times: Sequence[float]) -> None:
        """Include more rows, and the times of those that have one."""
        self.rows += rows
        if times:
            self.first = min(times) if self.first is None else min(self.first, *times)
            self.last = max(times) if self.last is None else max(self.last, *times)

    @property
    def period_s(self) -> float:
        """Seconds from the first row of one repetition to that of the next.

        One mean gap follows the last row, so that the loop has no seam.
        """
        covered = (self.last or 0.0) - (self.first or 0.0)
        if covered <= 0:
            return 1.0
        # There are two rows at least, as they cover some time: the divisor is not 0.
        return covered * self.rows / (self.rows - 1)


def _first_row(table: Table) -> str:
    # Of columns with the same name no cells can be read.
    if len(set(table.columns)) < len(table.columns):
        return repr(None)
    return repr(next(iter(table.rows(table.columns)), None))
