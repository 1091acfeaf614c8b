"""The second stage of a step: makes readings private within the budget. Everything after it works
on noisy rows only.

The limit of the ledger bounds what one person spends. Whether it is reached depends on numbers of
places alone, so that it tells nothing about a reading.

What was released of a readings log is kept in that log: it is known also where all else of the
client was lost. With checkpoint, noise key and ledger deleted, a client would publish every reading
again with other noise, and a new ledger would know of one release. So each client notes in its
readings log up to which places it has released, with which key, and in which ledger that is
charged. A log has one ledger: a second one, as on another host, is refused. The note is written
after the state that it belongs to is stored and before anything is published. The first one of a
process waits for the disk. Later ones are on it with the next reading that a producer stores, which
syncs the same file: a power cut can lose the notes since then, and the client then starts from its
own checkpoint, which knows more.
"""

from __future__ import annotations

import logging
import secrets
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Rows
from shoal.client_nodes.count_windows import CountWindows
from shoal.client_nodes.intake import Batch
from shoal.config.resolved import ResolvedContract
from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState, LogError, MessageRejected, SettingsError
from shoal.kernels.arrays import Ints
from shoal.privacy import Bounds, Mechanism, PrivacyMode
from shoal.privacy.ledger import NANO, Ledger, Noised, Spending, nano
from shoal.protocol.codec import pack, unpack
from shoal.protocol.reading_faults import outside_of
from shoal.protocol.topics import RELEASES, RELEASES_SETTINGS
from shoal.runtime.checkpoint import pairs_of
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, beginning, flush_unsynced


class PrivateBatch(NamedTuple):
    """A batch after privacy."""

    rows: Rows
    """(n, d) in unit coordinates"""
    times: list[float | None]
    """event time of each row, seconds since 1970"""
    numbers: Ints
    """(n,) which place of the batch each row is from, ascending"""
    place_times: Sequence[float | None]
    """event time of each place of the batch: of rows, and of readings that were rejected or
    withheld"""
    clipped: int = 0
    """readings that were outside the bounds of the contract and were moved to them; never leaves
    the client"""
    withheld: int = 0
    """readings for which the mechanism releases no row; never leaves the client"""
    counted: int = 0
    """readings that are only counted, where no model learns rows"""
    clipped_by_feature: tuple[int, ...] = ()
    """readings that were outside the bounds of each feature; () where none was; never leaves the
    client"""
    missing_by_feature: tuple[int, ...] = ()
    """readings that lack a value of each feature; () where none does; never leaves the client"""


def _missing(values: Rows) -> tuple[int, ...]:
    lacks = np.isnan(values).sum(axis=0)
    return tuple(lacks.tolist()) if lacks.any() else ()


def privatise(mechanism: Mechanism, batch: Batch, bounds: Bounds) -> PrivateBatch:
    """Make every reading of the batch private, in order."""
    if not batch.record_times:  # every step of an idle client
        return PrivateBatch(np.empty((0, bounds.d)), [], np.empty(0, dtype=np.int64), [])
    released = mechanism.privatise(
        batch.values, np.array(batch.places, dtype=np.int64).reshape(-1, 2)
    )
    times = [time for time, kept in zip(batch.times, released.kept, strict=True) if kept]
    outside = tuple(outside_of(batch.values, bounds).tolist()) if released.clipped else ()
    withheld = len(batch.places) - len(released.rows)
    return PrivateBatch(
        released.rows,
        times,
        np.asarray(batch.numbers, dtype=np.int64)[released.kept],
        batch.record_times,
        released.clipped,
        withheld,
        clipped_by_feature=outside,
        missing_by_feature=_missing(batch.values),
    )


