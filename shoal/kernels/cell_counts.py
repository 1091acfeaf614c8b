"""The number of rows in each cell of a grid (`shoal.kernels.cells`), in memory that the occupied cells need.

A grid of few cells is counted in a table of all of them. For more, NumPy's form collects the numbers of cells and sorts
them from time to time; the compiled form counts in a hash table. Counts are whole numbers, so both find the same.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.kernels import forms
from shoal.kernels.cells import Ints, cell_digits, cell_numbers, cell_places
from shoal.kernels.distance import Floats

TABLE_MAX: Final = 1 << 16
"""cells up to which a grid is counted in a table of all its cells"""
MERGE_MIN: Final = 1 << 16
"""cells that are collected at least before equal ones are added up"""
SLOTS: Final = (1 << 12, 1 << 18)
"""of the hash table, at first and at most: powers of 2. A slot takes 16 bytes"""
GROWTH: Final = 4
"""by which factor the hash table becomes larger"""
FREE: Final = -1
"""in a slot that holds no cell"""
SHARE_OF_LEARNING: Final = 0.002
"""time to count a row, relative to that in which CA+ learns one: how soon the compiled form is worth loading"""


class CellCounts:
    """Counts rows by the cells of one grid."""

    def __init__(self, cells: int, low: Floats, step: Floats) -> None:
        """`cells` along each feature, the lower corner (d,) of the grid and its step (d,), 0 along features without
        range."""
        self._cells, self._low, self._step = cells, np.ascontiguousarray(low), np.ascontiguousarray(step)
        self._in_table = cells ** len(low) <= TABLE_MAX
        self._table = np.zeros(cells ** len(low) if self._in_table else 0, dtype=np.int64)
        self._slots: Ints = np.empty((0, 2), dtype=np.int64)
        """cell and count in each slot of the hash table, `FREE` where there is none"""
        self._room = 0
        """cells for which the hash table has room: half of its slots stay free"""
        self._number, self._count = np.empty(0, dtype=np.int64), np.empty(0)
        self._pending: list[tuple[Ints, Floats]] = []
        self._n_pending = 0

    def add(self, rows: Floats) -> None:
        """Count rows (n, d)."""
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows))
        if compiled is None:
            numbers = cell_numbers(cell_digits(cell_places(rows, self._low, self._step), self._cells), self._cells)
            if self._in_table:
                self._table += np.bincount(numbers, minlength=len(self._table))
            else:
                self._collect(numbers, np.broadcast_to(1.0, len(numbers)))
            return
        rows, grid = np.ascontiguousarray(rows), (self._low, self._step, self._cells)
        if self._in_table:
            compiled.count_in_table(rows, *grid, self._table)
            return
        while len(rows):
            if not self._room:
                self._enlarge_slots()
            counted, come = compiled.count_in_slots(rows, *grid, self._slots, self._room)
            rows, self._room = rows[counted:], self._room - come

    def total(self) -> tuple[Ints, Floats]:
        """-> numbers of the occupied cells (p,), ascending, and the rows in each (p,)."""
        if self._in_table:
            occupied = np.flatnonzero(self._table)
            return occupied.astype(np.int64), self._table[occupied].astype(np.float64)
        self._empty_slots()
        self._merge()
        return self._number, self._count

    def _enlarge_slots(self) -> None:
        """Collect what is in the hash table, and begin a larger one."""
        size = min(max(GROWTH * len(self._slots), SLOTS[0]), SLOTS[1])
        self._empty_slots()
        self._slots, self._room = np.full((size, 2), FREE, dtype=np.int64), size // 2

    def _empty_slots(self) -> None:
        taken = self._slots[self._slots[:, 0] != FREE]
        self._slots, self._room = self._slots[:0], 0
        self._collect(taken[:, 0], taken[:, 1].astype(np.float64))

    def _collect(self, numbers: Ints, counts: Floats) -> None:
        self._pending.append((numbers, counts))
        self._n_pending += len(numbers)
        # Merging only when there is as much to merge as there is already keeps the work per row constant.
        if self._n_pending > max(MERGE_MIN, len(self._number)):
            self._merge()

    def _merge(self) -> None:
        numbers, counts = zip((self._number, self._count), *self._pending, strict=True)
        self._number, self._count = add_counts(np.concatenate(numbers), np.concatenate(counts))
        self._pending, self._n_pending = [], 0


def add_counts(numbers: Ints, counts: Floats) -> tuple[Ints, Floats]:
    """numbers (n,) that may repeat, counts (n,) -> each number once, ascending, and the sum of its counts."""
    once, place = np.unique(numbers, return_inverse=True)
    return once, np.bincount(place.reshape(-1), counts, len(once)).astype(np.float64)
