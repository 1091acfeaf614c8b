"""Times at which most readings of a cluster fall: part of its name once the history shows them
beyond doubt.

Each day (for weekends: each week) is one observation, however many readings it has, as readings of
a day depend on each other: whether the cluster's share was higher within a part of the day than
outside it. The evidence is a mixture of likelihood ratios, which Ville's inequality bounds at every
look at once (Ville, Étude critique de la notion de collectif, 1939): so that looking every day
gives no more wrong names than looking once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import product
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.history import COARSE_S, NO_CLUSTER, readings_table
from shoal.saved_state import FloatArray, IntArray, SavedState, Whole, state_type
from shoal.server_node.history.sources import PublishedHistory

FALSE_NAMES_MAX: Final = 0.05
"""chance that a model whose clusters do not depend on time ever gives one a time"""
MOSTLY: Final = 2 / 3
NO_LONGER: Final = 1 / 2
"""share of the readings of a cluster, were all hours alike in number, at which a time is given, and
taken away below"""
TIMES_AS_OFTEN: Final = 2.0
"""share of the cluster within the time, as a multiple of that outside it, from which the time is
given"""
KEPT: Final = 60
"""observations of a time that was given: at that many, older ones count half"""
DAYS_BACK_MAX: Final = 60
"""days that are looked back at where none has been looked at before"""
LATE_S: Final = 6 * 3600
"""seconds that a day is left open for late readings"""
SEGMENT_ENDS: Final = (6, 12, 18, 22)
"""hours that begin a new segment of the day, local time"""


class Time(NamedTuple):
    """A time that a name may have."""

    words: str
    segments: tuple[int, ...]
    """parts of the day; of the week, 0 for Monday to Friday and 1 for the weekend"""
    length: float
    """share of the day, or of the week"""
    by_chance: float = 0.5
    """most that the share of a cluster is higher within it by chance: a lone burst falls into the
    longer part"""


OF_THE_DAY: Final = (
    Time("at night", (0, 4), 8 / 24),
    Time("in the morning", (1,), 6 / 24),
    Time("in the afternoon", (2,), 6 / 24),
    Time("in the evening", (3,), 4 / 24),
    Time("by day", (1, 2), 12 / 24),
    Time("in the evening or at night", (0, 3, 4), 12 / 24),
)
OF_THE_WEEK: Final = (Time("at weekends", (1,), 2 / 7), Time("on weekdays", (0,), 5 / 7, 5 / 7))
TIMES: Final = OF_THE_DAY + OF_THE_WEEK


def _words_of_names() -> dict[str, tuple[str, str]]:
    of_the_day = ["", *(time.words for time in OF_THE_DAY)]
    of_the_week = ["", *(time.words for time in OF_THE_WEEK)]
    return {" ".join(filter(None, both)): both for both in product(of_the_day, of_the_week)}


WORDS: Final = _words_of_names()
"""words of a name -> the time of the day and that of the week in them; empty ones for none"""


@dataclass
class Evidence:
    """Finding of days or weeks for one cluster and one time."""

    seen: int = 0
    higher: int = 0
    """days on which its share was higher within the time"""
    within: float = 0.0
    """sum of its shares within the time"""
    outside: float = 0.0

    def add(self, within: float, outside: float) -> None:
        """Add a day, unless the two shares are equal, as on a day without the cluster."""
        if within != outside:
            self.seen += 1
            self.higher += within > outside
            self.within += within
            self.outside += outside

    def mostly(self, length: float) -> float:
        """Share of its readings within the time, were there equally many readings of all clusters
        in every hour."""
        here = self.within * length
        there = self.outside * (1 - length)
        return here / (here + there) if here + there else 0.0

    def shows(self, time: Time, chance: float) -> bool:
        """Whether most of its readings fall into the time; `chance` bounds that it is ever said
        wrongly."""
        large = self.mostly(time.length) >= MOSTLY and self.within >= TIMES_AS_OFTEN * self.outside
        # Ville's inequality: where shares do not depend on the time, this ratio ever reaches 1 /
        # chance with a probability of at most `chance`, however often it is looked at.
        return large and likelihood_ratio(self.higher, self.seen, time.by_chance) >= 1 / chance

    def halve(self) -> None:
        """Let what has been seen so far count half."""
        self.seen = self.seen // 2
        self.higher = self.higher // 2
        self.within = self.within / 2
        self.outside = self.outside / 2


def likelihood_ratio(higher: int, seen: int, by_chance: float) -> float:
    """Mean likelihood of `higher` of `seen` over chances above `by_chance`, divided by that of
    `by_chance`."""
    # A uniform mixture, by the midpoints of 32 intervals: it needs no guess of how much higher the
    # share is.
    chances = by_chance + (1 - by_chance) * np.arange(0.5, 32) / 32
    # In logarithms: products of thousands of ratios leave the range of a float.
    logs: Floats = higher * np.log(chances / by_chance) + (seen - higher) * np.log(
        (1 - chances) / (1 - by_chance)
    )
    # 700: e^709 is the largest that a float holds, and anything of this size is beyond doubt.
    return float(np.exp(np.minimum(logs, 700.0)).mean())


@state_type
class TimesState(SavedState):
    """What the times of a model's clusters go on from: see the fields of `Times`."""

    seen: Annotated[int | None, Whole(least=-COUNT_MAX)]
    day: int | None
    clusters: Annotated[Ints, IntArray("e")]
    """identities of those that there is evidence of"""
    evidence: Annotated[Floats, FloatArray("e", len(TIMES), 4)]
    """the fields of `Evidence`, for each of `TIMES`"""
    week_clusters: Annotated[Ints, IntArray("w", least=NO_CLUSTER)]
    week: Annotated[Floats, FloatArray("w", 2)]


