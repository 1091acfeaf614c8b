"""Cells of a grid: counts of rows, and groups of adjacent cells that follow changes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.kernels.arrays import Ints
from shoal.kernels.cells import (
    CellCounts,
    add_counts,
    cell_digits,
    cell_numbers,
    cell_places,
    digits_of,
    follow_groups,
    grid_size,
    nearest_cell,
)
from tests.examples import examples

NONE = np.empty(0, dtype=np.int64)
quick = settings(max_examples=examples(150), deadline=None)


def ascending(numbers: Iterable[int]) -> Ints:
    return np.unique(np.array(list(numbers), dtype=np.int64))


def by_flooding(numbers: Ints, cells: int, d: int) -> list[int]:
    """The groups as a search in plain Python finds them, each named by its first cell."""
    digits = {
        int(n): tuple(row)
        for n, row in zip(numbers, digits_of(numbers, cells, d).tolist(), strict=True)
    }
    group: dict[int, int] = {}
    for first in sorted(digits):
        waiting = [first]
        while waiting:
            cell = waiting.pop()
            if cell in group:
                continue
            group[cell] = first
            waiting += [
                other
                for other, place in digits.items()
                if max(abs(a - b) for a, b in zip(place, digits[cell], strict=True)) <= 1
            ]
    order = {first: number for number, first in enumerate(sorted(set(group.values())))}
    return [order[group[cell]] for cell in sorted(digits)]


def groups(numbers: Ints, cells: int, d: int) -> Ints:
    return follow_groups(NONE, NONE, numbers, cells, d).group


@pytest.mark.parametrize(("d", "cells"), [(1, 40), (2, 7), (3, 4), (6, 2)])
@quick
@given(data=st.data())
def test_groups_that_follow_changes_are_those_of_a_search_from_the_start(
    d: int, cells: int, data: st.DataObject
) -> None:
    sets = st.sets(st.integers(0, cells**d - 1), max_size=40)
    before = NONE
    group = NONE
    for _ in range(4):
        now = ascending(data.draw(sets))
        group = follow_groups(before, group, now, cells, d).group
        assert group.tolist() == by_flooding(now, cells, d)
        before = now


@quick
@given(gone=st.sets(st.integers(0, 80), max_size=60))
def test_cells_that_go_from_a_full_grid_leave_the_right_parts(gone: set[int]) -> None:
    full = np.arange(81, dtype=np.int64)
    left = ascending(set(range(81)) - gone)
    assert follow_groups(full, groups(full, 9, 2), left, 9, 2).group.tolist() == by_flooding(
        left, 9, 2
    )


def test_without_cells_there_are_no_groups() -> None:
    assert follow_groups(NONE, NONE, NONE, 5, 2).group.shape == (0,)
    assert follow_groups(ascending([3, 4]), np.zeros(2, np.int64), NONE, 5, 2).group.shape == (0,)


@pytest.mark.parametrize("side", [20, 40, 80])
def test_one_change_is_looked_at_alone_however_large_the_map_is(side: int) -> None:
    """Counted, not timed: the cells whose neighbours are looked up."""
    cells = 100
    block = ascending(row * cells + column for row in range(side) for column in range(side))
    group = groups(block, cells, 2)
    assert follow_groups(NONE, NONE, block, cells, 2).visited == side * side
    assert follow_groups(block, group, block, cells, 2).visited == 0
    hole = block[block != 5 * cells + 5]
    assert follow_groups(block, group, hole, cells, 2).visited <= 8
    assert follow_groups(hole, groups(hole, cells, 2), block, cells, 2).visited == 1


def test_a_small_part_that_is_cut_off_costs_its_own_size_and_not_that_of_the_rest() -> None:
    cells = 200
    large = [row * cells + column for row in range(60) for column in range(60)]
    tail = [30 * cells + column for column in range(60, 70)]
    whole = ascending(large + tail)
    bridge = 30 * cells + 60
    cut = whole[whole != bridge]
    found = follow_groups(whole, groups(whole, cells, 2), cut, cells, 2)
    assert found.group.max() == 1
    assert np.bincount(found.group).tolist() == [3600, 9]
    assert found.visited <= 40


@quick
@given(data=st.data(), cells=st.integers(2, 9), d=st.integers(1, 4))
def test_numbers_and_digits_are_inverse_and_in_the_same_order(
    data: st.DataObject, cells: int, d: int
) -> None:
    numbers = ascending(data.draw(st.sets(st.integers(0, cells**d - 1), max_size=20)))
    digits = digits_of(numbers, cells, d)
    assert cell_numbers(digits, cells).tolist() == numbers.tolist()
    assert sorted(map(tuple, digits.tolist())) == list(map(tuple, digits.tolist()))


def test_the_largest_grid_has_numbers_that_fit() -> None:
    last = np.full((1, 6), 999)
    assert cell_numbers(last, 1000).tolist() == [10**18 - 1]
    corner = cell_numbers(last, 1000)
    assert follow_groups(NONE, NONE, corner, 1000, 6).group.tolist() == [0]


def test_rows_beyond_the_grid_are_in_its_nearest_cell_and_a_feature_without_range_has_one() -> None:
    rows = np.array([[-9.0, 3.0], [0.0, 3.0], [0.999, 3.0], [1.0, 3.0], [1e150, 3.0]])
    places = cell_places(rows, np.array([0.0, 3.0]), np.array([0.1, 0.0]))
    assert cell_digits(places, 10).tolist() == [[0, 0], [0, 0], [9, 0], [9, 0], [9, 0]]


@pytest.mark.parametrize("cells", [10, 300])
def test_a_table_and_a_list_of_cells_count_the_same(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.kernels.cells.MERGE_MIN", 50)
    numbers = np.random.default_rng(0).integers(0, cells**2, 3000)
    grid = cells, np.zeros(2), np.ones(2)
    counts = CellCounts(*grid)
    for part in np.array_split(digits_of(numbers, cells, 2) + 0.5, 17):
        counts.add(part)
    found, count = counts.total()
    once, wanted = np.unique(numbers, return_counts=True)
    assert found.tolist() == once.tolist()
    assert count.tolist() == wanted.tolist()
    assert [array.tolist() for array in counts.total()] == [found.tolist(), count.tolist()]
    assert [len(array) for array in CellCounts(*grid).total()] == [0, 0]
    assert [
        array.tolist() for array in add_counts(np.array([4, 1, 4]), np.array([1.0, 2.0, 3.0]))
    ] == [[1, 4], [2, 4]]


def test_the_nearest_cell_is_the_own_one_or_one_in_reach_and_of_a_tie_the_first() -> None:
    cells = ascending([11, 14, 55])
    places = np.array(
        [[1.5, 1.9], [1.5, 3.0], [1.5, 2.9], [5.5, 7.9], [5.5, 8.1], [-70.0, 1.5], [1.2, 4.01]]
    )
    assert nearest_cell(places, cells, 10, 2).tolist() == [0, 0, 0, 2, -1, 0, 1]
    assert nearest_cell(places, cells, 10, 0).tolist() == [0, -1, -1, -1, -1, -1, 1]
    assert nearest_cell(places, NONE, 10, 2).tolist() == [-1] * 7
    assert nearest_cell(places[:0], cells, 10, 2).shape == (0,)


def test_a_grid_has_as_many_cells_as_wanted_at_most() -> None:
    assert [grid_size(d, 4096, 32) for d in range(1, 7)] == [32, 32, 16, 8, 5, 4]
    assert grid_size(20, 4096, 32) == 2
