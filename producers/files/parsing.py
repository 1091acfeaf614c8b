"""Parsing of cells and rows: numbers, times and users; blocks of lines of plain numbers are
converted all at once.

A cell that is neither a number nor a time is passed on unchanged, and the client counts it.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shoal.kernels.arrays import Floats, Octets
from shoal.producers.files.dialect import Dialect
from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.readings import RowsOfValues

CELL_CHARS_MAX = 256
"""a longer cell is cut; no number is longer"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_UNITS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))
"""(below, units per second): an epoch below 1e11 is in s (until the year 5138), then ms, µs, ns"""


def values_of(cells: Sequence[Any]) -> Floats | list[Any]:
    """d cells -> (d,) float64 when all are numbers, otherwise a list with the other cells
    unchanged."""
    values = [number_of(cell) for cell in cells]
    if all(type(value) is float for value in values):
        return np.array(values, dtype=np.float64)
    return values


def values_of_rows(rows: Sequence[Sequence[Any]]) -> list[Floats | list[Any]]:
    """What `values_of` gives for each of n rows of d cells; texts of numbers are converted all at
    once."""
    flat = list(chain.from_iterable(rows))
    kinds = set(map(type, flat))
    if kinds == {float} or (kinds == {str} and "_" not in "".join(flat)):
        try:
            return list(np.array(list(map(float, flat))).reshape(len(rows), -1))
        except ValueError:
            pass  # a text is not a number
    return [values_of(cells) for cells in rows]


def number_of(cell: Any) -> Any:
    """The number as a float; None for an empty cell; anything else unchanged, in a form that can be
    packed."""
    kind = type(cell)
    if kind is str:
        return _number_of_text(cell)
    if kind is float or cell is None or kind is bool:
        return cell
    if isinstance(cell, int | Decimal):
        try:
            return float(cell)
        except OverflowError:
            return math.inf if cell > 0 else -math.inf
    return f"<{kind.__name__}>"


def _number_of_text(cell: str) -> float | str | None:
    try:
        # Python reads 1_000 as a number; no sensor writes that.
        if "_" not in cell:
            return float(cell.replace("\u2212", "-"))
    except ValueError:
        pass
    # Half a surrogate pair, as JSON can escape it, has no UTF-8.
    return cell[:CELL_CHARS_MAX].encode("utf-8", "replace").decode() if cell.strip() else None


def seconds_of(cell: Any) -> float | None:
    """ISO 8601 (UTC where no zone is given), an epoch in s, ms, µs or ns, or a date -> seconds
    since 1970, or None."""
    seconds = _seconds_of(cell)
    return seconds if seconds is not None and abs(seconds) <= MOMENT_MAX else None


def _seconds_of(cell: Any) -> float | None:
    if isinstance(cell, str):
        cell = _time_of_text(cell.strip())
    if isinstance(cell, datetime):
        aware = cell if cell.tzinfo else cell.replace(tzinfo=UTC)
        return (aware - EPOCH).total_seconds()
    if isinstance(cell, date):
        return (datetime.combine(cell, time(), UTC) - EPOCH).total_seconds()
    if isinstance(cell, bool) or not isinstance(cell, int | float | Decimal):
        return None
    seconds = number_of(cell)
    return next((seconds / units for below, units in EPOCH_UNITS if abs(seconds) < below), None)


def _time_of_text(cell: str) -> float | datetime | None:
    try:
        return float(cell)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(cell)
    except ValueError:
        return None


def user_of(cell: Any) -> str | None:
    """A cell as a user id; None for an empty cell. A long one is replaced by a digest of it: all of
    it counts."""
    text = text_of(cell).encode("utf-8", "replace").decode()
    if len(text) > CELL_CHARS_MAX:
        return hashlib.sha256(text.encode()).hexdigest()
    return text or None


def text_of(cell: Any) -> str:
    """A cell as text, for the name of a class or a client; empty for an empty cell."""
    return "" if cell is None else str(cell).strip()


