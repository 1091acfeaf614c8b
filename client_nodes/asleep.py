"""What a host notes of its clients at an end in order, so that its next start opens only some.

To open a client takes as long as to learn a hundred readings or more. A client that has read all
its readings, and has published what it stored, does nothing before its next reading or before a
moment that is known; the next host opens it then. Notes are no state: what they say is compared
with the readings of the client. An old note is harmless, as one that has learnt since has readings
beyond it or had something to do by the clock.

After a kill there is no note, or an old one: there the stored state of a client says as much
(`note_of_stored`), which takes a tenth of the time of opening it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import closing
from typing import Any, ClassVar, Final, NamedTuple

from shoal.client_nodes.bootstrap import HOST_CHECKPOINTS, checkpoint_owner, host_owner
from shoal.client_nodes.count_windows import CountWindowsState
from shoal.client_nodes.intake import positions_in
from shoal.client_nodes.learner import LearnerState
from shoal.client_nodes.monitoring import TOTALS, TotalsState
from shoal.client_nodes.node import required_values
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.runtime.checkpoint import DAMAGED, Checkpoint, CheckpointFile
from shoal.saved_state import SavedState, state_type
from shoal.telemetry.events import log_event

STATE_VERSION: Final = 1


class Asleep(NamedTuple):
    """A client that has nothing to do now."""

    end: int
    """offset of its next reading"""
    wakes_at: float
    """time of its next act though no reading comes, seconds since 1970; inf: never"""
    totals: Mapping[str, int]
    """`ClientNode.totals`"""


@state_type
class AsleepClientState(SavedState):
    """The note of one client."""

    client: str
    end: int
    wakes_at: float | None
    totals: dict[str, int]


@state_type
class AsleepState(SavedState):
    """The notes of all clients of a host, and what they hold for."""

    version: ClassVar[int] = STATE_VERSION

    contract: str
    site: str
    updates_log: bytes
    clients: list[AsleepClientState]


class SleepNotes:
    """The notes in the file with the checkpoints of a host's clients, which is open.

    They hold for one contract, one file of readings and one log of updates: with another one each
    client has to look for itself.
    """

    def __init__(self, config: Config, file: CheckpointFile, site: str, updates_log: bytes) -> None:
        """`site`, `updates_log`: identities of the file of readings and of the topic of updates."""
        self._owner = f"sleeping clients of {config.contract.federation}"
        self._path = config.client.folder / HOST_CHECKPOINTS
        self._process = host_owner(config)
        self._file = file
        self._holds_for = (config.resolved.digest, site, updates_log)

    def load(self) -> dict[str, Asleep]:
        """Client -> its note; none where they are for another contract, file or log."""
        with closing(self._checkpoint()) as checkpoint:
            state = checkpoint.load()
        if state is None:
            return {}
        try:
            saved = AsleepState.read(state)
        except InvalidState as wrong:
            log_event("sleep_notes_unread", logging.WARNING, reason=str(wrong))
            return {}
        if (saved.contract, saved.site, saved.updates_log) != self._holds_for:
            return {}
        notes = {}
        for entry in saved.clients:
            wakes_at = math.inf if entry.wakes_at is None else entry.wakes_at
            notes[entry.client] = Asleep(entry.end, wakes_at, entry.totals)
        return notes

    def save(self, notes: Mapping[str, Asleep]) -> None:
        """Replace the notes. Raises as the file does."""
        contract, site, updates_log = self._holds_for
        clients = []
        for client, note in notes.items():
            wakes_at = note.wakes_at if math.isfinite(note.wakes_at) else None
            entry = AsleepClientState(
                client=client, end=note.end, wakes_at=wakes_at, totals=dict(note.totals)
            )
            clients.append(entry)
        state = AsleepState(contract=contract, site=site, updates_log=updates_log, clients=clients)
        with closing(self._checkpoint()) as checkpoint:
            checkpoint.save(state.saved())

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint(self._path, self._owner, self._file, process=self._process)


class StoredStates:
    """The stored states of a host's clients, in the file with their checkpoints, which is open."""

    def __init__(self, config: Config, file: CheckpointFile, updates_log: bytes) -> None:
        """`updates_log`: identity of the topic of updates."""
        self._config = config
        self._file = file
        self._updates_log = updates_log

    def note_of(self, client: str, readings_log: bytes, now: float) -> Asleep | None:
        """What is to be noted of a client by its stored state alone; None where it must be opened.

        It must be where records wait that may not be published, where nothing is stored, and where
        its start has more to look at than its readings: with another contract or log, which it may
        have to refuse, with labels, and with a limit of its ledger. `readings_log`: identity of its
        readings. Raises as the file does, but for a damaged state, which the client meets itself.
        """
        settings = self._config.client
        owner = checkpoint_owner(self._config, client)
        if settings.label or settings.epsilon_max or not self._file.has_saved(owner):
            return None
        path = self._config.client.folder / HOST_CHECKPOINTS
        process = host_owner(self._config)
        try:
            with closing(
                Checkpoint(path, owner, self._file, process=process, makes=False)
            ) as checkpoint:
                if checkpoint.has_records():
                    return None
                state = checkpoint.load()
            if state is None or not self._goes_on(state, readings_log):
                return None
            return self._note_in(state, now)
        except (InvalidState, *DAMAGED):
            return None

    def _goes_on(self, state: Mapping[str, Any], readings_log: bytes) -> bool:
        """Whether the state is of this contract and of these logs."""
        required = required_values(self._config.resolved.digest, readings_log)
        for name, value in required.items():
            if state.get(name) != value.value:
                return False
        return bool(state.get("updates_log") == self._updates_log)

    def _note_in(self, state: Mapping[str, Any], now: float) -> Asleep | None:
        wakes_at = math.inf
        learner = LearnerState.read(state["learner"])
        if learner.places_since_update or learner.republish:
            # As of a client that is opened at a start: the interval of its updates begins there.
            wakes_at = now + self._config.client.publish_s
        contract = self._config.resolved
        windows = CountWindowsState.read(state["windows"], {"d": contract.bounds.d})
        if len(windows.rows):
            if windows.opened_at is None:
                return None
            wakes_at = min(wakes_at, windows.opened_at + contract.contract.privacy.window_s)
        counts = TotalsState.read(state["totals"]).counts
        totals = {name: counts.get(name, 0) for name in TOTALS}
        return Asleep(sum(positions_in(state["intake"]).values()), wakes_at, totals)
