"""Windows of counts, for models that learn from counts: the stage beside `Learner`.

A window is `window_readings` successive *places* of the readings log. A rejected reading keeps its
place, so that when an update is published does not depend on whether a reading is valid. The first
window is shorter, by a public phase, so that clients do not all publish at once. Readings wait in
the checkpoint, on the client, until their window is full.

With `hide_presence`, windows close by the clock alone, some seconds after their end. Each has
`window_readings` places that divide its time, and a reading's window and place follow from when the
log took it in: a reading more or less moves no other one, but may hide one at its place or show it
again. One whose window is published is not counted. Every window is published as one of all its
places, also an empty one, and its times are the bounds of the window. Nothing is read from the end
of a window until it is due, so that when it is published does not depend on when readings came.

A reading that lacks values waits with NaN in their places, where the contract lets it be learnt.

Which readings of a user are counted is in `user_readings`; what becomes of a closed window, in
`model_counter`.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.intake import NO_SPAN, Batch, SpanState, TimeSpan
from shoal.client_nodes.model_counter import ClosedWindow, ModelCounter
from shoal.client_nodes.own_updates import Found
from shoal.client_nodes.publisher import EncodedUpdate, Publisher
from shoal.client_nodes.reading_times import ReadingTimes, ReadingTimesState, log_left_out
from shoal.client_nodes.snapshots import Snapshots
from shoal.client_nodes.user_readings import UserReadings, UserReadingsState
from shoal.config.changes import common_places, same_features
from shoal.config.resolved import Generation, ResolvedContract
from shoal.errors import InvalidState
from shoal.kernels.arrays import Bools
from shoal.kernels.constants import COUNT_MAX
from shoal.privacy.ledger import Ledger
from shoal.protocol.codec import StoredPart
from shoal.protocol.validation import REACH_SLACK
from shoal.runtime.checkpoint import OutboxRecord
from shoal.saved_state import BoolArray, FloatArray, SavedState, Whole, require, state_type
from shoal.transports.base import Positions

ABSENT_WINDOWS_MAX = 1000
"""most windows by the clock that a client publishes, all in one step, after it was away"""
GRACE_S = 5.0
"""seconds after its end at which a window by the clock closes: its last readings are there then"""
GRACE_PART = 12
"""the grace is at most one part in this many of a window"""
FIRST_WINDOW_PART = 8
"""the first window of a client has at least one part in this many of a full one"""


@state_type
class CountWindowsState(SavedState):
    """The open window of counts, and what was published of the windows before it."""

    clock_window: Annotated[int | None, Whole(least=-COUNT_MAX)]
    rows: Annotated[Rows, FloatArray("n", "d", gaps=True)]
    valid: Annotated[Bools, BoolArray("n")]
    user_readings: UserReadingsState
    closed: int
    places: int
    opened_at: float | None
    times: ReadingTimesState
    taken_in: SpanState
    begun: dict[str, int]
    fingerprints: dict[str, str]


class Places(NamedTuple):
    """n successive places of the readings log, as a window takes them."""

    rows: Rows
    """(n, d) in unit coordinates; 0 where the reading was rejected"""
    valid: Bools
    """(n,) whether there is a reading"""
    users: list[bytes]
    """user id of each, empty where there is none"""
    times: list[float | None]
    """event time of each, seconds since 1970"""
    public_times: list[float | None]
    """time of each, as updates may state it, seconds since 1970"""
    taken_in: list[float]
    """times at which the log took each in, seconds since 1970"""


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
        """`ledger` and `noise_key` None: counts without noise.

        `readings_log`: the identity of the readings log. `drop_repeats` counts where a user is the
        privacy unit; elsewhere repeats are rejected when they are read.
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
        self._first_size = _first_size(client, self._privacy.window_readings)
        self._rows: Rows = np.empty((0, contract.width))
        self._valid: Bools = np.empty(0, dtype=np.bool_)
        self._user_readings = UserReadings(contract.mode.unit, drop_repeats)
        self.closed = 0
        """windows closed"""
        self._begun: dict[str, int] = {}
        """model -> the first window that it counts, of models that began later than the client"""
        self._marked = 0
        """windows closed, as the ledger has noted them last"""
        self._places = 0
        """readings in the windows that were closed"""
        self._clock_window: int | None = None
        """number of the open window by the clock; None before the first step"""
        self._opened_at: float | None = None
        """time at which the first reading of the open window was read, by the client's clock"""
        self._times = ReadingTimes()
        """times of the places of the open window, as its update may state them"""
        self._taken_in = NO_SPAN
        """time at which the log took its places in"""
        self._part: StoredPart | None = None
        """the state where no model counts; None until a checkpoint needs it"""

    def add(
        self, batch: Batch, now: float, allows_window: Callable[[], bool] = lambda: True
    ) -> list[EncodedUpdate]:
        """Add the readings of a batch, rejected ones too; returns the updates of closed windows.

        `allows_window`: whether the budget allows one more that closes by the clock. Raises as the
        log does.
        """
        if not self._models:
            return []
        if self._privacy.hide_presence:
            return self._add_by_clock(batch, now, allows_window)
        updates: list[EncodedUpdate] = []
        # A step without readings is the usual one of a client that shares a core with thousands.
        places = self._in_order(batch) if batch.records else None
        start = 0
        while places is not None and start < len(places.rows):
            stop = min(len(places.rows), start + self._size - len(self._rows))
            if self._opened_at is None:
                self._opened_at = now
            self._append(places, start, stop)
            start = stop
            if len(self._rows) >= self._size:
                updates += self._close(now)
        # Also a window that is not full: else a slow sensor would be seen days later.
        if self._is_overdue(now):
            updates += self._close(now)
        return updates

    def _append(self, places: Places, start: int, stop: int) -> None:
        """Add these places to the open window."""
        times = places.times[start:stop]
        counted = self._user_readings.admit(
            places.valid[start:stop], places.users[start:stop], times
        )
        self._rows = np.concatenate([self._rows, places.rows[start:stop]])
        self._valid = np.concatenate([self._valid, counted])
        self._times.add(places.public_times[start:stop])
        self._taken_in = self._taken_in.joined(places.taken_in[start:stop])

    def _add_by_clock(
        self, batch: Batch, now: float, allows_window: Callable[[], bool]
    ) -> list[EncodedUpdate]:
        """Put each reading into the window and the place of its time; a due window closes once it
        is read."""
        places = self._in_order(batch)
        updates: list[EncodedUpdate] = []
        due = self._window_at(now - self._grace_s)
        # A clock that was far ahead must not stop the client from publishing until then.
        if self._clock_window is None or due < self._clock_window - 1:
            self._clock_window = due
        if due - self._clock_window > ABSENT_WINDOWS_MAX:
            # By the clock, not by the next reading: how many windows are left out would show where
            # readings were.
            updates += self._close_before(self._clock_window + 1, now, allows_window)
            self._clock_window = due - ABSENT_WINDOWS_MAX
        numbers = np.array([self._window_at(time) for time in places.taken_in], dtype=np.int64)
        # A log whose clock is ahead must not close windows either.
        numbers = np.minimum(numbers, due)
        # A reading of a window that is published is not counted: its window cannot change any more.
        for number in np.unique(numbers[numbers >= self._clock_window]).tolist():
            updates += self._close_before(number, now, allows_window)
            own = np.flatnonzero(numbers == number)
            users = [places.users[place] for place in own]
            times = [places.times[place] for place in own]
            counted = self._user_readings.admit(places.valid[own], users, times)
            for place in own[counted].tolist():
                self._put(places.rows[place], places.taken_in[place])
        # While readings come, the next ones may be of a window that is due: it closes once nothing
        # more of it is to be read.
        if not batch.records:
            updates += self._close_before(due, now, allows_window)
        return updates

    def pause_s(self, now: float) -> float:
        """Seconds for which nothing is read: from the end of a window by the clock until it is due.

        Otherwise 0. When a window is published must not depend on when readings come.
        """
        if not self._privacy.hide_presence:
            return 0.0
        return max(0.0, self._begin_of(self._window_at(now)) + self._grace_s - now)

    def longest_wait_s(self, now: float) -> float:
        """Seconds to wait at most for a reading: until the open window ends, 0 once it is due."""
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
        """Part of a window by which this client's windows begin later than those of others.

        Public, as a function of the name. With it clients do not all publish at once.
        """
        return int.from_bytes(hashlib.sha256(self._client.encode()).digest()[:4], "little") / 2**32

    def _put(self, row: Rows, taken_in: float) -> None:
        """Count a row (d,) at the place of its time, unless there is one."""
        assert self._clock_window is not None
        self._open_places()
        size = self._privacy.window_readings
        part = (taken_in - self._begin_of(self._clock_window)) / self._privacy.window_s
        # Rounding can put the very first and last instants outside.
        place = min(max(0, math.floor(part * size)), size - 1)
        if not self._valid[place]:
            self._rows[place] = row
            self._valid[place] = True

    def _open_places(self) -> None:
        """Give the open window all its places, empty ones, if it has none yet."""
        if not len(self._rows):
            size = self._privacy.window_readings
            self._rows = np.zeros((size, self._bounds.d))
            self._valid = np.zeros(size, dtype=np.bool_)

    def _close_before(
        self, number: int, now: float, allows_window: Callable[[], bool]
    ) -> list[EncodedUpdate]:
        """Close all windows before this one."""
        assert self._clock_window is not None
        updates: list[EncodedUpdate] = []
        while self._clock_window < number:
            # An empty window is published like any other: that it is empty must not show.
            self._open_places()
            begin = self._begin_of(self._clock_window)
            bounds = TimeSpan(begin, begin + self._privacy.window_s)
            self._times.clear()
            self._times.add(bounds)
            self._taken_in = bounds
            if allows_window():
                updates += self._close(now)
            else:
                self._clear()
            self._clock_window += 1
        return updates

    def state(self) -> Any:
        """What `restore` takes; where no model counts, always the same part, which a checkpoint
        stores once."""
        if self._models:
            return self._open_state()
        if self._part is None:
            self._part = StoredPart(self._open_state())
        return self._part

    def _open_state(self) -> dict[str, Any]:
        """The open window, and what was published of the windows before it."""
        state = CountWindowsState(
            clock_window=self._clock_window,
            rows=self._rows,
            valid=self._valid,
            user_readings=self._user_readings.state(),
            closed=self.closed,
            places=self._places,
            opened_at=self._opened_at,
            times=self._times.state(),
            taken_in=SpanState.of(self._taken_in),
            begun=self._begun,
            fingerprints={model.name: model.fingerprint for model in self._models},
        )
        return state.saved()

    def moved(self, state: dict[str, Any], generation: Generation) -> dict[str, Any]:
        """A state of an earlier contract; windows keep their numbers.

        The readings of the open window stay, without a value of features that are new.
        """
        before = generation.contract.contract
        contract = self._contract
        # A model that goes on counts since the window in which it began, a new one from here on.
        begun = {}
        for model in contract.models:
            goes_on = generation.standing.get(model) == "same"
            begun[model] = state["begun"].get(model, 0) if goes_on else state["closed"]
        fingerprints = {
            model: fingerprint
            for model, fingerprint in state["fingerprints"].items()
            if generation.standing.get(model) == "same"
        }
        moved = {**state, "begun": begun, "fingerprints": fingerprints}
        if same_features(before, contract.contract):
            return moved
        common = common_places(before, contract.contract)
        rows = np.full((len(state["rows"]), contract.width), np.nan)
        # Bounds may have moved too, and kernels do not check: a row outside of every bin would be
        # counted anywhere.
        rows[:, common.after] = np.clip(common.moved(state["rows"]), 0.0, 1.0)
        if contract.learns_gaps:
            return {**moved, "rows": rows}
        # Without gaps a reading counts only if it has a value of every feature.
        has_all = len(common.after) == contract.width
        return {**moved, "rows": np.nan_to_num(rows), "valid": state["valid"] & has_all}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`, also where the ledger or the noise key is another one."""
        saved = CountWindowsState.read(state, {"d": self._bounds.d})
        self.closed = saved.closed
        self._places = saved.places
        self._part = None
        if not self._models:
            return
        for model in self._models:
            # A model that is new in the contract has no fingerprint yet.
            if saved.fingerprints.get(model.name, model.fingerprint) != model.fingerprint:
                raise InvalidState(
                    "the checkpoint belongs to another noise key, client name, readings log or"
                    " epsilon of counts. Restore those it was made with, or start under a new"
                    " client name"
                )
        check_unit_rows(saved.rows, gaps=self._privacy.missing == "learn")
        # A window closes as soon as it is full; by the clock it has all its places from the start.
        size = len(saved.rows)
        fits = size < self._size or (self._privacy.hide_presence and size == self._size)
        require(fits, "the open window has more readings than it can have")
        self._rows = saved.rows
        self._valid = saved.valid
        self._user_readings.restore(saved.user_readings)
        self._begun = saved.begun
        self._opened_at = saved.opened_at
        self._clock_window = saved.clock_window
        self._times.restore(saved.times)
        self._taken_in = saved.taken_in.span
        self.check_ledger()

    @property
    def room(self) -> int:
        """Number of readings that may be read now; here any, as windows are published at once."""
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

    @property
    def due_at(self) -> float:
        """Time at which the open window is closed though it is not full, seconds since 1970.

        -inf where that is not known."""
        if self._opened_at is None:
            return -math.inf
        return self._opened_at + self._privacy.window_s

    def check_ledger(self) -> None:
        """Raises `InvalidState` unless the ledger continues what was released."""
        if self._ledger is None:
            return
        # A model that has counted no window yet has no charge that the ledger could lack.
        counted = [
            model.stream for model in self._models if self._begun.get(model.name, 0) < self.closed
        ]
        self._ledger.check_windows(counted, self.closed)

    @property
    def sent_from(self) -> Positions:
        """The positions from which to look for masked counts; none where none are sent."""
        return {}

    def check_log(self, found: Found | None, waiting: Iterable[OutboxRecord], now: float) -> None:
        """Nothing: what was published once needs not be in the log for ever."""

    def stored(self) -> None:
        """The state is on the disk."""
        if self._ledger is not None and self.closed != self._marked:
            self._ledger.mark_stored(self.closed)
            self._marked = self.closed

    def begun_with(self, places: int) -> int:
        """Number of windows, the open one included, once this many more places are read."""
        if self._privacy.hide_presence:
            return self.closed + 1
        places += len(self._rows)
        if not places:
            return self.closed
        # Further windows than the open one, rounded up: the last of them is begun.
        further = max(0, places - self._size)
        return self.closed + 1 + -(-further // self._privacy.window_readings)

    @property
    def _size(self) -> int:
        """Readings of the open window when it is full."""
        full = self._privacy.window_readings
        if self.closed or self._privacy.hide_presence:
            return full
        return self._first_size

    def _is_overdue(self, now: float) -> bool:
        if self._opened_at is None:
            return False
        # A clock that was set back must not lengthen the wait.
        self._opened_at = min(self._opened_at, now)
        return now >= self._opened_at + self._privacy.window_s

    def _close(self, now: float) -> list[EncodedUpdate]:
        """Count the open window for every model, charge it, and begin the next one."""
        self._snapshots.follow()
        span = self._times.span
        log_left_out(self._times)
        window = ClosedWindow(
            self._rows, self._valid, self.closed, self._places, now, span, self._taken_in
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
        # Copies of nothing: a slice would keep the rows of the closed window in memory.
        self._rows = self._rows[:0].copy()
        self._valid = self._valid[:0].copy()
        self._opened_at = None
        self._times.clear()
        self._taken_in = NO_SPAN
        self._user_readings.clear()

    def _in_order(self, batch: Batch) -> Places:
        """All records of a batch, rejected ones too, in the order of their places."""
        if not batch.rejected:
            in_order = self._without_rejected(batch)
            if in_order is not None:
                return in_order
        at = list(batch.places)
        times = list(batch.times)
        records = list(batch.numbers)
        taken_in = [batch.taken_in_ms[number] / 1000 for number in batch.numbers]
        for rejected in batch.rejected:
            record = rejected.record
            at.append((record.partition, record.offset))
            times.append(rejected.time)
            records.append(rejected.number)
            taken_in.append(record.timestamp_ms / 1000)
        users = list(batch.users)
        users += [b""] * (len(at) - len(users))
        inside, _ = self._bounds.clip(batch.values, self._privacy.missing == "learn")
        rejected_rows = np.zeros((len(batch.rejected), self._bounds.d))
        rows = np.concatenate([self._bounds.to_unit(inside), rejected_rows])
        valid = np.arange(len(at)) < len(batch.places)
        if at == sorted(at):
            public = [batch.public_times[number] for number in records]
            return Places(rows, valid, users, times, public, taken_in)
        places = np.array(at, dtype=np.int64).reshape(-1, 2)
        # The last key counts first: by partition, then by offset, whatever was rejected among them.
        order = np.lexsort((places[:, 1], places[:, 0]))
        numbers = order.tolist()
        return Places(
            rows[order],
            valid[order],
            [users[number] for number in numbers],
            [times[number] for number in numbers],
            [batch.public_times[records[number]] for number in numbers],
            [taken_in[number] for number in numbers],
        )

    def _without_rejected(self, batch: Batch) -> Places | None:
        """The same of a batch with nothing rejected, in which places ascend; None for another one.

        Of a batch of a few readings, what is left out here takes longer than the rest.
        """
        if batch.places != sorted(batch.places):
            return None
        n = len(batch.places)
        inside, _ = self._bounds.clip(batch.values, self._privacy.missing == "learn")
        public: Sequence[float | None] = batch.public_times
        taken_in_ms: Sequence[int] = batch.taken_in_ms
        # Some records may be left out of it, as where the time of a reading could not be.
        if n != len(public):
            public = [public[number] for number in batch.numbers]
            taken_in_ms = [taken_in_ms[number] for number in batch.numbers]
        return Places(
            self._bounds.to_unit(inside),
            np.ones(n, dtype=np.bool_),
            list(batch.users) or [b""] * n,
            batch.times,
            list(public),
            [moment / 1000 for moment in taken_in_ms],
        )


def _first_size(client: str, full: int) -> int:
    """Readings of the first window of a client, where all others have `full`."""
    # It is shorter, by a public phase, so that clients do not all publish at once; not too short,
    # as a window of few readings is nothing but noise.
    phase = int.from_bytes(hashlib.sha256(client.encode()).digest()[:4], "little") % full
    return max(phase, full // FIRST_WINDOW_PART, 1)


def check_unit_rows(rows: Rows, gaps: bool) -> None:
    """Raises `InvalidState` unless rows are within the unit cube; with `gaps`, or missing.

    Kernels do not check: a row outside of every bin would be counted anywhere.
    """
    inside = (rows >= -REACH_SLACK) & (rows <= 1.0 + REACH_SLACK)
    require(bool((inside | (np.isnan(rows) & gaps)).all()), "a reading is outside of the bounds")