BLOCK_LINES = 1000


class Row(NamedTuple):
    """One row of a table, its features apart from its other cells."""

    features: Floats | Sequence[Any]
    """(d,) numbers, or d cells with the texts of the file"""
    others: Sequence[Any]
    """cells of the other columns that are wanted, with the texts of the file"""


class NumberRows(Sequence[Row]):
    """Rows whose features are all numbers, as one array."""

    def __init__(self, values: Floats, others: Sequence[Sequence[Any]]) -> None:
        """`values` (n, d); `others` as in `Row`, of each of the n rows."""
        self.values = values
        self.others = others

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> NumberRows: ...

    def __getitem__(self, place: int | slice) -> Row | NumberRows:
        form: Any = NumberRows if isinstance(place, slice) else Row
        rows: Row | NumberRows = form(self.values[place], self.others[place])
        return rows

    def select(self, places: Sequence[int]) -> NumberRows:
        """The rows at these places."""
        return NumberRows(
            self.values[np.asarray(places, dtype=np.intp)], [self.others[place] for place in places]
        )


Rows = Sequence[Row | None]
"""consecutive rows of a table; None for a broken one"""


def others_of(rows: Rows) -> Sequence[Sequence[Any] | None]:
    """`Row.others` of each row; None for a broken one."""
    return (
        rows.others
        if isinstance(rows, NumberRows)
        else [None if row is None else row.others for row in rows]
    )


def values_in(rows: Rows) -> RowsOfValues:
    """`Reading.values` of each row, none of a broken one; cells that are not converted yet are, all
    at once."""
    if isinstance(rows, NumberRows):
        return rows.values
    cells = [
        row.features for row in rows if row is not None and not isinstance(row.features, np.ndarray)
    ]
    converted = iter(values_of_rows(cells))
    values: list[Floats | list[Any]] = []
    for row in rows:
        if row is None:
            values.append([])
        else:
            values.append(row.features if isinstance(row.features, np.ndarray) else next(converted))
    return values


def features_apart(rows: Iterable[Sequence[Any] | None], features: int) -> Iterator[Rows]:
    """Rows whose first cells are `features` features, taken apart, in blocks of one; None stays
    None."""
    for cells in rows:
        yield [None if cells is None else Row(cells[:features], cells[features:])]


class LineForm(NamedTuple):
    """The form of the lines of a CSV file."""

    delimiter: str
    width: int
    """columns"""
    features: Sequence[int]
    """columns of the features"""
    others: Sequence[int]
    """other columns that are wanted"""


def rows_of_numbers(lines: Sequence[str], form: LineForm, dialect: Dialect) -> NumberRows | None:
    """The rows of these lines, if all are whole, without quotes, and have numbers without groups of
    digits as features.

    None otherwise. A number is what `float` makes of the same text.
    """
    if dialect.thousands or dialect.na_words:
        return None
    numbers = decimals_of(dialect.plain_lines(lines), form)
    if numbers is None:
        numbers = _loaded(lines, form, dialect)
    return None if numbers is None else NumberRows(numbers, _others(lines, form))


def _loaded(lines: Sequence[str], form: LineForm, dialect: Dialect) -> Floats | None:
    """The features of these lines as NumPy reads them; None unless all lines are whole and all
    features are numbers."""
    if {line.count(form.delimiter) for line in lines} != {form.width - 1} or any(
        map(str.isspace, lines)
    ):
        return None
    if '"' in "".join(lines) or max(map(len, lines)) > csv.field_size_limit():
        return None
    places = None if list(form.features) == list(range(form.width)) else form.features
    try:
        # NumPy takes no digits of other scripts, no underscores and no empty cells; comments=None:
        # no # either.
        return np.loadtxt(
            dialect.plain_lines(lines),
            delimiter=form.delimiter,
            ndmin=2,
            comments=None,
            usecols=places,
        )
    except ValueError:
        return None


