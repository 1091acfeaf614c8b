"""Alignment: values of several sensors become readings, by their times.

It is a state machine without a clock. The result depends only on the messages put in, their order,
and the times given to `advance`. The rules:

1. The values of one reading lie at most `tolerance_s` apart; a value goes to the nearest open
   reading that lacks it.
2. A reading that has all its values is complete at once, with the time of its latest value.
   Readings come out in the order of their times: earlier ones that still lack a value are closed
   first, by rule 3.
3. A reading that still lacks values after `wait_s` of event time is dropped (`drop`), or filled up
   with each sensor's last value if that is at most `hold_s` older than the reading (`hold`). What
   is lacking then stays a gap where clients learn those, and else the reading is dropped.
4. A value with the time of a value that the sensor has sent before is a repetition; a value that is
   not later than the newest closed reading is late. Both are dropped and counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Self

from shoal.kernels.arrays import Floats
from shoal.privacy.base import Missing
from shoal.producers.messages import SensorValues, values_with_gaps
from shoal.saved_state import SavedState, state_type

# Times are those of messages, so that a publisher could open readings without end.
GROUPS_MAX = 1000
"""most open readings; above it the oldest one is closed"""


class AlignedReading(NamedTuple):
    """A reading, complete or with gaps (NaN)."""

    time: float
    values: Floats
    """(d,)"""
    user: str | None = None
    """user id; readings that have one are not aligned"""


class Rules(NamedTuple):
    """The parameters of the rules; `width` is the number of features d."""

    width: int
    tolerance_s: float
    wait_s: float
    missing: Missing = "drop"
    hold_s: float = 0.0
    learns_gaps: bool = False
    """whether clients learn readings that lack values"""
    groups_max: int = GROUPS_MAX


class Value(NamedTuple):
    """One value and when it was measured."""

    time: float
    value: float


@state_type
class ValueState(SavedState):
    """The value of one feature, and when it was measured."""

    feature: int
    time: float
    value: float


@state_type
class GroupState(SavedState):
    """The values of one reading."""

    values: list[ValueState]

    @classmethod
    def of(cls, values: Mapping[int, Value]) -> Self:
        states = []
        for feature, (time, value) in values.items():
            states.append(ValueState(feature=feature, time=time, value=value))
        return cls(values=states)

    @property
    def by_feature(self) -> dict[int, Value]:
        return {state.feature: Value(state.time, state.value) for state in self.values}


@state_type
class AlignerState(SavedState):
    """Open readings, the last values, and the event times reached."""

    open: list[GroupState]
    last: GroupState
    closed_up_to: float | None
    """None before any reading was closed"""
    newest: float | None
    """None before any message"""
    counts: dict[str, int]


class Aligner:
    """Turns messages into readings, and counts what it drops."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: list[dict[int, Value]] = []
        """open readings, which lack a value: feature -> value"""
        self._last: dict[int, Value] = {}
        """feature -> its newest value in a closed reading"""
        self._closed_up_to = -math.inf
        self._newest = -math.inf
        self.counts: Counter[str] = Counter()
        """readings that were `aligned`, those of them that were `filled` or had gaps, and
        `incomplete` ones, dropped; messages that were `late` or `repeated`"""

    @property
    def newest(self) -> float:
        """The newest event time of a message; -inf before any."""
        return self._newest

    @property
    def pending(self) -> int:
        """Number of open readings."""
        return len(self._open)

    def add(self, message: SensorValues) -> list[AlignedReading]:
        """Put one message in; returns the readings that it completes or closes, by their times."""
        if self._repeats(message):
            self.counts["repeated"] += 1
            return []
        if message.time <= self._closed_up_to:
            self.counts["late"] += 1
            return []
        group = self._nearest(message)
        if group is None:
            group = {}
            self._open.append(group)
        for feature, value in message.values.items():
            group[feature] = Value(message.time, value)
        self._newest = max(self._newest, message.time)
        aligned = []
        # Earlier readings are closed with it: readings come out in the order of their times.
        if len(group) == self._rules.width:
            aligned += self._close_up_to(_high(group))
        aligned += self.advance(self._newest)
        while len(self._open) > self._rules.groups_max:
            aligned += self._close_up_to(min(map(_high, self._open)))
        return aligned

    def advance(self, time: float) -> list[AlignedReading]:
        """Set the event time: close the readings that have waited for `wait_s`.

        Older messages may still come.
        """
        # One number below: a reading that is exactly `wait_s` old may still be completed.
        return self._close_up_to(math.nextafter(time - self._rules.wait_s, -math.inf))

    def state(self) -> AlignerState:
        """Everything that the next readings depend on, for a checkpoint."""
        return AlignerState(
            open=[GroupState.of(group) for group in self._open],
            last=GroupState.of(self._last),
            closed_up_to=None if self._closed_up_to == -math.inf else self._closed_up_to,
            newest=None if self._newest == -math.inf else self._newest,
            counts=dict(self.counts),
        )

    def restore(self, saved: AlignerState) -> None:
        """Continue from a saved state."""
        self._open = [group.by_feature for group in saved.open]
        self._last = saved.last.by_feature
        self._closed_up_to = -math.inf if saved.closed_up_to is None else saved.closed_up_to
        self._newest = -math.inf if saved.newest is None else saved.newest
        self.counts = Counter(saved.counts)

    def _repeats(self, message: SensorValues) -> bool:
        for group in (self._last, *self._open):
            for feature in message.values:
                if feature in group and group[feature].time == message.time:
                    return True
        return False

    def _nearest(self, message: SensorValues) -> dict[int, Value] | None:
        """The open reading, nearest in time, that lacks these values; the oldest of several."""
        best = None
        nearest = math.inf
        for group in self._open:
            low = min(value.time for value in group.values())
            high = _high(group)
            apart = max(low - message.time, message.time - high, 0.0)
            span = max(high, message.time) - min(low, message.time)
            if span > self._rules.tolerance_s or group.keys() & message.values.keys():
                continue
            # Strictly nearer, so that of equally near readings the oldest, which comes first, is
            # filled.
            if apart < nearest:
                best = group
                nearest = apart
        return best

    def _close_up_to(self, time: float) -> list[AlignedReading]:
        # Oldest first: a reading gets the time of its latest value, and times must not go back.
        due = sorted((group for group in self._open if _high(group) <= time), key=_high)
        if not due:
            return []
        self._open = [group for group in self._open if _high(group) > time]
        closed = []
        for group in due:
            reading = self._close(group)
            if reading is not None:
                closed.append(reading)
        return closed

    def _close(self, group: dict[int, Value]) -> AlignedReading | None:
        time = _high(group)
        whole = self._filled(group, time)
        for feature, value in group.items():
            # A reading that closes late must not replace newer values of its sensors.
            if feature not in self._last or value.time >= self._last[feature].time:
                self._last[feature] = value
        self._closed_up_to = time
        has_gaps = len(whole) < self._rules.width
        if has_gaps and (self._rules.missing == "drop" or not self._rules.learns_gaps):
            self.counts["incomplete"] += 1
            return None
        self.counts["aligned"] += 1
        self.counts["filled"] += len(group) < len(whole)
        if has_gaps:
            self.counts["with_gaps"] += 1
        values = {feature: last.value for feature, last in whole.items()}
        return AlignedReading(time, values_with_gaps(values, self._rules.width))

    def _filled(self, group: dict[int, Value], time: float) -> dict[int, Value]:
        if self._rules.missing != "hold":
            return group
        oldest = time - self._rules.hold_s
        filled = {feature: value for feature, value in self._last.items() if value.time >= oldest}
        filled |= group
        return filled


def _high(group: Mapping[int, Value]) -> float:
    return max(value.time for value in group.values())
