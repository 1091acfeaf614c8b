"""Cells of a grid: their numbers, groups of adjacent cells that follow changes, and the rows
counted in each.

A grid has the same number of cells along each of d features. A cell is known by its number: its
place along each feature is a digit, the last feature's is the last one. Cells are adjacent if no
digit differs by more than 1.

Counting takes the memory that the occupied cells need. A grid of few cells is counted in a table of
all of them. For more, NumPy's form collects the numbers of cells and sorts them from time to time;
the compiled form counts in a hash table. Counts are whole numbers, so both find the same.
"""

from __future__ import annotations

from collections import deque
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from shoal.kernels import forms
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.graph import components

OFFSETS_ROWS: Final = 1 << 16
"""digits of neighbours that are computed at a time"""
NEAR_ELEMENTS: Final = 1 << 18
"""numbers that are compared at a time to find near cells"""


def cell_places(rows: Floats, low: Floats, step: Floats) -> Floats:
    """rows (n, d) -> (n, d) how many steps each row lies above `low`; 0 along features whose step
    is 0."""
    above = rows - low
    # A row far away overflows to infinity, and the last cell takes it in.
    with np.errstate(over="ignore"):
        return np.asarray(np.divide(above, step, out=np.zeros_like(above), where=step > 0))


def cell_digits(places: Floats, cells: int) -> Ints:
    """places (n, d) -> (n, d) digits of the cell of each; rows beyond the grid are in its nearest
    cell."""
    # Clipped before the cast: a float beyond 64 bits has no integer.
    return np.clip(places, 0, cells - 1).astype(np.int64)


def cell_numbers(digits: Ints, cells: int) -> Ints:
    """digits (n, d) -> (n,) numbers of the cells."""
    return np.asarray(digits @ _weights(digits.shape[1], cells))


