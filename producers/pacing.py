"""The times at which readings are due: at once, at a rate, or as fast as they happened."""

from __future__ import annotations

import math
from collections.abc import Callable

from shoal.errors import SettingsError

LONGEST_WAIT_S = 30.0
"""longest gap between readings in seconds; a longer one, such as a night, is shortened to this"""


class Pacing:
    """Computes when each reading is due; `due` is called once per reading, in order.

    By default all are due at once. speed: event seconds per second of the clock. rate: readings per
    second. longest_wait_s: of the clock, between two readings. wall: a clock of seconds since 1970;
    with it, a reading has the time at which it is fed, not its own. Raises `SettingsError` when
    speed and rate are both given or one is not above 0.
    """

    def __init__(
        self,
        speed: float | None = None,
        rate: float | None = None,
        longest_wait_s: float = LONGEST_WAIT_S,
        wall: Callable[[], float] | None = None,
    ) -> None:
        if speed is not None and rate is not None:
            raise SettingsError("pacing: give a speed or a rate, not both")
        for name, value in (("speed", speed), ("rate", rate), ("longest wait", longest_wait_s)):
            if value is not None and not 0 < value < math.inf:
                raise SettingsError(f"pacing: {name} is a number above 0, not {value:g}")
        self._speed = speed
        self._rate = rate
        self._longest_wait_s = longest_wait_s
        self._wall = wall
        self._due = -math.inf
        self._origin = 0.0
        self._first: float | None = None
        self._rows = 0

    @property
    def by_time(self) -> bool:
        """Whether readings need an event time."""
        return self._speed is not None

    @property
    def at_once(self) -> bool:
        """Whether every reading is due at once, with the time of its source."""
        return self._rate is None and self._speed is None and self._wall is None

    def time_of(self, own: float | None) -> float | None:
        """The event time of a reading that is due; `own` is the one of its source."""
        if self._wall is None:
            return own
        return self._wall()

    def due(self, time: float | None, now: float) -> float:
        """The clock's time at which the next reading, of event time `time`, is due.

        It is never before that of the reading before.
        """
        if self._rate is not None:
            if self._rows == 0:
                self._origin = now
            # From the first reading on, so that neither rounding nor late calls add up.
            self._due = self._origin + self._rows / self._rate
            self._rows += 1
        elif self._speed is not None and time is not None:
            self._due = self._due_by_time(time, self._speed, now)
        elif self._due == -math.inf:
            self._due = now
        return self._due

    def _due_by_time(self, time: float, speed: float, now: float) -> float:
        if self._first is None:
            return self._anchored(time, max(now, self._due))
        due = self._origin + (time - self._first) / speed
        if due > self._due + self._longest_wait_s:
            return self._anchored(time, self._due + self._longest_wait_s)
        if due < self._due - self._longest_wait_s:
            # The event time starts again, perhaps in a second file: continue from here.
            return self._anchored(time, self._due)
        # A little out of order: due with the one before it.
        return max(due, self._due)

    def _anchored(self, time: float, due: float) -> float:
        self._first = time
        self._origin = due
        return due


def speed_of(text: str) -> float | None:
    """`60x` or `60` -> 60.0; `max` -> None. Raises `SettingsError`."""
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        # NaN fails the comparison below.
        speed = math.nan
    if not 0 < speed < math.inf:
        raise SettingsError(
            f"speed {text!r}: write 60x for sixty times as fast as it happened, or max"
        )
    return speed


def rate_of(text: str) -> float:
    """`100/s` or `100` -> 100.0. Raises `SettingsError`."""
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        # NaN fails the comparison below.
        rate = math.nan
    if not 0 < rate < math.inf:
        raise SettingsError(
            f"rate {text!r}: write 100/s for a hundred readings per second, over all clients"
        )
    return rate
