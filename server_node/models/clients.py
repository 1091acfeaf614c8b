"""The clients of one model: which updates of each have been processed, totals, rates, and what is
odd about them.

Values by client are kept in groups, such that a checkpoint costs what has changed and not the
number of clients.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

from shoal.config.base import DAY_S
from shoal.errors import InvalidState, MessageRejected
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.codec import StoredPart
from shoal.protocol.conflicts import CONFLICTS_MAX, INCARNATION_BYTES, Conflict, Copy
from shoal.server_node.models.sequences import (
    NO_CONTENT,
    ClientSequences,
    Content,
    restored_sequences,
)
from shoal.server_node.report.status import ClientStatus, DailyRate

GROUPS: Final = 512
"""a checkpoint lists all of them and writes those anew in which a client has changed, with its
other clients"""


class ClientGroups:
    """Puts each client into one of `GROUPS` groups by its name; a group is a part of the state.

    Which groups there are, and what is in them, follows from the clients and their values alone.
    """

    def __init__(self) -> None:
        self._parts: dict[int, StoredPart] = {}
        """group -> client -> value"""
        self._changed: set[str] = set()

    def change(self, client: str) -> None:
        """The value of this client is another one than at the last `state`, or there is one, or
        none any more."""
        self._changed.add(client)

    def begin_again(self, clients: Iterable[str]) -> None:
        """Begin with these clients, and with nothing known of their values."""
        self._parts = {}
        self._changed = set(clients)

    def state(self, value_of: Callable[[str], Any]) -> list[StoredPart]:
        """The groups in their order. `value_of` gives a client's plain value, None to leave the
        client out."""
        changed: dict[int, dict[str, Any]] = {}
        for client in self._changed:
            # Not `hash`, whose values for strings differ from process to process: a restart would
            # write every group again.
            changed.setdefault(crc32(client.encode()) % GROUPS, {})[client] = value_of(client)
        self._changed.clear()
        for group, values in changed.items():
            old = self._parts.get(group)
            # Clients in groups by a hash: a change of one writes its group, not all clients.
            merged = values if old is None else old.value | values
            # Sorted: a group with equal values must be equal bytes, or a checkpoint would write it
            # again.
            kept = {}
            for client in sorted(merged):
                if merged[client] is not None:
                    kept[client] = merged[client]
            if kept:
                self._parts[group] = StoredPart(kept)
            else:
                self._parts.pop(group, None)
        return [self._parts[group] for group in sorted(self._parts)]


def values_by_client(state: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Values by client that `ClientGroups.state` was made of. Raises `TypeError` or `ValueError`
    for a damaged one."""
    return {client: value for group in state for client, value in dict(group).items()}


DAILY_SPAN_S_MIN: Final = 30.0
"""seconds of updates from which it is known what a client publishes in a day"""
RATE_WINDOW_S = 60.0
RECENT_MAX = 1000
INTERVALS_MAX = 8
"""newest intervals between updates from which the usual one is known"""
INCARNATIONS_MAX = 8
"""newest incarnations of a client that are known"""
INTERVAL_UNKNOWN_S = 600.0
"""the interval of a client until it is known: that after which a window of private counts is closed
by default"""