@dataclass
class Times:
    """The times of a model's clusters."""

    seen: int | None = None
    """start of the newest half hour at the look before: older ones were published then"""
    day: int | None = None
    """the newest day that was looked at, as a proleptic ordinal"""
    evidence: dict[int, list[Evidence]] = field(default_factory=dict)
    """identity -> one for each of `TIMES`"""
    week: dict[int, list[float]] = field(default_factory=dict)
    """identity -> readings of the week so far, on weekdays and at the weekend; `NO_CLUSTER` for
    those of all"""

    def look(
        self, published: PublishedHistory, model: str, newest: int | None, given: Mapping[int, str]
    ) -> Mapping[int, str]:
        """Look at the days that are over and published; the newest half hour starts at `newest`.

        `given` are the known clusters with the words that their names have -> the same with the
        words from now on.
        """
        published_to = self.seen
        self.seen = newest
        # At the first look it is not known yet what has been published.
        if published_to is None:
            return given
        upto = datetime.fromtimestamp(published_to - LATE_S).toordinal()
        if self.day is None or upto - self.day > DAYS_BACK_MAX:
            self.day = upto - DAYS_BACK_MAX - 1
        for day in range(self.day + 1, upto):
            given = self._look_at(date.fromordinal(day), published, model, given)
        # Never back, so that no day is counted twice.
        self.day = max(self.day, upto - 1)
        return given

    def state(self) -> dict[str, Any]:
        """The saved state for `restore`."""
        table = [
            [evidence.seen, evidence.higher, evidence.within, evidence.outside]
            for of_cluster in self.evidence.values()
            for evidence in of_cluster
        ]
        return TimesState(
            seen=self.seen,
            day=self.day,
            clusters=np.array(list(self.evidence), dtype=np.int64),
            evidence=np.array(table, dtype=np.float64).reshape(-1, len(TIMES), 4),
            week_clusters=np.array(list(self.week), dtype=np.int64),
            week=np.array(list(self.week.values()), dtype=np.float64).reshape(-1, 2),
        ).saved()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        saved = TimesState.read(state)
        self.seen = saved.seen
        self.day = saved.day
        self.evidence = {}
        for identity, rows in zip(saved.clusters.tolist(), saved.evidence.tolist(), strict=True):
            self.evidence[identity] = [
                Evidence(int(seen), int(higher), within, outside)
                for seen, higher, within, outside in rows
            ]
        self.week = dict(zip(saved.week_clusters.tolist(), saved.week.tolist(), strict=True))

    def _look_at(
        self, day: date, published: PublishedHistory, model: str, given: Mapping[int, str]
    ) -> Mapping[int, str]:
        for gone in self.evidence.keys() - given.keys():
            del self.evidence[gone]
        for gone in self.week.keys() - given.keys() - {NO_CLUSTER}:
            del self.week[gone]
        readings = _readings_of(day, published, model)
        is_weekend = day.weekday() >= 5
        for identity, of_day in readings.items():
            self.week.setdefault(identity, [0.0, 0.0])[is_weekend] += float(of_day.sum())
        given = self._observed(OF_THE_DAY, readings, given)
        # Sunday ends a week, and a week is one observation.
        if day.weekday() == 6:
            of_week = {identity: np.array(both) for identity, both in self.week.items()}
            given = self._observed(OF_THE_WEEK, of_week, given)
            self.week = {}
        return given

    def _observed(
        self, times: tuple[Time, ...], readings: Mapping[int, Floats], given: Mapping[int, str]
    ) -> Mapping[int, str]:
        """Add readings by segment (s,) of each cluster, those of all under `NO_CLUSTER` -> the
        words from now on."""
        words = dict(given)
        first = TIMES.index(times[0])
        for identity in sorted(readings.keys() & given.keys()):
            of_cluster = self.evidence.setdefault(identity, [Evidence() for _ in TIMES])
            evidence = of_cluster[first : first + len(times)]
            for time, of_time in zip(times, evidence, strict=True):
                own, other = _parted(readings[identity], time)
                within, outside = _parted(readings[NO_CLUSTER], time)
                if within and outside:
                    of_time.add(own / within, other / outside)
            both = list(WORDS.get(given[identity], ("", "")))
            changed = 1 if times is OF_THE_WEEK else 0
            # Shared out over all clusters and times that could get a name by chance (Bonferroni).
            chance = FALSE_NAMES_MAX / len(given) / len(TIMES)
            both[changed] = _words(both[changed], times, evidence, chance)
            words[identity] = " ".join(filter(None, both))
        return words


