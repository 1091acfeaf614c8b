"""The window of rows from which round requests are answered."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.client_nodes.row_window import RowWindow
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack

ROWS = np.arange(20.0).reshape(10, 2)


def test_an_empty_window_has_no_rows_and_no_time() -> None:
    window = RowWindow(2, rows_max=5)
    window.add(np.empty((0, 2)), [], now=0.0)
    assert window.rows.shape == (0, 2)
    assert window.span == (None, None)


@pytest.mark.parametrize("batch", [1, 3, 10])
def test_it_keeps_the_newest_rows_in_any_batching(batch: int) -> None:
    window = RowWindow(2, rows_max=4)
    for start in range(0, len(ROWS), batch):
        rows = ROWS[start : start + batch]
        window.add(rows, [float(start + n) for n in range(len(rows))], now=99.0)
    assert np.array_equal(window.rows, ROWS[-4:])
    assert window.span == (6.0, 9.0)


def test_rows_too_old_relative_to_the_newest_are_dropped_also_out_of_order() -> None:
    window = RowWindow(2, rows_max=100, age_max_s=5.0)
    window.add(ROWS[:4], [10.0, 3.0, 15.0, 9.9], now=0.0)
    assert np.array_equal(window.rows, ROWS[[0, 2]])
    window.add(ROWS[4:5], [20.1], now=0.0)
    assert np.array_equal(window.rows, ROWS[4:5])


def test_a_row_without_a_time_has_its_time_of_arrival() -> None:
    window = RowWindow(2, rows_max=100, age_max_s=5.0)
    window.add(ROWS[:2], [None, None], now=10.0)
    window.add(ROWS[2:3], [None], now=14.0)
    assert len(window) == 3
    window.add(ROWS[3:4], [None], now=16.0)
    assert np.array_equal(window.rows, ROWS[2:4])
    assert window.span == (None, None)


def test_it_is_restored_also_with_a_smaller_limit() -> None:
    window = RowWindow(2, rows_max=6, age_max_s=100.0)
    window.add(ROWS, [None if n % 2 else float(n) for n in range(10)], now=5.0)
    state = unpack(pack(window.state()), 10**6)
    again = RowWindow(2, 6, 100.0)
    smaller = RowWindow(2, 3, 100.0)
    again.restore(state)
    smaller.restore(state)
    assert np.array_equal(again.rows, window.rows)
    assert again.span == window.span == (4.0, 8.0)
    assert np.array_equal(smaller.rows, ROWS[-3:])
    again.add(ROWS[:1], [50.0], now=0.0)
    assert again.span == (6.0, 50.0)


def test_its_state_is_the_same_part_until_its_rows_change() -> None:
    """A checkpoint stores the same part once, and would keep old rows if a change made no new
    one."""
    window = RowWindow(2, rows_max=5)
    window.add(ROWS[:2], [0.0] * 2, now=0.0)
    first = window.state()
    window.add(np.empty((0, 2)), [], now=1.0)
    assert window.state() is first
    window.add(ROWS[2:3], [2.0], now=2.0)
    second = window.state()
    assert second is not first
    assert (len(first.value["rows"]), len(second.value["rows"])) == (2, 3)
    assert window.state() is second
    window.restore(first.value)
    third = window.state()
    assert third is not second
    assert pack(third) == pack(first)
    assert window.state() is third


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"rows": ROWS, "times": np.zeros(3), "dated": np.zeros(3, dtype=bool)},
        {"rows": ROWS[:, :1], "times": np.zeros(10), "dated": np.zeros(10, dtype=bool)},
        {"rows": ROWS, "times": np.zeros(10), "dated": None},
    ],
)
def test_a_damaged_window_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidState):
        RowWindow(2, 5).restore(wrong)


def test_its_rows_cannot_be_written_to() -> None:
    window = RowWindow(2, rows_max=5)
    given = ROWS.copy()
    window.add(given, [0.0] * 10, now=0.0)
    with pytest.raises(ValueError, match="read-only"):
        window.rows[0, 0] = 1.0
    given[:] = -1
    assert np.array_equal(window.rows, ROWS[-5:])