def digits_of(numbers: Ints, cells: int, d: int) -> Ints:
    """numbers (n,) -> (n, d) digits."""
    return np.asarray(numbers[:, None] // _weights(d, cells) % cells)


def cell_middles(numbers: Ints, low: Floats, step: Floats, cells: int) -> Floats:
    """numbers (n,) -> (n, d) the middles of the cells."""
    return np.asarray(low + (digits_of(numbers, cells, len(low)) + 0.5) * step)


def _weights(d: int, base: int) -> Ints:
    # The first feature counts most, so that keys are sorted as their digits are.
    return np.array([base**power for power in reversed(range(d))], dtype=np.int64)


def grid_size(d: int, wanted: int, most: int) -> int:
    """Cells along each of d features that make at most `wanted` cells together; 2 to `most`."""
    return next((cells for cells in range(most, 2, -1) if cells**d <= wanted), 2)


def nearest_cell(places: Floats, numbers: Ints, cells: int, reach: int) -> Ints:
    """places (n, d) in steps, numbers of cells (m,) in ascending order -> (n,) the position of a
    cell for each place.

    It is the cell that the place is in, or the one whose middle is nearest among those at most
    `reach` cells away along each feature, the first of a tie; -1 if there is none. Places beyond
    the grid count as on its edge.
    """
    found = np.full(len(places), -1, dtype=np.int64)
    if not len(numbers) or not len(places):
        return found
    places = np.clip(places, 0, cells)
    own = cell_digits(places, cells)
    number = cell_numbers(own, cells)
    # A number beyond the last one would be looked up behind the end.
    position = np.minimum(np.searchsorted(numbers, number), len(numbers) - 1)
    inside = numbers[position] == number
    found[inside] = position[inside]
    others = np.flatnonzero(~inside)
    if reach == 0:
        return found
    digits = digits_of(numbers, cells, places.shape[1])
    height = max(1, NEAR_ELEMENTS // digits.size)
    for first in range(0, len(others), height):
        part = others[first : first + height]
        away = np.abs(own[part, None, :] - digits).max(axis=2)
        far = np.square(places[part, None, :] - (digits + 0.5)).sum(axis=2)
        far[away > reach] = np.inf
        nearest = far.argmin(axis=1)
        found[part] = np.where(np.isfinite(far[np.arange(len(part)), nearest]), nearest, -1)
    return found


class Groups(NamedTuple):
    """Cells grouped by adjacency."""

    group: Ints
    """(m,) group of each cell, numbered in the order of the first cells"""
    visited: int
    """cells whose neighbours have been looked up"""


def follow_groups(before: Ints, group_before: Ints, now: Ints, cells: int, d: int) -> Groups:
    """The groups of adjacent cells `now` (m,), from those of the cells `before` (b,), both
    ascending.

    The result depends on `now` alone. Looked at are the cells that have come or gone, and, where
    cells that have gone may have split a group, those around the gap: its sides are searched in
    turn until they meet or all but one have ended, so that the cost of a part that was cut off
    grows with its size.
    """
    graph = _Graph(now, cells, d)
    kept = np.isin(now, before, assume_unique=True)
    label = np.full(len(now), -1, dtype=np.int64)
    label[kept] = group_before[np.searchsorted(before, now[kept])]
    n_labels = int(group_before.max(initial=-1)) + 1
    for part in _parts_cut_off(graph, before[~np.isin(before, now, assume_unique=True)], label):
        label[part] = n_labels
        n_labels += 1
    come = np.flatnonzero(~kept)
    label[come] = n_labels + np.arange(len(come))
    # The smaller label first, so that a pair and its reverse are one.
    joined = np.unique(np.sort(label[graph.pairs(now[come])], axis=1), axis=0)
    return Groups(numbered_by_first(_merged(n_labels + len(come), joined)[label]), graph.visited)


def numbered_by_first(label: Ints) -> Ints:
    """label (m,) -> (m,) the same groups, numbered in the order in which they first appear."""
    _, first, place = np.unique(label, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    # The first places differ from each other, so the order needs no rule for ties.
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[place.reshape(-1)]


def _merged(n_labels: int, joined: Ints) -> Ints:
    """Labels that are joined (e, 2) -> (n,) one of them for each label, the same for all that hang
    together."""
    into = np.arange(n_labels)
    touched, place = np.unique(joined, return_inverse=True)
    if len(touched) == 0:
        return into
    component = components(len(touched), place.reshape(-1, 2))
    first_of_component = np.unique(component, return_index=True)[1]
    into[touched] = touched[first_of_component[component]]
    return into


class _Graph:
    """The cells of a set and their adjacency. It counts the cells whose neighbours are looked
    up."""

    def __init__(self, numbers: Ints, cells: int, d: int) -> None:
        """`numbers` (m,) are ascending."""
        self.numbers = numbers
        self._cells = cells
        self._d = d
        self._steps = np.array(
            [step for step in product((-1, 0, 1), repeat=d) if any(step)], dtype=np.int64
        )
        self.visited = 0

    def pairs(self, wanted: Ints) -> Ints:
        """wanted (w,) cells -> (e, 2) positions in the set of each that is in it, and of a
        neighbour in the set."""
        of, neighbour = self._beside(wanted)
        return np.stack([np.searchsorted(self.numbers, wanted[of]), neighbour], axis=1)

    def neighbours(self, wanted: Ints) -> Ints:
        """wanted (w,) cells -> the positions in the set of all their neighbours, some
        repeatedly."""
        return self._beside(wanted)[1]

    def _beside(self, wanted: Ints) -> tuple[Ints, Ints]:
        """wanted (w,) -> positions in `wanted` (e,), and in the set of a neighbour of each (e,)."""
        self.visited += len(wanted)
        digits = digits_of(wanted, self._cells, self._d)
        found_of = [np.empty(0, dtype=np.int64)]
        found = [np.empty(0, dtype=np.int64)]
        offsets = self._steps @ _weights(self._d, self._cells)
        # In portions: 3^d neighbours of all cells at once would fill the memory in six dimensions.
        height = max(1, OFFSETS_ROWS // max(1, digits.size))
        for first in range(0, len(offsets) if len(self.numbers) else 0, height):
            moved = digits[:, None, :] + self._steps[first : first + height]
            inside = ((moved >= 0) & (moved < self._cells)).all(axis=2)
            of = np.nonzero(inside)[0]
            beside = (wanted[:, None] + offsets[first : first + height])[inside]
            # Beyond the last number the search ends one too far; the comparison decides.
            place = np.minimum(np.searchsorted(self.numbers, beside), len(self.numbers) - 1)
            hit = self.numbers[place] == beside
            found_of.append(of[hit])
            found.append(place[hit])
        return np.concatenate(found_of), np.concatenate(found)


def _parts_cut_off(graph: _Graph, gone: Ints, label: Ints) -> list[Ints]:
    """The positions of the cells in each part that the cells `gone` have cut off from the rest of
    its group."""
    beside = np.unique(graph.neighbours(gone))
    beside = beside[label[beside] >= 0]
    parts = []
    for group in np.unique(label[beside]).tolist():
        parts += _separate(graph, beside[label[beside] == group].tolist(), label, group)
    return parts


def _separate(graph: _Graph, seeds: list[int], label: Ints, group: int) -> list[Ints]:
    """The parts of a group that do not hang together, but for one of them; each of them holds one
    of the `seeds`.

    One search from each seed, in turn one cell each. Two that meet become one; one that ends has
    found a whole part.
    """
    owner = {seed: seed for seed in seeds}
    met: dict[int, int] = {}
    """search -> the one that it has become part of"""
    members = {seed: [seed] for seed in seeds}
    frontier = {seed: deque([seed]) for seed in seeds}
    # In turn: the work is that of the smaller parts, however large the one that is left is.
    ended = []
    searching = deque(seeds)
    while len(searching) > 1:
        search = searching.popleft()
        if not frontier[search]:
            ended.append(np.array(members[search], dtype=np.int64))
            continue
        beside = graph.neighbours(graph.numbers[[frontier[search].popleft()]])
        for place in beside[label[beside] == group].tolist():
            # -1: no search has come here yet.
            other = owner.setdefault(place, -1)
            # Follow it to the search that it is part of by now.
            while other in met:
                other = met[other]
            if other == search:
                continue
            owner[place] = search
            if other < 0:
                members[search].append(place)
                frontier[search].append(place)
                continue
            met[other] = search
            members[search] += members.pop(other)
            frontier[search] += frontier.pop(other)
            searching.remove(other)
        searching.append(search)
    return ended


TABLE_MAX: Final = 1 << 16
"""cells up to which a grid is counted in a table of all its cells"""
MERGE_MIN: Final = 1 << 16
"""cells that are collected at least before equal ones are added up"""
SLOTS: Final = (1 << 12, 1 << 18)
"""slots of the hash table, at first and at most: powers of 2. A slot takes 16 bytes"""
GROWTH: Final = 4
"""the factor by which the hash table becomes larger"""
FREE: Final = -1
"""content of a slot without a cell"""
SHARE_OF_LEARNING: Final = 0.002
"""time to count a row, relative to that in which CA+ learns one: how soon the compiled form is
worth loading"""


class CellCounts:
    """Counts rows by the cells of one grid."""

    def __init__(self, cells: int, low: Floats, step: Floats) -> None:
        """`cells` along each feature, the lower corner (d,) of the grid and its step (d,), 0 along
        features without range."""
        self._cells = cells
        self._low = np.ascontiguousarray(low)
        self._step = np.ascontiguousarray(step)
        self._in_table = cells ** len(low) <= TABLE_MAX
        # In two features a grid that is too large for a table is so fine that nearly every row has
        # a cell of its own, and a hash table gains nothing: an answer to 20 000 rows took .71 to
        # .78 of its time with NumPy's form. In 3 features it took 1.5 times that, in 8 2.4 times.
        self._few_alike = not self._in_table and len(low) <= 2
        # Only where it is used: a table of all cells of many features would fill the memory.
        table_cells = cells ** len(low) if self._in_table else 0
        self._table = np.zeros(table_cells, dtype=np.int64)
        self._slots: Ints = np.empty((0, 2), dtype=np.int64)
        """cell and count in each slot of the hash table, `FREE` where there is none"""
        self._room = 0
        """cells for which the hash table has room: half of its slots stay free"""
        self._number = np.empty(0, dtype=np.int64)
        self._count = np.empty(0)
        self._pending: list[tuple[Ints, Floats]] = []
        self._n_pending = 0

    def add(self, rows: Floats) -> None:
        """Count rows (n, d)."""
        compiled = forms.PROCESS.compiled_for(SHARE_OF_LEARNING * len(rows))
        if compiled is None or self._few_alike:
            numbers = cell_numbers(
                cell_digits(cell_places(rows, self._low, self._step), self._cells), self._cells
            )
            if self._in_table:
                self._table += np.bincount(numbers, minlength=len(self._table))
            else:
                self._collect(numbers, np.broadcast_to(1.0, len(numbers)))
            return
        rows = np.ascontiguousarray(rows)
        grid = (self._low, self._step, self._cells)
        if self._in_table:
            compiled.count_in_table(rows, *grid, self._table)
            return
        while len(rows):
            if not self._room:
                self._enlarge_slots()
            counted, come = compiled.count_in_slots(rows, *grid, self._slots, self._room)
            rows = rows[counted:]
            self._room = self._room - come

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
        self._slots = np.full((size, 2), FREE, dtype=np.int64)
        self._room = size // 2

    def _empty_slots(self) -> None:
        taken = self._slots[self._slots[:, 0] != FREE]
        self._slots = self._slots[:0]
        self._room = 0
        self._collect(taken[:, 0], taken[:, 1].astype(np.float64))

    def _collect(self, numbers: Ints, counts: Floats) -> None:
        self._pending.append((numbers, counts))
        self._n_pending += len(numbers)
        # Merging only when there is as much to merge as there is already keeps the work per row
        # constant.
        if self._n_pending > max(MERGE_MIN, len(self._number)):
            self._merge()

    def _merge(self) -> None:
        numbers, counts = zip((self._number, self._count), *self._pending, strict=True)
        self._number, self._count = add_counts(np.concatenate(numbers), np.concatenate(counts))
        self._pending = []
        self._n_pending = 0


def add_counts(numbers: Ints, counts: Floats) -> tuple[Ints, Floats]:
    """numbers (n,) that may repeat, counts (n,) -> each number once, ascending, and the sum of its
    counts."""
    once, place = np.unique(numbers, return_inverse=True)
    return once, np.bincount(place.reshape(-1), counts, len(once)).astype(np.float64)
