"""What a host notes of its clients at an end in order, so that its next start opens only some.

To open a client takes as long as to learn a hundred readings or more. A client that has read all
its readings, and has published what it stored, does nothing before its next reading or before a
moment that is known; the next host opens it then. Notes are no state: what they say is compared
with the readings of the client, and a client without a note is opened at once, as after a kill. An
old note is harmless, as one that has learnt since has readings beyond it or had something to do by
the clock.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import closing
from typing import ClassVar, Final, NamedTuple

from shoal.client_nodes.bootstrap import HOST_CHECKPOINTS, host_owner
from shoal.config.settings import Config
from shoal.errors import InvalidState
from shoal.runtime.checkpoint import Checkpoint, CheckpointFile
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