def counted_only(batch: Batch, bounds: Bounds, gaps: bool = False) -> PrivateBatch:
    """A batch without rows, which no model learns: only its numbers are known."""
    outside = outside_of(batch.values, bounds)
    none = np.empty(0, dtype=np.int64)
    return PrivateBatch(
        np.empty((0, bounds.d)),
        [],
        none,
        [],
        clipped=bounds.clip(batch.values, gaps)[1],
        counted=len(batch.values),
        clipped_by_feature=tuple(outside.tolist()) if outside.any() else (),
        missing_by_feature=_missing(batch.values) if gaps else (),
    )


class Budget:
    """Number of places of the readings log that a client may still release under `[client]
    epsilon_max`.

    Every place that is allowed counts as spent at once, and again when it is read again after a
    kill: the limit is never passed, and may be reached a batch early.
    """

    def __init__(
        self, contract: ResolvedContract, settings: ClientSettings, ledger: Ledger | None
    ) -> None:
        """Raises `SettingsError` for a limit where nothing is guaranteed."""
        self._limit = settings.epsilon_max
        self._action = settings.at_epsilon_max
        self._readings = settings.person_readings or None
        self._reached = False
        self._spending = Spending([], None, [])
        unit = contract.mode.unit
        privacy = contract.contract.privacy
        self._by_window = unit.is_user or unit.hides_presence
        """whether the number of windows alone decides what is spent: a user spends once for each"""
        self._window_units = 1 if unit.is_user else privacy.window_readings
        """number of times that one person can spend in a window then"""
        self._windows: CountWindows | None = None
        self._windows_before = 0
        self._ledger = ledger
        self._others = 0
        self._others_version = -1
        """billionths that a person has spent at most by other accounts of the ledger, and the
        version that says so"""
        streams = {
            model.counts.stream: model.epsilon
            for model in contract.counted
            if model.counts is not None
        }
        self._counts_cost = sum(nano(epsilon or 0.0) for epsilon in streams.values())
        self._rows_epsilon = contract.rows_epsilon or 0.0
        if self._limit and contract.mode.masked:
            raise SettingsError(
                "[client] epsilon_max is not for masked counts, which protect all that a client says together: set "
                "budget_epsilon and budget_days in [privacy]"
            )
        if self._limit and (ledger is None or contract.total_epsilon is None):
            raise SettingsError(
                "[client] epsilon_max limits what a person spends, and this federation guarantees nothing; leave it "
                'out, or choose mode = "formal"'
            )

        if self._limit and unit.hides_presence and self.pauses:
            raise SettingsError(
                '[client] at_epsilon_max = "pause" cannot be with hide_presence: windows go by with the clock, so '
                'that readings that wait would be counted in none. Write at_epsilon_max = "refuse"'
            )

    @property
    def pauses(self) -> bool:
        """Whether a client reads nothing more at the limit; otherwise it reads on and releases
        nothing."""
        return self._action == "pause"

    def allows_window(self) -> bool:
        """Whether the limit allows the open window, where the number of windows alone decides."""
        return not (self._limit and self._by_window) or (
            self._spent_with(0) <= self._limit and self.claim(0)
        )

    def claim(self, places: int) -> bool:
        """Whether this many places that were read may be released, by the ledger, which notes it.

        False where another federation of the site has spent or claimed the rest of the limit
        meanwhile.
        """
        if not self._limit or self._ledger is None:
            return True
        # Read anew next time: by then another federation may have claimed as well.
        self._others_version = -1
        return self._ledger.claim(nano(self._own_with(places)), nano(self._limit), self._readings)

    def resume(self, ledger: Ledger | None, windows: CountWindows) -> None:
        """Begin with what the ledger holds, and the open window, which is not charged yet."""
        if self._limit and ledger is not None:
            self._spending = ledger.spending()
            self._windows = windows
            self._windows_before = windows.closed
            if not self._by_window:
                self._spending = self._with(0, windows.open_places)

    def allowance(self, places: int) -> int:
        """Number of the next `places` that may be released. Logs once that the limit is reached."""
        if not self._limit:
            return places
        self._read_others()
        # The most places with which a person has not spent more than the limit; -1 where one has
        # already.
        allowed = bisect_right(range(places + 1), self._limit, key=self._spent_with) - 1
        if allowed <= 0 and not self._reached:
            spent = self._spent_with(0)
            log_event(
                "epsilon_max_reached",
                logging.WARNING,
                epsilon=spent,
                epsilon_max=self._limit,
                action=self._action,
            )
        self._reached = allowed <= 0
        return max(0, allowed)

    def reserve(self, places: int) -> None:
        """Count this many more places as released."""
        if self._limit and places and not self._by_window:
            self._spending = self._with(places, places)

    def _read_others(self) -> None:
        """Other federations may charge the same readings meanwhile."""
        if self._ledger is not None and (version := self._ledger.version()) != self._others_version:
            self._others_version = version
            self._others = self._ledger.spent_by_others(self._readings)

    def _spent_with(self, places: int) -> float:
        """Most that a person will have spent, by all accounts, once this many more places are
        released."""
        return self._others / NANO + self._own_with(places)

    def _own_with(self, places: int) -> float:
        """The same by this account."""
        if self._windows is None or not self._by_window:
            return self._with(places, places).of_person(self._readings)
        begun = (self._windows.begun_with(places) - self._windows_before) * self._window_units
        return self._with(0, begun).of_person(self._readings)

    def _with(self, rows: int, counted: int) -> Spending:
        """The spending if this many more noisy rows, and counted places or windows, were charged."""
        before = self._spending.rows or Noised(0, self._rows_epsilon)
        windows = dict(self._spending.windows)
        windows[self._counts_cost] = windows.get(self._counts_cost, 0) + counted
        return Spending(
            self._spending.models,
            Noised(before.places + rows, self._rows_epsilon),
            # The dearest windows first: what one person can have spent is counted from these.
            sorted(windows.items(), reverse=True),
        )


