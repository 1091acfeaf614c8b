"""Watch over the shares of a model's clusters: reports when they are unusual for the time of day,
and usual again.

Each half hour that is over is compared with the same half hour of earlier days of the same kind
with readings of the same clients, as the page does: its unlikeness is the total variation distance
of the shares to the mean of those days. What the half hours of four weeks show decides how rare it
is, and a cumulative sum (Page, Biometrika 41, 1954) adds up the logarithms of that, so that a large
deviation is reported soon and a small one once it has lasted. Its threshold is set for a rate of
false alarms: the peaks of the sum in twelve weeks have an exponential tail, whose mean and number
are taken a standard error higher than they were seen, and it is never below the highest of these
peaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from shoal.kernels.arrays import Floats
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.history import COARSE_S, DAY_S, NO_CLUSTER
from shoal.saved_state import FloatArray, SavedState, Whole, state_type
from shoal.server_node.history.shares import Shares, client_shares, same_clients, shares_of
from shoal.server_node.history.sources import PublishedHistory
from shoal.server_node.history.usual import LIKE_DAYS_MIN, like_times

RARE_BINS: Final = 28 * DAY_S // COARSE_S
"""half hours that show how rare an unlikeness is: four weeks"""
RARE_BINS_MIN: Final = 7 * DAY_S // COARSE_S
"""half hours that are needed before anything is added up"""
LEARNT_BINS: Final = 14 * DAY_S // COARSE_S
"""half hours that are added up before the first report: two weeks"""
TAIL_BINS: Final = 3 * RARE_BINS
"""half hours whose peaks set the threshold: twelve weeks"""
MONTH_BINS: Final = 30 * DAY_S // COARSE_S
# The logarithm of a uniform chance is exponential with mean 1: with less than 1 taken off the sum
# would grow where nothing is unusual.
DRIFT: Final = 2.5
"""taken off each half hour's logarithm, whose mean is 1 where nothing is unusual"""
TAIL_SHARE: Final = 0.25
PEAKS_MIN: Final = 8
"""highest peaks, as a share of all, that show the tail, and how many at least"""
TAIL_MEAN_MIN: Final = 0.3
"""mean of the tail at least: peaks that happen to lie close together do not show a thin one"""
# A few days do not show how high sums get by chance, so only a very high one raises the alarm.
FEW_PEAKS_THRESHOLD: Final = 10.0
AGAIN_BINS: Final = 12
AGAIN_BELOW: Final = 1.2
"""an alarm ends once the mean of this many newest logarithms is not above that"""
SUM_MAX: Final = 3.0
"""thresholds that the sum reaches at most: a long alarm ends as soon as a short one"""
LOOK_BACK_S: Final = DAY_S
"""half hours that are further back than this from the newest are not looked at any more"""
ROUNDING: Final = 1e-9
"""two values of unlikeness are equal that differ by less: they are sums of shares, rounded"""

Moment = Annotated[int | None, Whole(least=-COUNT_MAX)]
"""start of a half hour, which may lie before 1970 where a sensor's clock says so"""


class Finding(NamedTuple):
    """A change between usual and unusual."""

    unusual: bool
    identity: int
    """the cluster that has deviated most"""
    share: float
    """its share of the readings of the half hour"""
    usual: float
    """its mean share in the same half hour of the days that it is compared with"""


class HalfHour(NamedTuple):
    """The shares of clusters and of clients in the readings of half an hour."""

    clusters: Shares
    clients: Shares


NO_HALF_HOUR: Final = HalfHour({}, {})


@state_type
class UnusualState(SavedState):
    """What a watch goes on from: see the fields of `UnusualWatch`."""

    seen: Moment
    at: Moment
    unlikeness: Annotated[Floats, FloatArray("u")]
    added_up: int
    total: float
    peak: float
    peaks: Annotated[Floats, FloatArray("p", 2)]
    newest: Annotated[Floats, FloatArray("n")]
    unusual: bool
    cluster: Annotated[int, Whole(least=NO_CLUSTER)]