class Clients:
    """All clients of one model: their sequence numbers, totals, and when each was last seen.

    Memory grows with the number of clients only. Totals and times are for people; no model depends
    on them.
    """

    def __init__(self) -> None:
        self._sequences: dict[str, ClientSequences] = {}
        self._conflicts: dict[str, tuple[int, bytes]] = {}
        """client -> (sequence number, digest) of the newest update that was refused because of its
        number"""
        self._incarnations: dict[str, list[Any]] = {}
        """client -> [partition of the log, mark of the newest, incarnations before it, the newest
        of them first]"""
        self._copies: dict[str, Copy] = {}
        """client -> the newest update that an older process has published after a newer one; of no
        model here"""
        self._copy_is_new = False
        self._totals: dict[str, list[Any]] = {}
        """client -> [updates, readings, last seen]"""
        self._rejected: dict[str, int] = {}
        """client -> readings that it has rejected, as it says"""
        self._recent: dict[str, deque[tuple[float, int]]] = {}
        """client -> (time, readings) of its newest updates"""
        self._made_at: dict[str, list[float]] = {}
        """client -> when its newest updates were made, by its own clock, so that a late reader
        knows it too"""
        self._spans: dict[str, deque[tuple[float, float, int]]] = {}
        """client -> (oldest, newest, readings) of its newest updates, by the times of readings"""
        self._groups = ClientGroups()

    def __len__(self) -> int:
        return len(self._sequences)

    def knows(self, client: str, sequence: int, content: Content = NO_CONTENT) -> bool:
        """Whether this update has been processed. Raises `MessageRejected` ("sequence",
        "conflict")."""
        try:
            return (self._sequences.get(client) or ClientSequences()).contains(sequence, content)
        except MessageRejected as refused:
            # Kept here too, not in `take` alone: an update that is refused at this look is never
            # taken.
            self._keep_conflict(client, sequence, content, refused)
            raise

    def take(
        self, client: str, sequence: int, readings: int, now: float, content: Content = NO_CONTENT
    ) -> bool:
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
        self._note_incarnation(client, sequence, content)
        totals = self._totals.setdefault(client, [0, 0, now])
        totals[0] += 1
        # Clients claim these numbers, so the sum is capped at what can be encoded.
        totals[1] = min(COUNT_MAX, totals[1] + readings)
        totals[2] = now
        if math.isfinite(content.made_at):
            times = [*self._made_at.get(client, ()), content.made_at]
            self._made_at[client] = times[-INTERVALS_MAX - 1 :]
        if content.oldest_reading_at is not None and content.newest_reading_at is not None:
            span = (content.oldest_reading_at, content.newest_reading_at, readings)
            self._spans.setdefault(client, deque(maxlen=INTERVALS_MAX)).append(span)
        recent = self._recent.setdefault(client, deque(maxlen=RECENT_MAX))
        recent.append((now, readings))
        _drop_old(recent, now)
        return True

    def _keep_conflict(
        self, client: str, sequence: int, content: Content, refused: MessageRejected
    ) -> None:
        if refused.reason != "conflict":
            return
        self._note_incarnation(client, sequence, content)
        # Out and in again, so that it is last: the first one is the oldest, and is left out of too
        # many.
        self._conflicts.pop(client, None)
        self._conflicts[client] = (sequence, content.digest)
        if len(self._conflicts) > CONFLICTS_MAX:
            del self._conflicts[next(iter(self._conflicts))]

    def _note_incarnation(self, client: str, sequence: int, content: Content) -> None:
        """What is new comes from the newest process of a client; from an older one, two of them run
        at once."""
        if content.mark is None:
            return
        partition, newest, before = self._incarnations.get(client, (content.partition, b"", []))
        incarnation = content.mark.incarnation
        packed = content.mark.packed()
        if partition != content.partition:
            # The topic has more partitions now: nothing orders the records of two of them.
            newest = b""
            before = []
        if newest.startswith(incarnation):
            return
        if incarnation not in before:
            kept = [newest[:INCARNATION_BYTES], *before] if newest else []
            self._incarnations[client] = [content.partition, packed, kept[:INCARNATIONS_MAX]]
            self._groups.change(client)
            return
        known = self._copies.get(client)
        if known is None or not (known.older.startswith(incarnation) and known.newer == newest):
            # Out and in again, so that the oldest is first.
            self._copies.pop(client, None)
            self._copies[client] = Copy("", client, sequence, content.digest, packed, newest)
            self._copy_is_new = True
            if len(self._copies) > CONFLICTS_MAX:
                del self._copies[next(iter(self._copies))]

    def take_copy(self) -> bool:
        """Whether a client that publishes from two processes was found since the last call."""
        is_new = self._copy_is_new
        self._copy_is_new = False
        return is_new

    def set_readings(self, client: str, readings: int) -> None:
        """Replace the readings of a known client: its newest answer is about all rows that it
        holds."""
        self._totals[client][1] = readings
        self._groups.change(client)

    def note_rejected(self, client: str, readings: int | None) -> None:
        """Keep how many readings a known client has rejected, as its newest update says; None: it
        must not say."""
        if readings is not None:
            # Updates may come in another order, and the number only grows.
            self._rejected[client] = max(readings, self._rejected.get(client, 0))
            self._groups.change(client)

    def rejected(self, client: str) -> int | None:
        """Readings that a client has rejected since its first start; None if it does not say."""
        return self._rejected.get(client)

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
        self._incarnations.pop(client, None)
        self._copies.pop(client, None)
        self._groups.change(client)
        self._recent.pop(client, None)
        self._made_at.pop(client, None)
        self._spans.pop(client, None)
        self._rejected.pop(client, None)
        updates, *_ = self._totals.pop(client, [0])
        return int(updates)

    def names(self) -> list[str]:
        """All clients, sorted."""
        return sorted(self._sequences)

    def totals(self) -> list[tuple[str, int, int, float]]:
        """(client, updates, readings, last seen in seconds since 1970), sorted by client."""
        return [(client, *totals) for client, totals in sorted(self._totals.items())]

    def readings_per_s(self, client: str, now: float) -> float:
        """Readings per second over the last minute, of updates since this server was started."""
        recent = self._recent.get(client, deque())
        _drop_old(recent, now)
        if len(recent) < 2:
            return 0.0
        # Updates of one millisecond, as in a replay, must not make a rate without bound.
        span = max(now - recent[0][0], 1e-3)
        # Without those of the first update, which came in the time before it.
        return sum(readings for _, readings in list(recent)[1:]) / span

    def usual_interval_s(self, client: str) -> float:
        """Seconds that usually pass at most between two updates of a client.

        It is the longest but one of the newest intervals, so that neither one outage nor a burst
        after it counts; `INTERVAL_UNKNOWN_S` until there are two updates.
        """
        times = self._made_at.get(client, ())
        # A client's clock may be set back between two updates.
        intervals = sorted(max(0.0, after - before) for before, after in pairwise(times))
        if not intervals:
            return INTERVAL_UNKNOWN_S
        return intervals[-2:][0]

    def daily_rate(self, client: str) -> DailyRate | None:
        """What the client publishes in a day at the rate of its newest updates; None until it is
        known.

        Their readings' own times count where updates have them and they give a lower rate. Neither
        counts over less than `DAILY_SPAN_S_MIN`: no rate of a day follows from a file that is
        replayed in seconds.
        """
        times = sorted(self._made_at.get(client, ()))
        total, readings, _ = self._totals.get(client, (0, 0, 0.0))
        rates = []
        if len(times) > 1 and times[-1] - times[0] >= DAILY_SPAN_S_MIN:
            updates = DAY_S * (len(times) - 1) / (times[-1] - times[0])
            rates.append(DailyRate(updates * readings / total, updates))
        spans = self._spans.get(client, ())
        oldest = min((first for first, _, _ in spans), default=0.0)
        newest = max((last for _, last, _ in spans), default=0.0)
        if newest - oldest >= DAILY_SPAN_S_MIN:
            per_day = DAY_S / (newest - oldest)
            in_spans = sum(readings for _, _, readings in spans)
            rates.append(DailyRate(per_day * in_spans, per_day * len(spans)))
        return min((rate for rate in rates if rate.readings > 0), default=None)

    def conflicts(self, model: str) -> list[Conflict]:
        """The newest update of each client that was refused because of its number; `model` is the
        name of this one."""
        return [Conflict(model, client, *refused) for client, refused in self._conflicts.items()]

    def copies(self, model: str) -> list[Copy]:
        """The clients that publish from two processes."""
        return [copy._replace(model=model) for copy in self._copies.values()]

    def state(self) -> dict[str, Any]:
        """Plain values and parts; `restore` takes them as a checkpoint loads them."""
        return {
            "known": self._groups.state(self._saved),
            "conflicts": [[client, *refused] for client, refused in self._conflicts.items()],
            "copies": [list(copy) for copy in self._copies.values()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        self._sequences = {}
        self._totals = {}
        self._made_at = {}
        self._spans = {}
        self._rejected = {}
        self._incarnations = {}
        try:
            for client, saved in values_by_client(state["known"]).items():
                windows, totals, times, rejected, incarnations, spans = saved
                self._sequences[client] = restored_sequences(windows)
                self._totals[client] = list(totals)
                self._made_at[client] = list(times)
                if spans:
                    newest = [(first, last, readings) for first, last, readings in spans]
                    self._spans[client] = deque(newest, maxlen=INTERVALS_MAX)
                if rejected is not None:
                    self._rejected[client] = int(rejected)
                if incarnations:
                    self._incarnations[client] = list(incarnations)
            copies = [Copy(*copy) for copy in state["copies"]]
            self._copies = {copy.client: copy for copy in copies}
            self._conflicts = {
                client: (sequence, digest) for client, sequence, digest in state["conflicts"]
            }
        except (AttributeError, KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the list of clients is damaged: {broken}") from None
        # Rates are those of this process. After a pause of the server, times of before it would
        # make them too low.
        self._recent = {}
        self._groups.begin_again(self._sequences)

    def _saved(self, client: str) -> list[Any] | None:
        sequences = self._sequences.get(client)
        if sequences is None:
            return None
        return [
            sequences.state(),
            list(self._totals[client]),
            self._made_at.get(client, []),
            self._rejected.get(client),
            list(self._incarnations.get(client, [])),
            [list(span) for span in self._spans.get(client, ())],
        ]


def _drop_old(recent: deque[tuple[float, int]], now: float) -> None:
    while recent and recent[0][0] < now - RATE_WINDOW_S:
        recent.popleft()


def client_statuses(models_clients: Iterable[Clients], now: float) -> list[ClientStatus]:
    """Each client once, as the model knows it that counts most of its readings; sorted by name."""
    merged: dict[str, ClientStatus] = {}
    for clients in models_clients:
        for client, updates, readings, last_seen in clients.totals():
            status = merged.get(client) or ClientStatus(client, last_seen, 0, -1, 0.0)
            # All models learn the same readings. Those in rounds count rows again with every
            # answer, and readings that are fed long after they were taken come fast: the slowest is
            # nearest to what a device takes in a day.
            rates = [status.daily, clients.daily_rate(client)]
            daily = min((rate for rate in rates if rate is not None), default=None)
            if readings > status.readings:
                rate = clients.readings_per_s(client, now)
                interval = clients.usual_interval_s(client)
                status = ClientStatus(
                    client,
                    status.last_seen,
                    updates,
                    readings,
                    rate,
                    interval,
                    rejected=status.rejected,
                )
            rejected = max(
                (n for n in (status.rejected, clients.rejected(client)) if n is not None),
                default=None,
            )
            merged[client] = status._replace(
                last_seen=max(status.last_seen, last_seen), rejected=rejected, daily=daily
            )
    return sorted(merged.values(), key=lambda client: client.client)
