"""The clients of one model: which updates of each have been processed, and totals for people."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.checks import COUNT_MAX

AHEAD_MAX = 1024
"""how far a sequence number may be above the highest processed, and how far below it one may still come late"""
RATE_WINDOW_S = 60.0
RECENT_MAX = 1000


class SequenceWindow:
    """The sequence numbers of one client that have been processed: all below `seen_below`, and those in `ahead`.

    A number that never comes, because its update was damaged or lost, is waited for until the highest is `AHEAD_MAX`
    above it, and then no more: one lost update must not block a client for ever.
    """

    def __init__(self, seen_below: int = 1, ahead: Iterable[int] = (), may_jump: bool = True) -> None:
        """`may_jump`: the next number may be any. So may the first one, as a log does not reach back for ever."""
        self._seen_below = seen_below
        self._ahead = set(ahead)
        self._highest = max(self._ahead, default=seen_below - 1)
        self.may_jump = may_jump

    def contains(self, sequence: int) -> bool:
        """Whether `sequence` has been processed. Raises `MessageRejected` ("sequence") for one that cannot be."""
        if sequence < self._seen_below or sequence in self._ahead:
            return True
        if sequence > self._highest + AHEAD_MAX and not self.may_jump:
            raise MessageRejected("sequence", f"{sequence} is more than {AHEAD_MAX} above {self._highest}")
        return False

    def take(self, sequence: int) -> bool:
        """Mark `sequence` as processed; False if it was already. Raises `MessageRejected` as `contains` does."""
        if self.contains(sequence):
            return False
        self.may_jump = False
        self._ahead.add(sequence)
        self._highest = max(self._highest, sequence)
        self._give_up_below(self._highest - AHEAD_MAX + 1)
        while self._seen_below in self._ahead:
            self._ahead.remove(self._seen_below)
            self._seen_below += 1
        return True

    def _give_up_below(self, floor: int) -> None:
        if self._seen_below < floor:
            self._seen_below = floor
            self._ahead = {number for number in self._ahead if number >= floor}

    def state(self) -> list[Any]:
        """Plain values for `SequenceWindow(*state)`."""
        return [self._seen_below, sorted(self._ahead), self.may_jump]


class Clients:
    """All clients of one model: their sequence numbers, totals, and when each was last seen.

    Memory grows with the number of clients only. Totals and times are for people; no model depends on them.
    """

    def __init__(self) -> None:
        self._windows: dict[str, SequenceWindow] = {}
        self._totals: dict[str, list[Any]] = {}
        """client -> [updates, readings, last seen]"""
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        """client -> (time, readings) of its newest updates"""

    def __len__(self) -> int:
        return len(self._windows)

    def knows(self, client: str, sequence: int) -> bool:
        """Whether this update has been processed. Raises `MessageRejected` ("sequence")."""
        return (self._windows.get(client) or SequenceWindow()).contains(sequence)

    def take(self, client: str, sequence: int, readings: int, now: float) -> bool:
        """Mark this update as processed; False if it was already. Raises `MessageRejected` ("sequence")."""
        window = self._windows.get(client) or SequenceWindow()
        if not window.take(sequence):
            return False
        self._windows[client] = window
        totals = self._totals.setdefault(client, [0, 0, now])
        totals[0] += 1
        # Clients claim these numbers, so the sum is capped at what can be encoded.
        totals[1] = min(COUNT_MAX, totals[1] + readings)
        totals[2] = now
        recent = self._recent.setdefault(client, deque(maxlen=RECENT_MAX))
        recent.append((now, readings))
        _drop_old(recent, now)
        return True

    def set_readings(self, client: str, readings: int) -> None:
        """Replace the readings of a known client: its newest answer is about all rows that it holds."""
        self._totals[client][1] = readings

    def allow_jumps(self) -> None:
        """Updates were lost from the log: accept any number as the next one of each client."""
        for window in self._windows.values():
            window.may_jump = True

    def allow_jump(self, client: str) -> None:
        """Updates of this client were not processed: accept any number as its next one."""
        if client in self._windows:
            self._windows[client].may_jump = True

    def forget(self, client: str) -> int:
        """Drop all that is known of a client; how many of its updates were processed."""
        self._windows.pop(client, None)
        self._recent.pop(client, None)
        updates, *_ = self._totals.pop(client, [0])
        return int(updates)

    def names(self) -> list[str]:
        """All clients, sorted."""
        return sorted(self._windows)

    def totals(self) -> list[tuple[str, int, int, float]]:
        """(client, updates, readings, last seen in seconds since 1970), sorted by client."""
        return [(client, *totals) for client, totals in sorted(self._totals.items())]

    def readings_per_s(self, client: str, now: float) -> float:
        """Readings per second over the last minute; of updates since this server was started only."""
        recent = self._recent.get(client, deque())
        _drop_old(recent, now)
        if len(recent) < 2:
            return 0.0
        span = max(now - recent[0][0], 1e-3)
        return sum(readings for _, readings in list(recent)[1:]) / span

    def state(self) -> dict[str, Any]:
        """client -> [sequence numbers, totals], for `restore`."""
        return {client: [window.state(), self._totals[client]] for client, window in sorted(self._windows.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        try:
            self._windows = {client: SequenceWindow(*window) for client, (window, _) in state.items()}
            self._totals = {client: list(totals) for client, (_, totals) in state.items()}
        except (AttributeError, TypeError, ValueError) as broken:
            raise InvalidState(f"the list of clients is damaged: {broken}") from None
        self._recent = {}


def _drop_old(recent: deque[tuple[float, int]], now: float) -> None:
    while recent and recent[0][0] < now - RATE_WINDOW_S:
        recent.popleft()
