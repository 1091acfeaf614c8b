"""When a row is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import SettingsError
from shoal.producers.pacing import Pacing, rate_of, speed_of

times = st.lists(st.none() | st.floats(-1e9, 1e9), max_size=50)


def test_without_speed_and_rate_everything_is_due_at_once() -> None:
    pacing = Pacing()
    assert [pacing.due(time, 5.0) for time in (None, 3.0, 1e9)] == [5.0] * 3


def test_a_speed_is_event_time_by_the_clock() -> None:
    pacing = Pacing(speed=60)
    assert [pacing.due(time, 100.0) for time in (1e9, 1e9 + 60, 1e9 + 90)] == [100.0, 101.0, 101.5]


def test_a_row_without_a_time_is_due_with_the_one_ahead_of_it() -> None:
    pacing = Pacing(speed=1)
    assert [pacing.due(time, 100.0) for time in (None, 7.0, None, 9.0)] == [
        100.0,
        100.0,
        100.0,
        102.0,
    ]


def test_a_long_gap_is_not_waited_out() -> None:
    pacing = Pacing(speed=1, longest_wait_s=30)
    assert [pacing.due(time, 0.0) for time in (0.0, 10.0, 1e6, 1e6 + 1)] == [0.0, 10.0, 40.0, 41.0]


def test_a_row_a_little_out_of_order_comes_with_the_one_ahead_and_a_new_beginning_begins_anew() -> (
    None
):
    pacing = Pacing(speed=1, longest_wait_s=30)
    assert [pacing.due(time, 0.0) for time in (0.0, 10.0, 9.0, 11.0)] == [0.0, 10.0, 10.0, 11.0]
    assert [pacing.due(time, 0.0) for time in (-1000.0, -998.0)] == [11.0, 13.0]


def test_a_rate_needs_no_time() -> None:
    pacing = Pacing(rate=4)
    assert [pacing.due(None, 2.0) for _ in range(3)] == [2.0, 2.25, 2.5]


@given(times, st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_no_row_is_due_before_the_one_ahead_or_longer_after_it_than_the_longest_wait(
    times: list[float | None], speed: float, longest: float
) -> None:
    pacing = Pacing(speed=speed, longest_wait_s=longest)
    before = 50.0
    for time in times:
        due = pacing.due(time, 50.0)
        assert before <= due <= before + longest * (1 + 1e-9)
        before = due


def test_speeds_and_rates_are_read_as_people_write_them() -> None:
    assert [speed_of("60x"), speed_of("0.5"), speed_of("max")] == [60.0, 0.5, None]
    assert [rate_of("100/s"), rate_of("2.5")] == [100.0, 2.5]


@pytest.mark.parametrize("text", ["", "0", "-1x", "nan", "inf", "fast", "60y"])
def test_what_is_no_speed_and_no_rate_is_refused_with_what_would_be_one(text: str) -> None:
    with pytest.raises(SettingsError, match="write 60x"):
        speed_of(text)
    with pytest.raises(SettingsError, match="write 100/s"):
        rate_of(text)


def test_a_speed_and_a_rate_together_or_a_pace_of_nothing_are_refused() -> None:
    with pytest.raises(SettingsError, match="not both"):
        Pacing(speed=1, rate=1)
    for options in ({"speed": 0}, {"rate": -1}, {"longest_wait_s": 0}):
        with pytest.raises(SettingsError, match="above 0"):
            Pacing(**options)