def check_ledger_counts(file: Path, mode: PrivacyMode) -> None:
    """Raises `SettingsError` where a ledger counts what is spent of readings, and `mode` has
    nothing to count."""
    if not mode.formal and file.exists():
        raise SettingsError(
            f'{file} counts what is spent of these readings, and mode = "{mode.name}" guarantees nothing, so that no '
            "ledger could count it; give this federation readings of its own"
        )


class RowCharges:
    """The places of the readings log whose noisy rows are charged, before anything made from them
    is published."""

    def __init__(self, ledger: Ledger | None, epsilon: float | None) -> None:
        """`epsilon` of a row; None where none is made or nothing is guaranteed. Without a ledger
        nothing is charged."""
        self._ledger = ledger
        self._epsilon = epsilon
        self._open: dict[int, tuple[int, int]] = {}
        self._charged: Positions = {}

    def add(self, before: Positions, after: Positions) -> None:
        """The rows of the places between these positions were made."""
        if self._epsilon is None:
            return
        for partition, stop in after.items():
            first = self._open.get(partition, (before.get(partition, stop), stop))[0]
            if first < stop:
                self._open[partition] = first, stop

    def charge(self) -> None:
        """Charge what was made since the last charge; it is on the disk when this returns."""
        if self._ledger is None or self._epsilon is None or not self._open:
            return
        # Before what is charged is noted here: after a kill it is charged again, which costs
        # nothing.
        self._ledger.charge_rows(self._open, self._epsilon)
        self._charged |= {partition: stop for partition, (_, stop) in self._open.items()}
        self._open = {}

    def state(self) -> list[Any]:
        """Plain values for `restore`."""
        spans = [
            [partition, first, stop] for partition, (first, stop) in sorted(self._open.items())
        ]
        return [[[*one] for one in sorted(self._charged.items())], spans]

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`, also when the ledger lacks what the checkpoint has charged."""
        try:
            charged, spans = state
            self._charged = {int(partition): int(stop) for partition, stop in charged}
            self._open = {
                int(partition): (int(first), int(stop)) for partition, first, stop in spans
            }
        except (TypeError, ValueError) as broken:
            raise InvalidState(f"the checkpoint's charges of rows are damaged: {broken}") from None
        if self._ledger is not None:
            self._ledger.check_rows(self._charged)


PROCESS_BYTES: Final = 8
WAIT_S: Final = 10.0
"""wait for a note that was just written"""
NOT_TWICE: Final = (
    "Going on would publish the same readings twice with different noise. Restore the newest copy of the whole folder, "
    "or start under a new client name with a new readings log"
)


class Note(NamedTuple):
    """Note of what one client has released of the log."""

    owner: str
    """the account in the ledger: "client a of plant" """
    ledger: str
    """identity of the ledger in which it is charged"""
    key: str
    """fingerprint of the noise key"""
    process: bytes
    """random bytes of the process that wrote it"""
    places: Positions
    """partition -> the first place that is not released"""

    @property
    def key_in_log(self) -> bytes:
        # Of the process as well: where a log keeps the newest record of a key alone, the note of a
        # copy of the folder would hide that of the original before another process has read it.
        return f"{self.ledger} {self.owner} {self.process.hex()}".encode()

    def encode(self) -> bytes:
        return pack(self._replace(places=pairs_of(self.places))._asdict())  # type: ignore[arg-type]  # as plain values


def _decode(value: bytes) -> Note:
    try:
        found = unpack(value)
        return Note(
            **found | {"places": {int(partition): int(stop) for partition, stop in found["places"]}}
        )
    except (KeyError, TypeError, ValueError, MessageRejected) as broken:
        raise InvalidState(
            f"the readings log has a note on what was released of it that cannot be read ({broken}); restore the log"
        ) from None


class Releases:
    """The notes in the readings log of one client: `check_new`, then `resume`, then `note` before
    each publication.

    Every method raises as the log does.
    """

    def __init__(self, log: Log, owner: str) -> None:
        """`log`: the client's own; `owner` names its account in the ledger."""
        self._log = log
        self._owner = owner
        self._process = secrets.token_bytes(PROCESS_BYTES)
        self._ledger = self._key = ""
        log.ensure(RELEASES, RELEASES_SETTINGS)
        self._at = beginning(log, RELEASES)
        self._found: dict[bytes, Note] = {}
        """key in the log -> the newest note"""
        self._earlier: list[bytes] = []
        """keys of the notes of this client by earlier processes, which the first note of this one
        replaces"""
        self._released: Positions = {}
        self._noted: Positions = {}
        self._is_synced = False
        """whether a note of this process is on the disk"""
        for note in self._read():
            self._found[note.key_in_log] = note

    def check_new(self, *, has_ledger: bool) -> None:
        """Raise `InvalidState` if a client that has no noise key yet cannot be new on this log."""
        for note in self._found.values():
            if note.owner == self._owner:
                raise self._lost(note)
            if not has_ledger:
                raise self._other_ledger(note)

    def resume(self, ledger: Ledger, *, has_state: bool) -> None:
        """Raises `InvalidState` unless the notes fit the ledger, the noise key that it is for, and
        the checkpoint.

        What the checkpoint says was released, and the log does not say yet, is noted.
        """
        self._ledger = ledger.identity
        self._key = ledger.fingerprint
        for note in self._found.values():
            if note.ledger != self._ledger:
                raise self._other_ledger(note)
            if note.owner != self._owner:
                continue
            if not has_state or note.key != self._key:
                raise self._lost(note)
            for partition, stop in note.places.items():
                if stop > (known := self._released.get(partition, 0)):
                    raise InvalidState(
                        f"{self._owner} has released its readings up to place {stop}, and its checkpoint knows of "
                        f"{known}: the checkpoint is older than what was released. {NOT_TWICE}"
                    )
            self._earlier.append(note.key_in_log)
            if note.places == self._released:
                self._noted = note.places
        self.note()

    def add(self, places: Positions) -> None:
        """The state that is stored next has records to publish: everything before `places` counts
        as released."""
        self._released = dict(places)

    def note(self) -> None:
        """Note what counts as released by the state that is stored; the note is in the log when
        this returns.

        Raises `InvalidState` if another process has noted a release of this log: it has another
        ledger, or this client's, from a copy of its folder.
        """
        if self._released == self._noted:
            return
        # The first note of a process replaces those of earlier ones, so what is there comes before
        # it. A later one replaces its own alone, and is taken back where another process has noted
        # meanwhile.
        if not self._is_synced:
            self._check(self._read())
        mine = Note(self._owner, self._ledger, self._key, self._process, self._released)
        self._log.publish(RELEASES, mine.encode(), mine.key_in_log)
        if self._is_synced:
            flush_unsynced(self._log)
        else:
            self._log.flush()
        try:
            self._check(self._read_others(mine))
        except InvalidState:
            # The one that noted first goes on, and this one has published nothing yet.
            self._log.publish(RELEASES, None, mine.key_in_log)
            self._log.flush()
            raise
        if self._earlier:
            for key in self._earlier:
                self._log.publish(RELEASES, None, key)
            self._log.flush()
        self._earlier = []
        self._noted = self._released
        self._is_synced = True

    def state(self) -> list[list[int]]:
        """Plain values for `restore`."""
        return pairs_of(self._released)

    def restore(self, state: Any) -> None:
        """Raises `TypeError` or `ValueError` for a damaged state."""
        self._released = {int(partition): int(stop) for partition, stop in state}

    def _check(self, notes: Iterable[Note]) -> None:
        for note in notes:
            if note.ledger != self._ledger:
                raise self._other_ledger(note)
            if note.owner == self._owner and note.process != self._process:
                raise InvalidState(
                    f"another process has released readings of this log as {self._owner}, so a copy of its folder runs "
                    f"elsewhere. {NOT_TWICE}"
                )

    def _read_others(self, mine: Note) -> list[Note]:
        """The notes since the last read, after `mine` was written; where it alone has come, nothing
        is read."""
        ends = {partition: end for partition, (_, end) in self._log.bounds(RELEASES).items()}
        if sum(ends.values()) == sum(self._at.values()) + 1:
            self._at = ends
            return []
        return self._read(until=mine)

    def _read(self, until: Note | None = None) -> list[Note]:
        """The notes that were not read yet: all up to the end of the log, or to one that this
        process has written.

        One that was taken back is not among them.
        """
        notes: list[Note] = []
        ends = {partition: end for partition, (_, end) in self._log.bounds(RELEASES).items()}
        waits_until = time.monotonic() + WAIT_S
        # One that was just written may not be in the log yet: a broker acknowledges before a reader
        # sees it.
        while until is not None or any(
            self._at[partition] < end for partition, end in ends.items()
        ):
            records, self._at = self._log.read(RELEASES, self._at, timeout_s=1.0)
            for record in records:
                if record.value is None:
                    notes = [note for note in notes if note.key_in_log != record.key]
                    continue
                notes.append(_decode(record.value))
                if notes[-1] == until:
                    return notes
            if not records and time.monotonic() > waits_until:
                raise LogError(f"the newest record of {RELEASES} does not come")
        return notes

    def _lost(self, note: Note) -> InvalidState:
        return InvalidState(
            f"the readings log says that {self._owner} has released its readings up to place "
            f"{max(note.places.values(), default=0)} with key {note.key}, and its checkpoint or this key is lost. "
            f"{NOT_TWICE}"
        )

    def _other_ledger(self, note: Note) -> InvalidState:
        return InvalidState(
            f"{note.owner} has released readings of this log, and what they cost is in another ledger: a readings log "
            "has one, for all federations of the site. Restore that ledger, or run this client on the host that has it "
            "(in the file of another federation, name its folder with `folder` of [readings]); otherwise start with a "
            "new readings log"
        )
