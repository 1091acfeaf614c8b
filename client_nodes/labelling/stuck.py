"""Finds features that repeat one value far longer than ever before: sensors that are stuck.

A *run* is of successive readings of the client in which a feature has the same value; a reading
that lacks the feature neither ends nor lengthens it. A rounded value repeats often, so a run is
compared with the longest ones before it. Their lengths are taken for the tail of a Pareto
distribution, whose index the 20 longest runs show (Hill, Annals of Statistics 3, 1975). A run is
stuck once it is longer than all but `per_month` runs a month would be, and than twice the longest.

A value at which a feature *rests* (0 lux at night, each value of a category) is compared with its
own runs alone, and must last four times as long as the longest: after nights and weekends comes a
holiday. All of it is counted in readings, so that a gap is no long run; only how often something
may happen is counted in time. Memory is constant, and the state holds the values that were
repeated, which stay on the client.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.config.base import DAY_S
from shoal.config.contract import Contract
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.events import SiteEvent, duration
from shoal.saved_state import FloatArray, IntArray, Number, SavedState, require, state_type

MONTH_S: Final = 30 * DAY_S
LEARNT_S: Final = 14 * DAY_S
"""time that must be observed before the first report: two weekends"""
STEP_MAX_S: Final = DAY_S
"""time that one reading adds to the observed time at most: a gap, or a wrong clock, is no time in
which nothing was found"""
LONGEST: Final = 20
"""longest runs whose lengths show the tail"""
RESTS: Final = 16
"""values that are followed because they may be ones at which a feature rests"""
RESTS_SHARE_MIN: Final = 0.05
"""a feature rests at a value whose long runs have this share of its readings"""
RUNS_MIN: Final = 5
"""long runs without which it is not known what is long, or whether a feature rests at a value"""
TIMES_LONGEST: Final = 2.0
TIMES_LONGEST_AT_REST: Final = 4.0
"""a run that is stuck is at least so many times as long as the longest before it"""
STUCK_READINGS_MIN: Final = 20
"""readings of the shortest run that can be stuck: a message that is sent again is none"""
TAIL_MIN: Final = 0.25
"""least mean of the logarithms of the tail: equal runs do not show that longer ones never come"""


@state_type
class RestState(SavedState):
    """A value at which a feature may rest, and its longest runs."""

    value: Annotated[float, Number()]
    readings: int
    runs: Annotated[Ints, IntArray("own", least=1)]


@state_type
class FeatureRunsState(SavedState):
    """The run of one feature that goes on, and the longest runs before it."""

    name: str
    value: Annotated[float | None, Number()]
    readings: int
    since: Annotated[float | None, Number()]
    threshold: int
    longest: int
    reported: bool
    earlier: int
    runs: Annotated[Ints, IntArray("runs", least=1)]
    values: Annotated[Floats, FloatArray("runs")]
    rests: list[RestState]

    def check(self) -> None:
        require(len(self.runs) <= LONGEST, "more runs than are kept")
        require(len(self.rests) <= RESTS, "more values than are kept")
        require(bool((np.diff(self.runs) >= 0).all()), "runs are not in the order of their lengths")


@state_type
class StuckState(SavedState):
    """What a watch over stuck features goes on from."""

    observed_s: Annotated[float, Number(least=0.0)]
    newest: Annotated[float | None, Number()]
    features: list[FeatureRunsState]


@dataclass
class _Rest:
    """A value at which a feature may rest."""

    readings: int = 0
    """readings in its long runs, and at most as many more as the value had that it replaced"""
    runs: list[int] = field(default_factory=list)
    """lengths of its longest runs, ascending"""


@dataclass
class _FeatureRuns:
    """The run of one feature that goes on, and the longest runs before it."""

    value: float = math.nan
    """value of the run that goes on; NaN before the first"""
    readings: int = 0
    """readings of that run"""
    since: float | None = None
    """event time of its first reading"""
    threshold: int = 0
    """readings from which on it is stuck; 0: nothing can be said of it"""
    longest: int = 0
    """readings of the longest run that it is compared with"""
    reported: bool = False
    earlier: int = 0
    """readings that had the feature, before that run"""
    runs: list[tuple[int, float]] = field(default_factory=list)
    """the longest runs of values at which the feature does not rest, ascending, with the value"""
    rests: dict[float, _Rest] = field(default_factory=dict)

    @property
    def bar(self) -> int:
        """Readings that a run must have more of to be among the longest."""
        return self.runs[0][0] if len(self.runs) == LONGEST else 0

    def begin(self, value: float, since: float | None, earlier: int) -> None:
        """A run of this value begins, after this number of readings."""
        self.value = value
        self.since = since
        self.earlier = earlier
        self.readings = 0
        self.threshold = 0
        self.longest = 0
        self.reported = False

    def judge(self, per_month: float, months: float) -> None:
        """Set the threshold of the run that goes on, of which this number of months is known."""
        resting = sum(self._is_rest(rest) for rest in self.rests.values())
        # Each kind of run may be found falsely, and all of them together `per_month` times.
        per_month /= 1 + resting
        lengths = [length for length, _ in self.runs]
        times = TIMES_LONGEST
        rest = self.rests.get(self.value)
        if rest is not None and self._is_rest(rest):
            lengths = rest.runs
            times = TIMES_LONGEST_AT_REST
        if len(lengths) >= RUNS_MIN:
            self.longest = lengths[-1]
            tail = tail_of(lengths, per_month, months)
            self.threshold = math.ceil(max(tail, times * self.longest, STUCK_READINGS_MIN))

    def end(self) -> None:
        """Count the run that goes on, which has ended."""
        length = self.readings
        if self.reported:
            # What was found raises the threshold no further than to where it was.
            length = min(length, self.threshold)
        if length <= self.bar:
            return
        rest = self.rests.get(self.value)
        if rest is None:
            rest = self._followed(self.value)
        rest.readings += length
        bisect.insort(rest.runs, length)
        del rest.runs[:-LONGEST]
        if self._is_rest(rest):
            # Its runs before it was one would hide what is long for other values.
            self.runs = [run for run in self.runs if run[1] != self.value]
        else:
            bisect.insort(self.runs, (length, self.value))
            del self.runs[:-LONGEST]

    def _followed(self, value: float) -> _Rest:
        """Begin to follow a value, in place of the one with the fewest readings (Space-Saving,
        Metwally and others, ICDT 2005)."""
        rest = _Rest()
        if len(self.rests) == RESTS:
            fewest = min(self.rests, key=lambda followed: self.rests[followed].readings)
            rest.readings = self.rests.pop(fewest).readings
        self.rests[value] = rest
        return rest

    def _is_rest(self, rest: _Rest) -> bool:
        enough = rest.readings >= RESTS_SHARE_MIN * (self.earlier + self.readings)
        return len(rest.runs) >= RUNS_MIN and enough

    def state(self, name: str) -> FeatureRunsState:
        rests = []
        for value, rest in self.rests.items():
            runs = np.array(rest.runs, dtype=np.int64)
            rests.append(RestState(value=value, readings=rest.readings, runs=runs))
        return FeatureRunsState(
            name=name,
            value=None if math.isnan(self.value) else self.value,
            readings=self.readings,
            since=self.since,
            threshold=self.threshold,
            longest=self.longest,
            reported=self.reported,
            earlier=self.earlier,
            runs=np.array([length for length, _ in self.runs], dtype=np.int64),
            values=np.array([value for _, value in self.runs], dtype=np.float64),
            rests=rests,
        )

    def restore(self, saved: FeatureRunsState) -> None:
        self.value = math.nan if saved.value is None else saved.value
        self.readings = saved.readings
        self.since = saved.since
        self.threshold = saved.threshold
        self.longest = saved.longest
        self.reported = saved.reported
        self.earlier = saved.earlier
        self.runs = list(zip(saved.runs.tolist(), saved.values.tolist(), strict=True))
        self.rests = {}
        for rest in saved.rests:
            self.rests[rest.value] = _Rest(rest.readings, rest.runs.tolist())


def tail_of(lengths: Sequence[int], per_month: float, months: float) -> float:
    """The length that `per_month` runs a month exceed, of the longest ones of `months`, ascending.

    Their logarithms above the least of them have the mean gamma, which is taken a standard error
    higher than they show it: of few runs it may be too small by chance.
    """
    least = lengths[0]
    n = len(lengths)
    gamma = max(TAIL_MIN, sum(math.log(length / least) for length in lengths) / n)
    gamma *= 1.0 + 1.0 / math.sqrt(n)
    often = n / months / per_month
    return float(least * max(often, 1.0) ** gamma)


class _Step(NamedTuple):
    """Readings that are followed for one feature."""

    feature: int
    """position in the contract"""
    there: Ints
    """(m,) numbers of the readings that have it"""
    times: Sequence[float | None]
    places: Sequence[tuple[int, int]]
    observed: Floats

    def time(self, at: int) -> float | None:
        """The time of a reading that has the feature."""
        return self.times[int(self.there[at])]


class StuckWatch:
    """Follows the runs of each feature of a client in the order of its readings."""

    def __init__(self, contract: Contract, client: str, per_month: float) -> None:
        """`per_month`: rate of false reports to aim at, of all features together; 0: no watch."""
        self._contract = contract
        self._client = client
        self._per_month = per_month / len(contract.features)
        self._observed_s = 0.0
        """time in which readings came, which gaps and wrong clocks do not lengthen"""
        self._newest: float | None = None
        self._features = [_FeatureRuns() for _ in contract.features]

    def follow(
        self, values: Floats, times: Sequence[float | None], places: Sequence[tuple[int, int]]
    ) -> list[SiteEvent]:
        """The events in readings: values (n, d) as they were measured, NaN where missing; times
        (n,) in seconds since 1970, None without one; places (n,).

        Any batching of the same readings gives the same events.
        """
        if not self._per_month or not len(values):
            return []
        observed = self._observe(times)
        found: list[tuple[int, SiteEvent]] = []
        for feature in range(len(self._features)):
            found += self._follow_feature(feature, values[:, feature], times, places, observed)
        # In the order of the readings; of those of one reading by feature.
        found.sort(key=lambda event: event[0])
        return [event for _, event in found]

    def _observe(self, times: Sequence[float | None]) -> Floats:
        """(n,) the time that was observed up to each reading, in seconds."""
        observed = np.empty(len(times))
        for number, time in enumerate(times):
            if time is not None:
                if self._newest is not None and time > self._newest:
                    self._observed_s += min(time - self._newest, STEP_MAX_S)
                self._newest = time if self._newest is None else max(self._newest, time)
            observed[number] = self._observed_s
        return observed

    def _follow_feature(
        self,
        feature: int,
        values: Floats,
        times: Sequence[float | None],
        places: Sequence[tuple[int, int]],
        observed: Floats,
    ) -> list[tuple[int, SiteEvent]]:
        """The events of one feature, each with the number of its reading."""
        runs = self._features[feature]
        there = np.flatnonzero(~np.isnan(values))
        present = values[there]
        if not len(present):
            return []
        step = _Step(feature, there, times, places, observed)
        # NaN before the first value, so that it differs from every one and begins a run.
        before = np.concatenate([[runs.value], present[:-1]])
        edges = np.append(np.flatnonzero(present != before), len(present))
        known = runs.earlier + runs.readings
        found = self._lengthen(step, 0, int(edges[0]))
        lengths = np.diff(edges)
        if len(lengths):
            found += self._end(step, int(edges[0]))
        number = 0
        while number < len(lengths):
            bar = runs.bar
            # The last run goes on; of the others all but those that could be among the longest are
            # passed over, which for most sensors are nearly all.
            is_notable = lengths[number:] > bar
            is_notable[-1] = True
            for notable in (number + np.flatnonzero(is_notable)).tolist():
                start = int(edges[notable])
                end = int(edges[notable + 1])
                runs.begin(float(present[start]), times[there[start]], known + start)
                found += self._lengthen(step, start, end)
                number = notable + 1
                if number < len(lengths):
                    found += self._end(step, end)
                # Lower only once the feature is known to rest at a value: now others are notable.
                if runs.bar < bar:
                    break
        return found

    def _end(self, step: _Step, at: int) -> list[tuple[int, SiteEvent]]:
        """End the run that goes on, at the reading after it."""
        runs = self._features[step.feature]
        found = []
        if runs.reported:
            text = f"has another value again, after {_span(runs, runs.readings, step.time(at))}"
            found.append(self._event("stuck_ended", step, at, runs.readings, text))
        runs.end()
        return found

    def _lengthen(self, step: _Step, start: int, end: int) -> list[tuple[int, SiteEvent]]:
        """The run that goes on has the readings from `start` to `end` as well."""
        runs = self._features[step.feature]
        before = runs.readings
        runs.readings += end - start
        if before < STUCK_READINGS_MIN <= runs.readings:
            at = start + STUCK_READINGS_MIN - before - 1
            observed_s = max(float(step.observed[step.there[at]]), LEARNT_S)
            # Judged by what was known at that reading, however many come with it.
            after = runs.readings
            runs.readings = STUCK_READINGS_MIN
            runs.judge(self._per_month, observed_s / MONTH_S)
            runs.readings = after
        if runs.reported or not runs.threshold or runs.readings < runs.threshold:
            return []
        first = start + max(runs.threshold - before - 1, 0)
        # Later where not enough was observed yet; observed time never falls.
        observed = step.observed[step.there[first:end]]
        first += int(np.searchsorted(observed, LEARNT_S))
        if first == end:
            return []
        runs.reported = True
        readings = before + first - start + 1
        span = duration(float(step.observed[step.there[first]]))
        text = (
            f"has had one value for {_span(runs, readings, step.time(first))}; the longest such"
            f" time in {span} before had {runs.longest} readings"
        )
        return [self._event("stuck", step, first, readings, text)]

    def _event(
        self, kind: str, step: _Step, at: int, readings: int, text: str
    ) -> tuple[int, SiteEvent]:
        """An event, with the number of its reading."""
        number = int(step.there[at])
        partition, offset = step.places[number]
        feature = self._contract.features[step.feature].name
        event = SiteEvent(
            id=f"stuck/{partition}/{offset}/{kind}/{step.feature}",
            kind=kind,
            federation=self._contract.federation,
            client=self._client,
            model="",
            version=0,
            readings=readings,
            at=step.times[number],
            feature=feature,
            text=f"{feature} {text}",
        )
        return number, event

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        features = []
        for feature, runs in zip(self._contract.features, self._features, strict=True):
            features.append(runs.state(feature.name))
        state = StuckState(observed_s=self._observed_s, newest=self._newest, features=features)
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved one; features that an earlier contract did not have begin anew.

        Raises `InvalidState`.
        """
        saved = StuckState.read(state)
        self._observed_s = saved.observed_s
        self._newest = saved.newest
        by_name = {of_feature.name: of_feature for of_feature in saved.features}
        for feature, runs in zip(self._contract.features, self._features, strict=True):
            if feature.name in by_name:
                runs.restore(by_name[feature.name])


def _span(runs: _FeatureRuns, readings: int, until: float | None) -> str:
    """How long a run has lasted, in readings, and in time where these have it."""
    if runs.since is None or until is None or until <= runs.since:
        return f"{readings} readings"
    return f"{duration(until - runs.since)} ({readings} readings)"