DIGITS_MAX = 15
"""digits of a number that a float holds exactly, whatever they are"""
POWERS = 10.0 ** np.arange(DIGITS_MAX + 1)
POINT, MINUS, ZERO = b".-0"


def decimals_of(lines: Sequence[str], form: LineForm) -> Floats | None:
    """The features of these lines (n, d), if all are decimals of at most 15 digits, such as sensors
    write: `-3.25`.

    None otherwise. Digits and power of ten are exact as floats then, so that their quotient is what
    `float` gives. Cells of one length are converted together, which takes a fraction of the time of
    one by one.
    """
    text = "".join(lines).replace("\r\n", "\n")
    if not text.endswith("\n"):  # the end of a file
        text += "\n"
    if '"' in text or "\r" in text or not form.delimiter.isascii():
        return None
    block = np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8)
    ends = np.flatnonzero((block == ord(form.delimiter)) | (block == ord("\n")))
    if len(ends) != len(lines) * form.width:
        return None
    table = ends.reshape(-1, form.width)
    starts = np.concatenate([[0], ends[:-1] + 1]).reshape(table.shape)
    is_last = block[table] == ord("\n")
    if (
        is_last[:, :-1].any()
        or not is_last[:, -1].all()
        or (table[:, -1] - starts[:, 0]).max() > csv.field_size_limit()
    ):
        return None
    places = list(form.features)
    first = starts[:, places].ravel()
    lengths = (table - starts)[:, places].ravel()
    numbers = np.empty(len(lengths))
    counts = np.bincount(lengths)
    if counts[0] or len(counts) > DIGITS_MAX + 3:
        return None
    for length in np.flatnonzero(counts).tolist():
        which = np.flatnonzero(lengths == length) if counts[length] < len(lengths) else slice(None)
        converted = _decimals(sliding_window_view(block, length)[first[which]])
        if converted is None:
            return None
        numbers[which] = converted
    return numbers.reshape(len(lines), -1)


def _decimals(cells: Octets) -> Floats | None:
    """The numbers of m cells of l characters (m, l); None unless all are decimals of at most 15
    digits."""
    numbers = np.empty(len(cells))
    left = np.arange(len(cells))
    while len(left):
        # Those with the point where the first one has it: mostly all, as sensors write the same
        # number of decimals.
        point = bytes(cells[0]).find(POINT)
        alike = cells[:, point] == POINT if point >= 0 else (cells != POINT).all(axis=1)
        found = _with_point(cells if alike.all() else cells[alike], point)
        if found is None:
            return None
        numbers[left[alike]] = found
        left = left[~alike]
        cells = cells[~alike]
    return numbers


def _with_point(cells: Octets, point: int) -> Floats | None:
    """See `_decimals`, of cells whose point is their character `point`; below 0: they have none."""
    columns = [column for column in range(cells.shape[1]) if column != point]
    negative = cells[:, 0] == MINUS
    digits = cells - ZERO
    digits[negative, 0] = 0
    if point >= 0:
        digits[:, point] = 0
    # A sign takes the place of a digit, and there is one at least.
    if (
        not 1 <= len(columns) - bool(negative.any()) <= len(columns) <= DIGITS_MAX
        or (digits > 9).any()
    ):
        return None
    weights = np.zeros(cells.shape[1])
    weights[columns] = POWERS[len(columns) - 1 :: -1]
    numbers: Floats = (
        digits.astype(np.float64)
        @ weights
        / POWERS[cells.shape[1] - 1 - point if point >= 0 else 0]
    )
    return np.negative(numbers, out=numbers, where=negative)


def _others(lines: Sequence[str], form: LineForm) -> Sequence[Sequence[str]]:
    if not form.others:
        return [()] * len(lines)
    cells = (line.rstrip("\r\n").split(form.delimiter) for line in lines)
    return [[row[place] for place in form.others] for row in cells]
