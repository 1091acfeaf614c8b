"""Rows whose features are numbers already: blocks of lines of plain numbers are converted all at once."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_LINES = 1000


class Row(NamedTuple):
    """One row of a table, its features apart from its other cells."""

    features: NDArray[np.float64] | Sequence[Any]
    """(d,) numbers, or d cells as they are in the file"""
    others: Sequence[Any]
    """cells of the other columns that are wanted, as they are in the file"""


def features_apart(rows: Iterable[Sequence[Any] | None], features: int) -> Iterator[Row | None]:
    """Rows whose first cells are `features` features, taken apart; None stays None."""
    for cells in rows:
        yield None if cells is None else Row(cells[:features], cells[features:])


class LineForm(NamedTuple):
    """The form of the lines of a CSV file."""

    delimiter: str
    width: int
    """columns"""
    features: Sequence[int]
    """which columns are the features"""
    others: Sequence[int]
    """which other columns are wanted"""


def rows_of_numbers(lines: Sequence[str], form: LineForm) -> list[Row] | None:
    """The rows of these lines, if all are whole, without quotes, and have plain numbers as features; otherwise None.

    A number is what `float` makes of the same text.
    """
    if {line.count(form.delimiter) for line in lines} != {form.width - 1} or any(map(str.isspace, lines)):
        return None
    if any('"' in line for line in lines) or max(map(len, lines)) > csv.field_size_limit():
        return None
    places = None if list(form.features) == list(range(form.width)) else form.features
    try:
        # NumPy takes no digits of other scripts, no underscores and no empty cells; comments=None: no # either.
        numbers = np.loadtxt(lines, delimiter=form.delimiter, ndmin=2, comments=None, usecols=places)
    except ValueError:
        return None
    return [Row(values, others) for values, others in zip(numbers, _others(lines, form), strict=True)]


def _others(lines: Sequence[str], form: LineForm) -> Iterable[Sequence[str]]:
    if not form.others:
        return [()] * len(lines)
    cells = (line.rstrip("\r\n").split(form.delimiter) for line in lines)
    return [[row[place] for place in form.others] for row in cells]
