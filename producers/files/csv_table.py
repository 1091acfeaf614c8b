"""CSV files as tables, row by row: a broken row takes no other one with it."""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from shoal.errors import SettingsError
from shoal.producers.files.dialect import (
    FOUND,
    HEADER_ROWS_MAX,
    SPACE,
    UNITS_SEEN,
    Dialect,
    DialectOptions,
    column_names,
    dialect_of,
    encoding_of,
    is_measured,
    known_encoding,
    names_and_rows,
    scripts_of,
    spaced,
    with_row_names,
)
from shoal.producers.files.parsing import number_of
from shoal.producers.files.plain_lines import BLOCK_LINES, LineForm, rows_of_numbers
from shoal.producers.files.rows import Rows, features_apart
from shoal.producers.files.text_lines import (
    LINE_CHARS_MAX,
    OVERLONG,
    beginning_of,
    count_lines,
    head_lines,
    lines_of,
)
from shoal.producers.files.times import is_moment
from shoal.telemetry.events import log_event

QUOTED_LINES_MAX = 100
"""most lines of one quoted cell; one with more has a quote that is not closed"""


# A file of another form would otherwise write a line of log for each of its rows.
ROWS_NAMED_MAX = 10
"""most broken rows of one kind that the log names"""


class CsvTable:
    """CSV with a header; its dialect is found from its first rows where no person gives it."""

    def __init__(
        self,
        path: Path,
        faults: Counter[str],
        options: DialectOptions = FOUND,
        numbers: Sequence[str] = (),
    ) -> None:
        """See `open_table`."""
        self.path = path
        self._faults = faults
        if options.encoding:
            encoding = known_encoding(options.encoding)
        else:
            beginning = beginning_of(path)
            encoding = encoding_of(beginning)
            if encoding in ("cp1252", "latin-1"):
                refuse_other_scripts(beginning, path)
        head = head_lines(path, encoding)
        if head[:1] == [OVERLONG]:
            raise SettingsError(
                f"{path}: the header is longer than {LINE_CHARS_MAX} characters; is this a CSV"
                " file?"
            )
        self.dialect: Dialect = dialect_of(head, encoding, options, numbers, str(path))
        first_rows = islice(self._records(self._record_lines()), HEADER_ROWS_MAX + 2 + UNITS_SEEN)
        header = next(first_rows, None) or []
        below = list(first_rows)
        if is_row(header, numbers):
            self._header_rows = 0
            names: Sequence[str] = [""] * len(header)
        else:
            names, rows_below = names_and_rows(with_row_names(header, below), below)
            self._header_rows = 1 + rows_below
        self.columns = column_names(names)
        self._header: list[str] | None = header
        """the header, which is no row where it comes again, as in files that were put together"""
        for name in header:
            # Names that are numbers may be those of a row as well.
            if isinstance(number_of(self.dialect.number_text(name)), float):
                self._header = None
        if not self._header_rows:
            self._header = None

    def _own_lines(self) -> Iterator[str]:
        """The lines from the header on."""
        lines = islice(lines_of(self.path, self.dialect.encoding), self.dialect.preamble, None)
        return map(spaced, lines) if self.dialect.delimiter == SPACE else lines

    def _pass_header(self, lines: RecordLines) -> None:
        """Read the header, and the units below it."""
        for _ in islice(self._records(lines), self._header_rows):
            pass

    def _record_lines(self) -> RecordLines:
        return RecordLines(self._own_lines(), self.dialect.preamble + 1)

    def rows(self, wanted: Sequence[str]) -> Iterator[list[str] | None]:
        """See `Table.rows`. A row of another length than the header is broken.

        It is unknown which of its cells is missing.
        """
        places = [self.columns.index(name) for name in wanted]
        lines = self._record_lines()
        self._pass_header(lines)
        yield from self._whole_rows(lines, places)

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """See `Table.blocks_apart`. A block with anything but plain numbers is read row by row."""
        places = [self.columns.index(name) for name in (*features, *others)]
        form = LineForm(
            self.dialect.delimiter,
            len(self.columns),
            places[: len(features)],
            places[len(features) :],
        )
        lines = self._own_lines()
        head = RecordLines(lines, self.dialect.preamble + 1)
        self._pass_header(head)
        at = head.line
        while block := list(islice(lines, BLOCK_LINES)):
            rows = rows_of_numbers(block, form, self.dialect)
            if rows is not None:
                yield rows
            else:
                of_block = iter(block)
                # A quote may reach beyond the block.
                if any('"' in line for line in block):
                    of_block = chain(block, lines)
                whole = self._whole_rows(RecordLines(of_block, at), places)
                yield from features_apart(self._with_numbers(whole, len(features)), len(features))
            at += len(block)

    def _with_numbers(
        self, rows: Iterator[list[str] | None], features: int
    ) -> Iterator[Sequence[str | None] | None]:
        """The rows, their first cells as Python writes numbers."""
        if self.dialect.is_plain and not self.dialect.na_values:
            yield from rows
            return
        text = self.dialect.number_text
        for cells in rows:
            if cells is None:
                yield None
            else:
                yield [*map(text, cells[:features]), *cells[features:]]

    def row_lines(self) -> Iterator[int]:
        """See `Table.row_lines`."""
        lines = self._record_lines()
        return (lines.line - 1 for _ in islice(self._records(lines), self._header_rows, None))

    def count(self) -> int:
        """See `Table.count`."""
        return max(0, count_lines(self.path) - self._header_rows - self.dialect.preamble)

    def _unclosed(self, line: int, fault: str) -> None:
        """Count a row that cannot be read; `line` is where it begins, from 1."""
        self._faults[fault] += 1
        if self._faults[fault] <= ROWS_NAMED_MAX:
            log_event(
                "row_unreadable", logging.WARNING, file=self.path.name, line=line, reason=fault
            )

    def _whole_rows(self, lines: RecordLines, places: Sequence[int]) -> Iterator[list[str] | None]:
        """The cells at these places of every row below the header; None for a broken row."""
        width = len(self.columns)
        for row in self._records(lines, self._unclosed):
            if row is not None and row != self._header:
                cells = self.dialect.fitted(row, width)
                if len(cells) == width:
                    yield [cells[place] for place in places]
                    continue
            # A row that is None was counted when it could not be read.
            if row is not None:
                fault = "header" if row == self._header else "ragged"
                self._faults[fault] += 1
            yield None

    def _records(
        self, lines: RecordLines, on_broken: Callable[[int, str], None] = lambda *_: None
    ) -> Iterator[list[str] | None]:
        """Every line that is not blank; None for one that cannot be read.

        That is one with a cell above `csv.field_size_limit()`, or with a quote that is not closed
        within `QUOTED_LINES_MAX` lines: it takes no other line with it. `on_broken` gets the line
        and the kind of fault.
        """
        while not lines.ended:
            # A new reader after each broken record: the old one may still be inside of its quote.
            reader = csv.reader(lines, delimiter=self.dialect.delimiter)
            try:
                for row in reader:
                    if lines.is_unclosed(at_end=lines.ended):
                        break
                    lines.forget()
                    if row:
                        yield row
            except csv.Error:
                pass
            if lines.held:
                fault = "unclosed" if lines.is_unclosed() else "unreadable"
                on_broken(lines.line, fault)
                lines.give_back()
                yield None


