"""Tells whether the client's main loop still runs, for the liveness probe."""

from __future__ import annotations

import time
from collections.abc import Callable

LIVE_S = 120.0
"""A healthy step ends sooner, also when no broker answers: its longest waits are 30 s."""


class Heartbeat:
    """Time of the newest step. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    def beat(self) -> None:
        """Note that a step begins now."""
        self._at = self._clock()

    @property
    def alive(self) -> bool:
        """Whether the newest step began within the last `LIVE_S` seconds."""
        return self._clock() - self._at < LIVE_S