def _parted(counts: Floats, time: Time) -> tuple[float, float]:
    """Readings within the time, and outside it."""
    within = float(counts[list(time.segments)].sum())
    return within, float(counts.sum()) - within


def _words(before: str, times: tuple[Time, ...], evidence: list[Evidence], chance: float) -> str:
    """The words from now on: those before while they are true, else the shortest time that is
    shown."""
    for time, of_time in zip(times, evidence, strict=True):
        if time.words != before:
            continue
        # Older observations count half, so that a habit that ends is noticed within weeks.
        if of_time.seen >= KEPT:
            of_time.halve()
        if not of_time.seen or of_time.mostly(time.length) >= NO_LONGER:
            return before
    shown = []
    for time, of_time in zip(times, evidence, strict=True):
        if of_time.shows(time, chance):
            shown.append(time)
    if shown:
        return min(shown, key=lambda time: time.length).words
    return ""


def _readings_of(day: date, published: PublishedHistory, model: str) -> dict[int, Floats]:
    """identity -> readings (5,) of a day by segment, those of all under `NO_CLUSTER`; empty without
    any."""
    # By the calendar and not by 86 400 s: a day has 23 or 25 hours where clocks change.
    first = _midnight(day)
    end = _midnight(day + timedelta(days=1))
    starts = range(-(-first // COARSE_S) * COARSE_S, end, COARSE_S)
    readings: dict[int, Floats] = {}
    for counted in published.bins_at(model, COARSE_S, starts):
        hour = datetime.fromtimestamp(counted.start).hour
        segment = sum(hour >= end for end in SEGMENT_ENDS)
        for identity, n in readings_table(counted.clusters).tolist():
            # A set: readings of no cluster are a part of all once, and not twice.
            for key in {identity, NO_CLUSTER}:
                readings.setdefault(key, np.zeros(len(SEGMENT_ENDS) + 1))[segment] += n
    return readings


def _midnight(day: date) -> int:
    """The start of a day in local time, seconds since 1970."""
    return int(datetime(day.year, day.month, day.day).timestamp())
