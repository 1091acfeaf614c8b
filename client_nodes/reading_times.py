"""The times of the readings of one update, in bounded memory, and their span without outliers.

One clock that has never been set, or a reading that a sensor has kept for ten days, would stretch
the span of a whole update, over which its readings count as spread. So times far outside of the
others are left out of it, and counted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np

from shoal.client_nodes.intake import TimeSpan
from shoal.kernels.arrays import Floats, Indices
from shoal.saved_state import FloatArray, SavedState, require, state_type
from shoal.telemetry.events import log_event

GROUPS_MAX: Final = 64
"""most groups of times that are kept; with more, two neighbours become one"""
WAITING_MAX: Final = 256
"""times that wait to be put into groups at most"""
FAR_OUT: Final = 3.0
"""distances between the quartiles beyond which a time is an outlier: the outer fences of Tukey 1977
(Exploratory Data Analysis). Readings at equal intervals end one such distance before them"""
NEAR_S: Final = 3600.0
"""no time within this many seconds of a quartile is an outlier: readings that come in bursts"""
WIDTH_POWER_MAX: Final = 64


@state_type
class ReadingTimesState(SavedState):
    """The groups of times of an update that is not made yet."""

    width_power: int
    groups: Annotated[Floats, FloatArray("k", 3)]
    """oldest time, newest time and number of each group, ascending"""

    def check(self) -> None:
        oldest, newest, number = self.groups.T
        require(self.width_power <= WIDTH_POWER_MAX, "groups of times are wider than all times")
        require(len(self.groups) <= GROUPS_MAX, "there are too many groups of times")
        require(bool((oldest <= newest).all()), "a group of times ends before it begins")
        require(bool((newest[:-1] <= oldest[1:]).all()), "groups of times do not ascend")
        require(bool((number >= 1).all()), "a group of times has none")


class ReadingTimes:
    """Times of readings, in groups of equal width.

    Those that were added last wait until groups are needed, or until there are `WAITING_MAX`: a
    client of a host adds a few at a time, and to make groups takes as long for one as for many.

    The width is the least power of two, in seconds, at which `GROUPS_MAX` groups hold all times. As
    groups of one width lie within those of the next, they depend on the times alone: neither on
    their order, nor on how they were split into calls.
    """

    def __init__(self) -> None:
        self._width_power = 0
        self._groups: Floats = np.empty((0, 3))
        self._waiting: list[float] = []
        """times that are in no group yet"""
        self._kept: Floats | None = None
        """the groups that are no outliers; None until they are needed"""

    def add(self, times: Sequence[float | None]) -> None:
        """Add times, seconds since 1970; None for a reading without one."""
        self._waiting += [time for time in times if time is not None]
        if len(self._waiting) >= WAITING_MAX:
            self._make_groups()

    def _make_groups(self) -> None:
        """Put the times that wait into groups."""
        if not self._waiting:
            return
        known = np.array(self._waiting, dtype=np.float64)
        self._waiting = []
        groups = _grouped(known, self._width_power)
        # Nearly every update has all its times at once.
        if len(self._groups):
            groups = np.concatenate([self._groups, groups])
            groups = groups[np.argsort(groups[:, 0], kind="stable")]
            groups = _joined(groups, self._width_power)
        self._groups = groups
        while len(self._groups) > GROUPS_MAX:
            self._width_power += 1
            self._groups = _joined(self._groups, self._width_power)
        self._kept = None

    @property
    def span(self) -> TimeSpan:
        """The span from the oldest to the newest time, without outliers."""
        kept = self._without_outliers()
        if not len(kept):
            return TimeSpan()
        return TimeSpan(float(kept[0, 0]), float(kept[-1, 1]))

    @property
    def left_out(self) -> int:
        """Number of times that are not in the span."""
        self._make_groups()
        return int(self._groups[:, 2].sum() - self._without_outliers()[:, 2].sum())

    def _without_outliers(self) -> Floats:
        """The groups that are no outliers: their nearest end lies within the fences."""
        self._make_groups()
        # Each update needs its span several times.
        if self._kept is None:
            self._kept = _within_fences(self._groups)
        return self._kept

    def clear(self) -> None:
        """Forget all times."""
        self._width_power = 0
        self._groups = np.empty((0, 3))
        self._waiting = []
        self._kept = None

    def state(self) -> ReadingTimesState:
        """What `restore` takes."""
        self._make_groups()
        return ReadingTimesState(width_power=self._width_power, groups=self._groups)

    def restore(self, saved: ReadingTimesState) -> None:
        """Become the saved one."""
        self._width_power = saved.width_power
        self._groups = saved.groups
        self._waiting = []
        self._kept = None


def span_of(times: Floats) -> TimeSpan:
    """The span of times (n,), seconds since 1970, without outliers."""
    all_times = ReadingTimes()
    all_times.add(times.tolist())
    return all_times.span


def log_left_out(times: ReadingTimes) -> None:
    """Log how many times the span of an update leaves out, if any."""
    left_out = times.left_out
    if left_out:
        log_event("times_left_out", logging.WARNING, readings=left_out)


def _within_fences(groups: Floats) -> Floats:
    """Groups (n, 3) -> those (m, 3) of which one end at least lies within the outer fences."""
    # A single group has both quartiles.
    if len(groups) <= 1:
        return groups
    reached = np.cumsum(groups[:, 2])
    # The far ends of the groups with the quartiles, so that the fences are never too near.
    low = groups[reached.searchsorted(reached[-1] / 4.0), 0]
    high = groups[reached.searchsorted(reached[-1] * 3.0 / 4.0), 1]
    reach = max(NEAR_S, FAR_OUT * (high - low))
    within: Floats = groups[(groups[:, 1] >= low - reach) & (groups[:, 0] <= high + reach)]
    return within


def _grouped(times: Floats, width_power: int) -> Floats:
    """Times (n,), one at least, in any order -> groups (k, 3), ascending."""
    ascending = np.sort(times, kind="stable")
    starts = _starts(ascending, width_power)
    ends = np.append(starts[1:], len(ascending))
    groups = np.empty((len(starts), 3))
    groups[:, 0] = ascending[starts]
    groups[:, 1] = ascending[ends - 1]
    groups[:, 2] = ends - starts
    return groups


def _starts(oldest: Floats, width_power: int) -> Indices:
    """Positions among ascending times (n,) at which intervals of this width begin."""
    # Widths are powers of 2 and intervals begin at their multiples: each lies within one interval
    # of the next width, so that the groups are the same in whatever batches the times come.
    interval = np.floor(oldest / math.ldexp(1.0, width_power))
    begins = np.ones(len(interval), dtype=np.bool_)
    begins[1:] = interval[1:] != interval[:-1]
    return np.flatnonzero(begins)


def _joined(groups: Floats, width_power: int) -> Floats:
    """Groups (n, 3), ascending, with those in one interval of this width put together."""
    starts = _starts(groups[:, 0], width_power)
    joined = np.empty((len(starts), 3))
    joined[:, 0] = groups[starts, 0]
    joined[:, 1] = np.maximum.reduceat(groups[:, 1], starts)
    joined[:, 2] = np.add.reduceat(groups[:, 2], starts)
    return joined
