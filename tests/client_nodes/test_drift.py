"""Trends and lasting steps within one state of a client, in weeks of readings of which it is known
what moved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.client_nodes.labelling.drift import DAYS_KEPT, DriftWatch
from shoal.config.contract import Contract
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label

DAY = 86_400
PER_DAY = 96
MONDAY = 1_609_718_400
"""2021-01-04T00:00:00Z"""
NIGHT = 3
WORK = 5
SD = 0.02
"""standard deviation of the readings of a state, in unit coordinates"""
Readings = NDArray[np.float64]

CONTRACT = Contract.model_validate(
    {
        "federation": "office",
        "features": [
            {"name": "temperature", "low": 10.0, "high": 35.0, "unit": "°C"},
            {"name": "co2", "low": 0.0, "high": 2000.0, "unit": "ppm"},
            {"name": "direction", "low": 0.0, "high": 360.0, "kind": "circular", "period": 360.0},
        ],
        "privacy": {"mode": "off"},
        "models": [{"name": "clusters", "algorithm": "cluster_tree"}],
    }
)


class Weeks:
    """Readings of an office with two states, whose level wanders from day to day."""

    def __init__(self, days: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        n = days * PER_DAY
        at = np.arange(n)
        self.day = at // PER_DAY
        hour = at % PER_DAY / PER_DAY * 24
        self.is_work = (self.day % 7 < 5) & (hour >= 7) & (hour < 18)
        self.identities = np.where(self.is_work, WORK, NIGHT)
        # The weather: half of a day's deviation is there on the next day.
        level = np.zeros((days, 3))
        for number in range(1, days):
            level[number] = 0.5 * level[number - 1] + rng.normal(0, 0.4 * SD, 3)
        centre = np.where(self.is_work[:, None], [0.5, 0.4, 0.2], [0.3, 0.2, 0.2])
        self.unit: Readings = centre + level[self.day] + rng.normal(0, SD, (n, 3))
        self.times = (MONDAY + at * (DAY // PER_DAY)).astype(float)

    def found(self, per_month: float = 0.5) -> list[SiteEvent]:
        return run(DriftWatch(CONTRACT, "attic", "clusters", per_month), self, 1000)


def run(watch: DriftWatch, weeks: Weeks, piece: int, first: int = 0) -> list[SiteEvent]:
    events = []
    for start in range(first, len(weeks.unit), piece):
        here = slice(start, start + piece)
        labels = labels_of(weeks.identities[here].tolist(), weeks.times[here].tolist())
        places = [(0, start + number) for number in range(len(labels))]
        events += watch.follow(labels, weeks.unit[here], places)
    return events


def labels_of(identities: Sequence[int | None], times: Sequence[float | None]) -> list[Label]:
    return [
        Label(0, identity, "", 0.5, 7, time)
        for identity, time in zip(identities, times, strict=True)
    ]


def day_of(event: SiteEvent) -> int:
    assert event.at is not None
    return int(event.at - MONDAY) // DAY


def test_a_level_that_wanders_is_found_to_drift_more_seldom_than_asked_for() -> None:
    found = [event for seed in range(50, 56) for event in Weeks(120, seed).found()]
    assert len(found) <= 0.5 * 6 * 4, "half an event a month, in six times four months"


def test_a_drift_of_a_tenth_of_a_deviation_a_day_within_one_state_is_found_in_weeks() -> None:
    for seed in range(3):
        weeks = Weeks(110, seed)
        days = np.maximum(weeks.day - 60, 0)
        weeks.unit[:, 0] += np.where(weeks.is_work, 0.1 * SD * days, 0.0)
        events = weeks.found()
        first = events[0]
        assert (first.kind, first.feature, first.cluster) == ("drift", "temperature", WORK), seed
        assert first.outside == {"temperature": "above"}
        assert 60 < day_of(first) <= 60 + 28, seed
        assert first.text.startswith("temperature within cluster 5")
        assert "°C (" in first.text
        assert {event.feature for event in events} == {"temperature"}
        assert all(event.kind == "drift" for event in events), "never taken for a step"


def test_an_exchanged_sensor_is_a_shift_of_the_level_since_its_day() -> None:
    for seed in range(3):
        weeks = Weeks(90, seed)
        weeks.unit[:, 1] -= np.where(weeks.day >= 60, 3.0 * SD, 0.0)
        (event,) = [event for event in weeks.found() if event.feature == "co2"]
        assert (event.kind, event.feature) == ("level_shift", "co2")
        assert 70 <= day_of(event) <= 75, "after a week that could be a holiday"
        assert "is lower by 1" in event.text, "3 deviations of 40 ppm are 120"
        assert event.text.endswith("since 2021-03-05"), "60 days after 4 January"


def test_exchanged_sensors_are_found_where_the_level_wanders_by_as_much_in_weeks() -> None:
    found = 0
    wandering = 0
    for seed in range(3):
        weeks = Weeks(90, 100 + seed)
        rng = np.random.default_rng([8, seed])
        level = np.zeros(90)
        for number in range(1, 90):
            level[number] = 0.95 * level[number - 1] + rng.normal(0, 0.5 * SD)
        weeks.unit[:, 1] += level[weeks.day]
        wandering += sum(event.feature == "co2" for event in weeks.found())
        weeks.unit[:, 1] -= np.where(weeks.day >= 60, 4.0 * SD, 0.0)
        found += any(
            event.kind == "level_shift" and event.text.endswith("since 2021-03-05")
            for event in weeks.found()
        )
    # 60 days after 4 January. Compared as lines are, none is found.
    assert found >= 2
    assert wandering <= 0.5 * 3 * 90 / 30


def test_a_holiday_is_neither_a_drift_nor_a_shift() -> None:
    for seed in range(3):
        weeks = Weeks(110, seed)
        is_holiday = (weeks.day >= 61) & (weeks.day < 70)
        weeks.identities[is_holiday] = NIGHT
        # Nobody heats, so that even the nights are colder.
        weeks.unit[is_holiday, 0] = 0.3 - 4 * SD + 0.01 * np.sin(np.arange(is_holiday.sum()))
        assert [event for event in weeks.found() if event.feature == "temperature"] == [], seed


def test_circular_features_constants_and_rounded_values_do_not_drift() -> None:
    weeks = Weeks(120)
    weeks.unit[:, 2] += 0.2 * SD * weeks.day
    weeks.unit[:, 1] = 0.25
    weeks.unit[:, 0] = (weeks.unit[:, 0] / 0.02).round() * 0.02
    assert weeks.found() == []


def test_a_constant_that_steps_by_the_rounding_alone_is_no_shift() -> None:
    weeks = Weeks(120)
    weeks.unit[:, 1] = np.where(weeks.day < 70, 0.25, 0.25 + 1e-9)
    assert [event for event in weeks.found() if event.feature == "co2"] == []


def test_nothing_is_found_without_times_states_or_readings_or_where_it_is_turned_off() -> None:
    weeks = Weeks(110)
    weeks.unit[:, 0] += 0.2 * SD * np.maximum(weeks.day - 60, 0)
    assert weeks.found(per_month=0.0) == []
    watch = DriftWatch(CONTRACT, "attic", "clusters", 0.5)
    assert watch.follow([], np.empty((0, 3)), []) == []
    n = len(weeks.unit)
    places = [(0, number) for number in range(n)]
    assert watch.follow(labels_of([NIGHT] * n, [None] * n), weeks.unit, places) == []
    assert watch.follow(labels_of([None] * n, weeks.times.tolist()), weeks.unit, places) == []
    weeks.unit[:, 0] = np.nan
    assert [event.feature for event in weeks.found()] == []


def test_any_batching_gives_the_same_events_and_state_also_across_restarts() -> None:
    weeks = Weeks(100)
    weeks.unit[:, 0] += 0.2 * SD * np.maximum(weeks.day - 60, 0)
    weeks.unit[::5, 1] = np.nan
    whole = DriftWatch(CONTRACT, "attic", "clusters", 0.5)
    expected = run(whole, weeks, len(weeks.unit))
    assert expected
    events: list[SiteEvent] = []
    state = DriftWatch(CONTRACT, "attic", "clusters", 0.5).state()
    for start in range(0, len(weeks.unit), 977):
        watch = DriftWatch(CONTRACT, "attic", "clusters", 0.5)
        watch.restore(unpack(pack(state)))
        here = slice(start, start + 977)
        labels = labels_of(weeks.identities[here].tolist(), weeks.times[here].tolist())
        places = [(0, start + number) for number in range(len(labels))]
        events += watch.follow(labels, weeks.unit[here], places)
        state = watch.state()
    assert events == expected
    assert pack(state) == pack(whole.state())


def test_memory_is_bounded_what_comes_late_is_counted_or_left_and_damage_is_refused() -> None:
    weeks = Weeks(DAYS_KEPT + 30)
    watch = DriftWatch(CONTRACT, "attic", "clusters", 0.5)
    run(watch, weeks, 1000)
    state = watch.state()
    assert {len(of_state["days"]) for of_state in state["states"]} <= {
        DAYS_KEPT,
        (DAYS_KEPT + 30) * 5 // 7 + 1,
    }
    newest = weeks.times[-1]
    late = labels_of([NIGHT, NIGHT], [newest - 2 * DAY, newest - 1000 * DAY])
    assert watch.follow(late, np.full((2, 3), 0.3), [(0, 1), (0, 2)]) == []
    before = sum(int(of_state["sums"][:, 0, 0].sum()) for of_state in state["states"])
    after = sum(int(of_state["sums"][:, 0, 0].sum()) for of_state in watch.state()["states"])
    assert after == before + 1, "one of the two is within the days that are kept"
    for identity in range(1000):
        watch.follow(labels_of([identity], [newest]), np.full((1, 3), 0.3), [(0, 3)])
    assert len(watch.state()["states"]) == watch._states_max
    for damage in ({"days": state["states"][0]["days"][::-1].copy()}, {"identity": -1}):
        damaged = {**state, "states": [{**state["states"][0], **damage}]}
        with pytest.raises(InvalidState):
            DriftWatch(CONTRACT, "attic", "clusters", 0.5).restore(damaged)
