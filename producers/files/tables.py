"""Tables: files of readings, row by row. CSV and JSON lines, also compressed, in bounded memory.

A row that cannot be read (ragged, too long, not a JSON object) is given as None and counted in
`faults`: it becomes a reading without values, which the client rejects and counts.
"""

from __future__ import annotations

import csv
import gzip
import json
import logging
import re
import shlex
import zlib
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, cast

from shoal.errors import InvalidData, SettingsError
from shoal.producers.files.dialect import (
    FOUND,
    HEAD_BYTES,
    HEAD_LINES,
    UNITS_SEEN,
    Dialect,
    DialectOptions,
    column_names,
    dialect_of,
    encoding_of,
    known_encoding,
    units_below,
    with_units,
)
from shoal.producers.files.parsing import (
    BLOCK_LINES,
    LineForm,
    Rows,
    features_apart,
    number_of,
    rows_of_numbers,
)
from shoal.telemetry.events import log_event

LINE_CHARS_MAX = 1024 * 1024
"""longest line, 4096 features of 250 characters each; a longer one is a broken row"""
OVERLONG = "\0\n"
"""replacement of a longer line: neither a number in CSV nor JSON"""
OBJECTS_DEPTH_MAX = 8
"""most objects within each other whose fields are columns"""
HEAD_OBJECTS = 100
"""objects whose keys are the columns, since JSON lines have no header"""
COLUMNS_NAMED_MAX = 12
NAME_CHARS = 64
"""most columns that an error names, and most characters of each"""
QUOTED_LINES_MAX = 100
"""most lines of one quoted cell; one with more has a quote that is not closed"""
ROWS_NAMED_MAX = 10
"""most broken rows of one kind that the log names"""
# Read in blocks, so that a file larger than the memory can be looked through.
BLOCK_BYTES = 1024 * 1024
PIECE_BYTES = 8192
"""bytes that are decompressed at once, so that the rows just before a damaged place are read"""

Cells = Sequence[Any]


