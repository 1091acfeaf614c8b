"""Values become readings by their times: the rules, and what holds whatever comes in whatever
order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.producers.messages import SensorValues
from shoal.producers.mqtt.readings import AlignedReading, Aligner, AlignerState, Rules
from shoal.protocol.codec import pack, unpack

TWO = Rules(width=2, tolerance_s=1.0, wait_s=10.0)


def joined(rules: Rules, *parts: tuple[float, int, float]) -> tuple[list[list[float]], Aligner]:
    """(time, feature, value) one after the other -> [time, *values] of each reading, and the
    joiner."""
    aligner = Aligner(rules)
    out = [
        reading
        for time, feature, value in parts
        for reading in aligner.add(SensorValues(time, {feature: value}))
    ]
    return plain(out), aligner


def plain(readings: list[AlignedReading]) -> list[list[float]]:
    return [[reading.time, *reading.values] for reading in readings]


def test_without_messages_there_are_no_readings() -> None:
    aligner = Aligner(TWO)
    assert aligner.advance(-math.inf) == aligner.advance(1e9) == []
    assert aligner.counts.total() == aligner.pending == 0


def test_values_of_two_sensors_near_in_time_are_one_reading_with_the_later_time() -> None:
    out, aligner = joined(TWO, (5.0, 0, 1.0), (5.9, 1, 2.0))
    assert out == [[5.9, 1.0, 2.0]]
    assert aligner.pending == 0


def test_values_further_apart_than_the_tolerance_are_two_readings() -> None:
    out, aligner = joined(TWO, (5.0, 0, 1.0), (6.1, 1, 2.0))
    assert out == []
    assert aligner.pending == 2


def test_a_tolerance_of_nothing_joins_equal_times() -> None:
    rules = TWO._replace(tolerance_s=0.0)
    assert joined(rules, (5.0, 0, 1.0), (5.0, 1, 2.0))[0] == [[5.0, 1.0, 2.0]]
    assert joined(rules, (5.0, 0, 1.0), (5.0000001, 1, 2.0))[0] == []


def test_one_message_with_all_values_is_a_reading_at_once() -> None:
    aligner = Aligner(TWO)
    assert plain(aligner.add(SensorValues(3.0, {0: 1.0, 1: 2.0}))) == [[3.0, 1.0, 2.0]]


def test_a_value_goes_to_the_nearest_reading_that_lacks_it() -> None:
    out, aligner = joined(TWO, (5.0, 0, 1.0), (5.8, 0, 2.0), (5.9, 1, 3.0))
    assert out == [[5.9, 2.0, 3.0]]
    assert aligner.counts["incomplete"] == 1, "the one before it cannot come later"


def test_of_equally_near_readings_the_oldest_takes_the_value() -> None:
    out, _ = joined(TWO, (5.0, 0, 1.0), (6.0, 0, 2.0), (5.5, 1, 3.0), (6.2, 1, 4.0))
    assert out == [[5.5, 1.0, 3.0], [6.2, 2.0, 4.0]]


def test_a_reading_that_waited_long_enough_is_dropped_and_counted() -> None:
    out, aligner = joined(TWO, (5.0, 0, 1.0), (15.0, 0, 2.0))
    assert (out, aligner.pending) == ([], 2)
    assert aligner.add(SensorValues(15.1, {0: 3.0})) == []
    assert (aligner.counts["incomplete"], aligner.pending) == (1, 2)


def test_time_without_messages_counts_too_but_makes_no_later_message_late() -> None:
    out, aligner = joined(TWO, (5.0, 0, 1.0))
    assert aligner.advance(15.0) == []
    assert aligner.pending == 1
    aligner.advance(15.1)
    assert (out, aligner.pending, aligner.counts["incomplete"]) == ([], 0, 1)
    aligner.advance(1000.0)
    assert aligner.add(SensorValues(6.0, {0: 2.0})) == []
    assert plain(aligner.add(SensorValues(6.0, {1: 3.0}))) == [[6.0, 2.0, 3.0]]


def test_missing_values_are_held_from_the_past_and_only_if_they_are_fresh() -> None:
    hold = TWO._replace(missing="hold", hold_s=20.0)
    out, aligner = joined(
        hold, (5.0, 0, 1.0), (5.0, 1, 2.0), (15.0, 0, 3.0), (25.1, 0, 4.0), (40.0, 0, 5.0)
    )
    assert out == [[5.0, 1.0, 2.0], [15.0, 3.0, 2.0]]
    assert aligner.counts == {"aligned": 2, "filled": 1, "incomplete": 1}


def test_a_reading_that_still_lacks_a_value_comes_with_a_gap_where_clients_learn_those() -> None:
    learn = TWO._replace(missing="learn", learns_gaps=True)
    out, aligner = joined(learn, (5.0, 0, 1.0), (5.0, 1, 2.0), (15.0, 0, 3.0), (40.0, 0, 5.0))
    np.testing.assert_array_equal(out, [[5.0, 1.0, 2.0], [15.0, 3.0, np.nan]])
    assert aligner.counts == {"aligned": 2, "with_gaps": 1, "filled": 0}


def test_a_value_of_a_dropped_reading_can_be_held() -> None:
    hold = TWO._replace(missing="hold", hold_s=20.0)
    out, _ = joined(hold, (5.0, 0, 1.0), (12.0, 1, 2.0), (30.0, 0, 3.0))
    assert out == [[12.0, 1.0, 2.0]]


def test_a_value_older_than_the_newest_reading_is_late_and_changes_nothing() -> None:
    out, aligner = joined(
        TWO, (5.0, 0, 1.0), (5.0, 1, 2.0), (4.9, 0, 9.0), (6.5, 0, 3.0), (6.5, 1, 4.0)
    )
    assert out == [[5.0, 1.0, 2.0], [6.5, 3.0, 4.0]]
    assert aligner.counts["late"] == 1


def test_a_value_of_the_very_time_of_a_reading_that_was_given_up_is_late() -> None:
    out, aligner = joined(TWO, (5.0, 0, 1.0), (20.0, 0, 2.0), (5.0, 1, 3.0))
    assert (out, aligner.pending) == ([], 1)
    assert aligner.counts == {"incomplete": 1, "late": 1}


def test_readings_that_waited_come_out_in_the_order_of_their_times_not_of_their_coming() -> None:
    hold = TWO._replace(missing="hold", hold_s=50.0)
    out, _ = joined(
        hold, (0.0, 0, 1.0), (0.0, 1, 2.0), (12.0, 0, 4.0), (11.0, 0, 3.0), (40.0, 0, 5.0)
    )
    assert out == [[0.0, 1.0, 2.0], [11.0, 3.0, 2.0], [12.0, 4.0, 2.0]]


def test_the_value_held_is_the_sensors_newest_whatever_reading_it_was_in() -> None:
    hold = Rules(width=3, tolerance_s=1.0, wait_s=10.0, missing="hold", hold_s=50.0)
    first = [(5.2, 0, 1.0), (5.3, 2, 2.0), (5.0, 0, 3.0), (5.9, 2, 4.0)]
    out, _ = joined(hold, *first, (20.0, 1, 5.0), (40.0, 1, 6.0))
    assert out == [[20.0, 1.0, 5.0, 4.0]]


def test_the_same_value_again_is_dropped_whether_its_reading_waits_or_is_out() -> None:
    out, aligner = joined(
        TWO, (5.0, 0, 1.0), (5.0, 0, 1.0), (5.0, 1, 2.0), (5.0, 1, 2.0), (5.0, 0, 1.0)
    )
    assert out == [[5.0, 1.0, 2.0]]
    assert aligner.counts["repeated"] == 3
    assert aligner.pending == 0


def test_what_waits_is_bounded() -> None:
    rules = TWO._replace(wait_s=1e9, groups_max=5)
    _, aligner = joined(rules, *[(10.0 * number, 0, 1.0) for number in range(50)])
    assert aligner.pending == 5
    assert aligner.counts["incomplete"] == 45


# Whatever comes.

TIMES = st.integers(-40, 40).map(lambda half: half / 2)
PARTS = st.lists(
    st.builds(
        SensorValues,
        TIMES,
        st.dictionaries(st.integers(0, 2), st.floats(-9, 9), min_size=1, max_size=3),
    ),
    max_size=40,
)
RULES = st.builds(
    Rules,
    width=st.just(3),
    tolerance_s=st.sampled_from([0.0, 0.5, 2.0]),
    wait_s=st.sampled_from([0.0, 3.0, 100.0]),
    missing=st.sampled_from(["drop", "hold", "learn"]),
    learns_gaps=st.booleans(),
    hold_s=st.sampled_from([1.0, 50.0]),
    groups_max=st.sampled_from([1, 3, 1000]),
)


def fed(aligner: Aligner, parts: list[SensorValues]) -> list[list[float]]:
    return plain([reading for part in parts for reading in aligner.add(part)])


@given(RULES, PARTS)
def test_readings_come_out_in_the_order_of_their_times_and_every_part_is_accounted_for(
    rules: Rules, parts: list[SensorValues]
) -> None:
    aligner = Aligner(rules)
    out = fed(aligner, parts) + plain(aligner.advance(math.inf))
    assert [time for time, *_ in out] == sorted(time for time, *_ in out)
    assert aligner.pending == 0
    assert len(out) == aligner.counts["aligned"]
    taken = len(parts) - aligner.counts["late"] - aligner.counts["repeated"]
    settled = aligner.counts["aligned"] + aligner.counts["incomplete"]
    assert (settled == 0) == (taken == 0)
    assert settled <= taken


@given(RULES, PARTS)
def test_the_parts_of_a_reading_are_no_further_apart_than_the_tolerance(
    rules: Rules, parts: list[SensorValues]
) -> None:
    # Each value is its own time, so a reading shows when its values were measured.
    clocks = [SensorValues(part.time, dict.fromkeys(part.values, part.time)) for part in parts]
    for time, *values in fed(Aligner(rules._replace(missing="drop")), clocks):
        assert max(values) == time
        assert max(values) - min(values) <= rules.tolerance_s


@given(RULES, PARTS)
def test_held_values_are_from_the_past_and_no_older_than_agreed(
    rules: Rules, parts: list[SensorValues]
) -> None:
    clocks = [SensorValues(part.time, dict.fromkeys(part.values, part.time)) for part in parts]
    for time, *values in fed(Aligner(rules._replace(missing="hold")), clocks):
        assert rules.learns_gaps or not np.isnan(values).any()
        assert np.nanmax(values) == time
        assert np.nanmin(values) >= time - max(rules.hold_s, rules.tolerance_s)


@given(RULES, PARTS, st.integers(0, 40))
def test_a_joiner_restored_at_any_moment_goes_on_as_if_nothing_had_happened(
    rules: Rules, parts: list[SensorValues], cut: int
) -> None:
    whole = Aligner(rules)
    first = Aligner(rules)
    second = Aligner(rules)
    expected = fed(whole, parts)
    found = fed(first, parts[:cut])
    second.restore(AlignerState.read(unpack(pack(first.state().saved()))))
    np.testing.assert_array_equal(found + fed(second, parts[cut:]), expected)
    assert second.state().saved() == whole.state().saved()


@given(RULES, PARTS)
def test_what_waits_is_bounded_whatever_comes(rules: Rules, parts: list[SensorValues]) -> None:
    aligner = Aligner(rules)
    for part in parts:
        aligner.add(part)
        assert aligner.pending <= rules.groups_max


@st.composite
def sensors(draw: st.DrawFn) -> tuple[list[tuple[float, ...]], list[SensorValues]]:
    """Three sensors that measure every 10 s, each with its own small delay, heard in any mixture of
    the three."""
    instants = draw(st.integers(1, 12))
    shift = draw(st.tuples(*[st.floats(0, 2)] * 3))
    rows = [
        tuple(float(10 * number + feature) for feature in range(3)) for number in range(instants)
    ]
    waiting = [
        [
            SensorValues(10.0 * number + shift[feature], {feature: rows[number][feature]})
            for number in range(instants)
        ]
        for feature in range(3)
    ]
    messages: list[SensorValues] = []
    while any(waiting):
        messages.append(draw(st.sampled_from([queue for queue in waiting if queue])).pop(0))
    return rows, messages


@given(sensors(), st.data())
def test_synchronous_sensors_give_every_reading_once_in_any_order_and_with_repetitions(
    sensors_and_messages: tuple[list[tuple[float, ...]], list[SensorValues]], data: Any
) -> None:
    rows, messages = sensors_and_messages
    rules = Rules(width=3, tolerance_s=2.0, wait_s=1e9)
    out = fed(Aligner(rules), messages)
    assert [tuple(values) for _, *values in out] == rows
    again = list(messages)
    for _ in range(data.draw(st.integers(0, 5))):
        # A message that comes a second time comes after the first, and before the next of its
        # sensor.
        place = data.draw(st.integers(0, len(again) - 1))
        again.insert(place + 1, again[place])
    assert fed(Aligner(rules), again) == out


def test_a_reading_is_an_array_of_floats_in_the_order_of_the_contract() -> None:
    (reading,) = Aligner(TWO).add(SensorValues(0.0, {1: 2.0, 0: 1.0}))
    assert reading.values.dtype == np.float64
    assert reading.values.tolist() == [1.0, 2.0]
