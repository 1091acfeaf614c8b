"""Alignment of the values of several sensors into readings, by their times: a state machine
without a clock.

The result depends only on the messages put in, their order, and the times given to `advance`. The
rules:

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
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from shoal.config.contract import Contract
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats
from shoal.privacy.base import Missing
from shoal.producers.messages import SensorValues, TopicField, values_with_gaps
from shoal.producers.mqtt.settings import MqttSettings, parse_place
from shoal.protocol.readings import codes_of

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
        """Put one message in; the readings that it completes or closes, in the order of their
        times."""
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
        aligned: list[AlignedReading] = []
        if len(group) == self._rules.width:
            # Earlier readings are closed with it: readings come out in the order of their times.
            aligned += self._close_up_to(_high(group))
        aligned += self.advance(self._newest)
        while len(self._open) > self._rules.groups_max:
            aligned += self._close_up_to(min(map(_high, self._open)))
        return aligned

    def advance(self, time: float) -> list[AlignedReading]:
        """Set the event time: close the readings that have waited for `wait_s`. Older messages may
        still come."""
        # One number below: a reading that is exactly `wait_s` old may still be completed.
        return self._close_up_to(math.nextafter(time - self._rules.wait_s, -math.inf))

    def state(self) -> dict[str, Any]:
        """Everything that the next readings depend on, for a checkpoint."""
        return {
            "open": [_packed(group) for group in self._open],
            "last": _packed(self._last),
            "closed_up_to": self._closed_up_to,
            "newest": self._newest,
            "counts": dict(self.counts),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Raises KeyError, TypeError or ValueError for what is no state."""
        self._open = [_unpacked(group) for group in state["open"]]
        self._last = _unpacked(state["last"])
        self._closed_up_to = float(state["closed_up_to"])
        self._newest = float(state["newest"])
        self.counts = Counter(state["counts"])

    def _repeats(self, message: SensorValues) -> bool:
        for group in (self._last, *self._open):
            for feature in message.values:
                if feature in group and group[feature].time == message.time:
                    return True
        return False

    def _nearest(self, message: SensorValues) -> dict[int, Value] | None:
        """The open reading, nearest in time, that lacks these values; the oldest of equally near
        ones."""
        best = None
        nearest = math.inf
        for group in self._open:
            if group.keys() & message.values.keys():
                continue
            low = min(value.time for value in group.values())
            high = _high(group)
            apart = max(low - message.time, message.time - high, 0.0)
            span = max(high, message.time) - min(low, message.time)
            # Strictly nearer, so that of equally near readings the oldest, which comes first, is
            # filled.
            if span <= self._rules.tolerance_s and apart < nearest:
                best = group
                nearest = apart
        return best

    def _close_up_to(self, time: float) -> list[AlignedReading]:
        due = [group for group in self._open if _high(group) <= time]
        if not due:
            return []
        self._open = [group for group in self._open if _high(group) > time]
        # Oldest first: a reading gets the time of its latest value, and times must not go back.
        due.sort(key=_high)
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
        numbers = {feature: value.value for feature, value in whole.items()}
        return AlignedReading(time, values_with_gaps(numbers, self._rules.width))

    def _filled(self, group: dict[int, Value], time: float) -> dict[int, Value]:
        if self._rules.missing != "hold":
            return group
        oldest = time - self._rules.hold_s
        recent = {feature: value for feature, value in self._last.items() if value.time >= oldest}
        return recent | group


def _high(group: Mapping[int, Value]) -> float:
    return max(value.time for value in group.values())


def _packed(values: Mapping[int, Value]) -> list[list[float]]:
    return [[feature, *value] for feature, value in values.items()]


def _unpacked(packed: Iterable[tuple[int, float, float]]) -> dict[int, Value]:
    return {int(feature): Value(float(time), float(value)) for feature, time, value in packed}


TOPICS_MAX = 10_000
"""topics that match a wildcard and are remembered"""
TOPIC_BYTES_MAX = 65535
"""longest topic of MQTT"""


def topics_of(
    settings: MqttSettings, contract: Contract, client: str
) -> dict[str, list[TopicField]]:
    """topic or filter -> the features in its messages. Raises `SettingsError` without topics, or
    for an impossible one.

    Two filters that match one topic are refused: brokers may send its messages twice.
    """
    if not settings.topics:
        raise SettingsError(
            "--mqtt needs the section [mqtt.topics] in the federation file: a topic for each"
            " feature"
        )
    wanted: dict[str, list[TopicField]] = {}
    codes = codes_of(contract)
    for place, feature in enumerate(contract.features):
        topic, field = parse_place(settings.topics[feature.name].replace("{client}", client))
        if len(topic.encode()) > TOPIC_BYTES_MAX:
            raise SettingsError(
                f"[mqtt.topics] {feature.name}: a topic has at most {TOPIC_BYTES_MAX} bytes"
            )
        wanted.setdefault(topic, []).append(TopicField(place, field, codes.get(place)))
    for topic, fields in wanted.items():
        # A plain number is also JSON, so a message does not show which of both it is.
        if len({field.field == "" for field in fields}) > 1:
            raise SettingsError(
                f"[mqtt.topics] {topic}: its messages are plain numbers or JSON, not both"
            )
    for first, second in combinations(wanted, 2):
        if _overlap(first.split("/"), second.split("/")):
            raise SettingsError(
                f"[mqtt.topics] {first} and {second} match the same topics; write one filter for"
                " both"
            )
    return wanted


def _overlap(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether there is a topic that both filters, as levels, match."""
    for first_level, second_level in zip(first, second, strict=False):
        levels = (first_level, second_level)
        if "#" in levels:
            return True
        if first_level != second_level and "+" not in levels:
            return False
    # `a/#` matches `a` too.
    longer, shorter = sorted((first, second), key=len, reverse=True)
    return len(longer) == len(shorter) or longer[len(shorter)] == "#"


class TopicTable:
    """Finds the features in the messages of a topic."""

    def __init__(self, topics: Mapping[str, Sequence[TopicField]]) -> None:
        self.filters = topics
        self._fields: dict[str, Sequence[TopicField] | None] = {}
        """topic that was looked up -> the features of the filter that matches it"""

    def find(self, topic: str) -> Sequence[TopicField] | None:
        """The features in messages of that topic; None where no filter matches it."""
        if topic in self.filters:
            return self.filters[topic]
        if topic not in self._fields:
            # Whoever may publish chooses topics, so their number has a limit.
            if len(self._fields) >= TOPICS_MAX:
                self._fields.clear()
            self._fields[topic] = self._match(topic)
        return self._fields[topic]

    def _match(self, topic: str) -> Sequence[TopicField] | None:
        levels = topic.split("/")
        for topic_filter, fields in self.filters.items():
            if _overlap(topic_filter.split("/"), levels):
                return fields
        return None