@dataclass
class UnusualWatch:
    """Knowledge of a model's half hours, and whether they are unusual now."""

    seen: int | None = None
    """start of the newest half hour at the look before: older ones were published then"""
    at: int | None = None
    """start of the newest half hour that was compared"""
    unlikeness: list[float] = field(default_factory=list)
    """unlikeness of the newest `RARE_BINS` half hours"""
    added_up: int = 0
    """half hours that have been added up"""
    total: float = 0.0
    """the cumulative sum"""
    peak: float = 0.0
    """its highest value since it was 0"""
    peaks: list[list[float]] = field(default_factory=list)
    """[number of the half hour, peak] of each time that the sum was above 0"""
    newest: list[float] = field(default_factory=list)
    """the newest `AGAIN_BINS` logarithms"""
    unusual: bool = False
    cluster: int = NO_CLUSTER
    """the cluster that the alarm named"""

    def look(
        self,
        published: PublishedHistory,
        model: str,
        newest: int | None,
        clusters: Mapping[int, bool],
        per_month: float,
    ) -> list[Finding]:
        """Compare the half hours that are over and published since the last look; `newest` is where
        the newest starts.

        `clusters` are those that are known, and whether each is muted: these are left out.
        `per_month` is the rate of false alarms, above 0. A watch that has seen nothing learns from
        all that was published, and reports nothing of it: a rebuild repeats no report.
        """
        upto = self.seen
        self.seen = newest
        # At the first look it is not known yet what has been published.
        if upto is None:
            return []
        learns = self.at is None
        if self.at is None:
            first = upto - TAIL_BINS * COARSE_S
        else:
            first = max(self.at + COARSE_S, upto - LOOK_BACK_S)
        starts = range(first, upto, COARSE_S)
        known: dict[int, HalfHour] = {}
        findings = []
        for start in sorted(read_half_hours(published, model, starts, known)):
            days = _likes(published, model, start, known)
            finding = self._compare(start, days, known[start].clusters, clusters, per_month)
            if finding is not None:
                findings.append(finding)
            self.at = start
        # Without readings so far: later half hours are compared, and these are not looked at again.
        if starts and self.at is None:
            self.at = starts[-1]
        return [] if learns else findings

    def state(self) -> dict[str, Any]:
        """The saved state for `restore`."""
        return UnusualState(
            seen=self.seen,
            at=self.at,
            unlikeness=np.array(self.unlikeness, dtype=np.float64),
            added_up=self.added_up,
            total=self.total,
            peak=self.peak,
            peaks=np.array(self.peaks, dtype=np.float64).reshape(-1, 2),
            newest=np.array(self.newest, dtype=np.float64),
            unusual=self.unusual,
            cluster=self.cluster,
        ).saved()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        saved = UnusualState.read(state)
        self.seen = saved.seen
        self.at = saved.at
        self.unlikeness = saved.unlikeness.tolist()
        self.added_up = saved.added_up
        self.total = saved.total
        self.peak = saved.peak
        self.peaks = saved.peaks.tolist()
        self.newest = saved.newest.tolist()
        self.unusual = saved.unusual
        self.cluster = saved.cluster

    def _compare(
        self,
        start: int,
        days: list[Shares],
        now: Shares,
        clusters: Mapping[int, bool],
        per_month: float,
    ) -> Finding | None:
        """Add up a half hour, and report it if it begins or ends an alarm."""
        if len(days) < LIKE_DAYS_MIN:
            return None
        present = set(now)
        for day in days:
            present.update(day)
        identities = sorted(identity for identity in present if not clusters.get(identity))
        usual = {}
        apart = {}
        for identity in identities:
            usual[identity] = math.fsum(day.get(identity, 0.0) for day in days) / len(days)
            apart[identity] = now.get(identity, 0.0) - usual[identity]
        # A mean of few days is further from any day than one of many.
        unlike = math.fsum(map(abs, apart.values())) / 2 / math.sqrt(1 + 1 / len(days))
        self._add_up(unlike)
        if self.added_up < LEARNT_BINS:
            return None
        threshold = self._threshold(per_month)
        if self.unusual:
            self.total = min(self.total, SUM_MAX * threshold)
            return self._end(now, usual, threshold)
        known = [identity for identity in identities if identity in clusters]
        if self.total <= threshold or not known:
            return None
        # Of clusters equally far from what is usual the older one.
        named = max(known, key=lambda identity: (abs(apart[identity]), -identity))
        self.unusual = True
        self.cluster = named
        return Finding(True, named, now.get(named, 0.0), usual[named])

    def _end(self, now: Shares, usual: Shares, threshold: float) -> Finding | None:
        """End the alarm if the newest half hours are usual."""
        if np.mean(self.newest) > AGAIN_BELOW:
            return None
        # What was unusual raises the threshold no further than to where it was.
        self.peaks.append([self.added_up, min(self.peak, threshold)])
        self.unusual = False
        self.total = 0.0
        self.peak = 0.0
        share = now.get(self.cluster, 0.0)
        return Finding(False, self.cluster, share, usual.get(self.cluster, 0.0))

    def _add_up(self, unlike: float) -> None:
        """Add to the cumulative sum how rare this unlikeness is."""
        past = np.array(self.unlikeness)
        self.unlikeness = [*self.unlikeness, unlike][-RARE_BINS:]
        if len(past) < RARE_BINS_MIN:
            return
        # The bin itself counts among the past ones, so no chance is ever 0.
        as_unlike = 1 + int((past >= unlike - ROUNDING).sum())
        rare = -math.log(as_unlike / (1 + len(past)))
        self.added_up += 1
        self.newest = [*self.newest, rare][-AGAIN_BINS:]
        self.total = max(0.0, self.total + rare - DRIFT)
        if self.total > 0:
            self.peak = max(self.peak, self.total)
        elif self.peak > 0:
            self.peaks.append([self.added_up, self.peak])
            self.peak = 0.0
        oldest = self.added_up - TAIL_BINS
        self.peaks = [peak for peak in self.peaks if peak[0] > oldest]

    def _threshold(self, per_month: float) -> float:
        """The sum that is exceeded `per_month` times a month where nothing is unusual."""
        peaks = np.sort([peak for _, peak in self.peaks])
        if len(peaks) < PEAKS_MIN:
            return max(FEW_PEAKS_THRESHOLD, 2 * float(peaks.max(initial=0.0)))
        n = max(PEAKS_MIN, int(len(peaks) * TAIL_SHARE))
        tail = peaks[-n:]
        # Mean and number a standard error higher than they were seen: of few peaks either may be
        # too small by chance, which would give false alarms.
        mean = max(float((tail - tail[0]).mean()), TAIL_MEAN_MIN) * (1 + 1 / math.sqrt(n))
        months = min(self.added_up, TAIL_BINS) / MONTH_BINS
        # Above its start the tail is exponential: of so many peaks, as many as are asked for exceed
        # `mean` times the logarithm of the ratio of both numbers.
        often = (n + math.sqrt(n)) / months / per_month
        return max(float(tail[0]) + mean * math.log(max(often, 1.0)), float(tail[-1]))


def _likes(
    published: PublishedHistory, model: str, start: int, known: dict[int, HalfHour]
) -> list[Shares]:
    """The shares of the same half hour of earlier days of the same kind, with the same clients."""
    times = like_times(start)
    read_half_hours(published, model, times, known)
    here = known[start].clients
    there = [known[at] for at in times if at in known]
    return [day.clusters for day in there if day.clusters and same_clients(here, day.clients)]


def read_half_hours(
    published: PublishedHistory, model: str, starts: Iterable[int], known: dict[int, HalfHour]
) -> list[int]:
    """Read these half hours into `known`, and return the starts of those that have readings."""
    searched = list(starts)
    missing = [start for start in searched if start not in known]
    known.update(dict.fromkeys(missing, NO_HALF_HOUR))
    for counted in published.bins_at(model, COARSE_S, missing):
        known[counted.start] = HalfHour(shares_of([counted]), client_shares([counted]))
    return [start for start in searched if known[start].clusters]
