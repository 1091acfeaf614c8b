"""The clients of one model: which updates of each have been processed, and totals for people."""

from __future__ import annotations

from collections import deque
from typing import Any

from server_node.client_groups import ClientGroups, values_by_client
from server_node.models.sequences import ClientSequences, Content, restored_sequences
from shoal.errors import InvalidState, MessageRejected
from shoal.protocol.checks import COUNT_MAX
from shoal.protocol.conflicts import CONFLICTS_MAX

NO_CONTENT = Content()
RATE_WINDOW_S = 60.0
RECENT_MAX = 1000


class Clients:
    """All clients of one model: their sequence numbers, totals, and when each was last seen.

    Memory grows with the number of clients only. Totals and times are for people; no model depends on them.
    """

    def __init__(self) -> None:
        self._sequences: dict[str, ClientSequences] = {}
        self._conflicts: dict[str, tuple[int, bytes]] = {}
        """client -> (sequence number, digest) of the newest update that was refused because of its number"""
        self._totals: dict[str, list[Any]] = {}
        """client -> [updates, readings, last seen]"""
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        """client -> (time, readings) of its newest updates"""
        self._groups = ClientGroups()

    def __len__(self) -> int:
        return len(self._sequences)

    def knows(self, client: str, sequence: int, content: Content = NO_CONTENT) -> bool:
        """Whether this update has been processed. Raises `MessageRejected` ("sequence", "conflict")."""
        try:
            return (self._sequences.get(client) or ClientSequences()).contains(sequence, content)
        except MessageRejected as refused:
            self._keep_conflict(client, sequence, content, refused)
            raise

    def take(self, client: str, sequence: int, readings: int, now: float, content: Content = NO_CONTENT) -> bool:
        """Mark this update as processed; False if it was already. Raises as `knows` does."""
        sequences = self._sequences.get(client) or ClientSequences()
        try:
            if not sequences.take(sequence, content):
                return False
        except MessageRejected as refused:
            self._keep_conflict(client, sequence, content, refused)
            raise
        self._sequences[client] = sequences
        self._groups.change(client)
        totals = self._totals.setdefault(client, [0, 0, now])
        totals[0] += 1
        # Clients claim these numbers, so the sum is capped at what can be encoded.
        totals[1] = min(COUNT_MAX, totals[1] + readings)
        totals[2] = now
        recent = self._recent.setdefault(client, deque(maxlen=RECENT_MAX))
        recent.append((now, readings))
        _drop_old(recent, now)
        return True

    def _keep_conflict(self, client: str, sequence: int, content: Content, refused: MessageRejected) -> None:
        if refused.reason != "conflict":
            return
        self._conflicts.pop(client, None)
        self._conflicts[client] = (sequence, content.digest)
        if len(self._conflicts) > CONFLICTS_MAX:
            del self._conflicts[next(iter(self._conflicts))]

    def set_readings(self, client: str, readings: int) -> None:
        """Replace the readings of a known client: its newest answer is about all rows that it holds."""
        self._totals[client][1] = readings
        self._groups.change(client)

    def allow_jumps(self) -> None:
        """Updates were lost from the log: accept any number as the next one of each client."""
        for client in self._sequences:
            self.allow_jump(client)

    def allow_jump(self, client: str) -> None:
        """Updates of this client were not processed: accept any number as its next one."""
        if client in self._sequences:
            self._sequences[client].allow_jump()
            self._groups.change(client)

    def forget(self, client: str) -> int:
        """Drop all that is known of a client; how many of its updates were processed."""
        self._sequences.pop(client, None)
        self._conflicts.pop(client, None)
        self._groups.change(client)
        self._recent.pop(client, None)
        updates, *_ = self._totals.pop(client, [0])
        return int(updates)

    def names(self) -> list[str]:
        """All clients, sorted."""
        return sorted(self._sequences)

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

    def conflicts(self) -> list[tuple[str, int, bytes]]:
        """(client, sequence number, digest) of the newest update of each that was refused because of its number."""
        return [(client, *refused) for client, refused in self._conflicts.items()]

    def state(self) -> dict[str, Any]:
        """Plain values and parts; `restore` takes them as a checkpoint loads them."""
        return {"known": self._groups.state(self._saved), "conflicts": [list(one) for one in self.conflicts()]}

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        try:
            known, conflicts = values_by_client(state["known"]), state["conflicts"]
            self._sequences = {client: restored_sequences(windows) for client, (windows, _) in known.items()}
            self._totals = {client: list(totals) for client, (_, totals) in known.items()}
            self._conflicts = {client: (sequence, digest) for client, sequence, digest in conflicts}
        except (AttributeError, KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the list of clients is damaged: {broken}") from None
        self._recent = {}
        self._groups.begin_again(self._sequences)

    def _saved(self, client: str) -> list[Any] | None:
        sequences = self._sequences.get(client)
        return None if sequences is None else [sequences.state(), list(self._totals[client])]


def _drop_old(recent: deque[tuple[float, int]], now: float) -> None:
    while recent and recent[0][0] < now - RATE_WINDOW_S:
        recent.popleft()
