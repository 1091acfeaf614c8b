"""Windows of counts, for the models that learn from counts: the stage beside `Learner`, which
learns rows.

A window is `window_readings` successive *places* of the readings log. A rejected reading keeps its
place, so that when an update is published does not depend on whether a reading is valid. The first
window is shorter, by a public phase, so that clients do not all publish at once. Readings wait in
the checkpoint, on the client, until their window is full.

Where the privacy unit is a user, at most `readings_per_window_max` readings of one user are counted
in each window, the first ones. Further ones keep their places and are counted nowhere, as rejected
readings are, so that nothing published tells of them. Repeats are recognised by user and time, and
within one window alone: no user, and no other window, decides whether a reading of this user in
this window is counted.

With `hide_presence`, windows close by the clock alone, some seconds after their end. Each has
`window_readings` places that divide its time, and a reading's window and place follow from when the
log took it in: a reading more or less moves no other one, but may hide one at its place or show it
again. One whose window is published is not counted. Every window is published as one of all its
places, also an empty one, and its times are the bounds of the window. Nothing is read from the end
of a window until it is due, so that when it is published does not depend on when readings came.

A reading that lacks values waits with NaN in their places, where the contract lets it be learnt.

The times in an update of private counts are those at which the readings log took in the window's
first and last place, in whole seconds. A reading's own time may be missing because it was rejected,
so that it would tell of its validity.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.intake import NO_SPAN, Batch, TimeSpan
from shoal.client_nodes.publisher import Content, EncodedUpdate, Publisher
from shoal.client_nodes.snapshots import Snapshots
from shoal.config.changes import common_places, same_features
from shoal.config.resolved import Generation, ResolvedContract, ResolvedModel
from shoal.errors import InvalidState
from shoal.kernels.arrays import Bools
from shoal.privacy.base import PrivacyUnit
from shoal.privacy.count_noise import CountMechanism
from shoal.privacy.ledger import Ledger, Release
from shoal.protocol.checks import is_count
from shoal.protocol.validation import REACH_SLACK

DIGEST_BYTES = 16


class UserReadings:
    """The readings of each user in the open window. User ids are kept as digests, and only until
    the window closes."""

    def __init__(self, unit: PrivacyUnit, drop_repeats: bool = False) -> None:
        """`drop_repeats`: a reading with the time of another one of the same user is not counted."""
        self._unit = unit
        self._drop_repeats = drop_repeats
        self._counted: dict[bytes, list[float | None]] = {}
        """user -> event times of the readings counted"""

    def admit(self, valid: Bools, users: Sequence[bytes], times: Sequence[float | None]) -> Bools:
        """valid (n,) readings in the order of their places -> those of them (n,) that are counted.

        `users` and `times` (n,) hold user id and event time of each. Without users as a privacy
        unit all valid readings are counted.
        """
        if not self._unit.is_user:
            return valid
        counted = np.zeros(len(valid), dtype=np.bool_)
        for place in np.flatnonzero(valid).tolist():
            user = hashlib.blake2b(users[place], digest_size=DIGEST_BYTES).digest()
            time = times[place]
            before = self._counted.setdefault(user, [])
            is_repeat = self._drop_repeats and time is not None and time in before
            if len(before) < self._unit.readings_max and not is_repeat:
                before.append(time)
                counted[place] = True
        return counted

    def clear(self) -> None:
        """A new window is open."""
        self._counted.clear()

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        return [[user, list(times)] for user, times in self._counted.items()]

    def restore(self, state: list[Any]) -> None:
        """Raises `InvalidState`."""
        counted = dict(state)
        if not all(
            isinstance(user, bytes) and _are_times(times) for user, times in counted.items()
        ):
            raise InvalidState("the checkpoint's readings of each user are damaged")
        self._counted = {user: list(times) for user, times in counted.items()}


def _are_times(value: object) -> bool:
    return isinstance(value, list) and all(
        time is None or isinstance(time, float) for time in value
    )


ABSENT_WINDOWS_MAX = 1000
"""most windows that close by the clock, empty or not, when a client was away; all of them in one
step"""
GRACE_S = 5.0
"""seconds after its end at which a window by the clock closes: what the log took in before is there
then"""
GRACE_PART = 12
"""the grace is at most one part in this many of a window"""
FIRST_WINDOW_PART = 8
"""the first window of a client has at least one part in this many of a full one"""


class CountWindows:
    """The open window of a client, and the models that count it when it closes."""

    def __init__(
        self,
        contract: ResolvedContract,
        client: str,
        publisher: Publisher,
        snapshots: Snapshots,
        ledger: Ledger | None,
        noise_key: bytes | None,
        readings_log: bytes,
        drop_repeats: bool = False,
    ) -> None:
        """`ledger` and `noise_key` None: counts without noise. `readings_log`: the identity of the
        readings log.

        `drop_repeats` counts where a user is the privacy unit; elsewhere repeats are rejected when
        they are read.
        """
        self._contract = contract
        self._privacy = contract.contract.privacy
        self._bounds = contract.bounds
        self._client = client
        self._snapshots = snapshots
        self._ledger = ledger
        self._models = [
            ModelCounter(model, contract.width, client, publisher, noise_key, readings_log)
            for model in contract.counted
        ]
        self._rows: Rows = np.empty((0, contract.width))
        self._valid: Bools = np.empty(0, dtype=np.bool_)
        self._user_readings = UserReadings(contract.mode.unit, drop_repeats)
        self.closed = 0
        """windows closed"""
        self._begun: dict[str, int] = {}
        """model -> number of the first window that it counts, of one that began when windows had
        been closed"""
        self._marked = 0
        """windows closed, as the ledger was told last"""
        self._places = 0
        """readings in them"""
        self._clock_window: int | None = None
        """number of the open window by the clock, where windows close by it; None before the first
        step"""
        self._opened_at: float | None = None
        """time at which the first reading of the open window was read, by the client's clock"""
        self._span = NO_SPAN
        """event times of the readings of the open window"""
        self._taken_in = NO_SPAN
        """time at which the log took its places in"""

    def add(
        self, batch: Batch, now: float, allows_window: Callable[[], bool] = lambda: True
    ) -> list[EncodedUpdate]:
        """Add the readings of a batch, rejected ones too; returns the updates of the windows that
        closed.

        `allows_window`: whether the budget allows one more that closes by the clock. Raises as the
        log does.
        """
        if not self._models:
            return []
        if self._privacy.hide_presence:
            return self._add_by_clock(batch, now, allows_window)
        rows, valid, users, times, taken_in = self._in_order(batch)
        updates: list[EncodedUpdate] = []
        start = 0
        while start < len(rows):
            stop = min(len(rows), start + self._size - len(self._rows))
            if self._opened_at is None:
                self._opened_at = now
            self._rows = np.concatenate([self._rows, rows[start:stop]])
            counted = self._user_readings.admit(
                valid[start:stop], users[start:stop], times[start:stop]
            )
            self._valid = np.concatenate([self._valid, counted])
            self._span = self._span.joined(times[start:stop])
            self._taken_in = self._taken_in.joined(taken_in[start:stop])
            start = stop
            if len(self._rows) >= self._size:
                updates += self._close(now)
        if self._is_overdue(now):
            updates += self._close(now)
        return updates

    def _add_by_clock(
        self, batch: Batch, now: float, allows_window: Callable[[], bool]
    ) -> list[EncodedUpdate]:
        """Put each reading into the window and the place of its time; a due window closes once it
        is read."""
        rows, valid, users, times, taken_in = self._in_order(batch)
        updates: list[EncodedUpdate] = []
        due = self._window_at(now - self._grace_s)
        if self._clock_window is None or due < self._clock_window - 1:
            # A clock that was far ahead must not silence the client until then.
            self._clock_window = due
        if due - self._clock_window > ABSENT_WINDOWS_MAX:
            # By the clock, not by the next reading: how many windows are left out would tell where
            # readings were.
            updates += self._close_before(self._clock_window + 1, now, allows_window)
            self._clock_window = due - ABSENT_WINDOWS_MAX
        # A log whose clock is ahead must not close windows either.
        numbers = np.minimum(
            np.array([self._window_at(time) for time in taken_in], dtype=np.int64), due
        )
        for number in np.unique(numbers[numbers >= self._clock_window]).tolist():
            updates += self._close_before(number, now, allows_window)
            own = np.flatnonzero(numbers == number)
            counted = self._user_readings.admit(
                valid[own], [users[i] for i in own], [times[i] for i in own]
            )
            for place in own[counted].tolist():
                self._put(rows[place], taken_in[place])
        if not batch.records:
            updates += self._close_before(due, now, allows_window)
        return updates

    def pause_s(self, now: float) -> float:
        """Seconds for which nothing is read: from the end of a window by the clock until it is due.
        Otherwise 0."""
        if not self._privacy.hide_presence:
            return 0.0
        return max(0.0, self._begin_of(self._window_at(now)) + self._grace_s - now)

    def longest_wait_s(self, now: float) -> float:
        """Seconds to wait at most for a reading: until the open window ends, and none once it is
        due."""
        if not self._privacy.hide_presence:
            return math.inf
        if self._clock_window is None or self._clock_window < self._window_at(now - self._grace_s):
            return 0.0
        return max(0.0, self._begin_of(self._window_at(now) + 1) - now)

    @property
    def _grace_s(self) -> float:
        return min(GRACE_S, self._privacy.window_s / GRACE_PART)

    def _window_at(self, time: float) -> int:
        return math.floor(time / self._privacy.window_s - self._phase)

    def _begin_of(self, number: int) -> float:
        return (number + self._phase) * self._privacy.window_s

    @cached_property
    def _phase(self) -> float:
        """Part of a window by which this client's windows begin later than others': clients publish
        one by one."""
        return int.from_bytes(hashlib.sha256(self._client.encode()).digest()[:4], "little") / 2**32

    def _put(self, row: Rows, taken_in: float) -> None:
        """Count a row (d,) at the place of its time, unless there is one."""
        size = self._privacy.window_readings
        if not len(self._rows):
            self._rows = np.zeros((size, self._bounds.d))
            self._valid = np.zeros(size, dtype=np.bool_)
        assert self._clock_window is not None
        part = (taken_in - self._begin_of(self._clock_window)) / self._privacy.window_s
        place = min(max(0, math.floor(part * size)), size - 1)
        if not self._valid[place]:
            self._rows[place], self._valid[place] = row, True

    def _close_before(
        self, number: int, now: float, allows_window: Callable[[], bool]
    ) -> list[EncodedUpdate]:
        """Close all windows before this one."""
        assert self._clock_window is not None
        updates: list[EncodedUpdate] = []
        while self._clock_window < number:
            begin = self._begin_of(self._clock_window)
            size = self._privacy.window_readings
            if not len(self._rows):
                self._rows = np.zeros((size, self._bounds.d))
                self._valid = np.zeros(size, dtype=np.bool_)
            self._span = self._taken_in = TimeSpan(begin, begin + self._privacy.window_s)
            if allows_window():
                updates += self._close(now)
            else:
                self._clear()
            self._clock_window += 1
        return updates

    def state(self) -> dict[str, Any]:
        return {
            "clock_window": self._clock_window,
            "rows": self._rows,
            "valid": self._valid.astype(np.uint8),
            "user_readings": self._user_readings.state(),
            "closed": self.closed,
            "places": self._places,
            "opened_at": self._opened_at,
            "span": list(self._span),
            "taken_in": list(self._taken_in),
            "begun": dict(self._begun),
            "fingerprints": {model.name: model.fingerprint for model in self._models},
        }

    def moved(self, state: dict[str, Any], generation: Generation) -> dict[str, Any]:
        """A state of an earlier contract: windows keep their numbers, the open one the readings
        without gaps."""
        before = generation.contract.contract
        contract = self._contract
        left = generation.standing
        since = {one: state["begun"].get(one, 0) for one, how in left.items() if how == "same"}
        begun = {one: since.get(one, state["closed"]) for one in contract.models}
        kept = {name: own for name, own in state["fingerprints"].items() if name in since}
        moved = {**state, "begun": begun, "fingerprints": kept}
        if same_features(before, contract.contract):
            return moved
        common = common_places(before, contract.contract)
        rows = np.full((len(state["rows"]), contract.width), np.nan)
        rows[:, common.after] = np.clip(common.moved(state["rows"]), 0.0, 1.0)
        valid = state["valid"] * int(contract.learns_gaps or len(common.after) == contract.width)
        return {
            **moved,
            "rows": rows if contract.learns_gaps else np.nan_to_num(rows),
            "valid": valid,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`, also when the ledger does not fit or another key made the noise
        before."""
        self.closed = state["closed"]
        self._places = state["places"]
        if not self._models:
            return
        try:
            gaps = self._privacy.missing == "learn"
            rows, valid = counted_rows(
                state["rows"], state["valid"].astype(np.bool_), self._bounds.d, gaps
            )
            if any(
                state["fingerprints"].get(one.name, one.fingerprint) != one.fingerprint
                for one in self._models
            ):
                raise InvalidState(
                    "the checkpoint belongs to another noise key, client name, readings log or epsilon of counts. "
                    "Restore those it was made with, or start under a new client name"
                )
            self._rows = rows
            self._valid = valid
            self._user_readings.restore(state["user_readings"])
            self._begun = {name: int(number) for name, number in state["begun"].items()}
            self._opened_at = state["opened_at"]
            self._clock_window = state["clock_window"]
            self._span = TimeSpan(*state["span"])
            self._taken_in = TimeSpan(*state["taken_in"])
            if not (
                is_count(self.closed)
                and is_count(self._places)
                and len(rows) < self._size + self._privacy.hide_presence
            ):
                raise InvalidState("the checkpoint's open window of readings is inconsistent")
        except (AttributeError, KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint of the open window is damaged: {broken}") from None
        self.check_ledger()

    @property
    def room(self) -> int:
        """Number of readings that may be read now: any where windows are published as they close."""
        return sys.maxsize

    def at_limit(self, action: str) -> None:
        """What to do where the windows' own budget is spent; here they have none."""

    def reset_published(self, now: float) -> None:
        """The federation's log was created anew. What was published stays published. Raises as the
        ledger does."""

    @property
    def open_places(self) -> int:
        """Readings of the open window, which are not charged yet; 0 where no model counts."""
        return len(self._rows)

    def check_ledger(self) -> None:
        """Raises `InvalidState` unless the ledger continues what was released."""
        if self._ledger is not None:
            counted = [
                one.stream for one in self._models if self._begun.get(one.name, 0) < self.closed
            ]
            self._ledger.check_windows(counted, self.closed)

    def stored(self) -> None:
        """The state is on the disk."""
        if self._ledger is not None and self.closed != self._marked:
            self._ledger.mark_stored(self.closed)
            self._marked = self.closed

    def begun_with(self, places: int) -> int:
        """Number of windows that there will be, the open one included, once this many more places
        are read."""
        if self._privacy.hide_presence:
            return self.closed + 1
        places += len(self._rows)
        full = self._privacy.window_readings
        first = self._size
        return self.closed + min(1, places) + -(-max(0, places - first) // full)

    @property
    def _size(self) -> int:
        """Readings of the open window when it is full."""
        full = self._privacy.window_readings
        if self.closed or self._privacy.hide_presence:
            return full
        phase = int.from_bytes(hashlib.sha256(self._client.encode()).digest()[:4], "little") % full
        return max(phase, full // FIRST_WINDOW_PART, 1)

    def _is_overdue(self, now: float) -> bool:
        if self._opened_at is None:
            return False
        # A clock that was set back must not lengthen the wait.
        self._opened_at = min(self._opened_at, now)
        return now >= self._opened_at + self._privacy.window_s

    def _close(self, now: float) -> list[EncodedUpdate]:
        """Count the open window for every model, charge it, and begin the next one."""
        self._snapshots.follow()
        window = ClosedWindow(
            self._rows, self._valid, self.closed, self._places, now, self._span, self._taken_in
        )
        updates = [
            model.make_update(window, self._snapshots, self._ledger) for model in self._models
        ]
        self.closed += 1
        self._places += len(self._rows)
        self._clear()
        return updates

    def _clear(self) -> None:
        """A new window is open."""
        self._rows, self._valid, self._opened_at = (
            self._rows[:0].copy(),
            self._valid[:0].copy(),
            None,
        )
        self._span = self._taken_in = NO_SPAN
        self._user_readings.clear()

    def _in_order(
        self, batch: Batch
    ) -> tuple[Rows, Bools, list[bytes], list[float | None], list[float]]:
        """All records of a batch in the order of their places.

        Rows in unit coordinates, which are valid, user ids (empty where there are none), event
        times, and when the log took them in.
        """
        rejected = [(one.record.partition, one.record.offset) for one in batch.rejected]
        places = np.array([*batch.places, *rejected], dtype=np.int64).reshape(-1, 2)
        inside, _ = self._bounds.clip(batch.values, self._privacy.missing == "learn")
        rows = np.concatenate(
            [self._bounds.to_unit(inside), np.zeros((len(rejected), self._bounds.d))]
        )
        valid = np.arange(len(places)) < len(batch.places)
        times = [*batch.times, *(one.time for one in batch.rejected)]
        taken_in = [batch.taken_in_ms[number] / 1000 for number in batch.numbers]
        taken_in += [one.record.timestamp_ms / 1000 for one in batch.rejected]
        users = [*batch.users, *[b""] * (len(places) - len(batch.users))]
        # The last key counts first: by partition, then by offset, whatever was rejected among them.
        order = np.lexsort((places[:, 1], places[:, 0]))
        numbers = order.tolist()
        in_order = (
            [users[i] for i in numbers],
            [times[i] for i in numbers],
            [taken_in[i] for i in numbers],
        )
        return rows[order], valid[order], *in_order


class ClosedWindow:
    """One full window, as the models count it."""

    def __init__(
        self,
        rows: Rows,
        valid: Bools,
        number: int,
        first: int,
        closed_at: float,
        span: TimeSpan,
        taken_in: TimeSpan,
    ) -> None:
        self.rows = rows
        self.valid = valid
        self.number = number
        self.first = first
        self.closed_at = closed_at
        self.span = span
        self.taken_in = taken_in


class ModelCounter:
    """The client half of one model that learns from counts."""

    def __init__(
        self,
        model: ResolvedModel,
        width: int,
        client: str,
        publisher: Publisher,
        noise_key: bytes | None,
        readings_log: bytes,
    ) -> None:
        assert model.counts is not None
        self._model = model
        self._publisher = publisher
        self._counter = model.counts.algorithm.counter(model.options, width)
        self._version = 0
        """version of the newest snapshot whose plan was adopted"""
        self.stream = model.counts.stream
        """the stream of counts that the model learns from, as the ledger charges it"""
        self._mechanism = None
        if model.counts.noise is not None:
            assert noise_key is not None, "a client in a mode with noise has a key"
            self._mechanism = CountMechanism(
                model.counts.noise, noise_key, client, readings_log, self.stream
            )
        # Public: it decides only what is asked of the client.
        self._public_name = client.encode() + b"\0" + model.name.encode()

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def fingerprint(self) -> str:
        """Whether key, client, readings log and epsilon are those of an earlier run; empty without
        noise."""
        return "" if self._mechanism is None else self._mechanism.fingerprint

    def make_update(
        self, window: ClosedWindow, snapshots: Snapshots, ledger: Ledger | None
    ) -> EncodedUpdate:
        """Count the window under the newest plan, make the counts private, and charge them."""
        newest = snapshots.newest(self.name)
        if newest is not None and newest.version != self._version:
            self._counter.adopt(newest.arrays)
            self._version = newest.version
        counted = self._counter.count(window.rows, window.valid, self._public_name, window.number)
        private = counted.counts
        made_at = window.closed_at
        span = window.span
        if self._mechanism is not None:
            assert ledger is not None
            places = (window.number, window.first, window.first + len(window.rows) - 1)
            plan = self._counter.plan_digest
            private = self._mechanism.release(private, places, plan)
            digest = hashlib.sha256(private.astype("<i8").tobytes()).digest()
            epsilon = float(self._model.statement["epsilon"])
            unit = self._model.mode.unit.name
            release = Release(
                self.stream, window.number, plan, digest, len(window.rows), epsilon, unit
            )
            ledger.charge([release], window.closed_at)
            span = window.taken_in.in_seconds()
            made_at = window.closed_at if span.newest is None else span.newest
        content = Content(
            window.number + 1, len(window.rows), counted.update(private), made_at, span
        )
        return self._publisher.make_update(self._model, content)


def counted_rows(rows: Rows, valid: Bools, d: int, gaps: bool) -> tuple[Rows, Bools]:
    """Rows (n, d) of a saved window of counts, and which are valid (n,). With `gaps`, NaN is a
    missing value.

    Raises `InvalidState`; kernels do not look.
    """
    fits = rows.dtype == np.float64 and valid.ndim == 1 and rows.shape == (len(valid), d)
    if (
        not fits
        or not (
            (rows >= -REACH_SLACK) & (rows <= 1.0 + REACH_SLACK) | (np.isnan(rows) & gaps)
        ).all()
    ):
        raise InvalidState("the checkpoint's open window of readings is inconsistent")
    return rows, valid
