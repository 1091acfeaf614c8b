"""States that are new to a client: the days on which it was in each, and how rare a visit is.

A visit is some readings in a row of one known cluster. Each day (UTC, by the times of readings) has
the clusters that were visited on it, and a score: the number of days with the rarest of them. The
chance of a visit is a p-value of full conformal prediction (Vovk, Gammerman and Shafer, Algorithmic
Learning in a Random World, 2005): among all days, with today, the share of those whose score is not
above the number of days with the cluster that is visited now. While days are exchangeable, whatever
happens within them, at most a share p of them has a chance of p or less, so a level for a day is a
rate of false alarms.

Days do not cease to be comparable where the clustering changes: a few readings of each day are kept
and labelled again by the newest snapshot before a cluster counts as new. A cluster that has parted
from another one, or has taken another one in, is then found on the days on which its place was
visited.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.config.base import DAY_S
from shoal.kernels.arrays import Floats, Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.saved_state import FloatArray, IntArray, SavedState, Whole, require, state_type

DAYS_MAX: Final = 400
"""newest days that are compared: a little more than a year, so that a season is known"""
MONTH_DAYS: Final = 30
LEVEL_MIN: Final = 0.1
"""least rate of false alarms in a month: `DAYS_MAX` days show no smaller chance"""
ALMOST_NEVER_DAYS: Final = 3
"""earlier days with a cluster up to which a visit is judged at all"""
SAMPLED_DAYS: Final = 128
"""newest days of which readings are kept"""
SAMPLED_MAX: Final = 8
"""readings kept of a day"""
# A single reading of all days may be one that went astray between two clusters.
SAMPLED_IN_MIN: Final = 2
"""days on which kept readings must fall to a cluster for them to count as days with it"""
AGAIN_DAYS: Final = 7
"""days after a report of a cluster in which it is not reported again"""
DEVICES_MAX: Final = 256
"""devices of which the newest readings in a row are remembered, those that sent last"""
# Multiplicative hashing: Knuth 1998, The Art of Computer Programming 3, section 6.4.
GOLDEN: Final = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiples of it, modulo 2^64, spread evenly however many there are"""

Relabel = Callable[[Floats], Ints]
"""rows (n, d) in unit coordinates -> (n,) lasting identities by the newest snapshot, -1 for none"""
Day = Annotated[int, Whole(least=-COUNT_MAX)]
"""days since 1970, which may be before where a sensor's clock says so"""


Place = tuple[int, int]
"""day and key of a kept reading"""


class KeptReadings(NamedTuple):
    """Earlier readings of a client."""

    places: Sequence[Place]
    """(n,)"""
    rows: Floats
    """(n, d) in unit coordinates within the bounds"""


def day_of(time: float) -> int:
    """The day (UTC) of a time in seconds since 1970."""
    return math.floor(time / DAY_S)


class Visit(NamedTuple):
    """A visit to a cluster that is new to the client."""

    position: int
    """place of the reading at which it was found, among those that were given"""
    identity: int
    readings: int
    """readings in a row so far"""
    earlier_days: int
    """days before, with readings, that it was compared with"""
    visited_days: int
    """those of them on which the client had been there"""


@state_type
class DayState(SavedState):
    """The clusters that were visited on a day."""

    day: Day
    identities: list[int]


@state_type
class RunState(SavedState):
    """The newest readings in a row of a device."""

    device: str
    identity: int
    readings: int


@state_type
class ReportState(SavedState):
    """The day on which a cluster was last reported."""

    identity: int
    day: Day


@state_type
class VisitsState(SavedState):
    """Days with what was visited on them, kept readings, and what goes on."""

    days: list[DayState]
    sampled_day: Annotated[Ints, IntArray("s", least=-COUNT_MAX)]
    sampled_key: Annotated[Ints, IntArray("s")]
    sampled: Annotated[Floats, FloatArray("s", "d", gaps=True)]
    """(s, d) in unit coordinates"""
    runs: list[RunState]
    reports: list[ReportState]

    def check(self) -> None:
        days = [day.day for day in self.days]
        require(days == sorted(set(days)), "days do not ascend")
        require(len(days) <= DAYS_MAX, "there are too many days")
        _, numbers = np.unique(self.sampled_day, return_counts=True)
        require(numbers.max(initial=0) <= SAMPLED_MAX, "a day has too many kept readings")
        require(set(self.sampled_day.tolist()) <= set(days), "a kept reading is of no day")


class _Run(NamedTuple):
    identity: int
    readings: int


