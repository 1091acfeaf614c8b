"""Features that repeat one value far longer than ever before, in weeks of readings of which it is
known when a sensor was stuck."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.client_nodes.labelling.stuck import LONGEST, RESTS, StuckWatch, tail_of
from shoal.config.contract import Contract
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack
from shoal.protocol.events import SiteEvent

DAY = 86_400
STEP = 300
PER_DAY = DAY // STEP
MONDAY = 1_609_718_400
"""2021-01-04T00:00:00Z"""
Readings = NDArray[np.float64]


def contract(*features: dict[str, object]) -> Contract:
    return Contract.model_validate(
        {
            "federation": "office",
            "features": [{"low": 0.0, "high": 2000.0, **feature} for feature in features],
            "privacy": {"mode": "off"},
            "models": [{"name": "clusters", "algorithm": "cluster_tree"}],
        }
    )


ROOM = contract({"name": "temperature"}, {"name": "light"}, {"name": "count"}, {"name": "mode"})


def times_of(n: int) -> list[float]:
    return [float(MONDAY + STEP * number) for number in range(n)]


def room(days: int, seed: int = 0, holiday: range = range(0)) -> Readings:
    """(n, 4): a temperature with one decimal, light that is 0 at night, on weekends and in the
    holiday, a constant, and a mode that is one of three for hours."""
    rng = np.random.default_rng(seed)
    n = days * PER_DAY
    at = np.arange(n)
    day = at // PER_DAY
    hour = at % PER_DAY / PER_DAY * 24
    is_work = (day % 7 < 5) & (hour >= 7) & (hour < 18) & ~np.isin(day, list(holiday))
    wandering = np.cumsum(rng.normal(0, 0.02, n)) * 0.2
    temperature = 21 + 1.5 * np.sin(hour / 24 * 2 * np.pi) + wandering + rng.normal(0, 0.03, n)
    light = np.where(is_work, np.round(rng.normal(400, 40, n)), 0.0)
    changes = rng.random(n) < 1 / 40
    mode = rng.integers(0, 3, n)[np.maximum.accumulate(np.where(changes, at, 0))]
    return np.column_stack([temperature.round(1), light, np.full(n, 7.0), mode])


def found(
    values: Readings, agreed: Contract = ROOM, times: Sequence[float | None] | None = None
) -> list[SiteEvent]:
    watch = StuckWatch(agreed, "attic", 0.5)
    return run(watch, values, times_of(len(values)) if times is None else times)


def run(
    watch: StuckWatch, values: Readings, times: Sequence[float | None], piece: int = 1000
) -> list[SiteEvent]:
    events = []
    for start in range(0, len(values), piece):
        end = min(start + piece, len(values))
        places = [(0, number) for number in range(start, end)]
        events += watch.follow(values[start:end], times[start:end], places)
    return events


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_stuck_in_months_of_rounded_values_nights_modes_and_a_constant(
    seed: int,
) -> None:
    assert found(room(90, seed)) == []


def test_a_holiday_of_a_week_between_two_weekends_is_no_sensor_that_is_stuck() -> None:
    assert found(room(60, holiday=range(42, 47))) == []


def test_a_sensor_that_is_stuck_is_found_within_hours_and_said_to_be_over() -> None:
    values = room(60)
    first = 40 * PER_DAY + 100
    last = first + 2 * PER_DAY
    values[first:last, 0] = values[first - 1, 0] + 0.1
    events = found(values)
    assert [event.kind for event in events] == ["stuck", "stuck_ended"]
    stuck, ended = events
    assert {event.feature for event in events} == {"temperature"}
    at = int(stuck.id.split("/")[2])
    assert first < at < first + PER_DAY / 2, "within half a day"
    assert stuck.at == times_of(len(values))[at]
    assert stuck.readings == at - first + 1
    assert f"({stuck.readings} readings)" in stuck.text
    assert "in 41 days before had" in stuck.text
    assert int(ended.id.split("/")[2]) >= last
    assert ended.readings >= 2 * PER_DAY
    assert str(values[first, 0]) not in stuck.text + ended.text, "the value itself is in no event"


def test_a_light_that_is_stuck_by_day_is_not_hidden_by_its_nights() -> None:
    values = room(60)
    first = 45 * PER_DAY + 9 * PER_DAY // 24
    values[first : first + PER_DAY // 6, 1] = 431.0
    kinds = [(event.kind, event.feature) for event in found(values)]
    assert kinds == [("stuck", "light"), ("stuck_ended", "light")]


def test_a_light_that_stays_dark_for_weeks_is_found() -> None:
    values = room(90)
    values[50 * PER_DAY :, 1] = 0.0
    (event,) = found(values)
    assert (event.kind, event.feature) == ("stuck", "light")


def test_all_features_of_a_device_that_hangs_are_found() -> None:
    values = room(60)
    noon = 50 * PER_DAY + PER_DAY // 2
    values[noon:] = values[noon]
    features = {event.feature for event in found(values) if event.kind == "stuck"}
    assert {"temperature", "light"} <= features
    assert "count" not in features, "it has never been otherwise"


def test_what_was_found_raises_the_threshold_and_a_second_time_is_found_too() -> None:
    values = room(90)
    for day in (40, 70):
        values[day * PER_DAY : (day + 3) * PER_DAY, 0] = 20.4
    delays = []
    for event in found(values):
        if event.kind == "stuck":
            delays.append(event.readings)
    assert len(delays) == 2
    assert delays[0] < delays[1] <= 5 * delays[0]


def test_gaps_and_readings_without_a_feature_lengthen_no_run() -> None:
    values = room(40)
    values[35 * PER_DAY : 38 * PER_DAY, 0] = np.nan
    assert found(values) == []
    times = np.array(times_of(40 * PER_DAY))
    times[35 * PER_DAY :] += 30 * DAY
    assert found(room(40), times=times.tolist()) == []


def test_nothing_is_found_before_two_weeks_or_without_times_or_where_it_is_turned_off() -> None:
    values = room(16)
    values[10 * PER_DAY : 13 * PER_DAY, 0] = 20.4
    assert found(values) == []
    values = room(60)
    values[50 * PER_DAY :, 0] = 20.4
    assert found(values, times=[None] * len(values)) == []
    assert run(StuckWatch(ROOM, "attic", 0.0), values, times_of(len(values))) == []
    assert run(StuckWatch(ROOM, "attic", 0.5), np.empty((0, 4)), []) == []


def test_a_clock_that_leaps_ahead_does_not_make_a_month_of_a_minute() -> None:
    values = room(10)
    values[-100:, 0] = 20.4
    times = times_of(len(values))
    times[5] = MONDAY + 400.0 * DAY
    assert found(values, times=times) == []


def test_any_batching_gives_the_same_events_and_state_also_across_restarts() -> None:
    values = room(50)
    values[40 * PER_DAY : 41 * PER_DAY, 0] = 20.4
    values[::7, 2] = np.nan
    times = times_of(len(values))
    whole = StuckWatch(ROOM, "attic", 0.5)
    expected = run(whole, values, times, len(values))
    assert len(expected) == 2
    for piece in (17, 290):
        events: list[SiteEvent] = []
        state = StuckWatch(ROOM, "attic", 0.5).state()
        for start in range(0, len(values), 20 * piece):
            watch = StuckWatch(ROOM, "attic", 0.5)
            watch.restore(unpack(pack(state)))
            end = min(start + 20 * piece, len(values))
            here = run(watch, values[start:end], times[start:end], piece)
            events += here
            state = watch.state()
        assert [event.text for event in events] == [event.text for event in expected]
        assert pack(state) == pack(whole.state())


def test_memory_is_constant_and_a_damaged_state_is_refused() -> None:
    rng = np.random.default_rng(5)
    values = np.repeat(rng.normal(0, 1, 3000), rng.integers(1, 40, 3000))[:, None]
    agreed = contract({"name": "level"})
    watch = StuckWatch(agreed, "attic", 0.5)
    run(watch, values, times_of(len(values)))
    (feature,) = watch.state()["features"]
    assert len(feature["runs"]) == LONGEST
    assert len(feature["rests"]) == RESTS
    for damage in ({"readings": -1}, {"runs": np.arange(LONGEST, 0, -1)}, {"values": np.zeros(3)}):
        state = watch.state()
        state["features"] = [{**feature, **damage}]
        with pytest.raises(InvalidState):
            StuckWatch(agreed, "attic", 0.5).restore(state)


def test_features_of_another_contract_go_on_by_their_names() -> None:
    values = room(40)
    times = times_of(len(values))
    watch = StuckWatch(ROOM, "attic", 0.5)
    run(watch, values, times)
    turned = contract({"name": "light"}, {"name": "temperature"}, {"name": "new"})
    other = StuckWatch(turned, "attic", 0.5)
    other.restore(watch.state())
    later = np.column_stack([np.full(PER_DAY, 9.0), np.full(PER_DAY, 20.4), np.zeros(PER_DAY)])
    events = run(other, later, [time + 40.0 * DAY for time in times_of(PER_DAY)])
    assert {event.feature for event in events} == {"light", "temperature"}


def test_the_tail_is_that_of_a_pareto_distribution() -> None:
    rng = np.random.default_rng(2)
    months = 6.0
    exceeded = 0
    repeats = 2000
    for _ in range(repeats):
        # Of 600 runs in six months the longest 20, and those of the next month.
        runs = np.ceil(10 * rng.pareto(2.0, 700) + 10)
        longest = np.sort(runs[:600])[-LONGEST:].astype(int).tolist()
        exceeded += int((runs[600:] > tail_of(longest, 0.5, months)).sum())
    assert exceeded / repeats < 0.5
    assert exceeded / repeats > 0.1, "a threshold that nothing exceeds would find nothing"