def refuse_other_scripts(beginning: bytes, path: Path) -> None:
    """Raise `SettingsError` for a text in another script than the Latin one, whose encoding is not
    known: read in a wrong one its names are no names."""
    readings = scripts_of(beginning)
    if readings:
        ways = ", ".join(f"{text!r} in {encoding}" for encoding, text in readings.items())
        raise SettingsError(
            f"{path}: its texts are not in UTF-8, and may be {ways}; give --encoding"
        )


def is_row(cells: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the first line is a row already: its cells are numbers and times, and no names; or
    one is a time and one a number with decimals, beside texts.

    0, 1, 2, ... are the names that pandas gives; `wanted` are names that are known.
    """
    texts = [cell.strip() for cell in cells if cell.strip()]
    if len(texts) < 2 or set(texts) & set(wanted):
        return False
    if texts in ([str(n) for n in range(len(texts))], [str(n + 1) for n in range(len(texts))]):
        return False
    if all(map(is_measured, texts)):
        return True
    has_decimals = any(is_measured(text) and re.search(r"\d[.,]\d+$", text) for text in texts)
    return has_decimals and any(map(_is_dated, texts))


def _is_dated(text: str) -> bool:
    return is_moment(text) and re.search(r"\d[-./]\d", text) is not None


class RecordLines:
    """The lines of a CSV file, which remembers those of the record that is being read."""

    def __init__(self, lines: Iterator[str], line: int = 1) -> None:
        """`line` is the number of the first of these lines."""
        self._lines = lines
        self._again = list[str]()
        self.held: list[str] = []
        self.line = line
        """line in which the record begins, from 1"""
        self.ended = False

    def __iter__(self) -> RecordLines:
        return self

    def __next__(self) -> str:
        if len(self.held) > QUOTED_LINES_MAX:
            # `csv.reader` lets it through to `_records`, which gives up this record and goes on
            # behind its first line.
            raise csv.Error
        line = self._again.pop() if self._again else next(self._lines, None)
        if line is None:
            self.ended = True
            raise StopIteration
        self.held.append(line)
        return line

    def forget(self) -> None:
        """Forget the record, which has been read."""
        self.line += len(self.held)
        self.held.clear()

    def is_unclosed(self, at_end: bool = True) -> bool:
        """Whether the record ends inside of a quote."""
        # Quotes within a quoted cell are written twice, so that only an open one makes the number
        # odd.
        return at_end and len(self.held) > 0 and "".join(self.held).count('"') % 2 == 1

    def give_back(self) -> None:
        """Leave out the first line of the record, and read the others again."""
        # Reversed, as lines are taken from the end of the list.
        self._again += reversed(self.held[1:])
        self.ended = self.ended and not self._again
        self.line += 1
        self.held.clear()
