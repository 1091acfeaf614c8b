"""Who has spoken, and what was heard: the same word twice changes nothing."""

from __future__ import annotations

from collections import deque
from typing import Any

from shoal.errors import MessageRefused, StateRefused

AHEAD_MAX = 4096
"""how far a sequence number may run ahead of those missing below it"""
RATE_WINDOW_S = 60.0


class Heard:
    """What was heard of one client for one model."""

    def __init__(self, seen_below: int = 1, ahead: set[int] | None = None) -> None:
        self._next = seen_below
        self._ahead = ahead or set()

    def take(self, sequence: int) -> bool:
        """True if `sequence` is new; it counts as heard from now on. `MessageRefused` if it cannot be true."""
        if sequence < self._next or sequence in self._ahead:
            return False
        if sequence >= self._next + AHEAD_MAX:
            raise MessageRefused("sequence", f"{sequence} runs more than {AHEAD_MAX} ahead of {self._next}")
        self._ahead.add(sequence)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        return True

    def state(self) -> list[Any]:
        return [self._next, sorted(self._ahead)]


class Roster:
    """All clients of one model: sequence numbers heard, totals, and when they were last seen.

    Memory grows with the number of clients only. Totals and times are for people; no model depends on them.
    """

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self._totals: dict[str, list[Any]] = {}
        self._recent: dict[str, deque[tuple[float, int]]] = {}

    def __len__(self) -> int:
        return len(self._heard)

    def take(self, client: str, sequence: int, readings: int, now: float) -> bool:
        """True if this update is new. Raises `MessageRefused` ("sequence")."""
        heard = self._heard.get(client) or Heard()
        if not heard.take(sequence):
            return False
        self._heard[client] = heard
        totals = self._totals.setdefault(client, [0, 0, now])
        totals[0] += 1
        totals[1] += readings
        totals[2] = now
        self._recent.setdefault(client, deque(maxlen=1000)).append((now, readings))
        return True

    def clients(self) -> list[tuple[str, int, int, float]]:
        """(client, updates, readings, last seen) in the order of their names."""
        return [(client, *totals) for client, totals in sorted(self._totals.items())]

    def readings_per_s(self, client: str, now: float) -> float:
        """Readings of the last minute per second, counted from this server's start."""
        recent = self._recent.get(client, deque())
        while recent and recent[0][0] < now - RATE_WINDOW_S:
            recent.popleft()
        if len(recent) < 2:
            return 0.0
        span = max(now - recent[0][0], 1e-3)
        return sum(readings for _, readings in list(recent)[1:]) / span

    def state(self) -> dict[str, Any]:
        return {client: [heard.state(), self._totals[client]] for client, heard in sorted(self._heard.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `StateRefused`."""
        try:
            self._heard = {client: Heard(heard[0], set(heard[1])) for client, (heard, _) in state.items()}
            self._totals = {client: list(totals) for client, (_, totals) in state.items()}
        except (TypeError, ValueError, IndexError) as broken:
            raise StateRefused(f"the list of clients is damaged: {broken}") from None
        self._recent = {}
