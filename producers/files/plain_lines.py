"""Converts blocks of lines of plain numbers all at once."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shoal.kernels.arrays import Floats, Ints, Octets
from shoal.producers.files.dialect import Dialect
from shoal.producers.files.rows import NumberRows

BLOCK_LINES = 1000


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
    """The rows of these lines, if all are whole, without quotes, and their features are numbers.

    None otherwise, and where numbers have groups of digits. A number is what `float` makes of the
    same text.
    """
    if dialect.thousands or dialect.na_words:
        return None
    numbers = decimals_of(dialect.plain_lines(lines), form)
    if numbers is None:
        numbers = _loaded(lines, form, dialect)
    if numbers is None:
        return None
    return NumberRows(numbers, _others(lines, form))


def _loaded(lines: Sequence[str], form: LineForm, dialect: Dialect) -> Floats | None:
    """The features of these lines as NumPy reads them; None unless all lines are whole numbers."""
    if {line.count(form.delimiter) for line in lines} != {form.width - 1}:
        return None
    # NumPy passes over empty lines, so that its rows would not be those of `_others`.
    if any(map(str.isspace, lines)):
        return None
    # What the `csv` module would refuse is refused here: which of the two reads a block must not
    # matter.
    if '"' in "".join(lines) or max(map(len, lines)) > csv.field_size_limit():
        return None
    places: Sequence[int] | None = form.features
    if list(form.features) == list(range(form.width)):
        places = None
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


POINT = ord(".")


MINUS = ord("-")


ZERO = ord("0")


def decimals_of(lines: Sequence[str], form: LineForm) -> Floats | None:
    """The features of these lines (n, d), if all are decimals of at most 15 digits: `-3.25`.

    Sensors write such. None otherwise. Digits and power of ten are exact as floats then, so that
    their quotient is what `float` gives. Cells of one length are converted together, which takes a
    fraction of the time of one by one.
    """
    text = "".join(lines).replace("\r\n", "\n")
    if not text.endswith("\n"):  # the end of a file
        text += "\n"
    # A \r alone ends a line too, and another delimiter has several bytes in UTF-8.
    if '"' in text or "\r" in text or not form.delimiter.isascii():
        return None
    block = np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8)
    ends = np.flatnonzero((block == ord(form.delimiter)) | (block == ord("\n")))
    if len(ends) != len(lines) * form.width:
        return None
    table = ends.reshape(-1, form.width)
    starts = np.concatenate([[0], ends[:-1] + 1]).reshape(table.shape)
    # A line break ends the last cell of each line, and no other one.
    is_last = block[table] == ord("\n")
    is_whole = not is_last[:, :-1].any() and is_last[:, -1].all()
    if not is_whole or (table[:, -1] - starts[:, 0]).max() > csv.field_size_limit():
        return None
    places = list(form.features)
    first = starts[:, places].ravel()
    lengths = (table - starts)[:, places].ravel()
    numbers = np.empty(len(lengths))
    counts = np.bincount(lengths)
    # The longest cell has a sign, a point and the digits; `counts` begins with length 0.
    if counts[0] or len(counts) > DIGITS_MAX + 3:
        return None
    for length in np.flatnonzero(counts).tolist():
        which: Ints | slice = slice(None)
        if counts[length] < len(lengths):
            which = np.flatnonzero(lengths == length)
        converted = _decimals(sliding_window_view(block, length)[first[which]])
        if converted is None:
            return None
        numbers[which] = converted
    return numbers.reshape(len(lines), -1)


def _decimals(cells: Octets) -> Floats | None:
    """The numbers of m cells of l characters (m, l); None unless all are such decimals."""
    numbers = np.empty(len(cells))
    left = np.arange(len(cells))
    while len(left):
        # Those with the point where the first one has it: mostly all, as sensors write the same
        # number of decimals.
        point = bytes(cells[0]).find(POINT)
        alike = cells[:, point] == POINT if point >= 0 else (cells != POINT).all(axis=1)
        # Not `cells[alike]` of all of them: that would copy the cells.
        converted = _with_point(cells if alike.all() else cells[alike], point)
        if converted is None:
            return None
        numbers[left[alike]] = converted
        left = left[~alike]
        cells = cells[~alike]
    return numbers


def _with_point(cells: Octets, point: int) -> Floats | None:
    """See `_decimals`, of cells whose point is their character `point`; below 0: they have none."""
    columns = [column for column in range(cells.shape[1]) if column != point]
    negative = cells[:, 0] == MINUS
    # Of bytes without a sign: characters before "0" wrap around to more than 9 as well.
    digits = cells - ZERO
    digits[negative, 0] = 0
    if point >= 0:
        digits[:, point] = 0
    # A sign takes the place of a digit, and there is one digit at least.
    fewest = len(columns) - bool(negative.any())
    if fewest < 1 or len(columns) > DIGITS_MAX or (digits > 9).any():
        return None
    weights = np.zeros(cells.shape[1])
    weights[columns] = POWERS[len(columns) - 1 :: -1]
    decimals = cells.shape[1] - 1 - point if point >= 0 else 0
    # Digits and the power of ten are exact, so that only this division rounds, as `float` does.
    numbers: Floats = digits.astype(np.float64) @ weights / POWERS[decimals]
    # Negated, not taken from 0: "-0" is -0.0 for `float`, and the blocks read otherwise are to
    # agree.
    return np.negative(numbers, out=numbers, where=negative)


def _others(lines: Sequence[str], form: LineForm) -> Sequence[Sequence[str]]:
    if not form.others:
        return [()] * len(lines)
    cells = (line.rstrip("\r\n").split(form.delimiter) for line in lines)
    return [[row[place] for place in form.others] for row in cells]
