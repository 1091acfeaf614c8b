"""Rows whose features are numbers already: blocks of lines of plain numbers are converted all at once."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from producers.files.parsing import values_of_rows
from shoal.protocol.readings import RowsOfValues

BLOCK_LINES = 1000


class Row(NamedTuple):
    """One row of a table, its features apart from its other cells."""

    features: NDArray[np.float64] | Sequence[Any]
    """(d,) numbers, or d cells as they are in the file"""
    others: Sequence[Any]
    """cells of the other columns that are wanted, as they are in the file"""


class NumberRows(Sequence[Row]):
    """Rows whose features are all numbers, as one array."""

    def __init__(self, values: NDArray[np.float64], others: Sequence[Sequence[Any]]) -> None:
        """`values` (n, d); `others` as in `Row`, of each of the n rows."""
        self.values, self.others = values, others

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
        return NumberRows(self.values[np.asarray(places, dtype=np.intp)], [self.others[place] for place in places])


Rows = Sequence[Row | None]
"""consecutive rows of a table; None for a broken one"""


def others_of(rows: Rows) -> Sequence[Sequence[Any] | None]:
    """`Row.others` of each row; None for a broken one."""
    return rows.others if isinstance(rows, NumberRows) else [None if row is None else row.others for row in rows]


def values_in(rows: Rows) -> RowsOfValues:
    """`Reading.values` of each row, none of a broken one; cells that are not converted yet are, all at once."""
    if isinstance(rows, NumberRows):
        return rows.values
    cells = [row.features for row in rows if row is not None and not isinstance(row.features, np.ndarray)]
    converted = iter(values_of_rows(cells))
    values: list[NDArray[np.float64] | list[Any]] = []
    for row in rows:
        if row is None:
            values.append([])
        else:
            values.append(row.features if isinstance(row.features, np.ndarray) else next(converted))
    return values


def features_apart(rows: Iterable[Sequence[Any] | None], features: int) -> Iterator[Rows]:
    """Rows whose first cells are `features` features, taken apart, in blocks of one; None stays None."""
    for cells in rows:
        yield [None if cells is None else Row(cells[:features], cells[features:])]


class LineForm(NamedTuple):
    """The form of the lines of a CSV file."""

    delimiter: str
    width: int
    """columns"""
    features: Sequence[int]
    """which columns are the features"""
    others: Sequence[int]
    """which other columns are wanted"""


def rows_of_numbers(lines: Sequence[str], form: LineForm) -> NumberRows | None:
    """The rows of these lines, if all are whole, without quotes, and have plain numbers as features; otherwise None.

    A number is what `float` makes of the same text.
    """
    if {line.count(form.delimiter) for line in lines} != {form.width - 1} or any(map(str.isspace, lines)):
        return None
    if '"' in "".join(lines) or max(map(len, lines)) > csv.field_size_limit():
        return None
    places = None if list(form.features) == list(range(form.width)) else form.features
    try:
        # NumPy takes no digits of other scripts, no underscores and no empty cells; comments=None: no # either.
        numbers = np.loadtxt(lines, delimiter=form.delimiter, ndmin=2, comments=None, usecols=places)
    except ValueError:
        return None
    return NumberRows(numbers, _others(lines, form))


def _others(lines: Sequence[str], form: LineForm) -> Sequence[Sequence[str]]:
    if not form.others:
        return [()] * len(lines)
    cells = (line.rstrip("\r\n").split(form.delimiter) for line in lines)
    return [[row[place] for place in form.others] for row in cells]
