"""Times of the readings of an update: bounded, the same however they come, and without outliers in
their span."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.client_nodes.intake import TimeSpan
from shoal.client_nodes.reading_times import GROUPS_MAX, ReadingTimes, ReadingTimesState, span_of
from shoal.errors import InvalidState
from tests.client_nodes.site import Site, readings
from tests.small_plant import OFF, plant

NOON = 1.7e9
DAY_S = 86_400.0
MOMENTS = st.floats(-1e11, 1e11) | st.sampled_from([0.0, NOON, NOON + 1]) | st.none()


def spaced(n: int, step_s: float, begin: float = NOON) -> list[float | None]:
    return [begin + step_s * number for number in range(n)]


def times_of(*parts: list[float | None]) -> ReadingTimes:
    times = ReadingTimes()
    for part in parts:
        times.add(part)
    return times


def test_without_times_there_is_no_span() -> None:
    for times in (times_of(), times_of([]), times_of([None, None])):
        assert times.span == TimeSpan(None, None)
        assert times.left_out == 0
    assert span_of(np.empty(0)) == TimeSpan(None, None)


@pytest.mark.parametrize("step_s", [0.0, 1e-3, 1.0, 300.0, 7.3 * DAY_S])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 500])
def test_the_span_of_times_at_equal_intervals_is_that_of_all(n: int, step_s: float) -> None:
    times = times_of(spaced(n, step_s))
    assert times.span == TimeSpan(NOON, NOON + step_s * (n - 1))
    assert times.left_out == 0


@pytest.mark.parametrize("strange", [0.0, NOON - 10 * DAY_S, NOON + 400 * DAY_S, -1e9])
@pytest.mark.parametrize("number", [1, 20])
def test_a_time_far_from_all_others_is_left_out_and_counted(strange: float, number: int) -> None:
    usual = spaced(500, 60.0)
    times = times_of(usual[:250], [strange] * number, usual[250:])
    assert times.span == TimeSpan(NOON, NOON + 60.0 * 499)
    assert times.left_out == number


def test_readings_that_come_in_bursts_and_a_pause_of_a_sensor_keep_their_times() -> None:
    burst = times_of([NOON] * 400, spaced(20, 60.0, NOON + 600.0))
    assert burst.span == TimeSpan(NOON, NOON + 600.0 + 60.0 * 19)
    pause = times_of(spaced(250, 60.0), spaced(250, 60.0, NOON + 5 * DAY_S))
    assert pause.left_out == 0


def test_of_few_times_none_is_an_outlier() -> None:
    assert times_of([0.0, NOON, NOON + 1]).left_out == 0


@given(st.lists(MOMENTS, max_size=200), st.randoms())
def test_groups_depend_on_no_order_and_no_cuts(moments: list[float | None], random: object) -> None:
    shuffled = list(moments)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # a strategy gives a random.Random
    whole = times_of(moments).state()
    single = times_of(*([moment] for moment in shuffled)).state()
    assert whole.width_power == single.width_power
    assert np.array_equal(whole.groups, single.groups)
    assert len(whole.groups) <= GROUPS_MAX
    assert whole.groups[:, 2].sum() == sum(moment is not None for moment in moments)
    known = [moment for moment in moments if moment is not None]
    if known:
        assert whole.groups[0, 0] == min(known)
        assert whole.groups[:, 1].max() == max(known)


def test_times_go_on_from_a_saved_state() -> None:
    first = times_of(spaced(300, 77.7), [0.0])
    second = ReadingTimes()
    second.restore(ReadingTimesState.read(first.state().saved()))
    for times in (first, second):
        times.add(spaced(100, 3.0, NOON + 1e6))
    assert first.span == second.span
    assert first.state().saved().keys() == second.state().saved().keys()
    assert np.array_equal(first.state().groups, second.state().groups)


@pytest.mark.parametrize(
    "groups",
    [
        [[2.0, 1.0, 1.0]],
        [[5.0, 6.0, 1.0], [1.0, 2.0, 1.0]],
        [[1.0, 2.0, 0.0]],
        [[float(n), float(n), 1.0] for n in range(GROUPS_MAX + 1)],
    ],
)
def test_groups_that_cannot_be_are_refused(groups: list[list[float]]) -> None:
    with pytest.raises(InvalidState):
        ReadingTimesState.read({"width_power": 0, "groups": np.array(groups)})


def test_one_clock_of_1970_takes_no_update_out_of_its_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, plant(OFF), publish_readings=50)
    values = readings(400)
    site.add_readings(values[:120])
    site.add_readings(values[120:121], started_at=0.0)
    site.add_readings(values[121:], started_at=1e9 + 121)
    with caplog.at_level(logging.WARNING):
        site.run()
    updates = site.updates()
    assert sum(update.readings for update in updates) == 400, "it is learnt all the same"
    assert [(update.oldest_reading_at, update.newest_reading_at) for update in updates] == [
        (1e9 + 50 * number, 1e9 + 50 * number + 49) for number in range(8)
    ]
    assert caplog.text.count("times_left_out") == 1
