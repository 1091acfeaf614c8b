"""Notes in a readings log what was released of it, so that it is known where all else was lost.

With checkpoint, noise key and ledger deleted, a client would publish every reading again with other
noise, and a new ledger would know of one release. So each client notes in its readings log up to
which places it has released, with which key, and in which ledger that is charged. A log has one
ledger: a second one, as on another host, is refused.

The note is written after the state that it belongs to is stored and before anything is published.
The first one of a process waits for the disk. Later ones are on it with the next reading that a
producer stores, which syncs the same file: a power cut can lose the notes since then, and the
client then starts from its own checkpoint, which knows more.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from shoal.errors import InvalidState, LogError, MessageRejected
from shoal.privacy.ledger import Ledger
from shoal.protocol.codec import pack, unpack
from shoal.protocol.topics import RELEASES, RELEASES_SETTINGS
from shoal.runtime.checkpoint import pairs_of, positions_of
from shoal.saved_state import SavedState, state_type
from shoal.transports.base import Log, Positions, beginning, flush_unsynced, latest

PROCESS_BYTES: Final = 8
WAIT_S: Final = 10.0
"""wait for a note that was just written"""
NOT_TWICE: Final = (
    "Going on would publish the same readings twice with different noise. Restore the newest copy"
    " of the whole folder, or start under a new client name with a new readings log"
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
        fields = self._asdict()
        fields["places"] = pairs_of(self.places)
        return pack(fields)


def _decode(value: bytes) -> Note:
    try:
        fields = unpack(value)
        places = {int(partition): int(stop) for partition, stop in fields["places"]}
        return Note(**{**fields, "places": places})
    except (KeyError, TypeError, ValueError, MessageRejected) as broken:
        raise InvalidState(
            "the readings log has a note on what was released of it that cannot be read"
            f" ({broken}); restore the log"
        ) from None


@state_type
class ReleasesState(SavedState):
    """Which places of the readings log are released."""

    released: list[list[int]]
    """[partition, first place that is not released]"""


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
        self._ledger = ""
        self._key = ""
        log.ensure(RELEASES, RELEASES_SETTINGS)
        self._at = beginning(log, RELEASES)
        self._notes: dict[bytes, Note] = {}
        """key in the log -> the newest note, of those that were there at the start"""
        self._earlier: list[bytes] = []
        """keys of the notes of this client by earlier processes, which the first note of this one
        replaces"""
        self._released: Positions = {}
        """partition -> the first place that is not released, by the state that is stored next"""
        self._noted: Positions = {}
        """the same, as the newest note has it"""
        self._is_synced = False
        """whether a note of this process is on the disk"""
        for note in self._read():
            self._notes[note.key_in_log] = note

    def check_new(self, *, has_ledger: bool) -> None:
        """Raise `InvalidState` if a client that has no noise key yet cannot be new on this log."""
        for note in self._notes.values():
            if note.owner == self._owner:
                raise self._lost(note)
            if not has_ledger:
                raise self._other_ledger(note)

    def resume(self, ledger: Ledger, *, has_state: bool) -> None:
        """Raises `InvalidState` unless the notes fit the ledger, its noise key and the checkpoint.

        What the checkpoint says was released, and the log does not say yet, is noted.
        """
        self._ledger = ledger.identity
        self._key = ledger.fingerprint
        for note in self._notes.values():
            if note.ledger != self._ledger:
                raise self._other_ledger(note)
            if note.owner != self._owner:
                continue
            if not has_state or note.key != self._key:
                raise self._lost(note)
            self._check_places(note)
            self._earlier.append(note.key_in_log)
            if note.places == self._released:
                self._noted = note.places
        self.note()

    def _check_places(self, note: Note) -> None:
        """Raises `InvalidState` where more was released than the checkpoint knows."""
        for partition, stop in note.places.items():
            known = self._released.get(partition, 0)
            if stop > known:
                raise InvalidState(
                    f"{self._owner} has released its readings up to place {stop}, and its"
                    f" checkpoint knows of {known}: the checkpoint is older than what was released."
                    f" {NOT_TWICE}"
                )

    def add(self, places: Positions) -> None:
        """Everything before `places` counts as released by the state that is stored next."""
        self._released = dict(places)

    def note(self) -> None:
        """Note what the stored state has released; the note is in the log when this returns.

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

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        return ReleasesState(released=pairs_of(self._released)).saved()

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`."""
        self._released = positions_of(ReleasesState.read(state).released)

    def _check(self, notes: Iterable[Note]) -> None:
        for note in notes:
            if note.ledger != self._ledger:
                raise self._other_ledger(note)
            if note.owner == self._owner and note.process != self._process:
                raise InvalidState(
                    f"another process has released readings of this log as {self._owner}, so a copy"
                    f" of its folder runs elsewhere. {NOT_TWICE}"
                )

    def _read_others(self, mine: Note) -> list[Note]:
        """The notes since the last read, after `mine` was written."""
        ends = self._ends()
        # One record more than was read is `mine`: nothing is read, which saves a read of the log
        # for each publication.
        if sum(ends.values()) == sum(self._at.values()) + 1:
            self._at = ends
            return []
        return self._read(until=mine)

    def _read(self, until: Note | None = None) -> list[Note]:
        """The notes that were not read yet, up to the end of the log or to `until`, an own one.

        One that was taken back is not among them.
        """
        notes: list[Note] = []
        ends = self._ends()
        waits_until = time.monotonic() + WAIT_S
        # A note that was just written may not be in the log yet: a broker acknowledges before a
        # reader sees it. So `until` is waited for, wherever the end of the log is.
        while until is not None or self._is_before(ends):
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

    def _ends(self) -> Positions:
        return {partition: end for partition, (_, end) in self._log.bounds(RELEASES).items()}

    def _is_before(self, ends: Positions) -> bool:
        return any(self._at[partition] < end for partition, end in ends.items())

    def _lost(self, note: Note) -> InvalidState:
        place = max(note.places.values(), default=0)
        return InvalidState(
            f"the readings log says that {self._owner} has released its readings up to place"
            f" {place} with key {note.key}, and its checkpoint or this key is lost. {NOT_TWICE}"
        )

    def _other_ledger(self, note: Note) -> InvalidState:
        return InvalidState(
            f"{note.owner} has released readings of this log, and what they cost is in another"
            " ledger: a readings log has one, for all federations of the site. Restore that ledger,"
            " or run this client on the host that has it (in the file of another federation, name"
            " its folder with `folder` of [readings]); otherwise start with a new readings log"
        )


def released_places(log: Log, owner: str) -> Positions:
    """Partition -> the first place that `owner` has not released, by the notes in its log.

    Empty where nothing was noted. Raises as the log does, and `InvalidState` for a damaged note.
    """
    log.ensure(RELEASES, RELEASES_SETTINGS)
    released: Positions = {}
    for record in latest(log, RELEASES).values():
        if record.value is None:
            continue
        note = _decode(record.value)
        if note.owner == owner:
            for partition, stop in note.places.items():
                released[partition] = max(stop, released.get(partition, 0))
    return released
