"""Finds slow trends and lasting steps of a feature within one state of the client: a sensor that
drifts, or was exchanged.

Of each cluster (a state of the client) the sums of each feature are kept by day (UTC), of the
newest 16 weeks. When a day is over, the step, or the line after a level, that fits the means of the
newest six weeks best is compared with the days before. Successive days are alike, as those of the
weather are: a line is compared with the few independent days that they are worth
(`shoal.kernels.chances`), and a step with how far the level moves from one day to the next.
Student's t says how likely so large a movement is where nothing moves; times the number of shapes
that were tried (Bonferroni). A finding has a chance so low that `per_month` false ones are expected
in a month over all features and states, and moves by a standard deviation of the readings.

A feature that was found is watched anew from that day on, in all states. What is not found: a
circular feature or a category, which have no trend, and drift that the clusters follow, since a
reading has the label of the newest snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.config.base import DAY_S
from shoal.config.contract import Contract, names_without_units, value_text
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.chances import careful_correlation, inflation_of, two_sided
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.events import SiteEvent
from shoal.protocol.labels import Label
from shoal.saved_state import IntArray, SavedState, Whole, require, state_type

MOVES_DAYS: Final = 42
"""newest days in which a movement may have begun"""
DAYS_KEPT: Final = 112
"""16 weeks, which show how much a level wanders where nothing is wrong"""
EARLIER_DAYS_MIN: Final = 14
"""days with readings before a movement"""
DAY_READINGS_MIN: Final = 10
"""readings without which a day has no mean"""
DEVIATIONS_MIN: Final = 1.0
"""least movement, in standard deviations of the readings of the state"""
MOVED_MIN: Final = 1e-5
"""least movement, in unit coordinates: what is smaller is rounding"""
STEP_DAYS_MIN: Final = 2
LINE_DAYS_MIN: Final = 4
"""days with readings after a step, and of a line"""
NEWEST_DAYS: Final = 3
STEP_LASTS_DAYS: Final = 10
"""days after which a step is no holiday of a week, with the weekends around it"""
CELLS_MAX: Final = 2**17
"""sums of all states together: 1 MiB"""
SCALE: Final = 2**20
"""sums are of whole numbers of this part of the range between the bounds, so that any batching of
the readings gives the same bits"""
OUTERMOST: Final = (-1.0, 2.0)
"""unit coordinates beyond which values count as these"""
READINGS_PER_DAY_MAX: Final = 2**20
"""readings of a state that a day counts: 64 bits hold the sum of their squares"""
SUMS: Final = 3
"""number, sum and sum of squares"""
MONTH_DAYS: Final = 30


@state_type
class StateDaysState(SavedState):
    """The sums of one state by day."""

    identity: int
    days: Annotated[Ints, IntArray("days", least=-COUNT_MAX)]
    """(days,) numbers of days since 1970, ascending"""
    sums: Annotated[Ints, IntArray("days", "sums", "d", least=-(2**63))]

    def check(self) -> None:
        require(len(self.days) <= DAYS_KEPT, "more days than are kept")
        require(bool((np.diff(self.days) > 0).all()), "days do not ascend")


@state_type
class DriftState(SavedState):
    """What the watch over trends goes on from."""

    day: Annotated[int | None, Whole(least=-COUNT_MAX)]
    states: list[StateDaysState]


class Trend(NamedTuple):
    """A movement of one feature within one state."""

    chance: float
    """chance of a movement as large in one of the windows where nothing moves"""
    moved: float
    """height of a step, or length of a line, in unit coordinates"""
    deviations: float
    """the same in standard deviations of the readings around it"""
    since: int
    """day since 1970 on which it began"""
    days: int
    """days from then to the last one"""
    readings: int
    """readings of these days"""
    is_step: bool
    """whether one step fits better than a line"""


class _Finding(NamedTuple):
    """A trend, and where it was found."""

    feature: int
    identity: int
    trend: Trend


@dataclass
class _StateDays:
    """The sums of one state by day."""

    days: list[int]
    sums: list[Ints]
    """(3, d) of each day"""

    def add(self, day: int, added: Ints) -> None:
        """Count readings of the newest day, or of one that is kept; those of others are not."""
        if not self.days or day > self.days[-1]:
            self.days.append(day)
            self.sums.append(np.zeros_like(added))
            del self.days[:-DAYS_KEPT]
            del self.sums[:-DAYS_KEPT]
        if day not in self.days:
            return
        sums = self.sums[self.days.index(day)]
        room = sums[0] + added[0] <= READINGS_PER_DAY_MAX
        sums += np.where(room, added, 0)


class DriftWatch:
    """Follows the daily means of each feature in each state of one client, for one model."""

    def __init__(self, contract: Contract, client: str, model: str, per_month: float) -> None:
        """`per_month`: rate of false findings to aim at, of all features together; 0: no watch."""
        self._contract = contract
        self._client = client
        self._model = model
        self._per_month = per_month
        kinds = [feature.kind for feature in contract.features]
        self._watched = [j for j, kind in enumerate(kinds) if kind not in ("circular", "category")]
        cells = DAYS_KEPT * SUMS * len(contract.features)
        self._states_max = max(1, CELLS_MAX // cells)
        self._day: int | None = None
        """newest day with readings, since 1970"""
        self._states: dict[int, _StateDays] = {}
        """identity -> its days; the one used last is the last"""

    def follow(
        self, labels: Sequence[Label], unit: Floats, places: Sequence[tuple[int, int]]
    ) -> list[SiteEvent]:
        """The events in the labels (n,) of readings (n, d) in unit coordinates, NaN where missing.

        Readings without a time or a known state count for nothing. Any batching gives the same.
        """
        if not self._per_month or not self._watched:
            return []
        identities = []
        days = []
        numbers = []
        for number, label in enumerate(labels):
            if label.identity is not None and label.time is not None:
                identities.append(label.identity)
                days.append(int(label.time // DAY_S))
                numbers.append(number)
        if not numbers:
            return []
        day_of = np.array(days)
        # What comes late does not begin a day.
        newest = np.maximum.accumulate(day_of)
        if self._day is not None:
            newest = np.maximum(newest, self._day)
        turns = np.flatnonzero(np.diff(newest, prepend=self._first_day(newest))).tolist()
        events = []
        start = 0
        for turn in [*turns, len(numbers)]:
            self._count(identities[start:turn], day_of[start:turn], unit[numbers[start:turn]])
            if turn < len(numbers):
                at = numbers[turn]
                events += self._look(labels[at], places[at])
                self._day = int(newest[turn])
            start = turn
        return events

    def _first_day(self, newest: Ints) -> int:
        if self._day is None:
            self._day = int(newest[0])
        return self._day

    def _count(self, identities: Sequence[int], days: Ints, unit: Floats) -> None:
        if not identities:
            return
        inside = np.clip(unit, *OUTERMOST)
        is_there = ~np.isnan(inside)
        whole = np.rint(np.where(is_there, inside, 0.0) * SCALE).astype(np.int64)
        of_reading = np.stack([is_there.astype(np.int64), whole, whole * whole], axis=1)
        keys = np.column_stack([identities, days])
        for identity, day in np.unique(keys, axis=0).tolist():
            own = (keys[:, 0] == identity) & (keys[:, 1] == day)
            state = self._states.pop(identity, None)
            if state is None:
                state = _StateDays([], [])
            state.add(day, of_reading[own].sum(axis=0))
            # A dict keeps the order of insertion: the first is the one used longest ago.
            self._states[identity] = state
        while len(self._states) > self._states_max:
            del self._states[next(iter(self._states))]

    def _look(self, label: Label, place: tuple[int, int]) -> list[SiteEvent]:
        """The events of the days that are over when this reading comes."""
        # Each feature of each state is looked at on each day.
        looks = MONTH_DAYS * len(self._watched) * max(1, len(self._states))
        level = self._per_month / looks
        best: dict[int, _Finding] = {}
        for identity in sorted(self._states):
            state = self._states[identity]
            # Of a state without readings on that day nothing new is known.
            if state.days[-1] != self._day:
                continue
            days = np.array(state.days)
            sums = np.array(state.sums)
            for feature in self._watched:
                trend = find_trend(days, sums[:, :, feature])
                if trend is None or trend.chance > level:
                    continue
                other = best.get(feature)
                if other is None or trend.chance < other.trend.chance:
                    best[feature] = _Finding(feature, identity, trend)
        for feature in best:
            # Otherwise the same movement would be found on each of the days that follow.
            self._forget(feature)
        return [self._event(finding, label, place) for finding in best.values()]

    def _forget(self, feature: int) -> None:
        """Watch a feature anew, in all states."""
        for state in self._states.values():
            for sums in state.sums:
                sums[:, feature] = 0

    def _event(self, finding: _Finding, label: Label, place: tuple[int, int]) -> SiteEvent:
        feature = self._contract.features[finding.feature]
        trend = finding.trend
        kind = "level_shift" if trend.is_step else "drift"
        partition, offset = place
        return SiteEvent(
            id=f"{self._model}/{partition}/{offset}/{kind}/{finding.feature}",
            kind=kind,
            federation=self._contract.federation,
            client=self._client,
            model=self._model,
            version=label.version,
            readings=trend.readings,
            at=label.time,
            cluster=finding.identity,
            feature=feature.name,
            outside={feature.name: "above" if trend.moved > 0 else "below"},
            text=self._text(finding),
        )

    def _text(self, finding: _Finding) -> str:
        feature = self._contract.features[finding.feature]
        name = names_without_units(self._contract.features)[finding.feature]
        trend = finding.trend
        amount = value_text(abs(trend.moved) * (feature.high - feature.low), feature)
        size = f"by {amount} ({trend.deviations:.1f} standard deviations)"
        where = f"within cluster {finding.identity}"
        if trend.is_step:
            direction = "higher" if trend.moved > 0 else "lower"
            day = datetime.fromtimestamp(trend.since * DAY_S, UTC)
            return f"{name} {where} is {direction} {size} since {day:%Y-%m-%d}"
        direction = "risen" if trend.moved > 0 else "fallen"
        return f"{name} {where} has {direction} {size} in {trend.days} days"

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        states = []
        for identity, state in self._states.items():
            days = np.array(state.days, dtype=np.int64)
            sums = np.array(state.sums, dtype=np.int64)
            states.append(StateDaysState(identity=identity, days=days, sums=sums))
        return DriftState(day=self._day, states=states).saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = DriftState.read(state, {"d": len(self._contract.features), "sums": SUMS})
        self._day = saved.day
        self._states = {}
        for days in saved.states:
            self._states[days.identity] = _StateDays(days.days.tolist(), list(days.sums))


def find_trend(days: Ints, sums: Ints) -> Trend | None:
    """The least likely movement of one feature in one state that ends with the last day; None if
    there is none of `DEVIATIONS_MIN`, or too few days are known.

    days (n,) since 1970, ascending; sums (n, 3): number of readings, their sum and that of their
    squares, of `SCALE` for 1 in unit coordinates.
    """
    enough = sums[:, 0] >= DAY_READINGS_MIN
    if not enough.any() or not enough[-1]:
        return None
    days = days[enough]
    number, total, squares = sums[enough].T.astype(np.float64)
    means = total / number / SCALE
    # Deviations from the mean of the day; rounded, they may be just below 0.
    inner = np.maximum(squares / SCALE**2 - number * means**2, 0.0)
    variance = float(inner.sum() / (number - 1).sum())
    # Most features of most states have not moved so far at all.
    newest = means[days > days[-1] - MOVES_DAYS]
    if np.ptp(newest) < max(DEVIATIONS_MIN * math.sqrt(variance), MOVED_MIN):
        return None
    shape = _best_shape(days, means)
    if shape is None or abs(shape.moved) < MOVED_MIN:
        return None
    deviations = abs(shape.moved) / math.sqrt(variance + shape.error + MOVED_MIN**2)
    if deviations < DEVIATIONS_MIN:
        return None
    return Trend(
        # By Bonferroni, as the shape is the best of all that were tried on the same days.
        chance=min(1.0, _chance(days, means, shape) * shape.tried),
        moved=shape.moved,
        deviations=deviations,
        since=int(days[shape.first]),
        days=int(days[-1] - days[shape.first]),
        readings=int(number[shape.first :].sum()),
        is_step=shape.is_step,
    )


def _chance(days: Ints, means: Floats, shape: _Shape) -> float:
    """The chance of so large a movement of this shape in means (n,), were it the only one that is
    tried; 1 where too little is known."""
    if shape.first < EARLIER_DAYS_MIN:
        return 1.0
    moves = (days >= days[shape.first]).astype(np.float64)
    if not shape.is_step:
        moves *= days - days[shape.first]
    design = np.column_stack([np.ones(len(days)), moves])
    solve = np.linalg.pinv(design)
    fitted = solve @ means
    rest = means - design @ fitted
    correlation = _correlation(days, rest)
    if shape.is_step:
        # The end of a holiday is a step as well, back to what is usual.
        usual = float(np.median(means[: shape.first]))
        newest = float(means[shape.first :].mean())
        if (newest - usual) * np.sign(shape.moved) < abs(shape.moved) / 2:
            return 1.0
        return _chance_of_step(days, means, design, float(correlation[0]))
    worth = len(days) / float(inflation_of(correlation)[0])
    # The level, the movement and its place are taken from the same days.
    degrees = max(worth - 3.0, 1.0)
    # What the fit takes up of the variance is worth as many days as it has numbers.
    variance = float(rest @ rest) / len(days) * worth / degrees
    # The correlation of two days is r to the power of the days between them, as that of an
    # autoregressive series is.
    between = correlation[0] ** np.abs(np.subtract.outer(days, days))
    error = float(solve[1] @ between @ solve[1]) * variance
    t = math.inf if error == 0.0 else abs(float(fitted[1])) / math.sqrt(error)
    return float(two_sided(np.array([t]), np.array([degrees]))[0])


def _chance_of_step(days: Ints, means: Floats, design: Floats, correlation: float) -> float:
    """The chance of so large a step in means (n,), with the design (n, 2) of a level and a step,
    and the correlation of neighbouring days.

    By generalized least squares (Prais and Winsten, 1954): a level that wanders by as much as the
    step in weeks does not do so from one day to the next, and that is where a sensor is exchanged.
    """
    series = _whitened(np.column_stack([design, means]), days, correlation)
    solve = np.linalg.pinv(series[:, :2])
    fitted = solve @ series[:, 2]
    rest = series[:, 2] - series[:, :2] @ fitted
    # The level, the step, its place and the correlation are taken from the same days.
    degrees = max(len(days) - 4.0, 1.0)
    error = float(solve[1] @ solve[1]) * float(rest @ rest) / degrees
    t = math.inf if error == 0.0 else abs(float(fitted[1])) / math.sqrt(error)
    return float(two_sided(np.array([t]), np.array([degrees]))[0])


def _whitened(series: Floats, days: Ints, correlation: float) -> Floats:
    """Series (n, k) of these days, without what each day has of the one before: their noise is
    independent, of equal variance, if it is that of an autoregressive series of order 1."""
    # Days without readings lie between some: what is left of a day falls with each.
    kept = correlation ** np.diff(days)[:, None]
    white = series.copy()
    white[1:] = (series[1:] - kept * series[:-1]) / np.sqrt(1.0 - kept**2)
    return white


def _correlation(days: Ints, rest: Floats) -> Floats:
    """(1,) correlation of what the fit leaves on neighbouring days."""
    first = np.flatnonzero(np.diff(days) == 1)
    square = float(rest @ rest) / len(rest)
    if not len(first) or square == 0.0:
        return np.zeros(1)
    raw = float((rest[first] * rest[first + 1]).mean()) / square
    return careful_correlation(np.array([np.clip(raw, -1.0, 1.0)]), len(first))


class _Shape(NamedTuple):
    """How a level has moved in the end: in one step, or along a line."""

    is_step: bool
    first: int
    """place of the first mean of the new level, or of the last one of the old"""
    moved: float
    error: float
    """mean square of what it leaves"""
    tried: int
    """shapes of which it is the best"""


def _best_shape(days: Ints, means: Floats) -> _Shape | None:
    """The step, or the line after a level, that leaves least of the means of the newest
    `MOVES_DAYS` days; None if it is over, or may be soon."""
    start = int(np.searchsorted(days, days[-1] - MOVES_DAYS, side="right"))
    here = means[start:]
    n = len(here)
    if n < LINE_DAYS_MIN:
        return None
    places = np.arange(n)
    steps = places >= places[1 : n - STEP_DAYS_MIN + 1, None]
    lines = np.maximum(days[start:] - days[start : start + n - LINE_DAYS_MIN + 1, None], 0)
    # (s, n): each shape of a level that has moved by 1 for a step, and by 1 a day for a line.
    shapes = np.concatenate([steps.astype(np.float64), lines.astype(np.float64)])
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    squares = (centred**2).sum(axis=1)
    heights = centred @ here / squares
    left = ((here - here.mean()) ** 2).sum() - heights**2 * squares
    number = int(left.argmin())
    is_step = number < len(steps)
    best = _Shape(
        is_step=is_step,
        first=start + (number + 1 if is_step else number - len(steps)),
        moved=float(heights[number] * shapes[number, -1]),
        # Its place was chosen as well, so it takes three degrees of freedom.
        error=max(float(left[number]), 0.0) / max(n - 3, 1),
        tried=len(shapes),
    )
    # A holiday is over before this: only what lasts longer is a new level.
    if best.is_step and days[-1] - days[best.first] < STEP_LASTS_DAYS:
        return None
    # Each of the newest days lies beyond the middle, or the level is on its way back.
    old = here[: max(best.first - start, 1)].mean()
    newest = (means[-NEWEST_DAYS:] - old) * np.sign(best.moved)
    return best if bool((newest > abs(best.moved) / 2).all()) else None
