"""Even steps of time, on which rows that come at times of their own are placed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from shoal.errors import InvalidData, InvalidState
from shoal.kernels.arrays import Floats, Ints

GAP_MAX: Final = 4_096
"""steps without a row, in a row, beyond which a gap is no longer told from a longer one"""
ANCHORS_MAX: Final = 4_096
"""long gaps whose times are remembered, the latest"""


class Placed(NamedTuple):
    """Rows on the grid."""

    rows: Floats
    """(m, d) of successive steps, NaN at a step without a row"""
    step: Ints
    """(n,) the step of each row given, counted from the first row of the stream"""


def seconds_of(times: ArrayLike, n: int) -> Floats:
    """Times (n,), seconds or datetime64 -> (n,) seconds, from 1970 on for datetime64.

    Raises `InvalidData`.
    """
    array = np.asarray(times)
    if array.shape != (n,):
        raise InvalidData(
            f"times has shape {array.shape}, it must have the time of each of the {n} rows"
        )
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            raise InvalidData("times has entries that are no times")
        # In nanoseconds first: the same moments are the same seconds, whatever unit they come in.
        return array.astype("datetime64[ns]").astype(np.int64) / 1e9
    if array.dtype.kind not in "iuf":
        raise InvalidData(
            "times must be seconds or datetime64; those with a time zone as UTC without one, as "
            "pandas has them after tz_convert(None)"
        )
    seconds = array.astype(np.float64)
    if not np.isfinite(seconds).all():
        raise InvalidData("times has entries that are no times")
    return seconds


def usual_step(seconds: Floats) -> float:
    """(n,) ascending seconds -> the median of the steps above 0; 1 if there is none."""
    steps = np.diff(seconds)
    ahead = steps[steps > 0]
    # The median, as a few long pauses would raise the mean.
    return float(np.median(ahead)) if len(ahead) else 1.0


class TimeGrid:
    """The steps of a stream: each row falls to the nearest one, the first of several to the same.

    A gap of more than `GAP_MAX` steps is shortened to that many: a year's pause must not become a
    table of a year's steps.
    """

    def __init__(self, interval: float) -> None:
        """`interval`: seconds of a step."""
        self.interval = interval
        self.n_steps = 0
        """steps so far"""
        self._latest = -np.inf
        """seconds of the last row"""
        self._anchors = np.empty((0, 2))
        """(a, 2) steps, and the seconds at which each is: the first row, and those after long
        gaps"""

    def check(self, seconds: Floats) -> None:
        """Raises `InvalidData` where seconds (n,) that follow those before go back."""
        if (np.diff(seconds, prepend=self._latest) < 0).any():
            raise InvalidData("times decrease; give rows in the order of time")

    def place(self, rows: Floats, seconds: Floats) -> Placed:
        """rows (n, d) at seconds (n,), which follow those before.

        Raises `InvalidData` where times go back, before anything has changed.
        """
        if not len(rows):
            return Placed(rows, np.empty(0, dtype=np.int64))
        self.check(seconds)
        anchors = self._anchors
        if not len(anchors):
            anchors = np.array([[0.0, seconds[0]]])
        at_step, at_seconds = anchors[-1]
        # To the nearest: times vary around the interval, so that cut off two rows would often share
        # a step.
        nearest = np.rint((seconds - at_seconds) / self.interval)
        ahead = np.diff(at_step + nearest, prepend=self.n_steps - 1.0)
        step = self.n_steps - 1 + np.cumsum(np.minimum(ahead, GAP_MAX)).astype(np.int64)
        dense = np.full((int(step[-1]) + 1 - self.n_steps, rows.shape[1]), np.nan)
        is_first = ahead > 0
        dense[step[is_first] - self.n_steps] = rows[is_first]
        # On the grid as it was, so that any division of rows into calls places them alike.
        after_long = ahead > GAP_MAX
        since = at_seconds + nearest[after_long] * self.interval
        later = np.column_stack([step[after_long], since])
        self._anchors = np.concatenate([anchors, later])[-ANCHORS_MAX:]
        self._latest = float(seconds[-1])
        self.n_steps = int(step[-1]) + 1
        return Placed(dense, step)

    def seconds_at(self, step: Ints) -> Floats:
        """Steps (n,) -> (n,) the seconds at which they are; NaN before the long gaps that are
        remembered, and before the first row."""
        place = np.searchsorted(self._anchors[:, 0], step, side="right") - 1
        if not len(self._anchors):
            return np.full(len(step), np.nan)
        known = self._anchors[np.maximum(place, 0)]
        seconds = known[:, 1] + (step - known[:, 0]) * self.interval
        return np.where(place >= 0, seconds, np.nan)

    def state(self) -> dict[str, Any]:
        """Everything that placing further rows depends on."""
        return {
            "interval": self.interval,
            "steps": self.n_steps,
            "latest": self._latest,
            "anchors": self._anchors.copy(),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> TimeGrid:
        """The grid that `state` was of. Raises `InvalidState`."""
        anchors = state.get("anchors")
        interval = state.get("interval")
        steps = state.get("steps")
        latest = state.get("latest")
        if (
            not isinstance(anchors, np.ndarray)
            or anchors.shape[1:] != (2,)
            or not isinstance(interval, float)
            or not interval > 0
            or not isinstance(steps, int)
            or not isinstance(latest, float)
            or (steps > 0) != (len(anchors) > 0)
        ):
            raise InvalidState("saved state is not one of a grid of times")
        grid = cls(interval)
        grid.n_steps = steps
        grid._latest = latest
        grid._anchors = anchors.astype(np.float64)
        return grid
