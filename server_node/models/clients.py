"""Who has spoken, and what was heard: the same word twice changes nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.checks import COUNT_MAX

AHEAD_MAX = 1024
"""how far a sequence number may run ahead of the highest heard, and how far below it one may still come late"""
RATE_WINDOW_S = 60.0
RECENT_MAX = 1000


class SequenceWindow:
    """What was heard of one client for one model: all numbers below `seen_below`, and those `ahead` of it.

    A number that never comes, because its update was damaged or lost, is waited for while the next `AHEAD_MAX`
    come in, and then no more: one lost update must not end a client's voice.
    """

    def __init__(self, seen_below: int = 1, ahead: Iterable[int] = (), may_jump: bool = True) -> None:
        """`may_jump`: the next number may be any; so it is for the first one, as logs do not reach back for ever."""
        self._next = seen_below
        self._ahead = set(ahead)
        self._highest = max(self._ahead, default=seen_below - 1)
        self.may_jump = may_jump

    def knows(self, sequence: int) -> bool:
        """Whether `sequence` was heard. `MessageRejected` if it cannot be true."""
        if sequence < self._next or sequence in self._ahead:
            return True
        if sequence > self._highest + AHEAD_MAX and not self.may_jump:
            raise MessageRejected("sequence", f"{sequence} runs more than {AHEAD_MAX} ahead of {self._highest}")
        return False

    def take(self, sequence: int) -> bool:
        """True if `sequence` is new; it counts as heard from now on. `MessageRejected` if it cannot be true."""
        if self.knows(sequence):
            return False
        self.may_jump = False
        self._ahead.add(sequence)
        self._highest = max(self._highest, sequence)
        self._forget_below(self._highest - AHEAD_MAX + 1)
        while self._next in self._ahead:
            self._ahead.remove(self._next)
            self._next += 1
        return True

    def _forget_below(self, floor: int) -> None:
        if self._next < floor:
            self._next = floor
            self._ahead = {number for number in self._ahead if number >= floor}

    def state(self) -> list[Any]:
        """Plain values for `SequenceWindow(*state)`."""
        return [self._next, sorted(self._ahead), self.may_jump]


class Clients:
    """All clients of one model: sequence numbers heard, totals, and when they were last seen.

    Memory grows with the number of clients only. Totals and times are for people; no model depends on them.
    """

    def __init__(self) -> None:
        self._heard: dict[str, SequenceWindow] = {}
        self._totals: dict[str, list[Any]] = {}
        self._recent: dict[str, deque[tuple[float, int]]] = {}

    def __len__(self) -> int:
        return len(self._heard)

    def knows(self, client: str, sequence: int) -> bool:
        """Whether this update was heard. Raises `MessageRejected` ("sequence")."""
        return (self._heard.get(client) or SequenceWindow()).knows(sequence)

    def take(self, client: str, sequence: int, readings: int, now: float) -> bool:
        """True if this update is new. Raises `MessageRejected` ("sequence")."""
        heard = self._heard.get(client) or SequenceWindow()
        if not heard.take(sequence):
            return False
        self._heard[client] = heard
        totals = self._totals.setdefault(client, [0, 0, now])
        totals[0] += 1
        # A sum of what others claim: it must stay a number that can be written down.
        totals[1] = min(COUNT_MAX, totals[1] + readings)
        totals[2] = now
        recent = self._recent.setdefault(client, deque(maxlen=RECENT_MAX))
        recent.append((now, readings))
        _drop_old(recent, now)
        return True

    def stand_behind(self, client: str, readings: int) -> None:
        """So many readings stand behind the newest word of a client known, in place of what stood there before."""
        self._totals[client][1] = readings

    def allow_jumps(self) -> None:
        """Updates were lost: whatever number a client says next is true."""
        for heard in self._heard.values():
            heard.may_jump = True

    def totals(self) -> list[tuple[str, int, int, float]]:
        """(client, updates, readings, last seen) in the order of their names."""
        return [(client, *totals) for client, totals in sorted(self._totals.items())]

    def readings_per_s(self, client: str, now: float) -> float:
        """Readings of the last minute per second, counted from this server's start."""
        recent = self._recent.get(client, deque())
        _drop_old(recent, now)
        if len(recent) < 2:
            return 0.0
        span = max(now - recent[0][0], 1e-3)
        return sum(readings for _, readings in list(recent)[1:]) / span

    def state(self) -> dict[str, Any]:
        return {client: [heard.state(), self._totals[client]] for client, heard in sorted(self._heard.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            self._heard = {client: SequenceWindow(*heard) for client, (heard, _) in state.items()}
            self._totals = {client: list(totals) for client, (_, totals) in state.items()}
        except (AttributeError, TypeError, ValueError) as broken:
            raise InvalidState(f"the list of clients is damaged: {broken}") from None
        self._recent = {}


def _drop_old(recent: deque[tuple[float, int]], now: float) -> None:
    while recent and recent[0][0] < now - RATE_WINDOW_S:
        recent.popleft()