class Table(Protocol):
    """One file of readings."""

    @property
    def path(self) -> Path: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, as in the file; none in an empty file."""
        ...

    def rows(self, wanted: Sequence[str]) -> Iterator[Cells | None]:
        """The cells of the columns `wanted`, row by row; None for a broken row. Raises
        `InvalidData` (damaged)."""
        ...

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """What `rows` gives for `features` and `others` together, in blocks, features apart.

        They are converted where that is quick. Other rows may come in blocks of one, so that no
        fault is counted before its row is given.
        """
        ...

    def row_lines(self) -> Iterator[int]:
        """The line of each row in the file, from 1: the last line of one that has several."""
        ...

    def count(self) -> int:
        """About how many rows there are, quickly."""
        ...


def open_table(
    path: Path, faults: Counter[str], said: DialectOptions = FOUND, numbers: Sequence[str] = ()
) -> Table:
    """The file by its suffix: .csv .tsv .txt .jsonl .ndjson, each also .gz, and .parquet.

    `said`: what a person says about the dialect of CSV files; `numbers`: the columns that hold
    numbers; empty: all. Raises `SettingsError`.
    """
    if not path.is_file():
        raise SettingsError(f"{path}: no such file")
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in (".csv", ".tsv", ".txt"):
        return CsvTable(path, faults, said, numbers)
    if suffix in (".jsonl", ".ndjson", ".json"):
        return JsonTable(path, faults, said)
    if suffix in (".parquet", ".pq"):
        from shoal.producers.files.parquet import ParquetTable  # noqa: PLC0415 - an extra, for those who have such files

        return ParquetTable(path)
    raise SettingsError(
        f"{path}: files of readings are .csv, .tsv, .txt, .jsonl, .ndjson (each also .gz) or .parquet"
    )


def require_columns(table: Table, wanted: Sequence[str]) -> None:
    """Raise `SettingsError`, naming the columns there are, when a wanted one is missing or occurs
    twice."""
    for name in wanted:
        if table.columns.count(name) != 1:
            there = ", ".join(
                repr(shortened(column)) for column in table.columns[:COLUMNS_NAMED_MAX]
            )
            more = len(table.columns) - COLUMNS_NAMED_MAX
            there += f" and {more} more" if more > 0 else ""
            times = sum(
                re.fullmatch(rf"{re.escape(name)} #\d+", column) is not None
                for column in table.columns
            )
            what = (
                f"occurs {times} times; take '{name} #1' or another" if times > 1 else "is missing"
            )
            raise SettingsError(f"{table.path}: column {name!r} {what}; the columns are {there}")


def shortened(name: str) -> str:
    """The beginning of a name of a column; of a file that is no table it may be anything."""
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 3]}..."


class CsvTable:
    """CSV with a header. How it is written (`dialect`) is found from its first rows, where no one
    says it."""

    def __init__(
        self,
        path: Path,
        faults: Counter[str],
        said: DialectOptions = FOUND,
        numbers: Sequence[str] = (),
    ) -> None:
        """See `open_table`."""
        self.path = path
        self._faults = faults
        encoding = (
            known_encoding(said.encoding) if said.encoding else encoding_of(beginning_of(path))
        )
        head = _head_lines(path, encoding)
        if head[:1] == [OVERLONG]:
            raise SettingsError(
                f"{path}: the header is longer than {LINE_CHARS_MAX} characters; is this a CSV file?"
            )
        self.dialect: Dialect = dialect_of(head, encoding, said, numbers, str(path))
        found = islice(self._records(self._record_lines()), 2 + UNITS_SEEN)
        header = next(found, None) or []
        below = list(found)
        units = (below[0] or []) if units_below(header, below) else []
        self.columns = column_names(with_units(header, units) if units else header)
        # Names that are numbers may be those of a row as well.
        is_text = not any(
            isinstance(number_of(self.dialect.number_text(name)), float) for name in header
        )
        self._header = header if is_text else None
        self._header_rows = 2 if units else 1

    def _lines(self) -> Iterator[str]:
        """The lines from the header on."""
        return islice(_lines(self.path, self.dialect.encoding), self.dialect.preamble, None)

    def _pass_header(self, lines: RecordLines) -> None:
        """Read the header, and the units below it."""
        for _ in islice(self._records(lines), self._header_rows):
            pass

    def _record_lines(self) -> RecordLines:
        return RecordLines(self._lines(), self.dialect.preamble + 1)

    def rows(self, wanted: Sequence[str]) -> Iterator[list[str] | None]:
        """See `Table.rows`. A row that is not as long as the header is broken: it is unknown which
        cell is missing."""
        places = [self.columns.index(name) for name in wanted]
        lines = self._record_lines()
        self._pass_header(lines)
        yield from self._whole_rows(lines, places)

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """See `Table.blocks_apart`: the rows of a block with anything but plain numbers one by one."""
        places = [self.columns.index(name) for name in (*features, *others)]
        form = LineForm(
            self.dialect.delimiter,
            len(self.columns),
            places[: len(features)],
            places[len(features) :],
        )
        lines = self._lines()
        head = RecordLines(lines, self.dialect.preamble + 1)
        self._pass_header(head)
        at = head.line
        while block := list(islice(lines, BLOCK_LINES)):
            if (rows := rows_of_numbers(block, form, self.dialect)) is not None:
                yield rows
            else:
                # A quote may reach beyond the block.
                reaching = (
                    chain(block, lines) if any('"' in line for line in block) else iter(block)
                )
                whole = self._whole_rows(RecordLines(reaching, at), places)
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
            yield None if cells is None else [*map(text, cells[:features]), *cells[features:]]

    def row_lines(self) -> Iterator[int]:
        """See `Table.row_lines`."""
        lines = self._record_lines()
        return (lines.line - 1 for _ in islice(self._records(lines), self._header_rows, None))

    def count(self) -> int:
        """See `Table.count`."""
        return max(0, _count_lines(self.path) - self._header_rows - self.dialect.preamble)

    def _unclosed(self, line: int, fault: str) -> None:
        """A row that cannot be read; `line` is where it begins, from 1."""
        self._faults[fault] += 1
        if self._faults[fault] <= ROWS_NAMED_MAX:
            log_event(
                "row_unreadable", logging.WARNING, file=self.path.name, line=line, reason=fault
            )

    def _whole_rows(self, lines: RecordLines, places: Sequence[int]) -> Iterator[list[str] | None]:
        """The cells at these places of every row below the header; None for a broken row."""
        width = len(self.columns)
        for row in self._records(lines, self._unclosed):
            if row is not None and len(row) == width and row != self._header:
                yield [row[place] for place in places]
            else:
                if row is not None:
                    self._faults["header" if row == self._header else "ragged"] += 1
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
                on_broken(lines.line, "unclosed" if lines.is_unclosed() else "unreadable")
                lines.give_back()
                yield None


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
        return at_end and len(self.held) > 0 and "".join(self.held).count('"') % 2 == 1

    def give_back(self) -> None:
        """Leave out the first line of the record, and read the others again."""
        # Reversed, as lines are taken from the end of the list.
        self._again += reversed(self.held[1:])
        self.ended = self.ended and not self._again
        self.line += 1
        self.held.clear()


class JsonTable:
    """JSON lines: one object per line. A field of an object within an object is a column: `a.b` is
    b in a."""

    def __init__(self, path: Path, faults: Counter[str], said: DialectOptions = FOUND) -> None:
        """See `open_table`. Numbers in JSON are written in one way only, so that only the encoding
        is looked for.

        Raises `SettingsError` for one array of all objects.
        """
        self.path = path
        self._faults = faults
        head = beginning_of(path)
        self._encoding = known_encoding(said.encoding) if said.encoding else encoding_of(head)
        if head.decode(self._encoding, "replace").lstrip().startswith("["):
            lines = shlex.quote(f"{path.name.partition('.')[0]}.jsonl")
            raise SettingsError(
                f"{path}: one JSON array; shoal reads an object a line: jq -c '.[]' {shlex.quote(path.name)} > {lines}"
            )
        sound = (found for found in self._objects() if found is not None)
        self.columns = tuple(
            dict.fromkeys(name for found in islice(sound, HEAD_OBJECTS) for name in found)
        )

    def rows(self, wanted: Sequence[str]) -> Iterator[list[Any] | None]:
        """See `Table.rows`. A key that an object lacks is an empty cell."""
        for found in self._objects():
            if found is None:
                self._faults["unreadable"] += 1
                yield None
            else:
                yield [found.get(name) for name in wanted]

    def blocks_apart(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Rows]:
        """See `Table.blocks_apart`."""
        return features_apart(self.rows([*features, *others]), len(features))

    def row_lines(self) -> Iterator[int]:
        """See `Table.row_lines`."""
        return (
            number
            for number, line in enumerate(_lines(self.path, self._encoding), 1)
            if line.strip()
        )

    def count(self) -> int:
        """See `Table.count`."""
        return _count_lines(self.path)

    def _objects(self) -> Iterator[dict[str, Any] | None]:
        for line in _lines(self.path, self._encoding):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            yield flattened(found) if isinstance(found, dict) else None


def flattened(found: Mapping[str, Any], depth: int = OBJECTS_DEPTH_MAX) -> dict[str, Any]:
    """The fields of an object, those of objects within it by their paths; a key that is such a path
    comes first."""
    if not depth or not any(isinstance(cell, dict) for cell in found.values()):
        return dict(found)
    cells = {name: cell for name, cell in found.items() if not isinstance(cell, dict)}
    for name, inner in found.items():
        if isinstance(inner, dict):
            for path, cell in flattened(inner, depth - 1).items():
                cells.setdefault(f"{name}.{path}", cell)
    return cells


def beginning_of(path: Path, limit: int = HEAD_BYTES) -> bytes:
    """The first `limit` bytes of a file at most, after decompression; none if it is damaged there."""
    with suppress(InvalidData), _file_errors(path), _opened(path) as file:
        return file.read(limit)
    return b""


def _head_lines(path: Path, encoding: str) -> list[str]:
    """The first lines of a file, in bounded memory; those before a damaged place."""
    lines: list[str] = []
    left = HEAD_BYTES
    with suppress(InvalidData):
        for line in islice(_lines(path, encoding), HEAD_LINES):
            lines.append(line)
            left -= len(line)
            if left < 0:
                break
    return lines


def _lines(path: Path, encoding: str = "utf-8-sig") -> Iterator[str]:
    """The lines of a text file; `OVERLONG` replaces one that is longer than `LINE_CHARS_MAX`."""
    return chain.from_iterable(_blocks_of_lines(path, encoding))


def _blocks_of_lines(path: Path, encoding: str) -> Iterator[list[str]]:
    with _file_errors(path), _opened(path) as file:
        # Wrong bytes must not stop the file: in a name they show as a missing column, in a cell as
        # text.
        decode = getincrementaldecoder(encoding)(errors="replace").decode
        last = ""
        is_overlong = False
        while piece := file.read1(PIECE_BYTES):
            lines = StringIO(last + decode(piece), newline="").readlines()
            # The last line may go on, also after a \r.
            last = lines.pop() if lines and lines[-1][-1] != "\n" else ""
            if lines and (is_overlong or len(lines[0]) > LINE_CHARS_MAX):
                lines[0], is_overlong = OVERLONG, False
            if len(last) > LINE_CHARS_MAX:
                # its beginning is forgotten, so that memory stays bounded
                last = last[-1:]
                is_overlong = True
            yield lines
        lines = StringIO(last + decode(b"", final=True), newline="").readlines()
        yield [OVERLONG, *lines[1:]] if is_overlong else lines


def _count_lines(path: Path) -> int:
    lines = 0
    last = b""
    with _file_errors(path), _opened(path) as file:
        while block := file.read(BLOCK_BYTES):
            lines += block.count(b"\n")
            last = block
    # The last line often has no line break.
    return lines + (not last.endswith(b"\n") if last else 0)


def _opened(path: Path) -> BufferedReader:
    return (
        cast(BufferedReader, gzip.open(path))
        if path.name.lower().endswith(".gz")
        else path.open("rb")
    )


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """Raise errors of the file and of its compression inside as `InvalidData`."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InvalidData(
            f"{path}: damaged or cut short; the rows before that place were read. Fetch it again"
        ) from None
    except OSError as unreadable:
        raise InvalidData(f"{path}: cannot be read: {unreadable.strerror}") from None
