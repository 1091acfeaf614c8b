"""Values of several sensors become readings, by their times: a state machine without a clock.

What comes out depends only on the parts that went in, in their order, and on how far time was said to have come.
The rules:

1. Values of one reading lie at most `tolerance_s` apart; a value goes to the nearest open reading that lacks it.
2. A reading that has all its values is given out at once, with the time of its latest value. Readings come out in the
   order of their times: those before it that still lack something are settled first, by rule 3.
3. What still lacks values after `wait_s` of event time is dropped (`drop`), or filled up with each sensor's last
   value, if that is at most `hold_s` older than the reading (`hold`), and dropped otherwise.
4. A value of the same time as the sensor's own value that is there already is the same one again, and one that is not
   after the newest reading settled is late: both are dropped and counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

GROUPS_MAX = 1000
"""readings that wait for values at the same time; above it the oldest is settled"""


class Part(NamedTuple):
    """What one message says: values of some features, all of one time."""

    time: float
    """event time, seconds since 1970"""
    values: Mapping[int, float]
    """feature, by its place in the contract -> value; at least one"""


class AlignedReading(NamedTuple):
    """A whole reading."""

    time: float
    values: NDArray[np.float64]
    """(d,)"""


class Rules(NamedTuple):
    """How values become readings; `width` is the number of features d."""

    width: int
    tolerance_s: float
    wait_s: float
    missing: Literal["drop", "hold"] = "drop"
    hold_s: float = 0.0
    groups_max: int = GROUPS_MAX


class Value(NamedTuple):
    """One value and when it was measured."""

    time: float
    value: float


class Aligner:
    """Takes parts in, gives readings out, and counts what it drops."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: list[dict[int, Value]] = []
        """readings that lack something: feature -> value"""
        self._last: dict[int, Value] = {}
        """each feature's newest value that is settled"""
        self._settled = -math.inf
        self._newest = -math.inf
        self.counts: Counter[str] = Counter()
        """readings `joined` and `held` (of which values were held), `incomplete` (dropped); parts `late`, `repeated`"""

    @property
    def newest(self) -> float:
        """The newest event time of a part; -inf before any."""
        return self._newest

    @property
    def pending(self) -> int:
        """Readings that wait for values."""
        return len(self._open)

    def add(self, part: Part) -> list[AlignedReading]:
        """Take one part in; the readings that are settled by it, in the order of their times."""
        if self._repeats(part):
            self.counts["repeated"] += 1
            return []
        if part.time <= self._settled:
            self.counts["late"] += 1
            return []
        group = self._nearest(part)
        if group is None:
            group = {}
            self._open.append(group)
        group.update({feature: Value(part.time, value) for feature, value in part.values.items()})
        self._newest = max(self._newest, part.time)
        joined = self._settle_up_to(_high(group)) if len(group) == self._rules.width else []
        joined += self.wait(self._newest)
        while len(self._open) > self._rules.groups_max:
            joined += self._settle_up_to(min(map(_high, self._open)))
        return joined

    def wait(self, until: float) -> list[AlignedReading]:
        """It is `until` in event time: give out, or up, what has waited long enough. Older parts may still come."""
        return self._settle_up_to(math.nextafter(until - self._rules.wait_s, -math.inf))

    def state(self) -> dict[str, Any]:
        """Everything that decides what comes out, for a checkpoint."""
        return {
            "open": [_packed(group) for group in self._open],
            "last": _packed(self._last),
            "settled": self._settled,
            "newest": self._newest,
            "counts": dict(self.counts),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was. Raises KeyError, TypeError or ValueError for what is no state."""
        self._open = [_unpacked(group) for group in state["open"]]
        self._last = _unpacked(state["last"])
        self._settled, self._newest = float(state["settled"]), float(state["newest"])
        self.counts = Counter(state["counts"])

    def _repeats(self, part: Part) -> bool:
        there = [self._last, *self._open]
        return any(feature in group and group[feature].time == part.time for feature in part.values for group in there)

    def _nearest(self, part: Part) -> dict[int, Value] | None:
        """The open reading, nearest in time, that lacks these values; the oldest of equally near ones."""
        best, nearest = None, math.inf
        for group in self._open:
            low, high = min(value.time for value in group.values()), _high(group)
            apart = max(low - part.time, part.time - high, 0.0)
            span = max(high, part.time) - min(low, part.time)
            if span <= self._rules.tolerance_s and apart < nearest and not group.keys() & part.values.keys():
                best, nearest = group, apart
        return best

    def _settle_up_to(self, time: float) -> list[AlignedReading]:
        due = sorted((group for group in self._open if _high(group) <= time), key=_high)
        if not due:
            return []
        self._open = [group for group in self._open if _high(group) > time]
        return [joined for group in due if (joined := self._settle(group)) is not None]

    def _settle(self, group: dict[int, Value]) -> AlignedReading | None:
        time = _high(group)
        whole = self._filled(group, time)
        for feature, value in group.items():
            if feature not in self._last or value.time >= self._last[feature].time:
                self._last[feature] = value
        self._settled = time
        if len(whole) < self._rules.width:
            self.counts["incomplete"] += 1
            return None
        self.counts["joined"] += 1
        self.counts["held"] += len(group) < self._rules.width
        return AlignedReading(time, np.array([whole[feature].value for feature in range(self._rules.width)]))

    def _filled(self, group: dict[int, Value], time: float) -> dict[int, Value]:
        if self._rules.missing == "drop":
            return group
        oldest = time - self._rules.hold_s
        return {feature: value for feature, value in self._last.items() if value.time >= oldest} | group


def _high(group: Mapping[int, Value]) -> float:
    return max(value.time for value in group.values())


def _packed(values: Mapping[int, Value]) -> list[list[float]]:
    return [[feature, *value] for feature, value in values.items()]


def _unpacked(packed: Iterable[tuple[int, float, float]]) -> dict[int, Value]:
    return {int(feature): Value(float(time), float(value)) for feature, time, value in packed}
