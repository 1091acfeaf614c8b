"""Rows of tables, their features apart from their other cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.producers.files.parsing import values_of_rows
from shoal.protocol.readings import RowsOfValues


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
        if isinstance(place, slice):
            return NumberRows(self.values[place], self.others[place])
        return Row(self.values[place], self.others[place])

    def select(self, places: Sequence[int]) -> NumberRows:
        """The rows at these places."""
        return NumberRows(
            self.values[np.asarray(places, dtype=np.intp)], [self.others[place] for place in places]
        )


Rows = Sequence[Row | None]
"""consecutive rows of a table; None for a broken one"""


def others_of(rows: Rows) -> Sequence[Sequence[Any] | None]:
    """`Row.others` of each row; None for a broken one."""
    if isinstance(rows, NumberRows):
        return rows.others
    return [None if row is None else row.others for row in rows]


def values_in(rows: Rows) -> RowsOfValues:
    """`Reading.values` of each row, none of a broken one."""
    if isinstance(rows, NumberRows):
        return rows.values
    # All cells that are not converted yet at once: row by row takes several times as long.
    cells = []
    for row in rows:
        if row is not None and not isinstance(row.features, np.ndarray):
            cells.append(row.features)
    converted = iter(values_of_rows(cells))
    values: list[Floats | list[Any]] = []
    for row in rows:
        if row is None:
            values.append([])
        elif isinstance(row.features, np.ndarray):
            values.append(row.features)
        else:
            values.append(next(converted))
    return values


def features_apart(rows: Iterable[Sequence[Any] | None], features: int) -> Iterator[Rows]:
    """Rows whose first cells are `features` features, taken apart, in blocks of one."""
    for cells in rows:
        if cells is None:
            yield [None]
        else:
            yield [Row(cells[:features], cells[features:])]