class Visits:
    """Follows the readings of one client in the clusters of one model."""

    def __init__(self, width: int, length: int, per_month: float) -> None:
        """`width` is the number of features d; `length` readings in a row are a visit; `per_month`
        is the rate of false alarms, 0 for no report at all."""
        self._width = width
        self._length = length
        self._per_month = per_month
        self._days: dict[int, set[int]] = {}
        """day -> identities visited, in the order of days"""
        self._samples: dict[int, list[tuple[int, Floats]]] = {}
        """day -> kept readings as (key, row), the smallest keys"""
        self._runs: dict[str, _Run] = {}
        """device -> its newest readings in a row; the one that sent last is the last"""
        self._reports: dict[int, int] = {}
        """identity -> day of its last report"""
        self._usual: dict[int, bool] = {}
        """identity -> whether it is usual here, as far as that was asked since the labelling or the
        day has changed"""
        self._usual_by: tuple[int, int] | None = None
        """day and version of the snapshot that this holds for"""

    def has_earlier(self, day: int) -> bool:
        """Whether there was an earlier day, without which nothing is usual yet."""
        return bool(self._days) and next(iter(self._days)) < day

    def kept(self, days: int) -> KeptReadings:
        """The readings that are kept of so many newest days, in their order."""
        newest = set(list(self._samples)[-days:])
        places = []
        rows = []
        for day, key, row in _each_sample(self._samples):
            if day in newest:
                places.append((day, key))
                rows.append(row)
        return KeptReadings(places, np.array(rows).reshape(-1, self._width))

    def usual_here(self, day: int, version: int, relabel: Relabel) -> Callable[[int], bool]:
        """A function that says of a cluster whether the client was there before this day.

        All are usual on the first day. `relabel` is by the snapshot of this version.
        """
        if self._usual_by != (day, version):
            self._usual_by = (day, version)
            self._usual = {}

        def is_usual(identity: int) -> bool:
            usual = self._usual.get(identity)
            if usual is None:
                usual = not self.has_earlier(day) or self._was_there(identity, day, relabel)
                self._usual[identity] = usual
            return usual

        return is_usual

    def follow(
        self,
        identities: Ints,
        rows: Floats,
        keys: Sequence[tuple[int, int]],
        devices: Sequence[str],
        day: int,
        relabel: Relabel,
    ) -> Visit | None:
        """Readings of one day in their order: identities (n,), -1 for none, rows (n, d) in unit
        coordinates within the bounds, places (n,) and devices (n,).

        Returns the visit to report, if any: one at most on each day. The result does not depend on
        how readings are split.
        """
        newest = next(reversed(self._days), day)
        if day <= newest - DAYS_MAX:
            return None
        self._open(day)
        self._sample(day, rows, keys)
        report = None
        for position, (identity, device) in enumerate(
            zip(identities.tolist(), devices, strict=True)
        ):
            if identity < 0:
                continue
            before = self._runs.pop(device, None)
            readings = 1
            if before is not None and before.identity == identity:
                readings += before.readings
            self._runs[device] = _Run(identity, readings)
            if readings < self._length or identity in self._days[day]:
                continue
            self._days[day].add(identity)
            # What comes late is of a day that is over: an alarm would be about the past.
            if report is None and day >= newest:
                report = self._judge(position, _Run(identity, readings), day, relabel)
        while len(self._runs) > DEVICES_MAX:
            # A dict keeps the order of insertion, and `pop` moves the last sender to the end.
            del self._runs[next(iter(self._runs))]
        return report

    def add_earlier(self, rows: Floats, keys: Sequence[tuple[int, int]], day: int) -> None:
        """Readings of a day that were labelled late: they show where the client was, and are not
        judged."""
        if day > next(reversed(self._days), day) - DAYS_MAX:
            self._open(day)
            self._sample(day, rows, keys)

    def _judge(self, position: int, run: _Run, day: int, relabel: Relabel) -> Visit | None:
        if (
            not self._per_month
            or not self.has_earlier(day)
            or self._was_reported(run.identity, day)
        ):
            return None
        if len(self._with(run.identity, day)) > ALMOST_NEVER_DAYS:
            return None
        self._relabel(day, relabel)
        visited = len(self._with(run.identity, day))
        earlier = self._before(day)
        if not self._is_rare(run.identity, day, earlier):
            return None
        self._reports[run.identity] = day
        return Visit(position, run.identity, run.readings, len(earlier), visited)

    def _was_reported(self, identity: int, day: int) -> bool:
        """Whether it was reported lately, or another cluster today: one outage may lead through
        several states."""
        for reported, at in self._reports.items():
            if at == day or (reported == identity and day - at < AGAIN_DAYS):
                return True
        return False

    def _is_rare(self, identity: int, day: int, earlier: Sequence[int]) -> bool:
        """Whether the chance of a visit to this cluster is as small as the rate of false alarms
        asks for."""
        days_with: Counter[int] = Counter()
        for at in (*earlier, day):
            days_with.update(self._days[at])
        own = days_with[identity]
        as_rare = 1
        for at in earlier:
            # A day on which nothing was visited for long enough is as usual as can be.
            score = min((days_with[other] for other in self._days[at]), default=DAYS_MAX + 1)
            as_rare += score <= own
        days = 1 + len(earlier)
        level = max(self._per_month, LEVEL_MIN) / MONTH_DAYS
        if as_rare <= level * days:
            return True
        # No chance is below 1 / days. So that it takes less than 1 / level days until an alarm is
        # possible at all, all but the first part of them, 1 / e, may raise one where nothing was as
        # rare: that is sum(1 / days) = ln(e) = 1 false alarm in the time for which one is due.
        return as_rare == 1 and len(earlier) * level * math.e >= 1

    def _was_there(self, identity: int, day: int, relabel: Relabel) -> bool:
        if not self._with(identity, day):
            self._relabel(day, relabel)
        return bool(self._with(identity, day))

    def _relabel(self, day: int, relabel: Relabel) -> None:
        """Add the clusters of the newest snapshot to the days whose kept readings fall to them."""
        sampled = [at for at in self._samples if at < day]
        if not sampled:
            return
        days = np.repeat(sampled, [len(self._samples[at]) for at in sampled])
        rows = np.array([row for at in sampled for _, row in self._samples[at]])
        identities = relabel(rows)
        for identity in np.unique(identities[identities >= 0]).tolist():
            there = np.unique(days[identities == identity]).tolist()
            known = len(self._with(identity, day)) > 0
            if known or len(there) >= min(SAMPLED_IN_MIN, len(sampled)):
                for at in there:
                    self._days[at].add(identity)

    def _before(self, day: int) -> list[int]:
        return [at for at in self._days if at < day]

    def _with(self, identity: int, day: int) -> list[int]:
        """The days before this one on which the client was in this cluster."""
        return [at for at in self._before(day) if identity in self._days[at]]

    def _open(self, day: int) -> None:
        if day in self._days:
            return
        is_late = bool(self._days) and day < next(reversed(self._days))
        self._days[day] = set()
        if is_late:
            self._days = dict(sorted(self._days.items()))
        while len(self._days) > DAYS_MAX:
            oldest = next(iter(self._days))
            del self._days[oldest]
        kept = list(self._days)[-SAMPLED_DAYS:]
        self._samples = {at: self._samples.get(at, []) for at in kept}
        for identity, at in list(self._reports.items()):
            if day - at >= AGAIN_DAYS:
                del self._reports[identity]

    def _sample(self, day: int, rows: Floats, keys: Sequence[tuple[int, int]]) -> None:
        """Keep the readings with the smallest keys, which are spread evenly over the day."""
        kept = self._samples.get(day)
        if kept is None:
            return
        places = np.array(keys, dtype=np.uint64).reshape(-1, 2)
        # A partition and an offset below 2^40 make one number, and no two places the same.
        numbers = (places[:, 0] << np.uint64(40)) + places[:, 1]
        # So many bits that a key is a whole number of a saved state in any case.
        scattered = (numbers * np.uint64(GOLDEN)) >> np.uint64(12)
        there = {key for key, _ in kept}
        for place in np.argsort(scattered, kind="stable")[:SAMPLED_MAX].tolist():
            key = int(scattered[place])
            # What is labelled again after a kill of the client comes again.
            if key not in there:
                # A copy, as a view would keep the whole batch.
                insort(kept, (key, rows[place].copy()), key=itemgetter(0))
        del kept[SAMPLED_MAX:]

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        days = []
        for day, identities in self._days.items():
            days.append(DayState(day=day, identities=sorted(identities)))
        sampled = list(_each_sample(self._samples))
        rows = np.array([row for _, _, row in sampled]).reshape(-1, self._width)
        state = VisitsState(
            days=days,
            sampled_day=np.array([day for day, _, _ in sampled], dtype=np.int64),
            sampled_key=np.array([key for _, key, _ in sampled], dtype=np.int64),
            sampled=rows,
            runs=[RunState(device=device, **run._asdict()) for device, run in self._runs.items()],
            reports=[ReportState(identity=key, day=day) for key, day in self._reports.items()],
        )
        return state.saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = VisitsState.read(state, {"d": self._width})
        self._days = {day.day: set(day.identities) for day in saved.days}
        self._samples = {day: [] for day in list(self._days)[-SAMPLED_DAYS:]}
        for day, key, row in zip(
            saved.sampled_day.tolist(), saved.sampled_key.tolist(), saved.sampled, strict=True
        ):
            require(day in self._samples, "a kept reading is of too old a day")
            self._samples[day].append((key, row.copy()))
        self._runs = {run.device: _Run(run.identity, run.readings) for run in saved.runs}
        self._reports = {report.identity: report.day for report in saved.reports}
        self._usual = {}
        self._usual_by = None


def _each_sample(
    samples: dict[int, list[tuple[int, Floats]]],
) -> Iterable[tuple[int, int, Floats]]:
    for day, kept in samples.items():
        for key, row in kept:
            yield day, key, row
