"""One client of a host: a `ClientNode` that is opened, stepped, and opened again after outages."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from shoal.client_nodes.asleep import Asleep
from shoal.client_nodes.bootstrap import CHECKPOINT, OfHost, checkpoint_owner, open_client
from shoal.client_nodes.monitoring import TOTALS
from shoal.client_nodes.node import ClientNode
from shoal.client_nodes.silence import Arrivals
from shoal.config.settings import Config
from shoal.errors import ContractMissing, LogError, ShoalError
from shoal.protocol.reading_faults import Rejected
from shoal.runtime.client_folders import client_text
from shoal.runtime.service import RETRY_FIRST_S, RETRY_MAX_S, resumed
from shoal.telemetry.events import EventsOfClient, log_event
from shoal.transports.base import Log


class HostedClient:
    """One client of a host: opened at its first step, and opened again after an outage.

    An error of one client is no error of the host: one that can pass is tried again later, one
    that cannot leaves the client out until the host is started again.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        clock: Callable[[], float],
        contract_by: float | None,
        of_host: Callable[[], OfHost] | None = None,
        note_of: Callable[[str], Asleep | None] = lambda _: None,
    ) -> None:
        """`contract_by`: see `Host`; `of_host`: what it shares with all clients of the host, which
        then step together; None: it has files and connections of its own. `note_of`: what the host
        before has noted of a client, asked for at its first step."""
        self.name = name
        self.failure: ShoalError | None = None
        """why this client is left out; None: it is not"""
        self.totals = dict.fromkeys(TOTALS, 0)
        """its totals since it was first started, as of its newest step"""
        self.totals_before: dict[str, int] | None = None
        """its totals when this host opened it first; None before that"""
        self._text: str | None = None
        """what the data call it, where that is not its name; known once it was opened"""
        self._config = config
        self._clock = clock
        self._contract_by = contract_by
        self._of_host = of_host
        self._opened = ExitStack()
        self._node: ClientNode | None = None
        self._arrivals: Arrivals | None = None
        """finds what comes while it is put away"""
        self._active_at: float | None = None
        """time of its newest reading, as far as is known, seconds since 1970; None: never opened"""
        self._updated_at: float | None = None
        """`ClientNode.updated_at` when it was put away"""
        self._wakes_at = math.inf
        """time at which it is opened though no reading has come while it is put away"""
        self._note_of: Callable[[str], Asleep | None] | None = note_of
        """None once it was asked"""
        self._has_stepped = False
        """whether the newest step was one of the client, after which `publish` has something to do
        """
        self._retry_s = RETRY_FIRST_S
        self._retry_at = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether it can step now."""
        return self._node is not None

    @property
    def is_away(self) -> bool:
        """Whether it is put away: closed, until its next reading."""
        return self._arrivals is not None

    @property
    def waits(self) -> bool:
        """Whether it waits for what an outage has taken, or for the contract of the server."""
        return self.failure is None and self._retry_at > -math.inf

    @property
    def stored_end(self) -> int | None:
        """Offset up to which its stored state has its readings; None before a store here."""
        return None if self._node is None else self._node.stored_end

    @property
    def has_more(self) -> bool:
        """Whether readings wait that the newest step has left.

        False where clients do not share a file of readings: a log elsewhere takes long to say.
        """
        if self._node is None or self._of_host is None:
            return False
        try:
            return self._node.has_come()
        except ShoalError:
            # The next step meets it as well, and says so.
            return False

    def step(self) -> bool:
        """One step of the client, which reads a batch at most; True if it did something.

        Opens it first where needed. Where clients step together, `publish` must follow. Raises
        nothing that `ClientNode` raises on purpose.
        """
        if self.failure is not None or time.monotonic() < self._retry_at:
            return False
        if not self._looked_at_note() or self._is_asleep:
            return False
        self._arrivals = None
        self._wakes_at = math.inf
        self._has_stepped = False
        if self._is_idle():
            return False
        if self._node is None:
            # Before it is opened: what it logs then is of this client, too.
            self._text = client_text(self._config.client.folder, self.name)
        with self._own_events():
            try:
                did_something = self._stepped()
            except ShoalError as error:
                self._fail(error)
                return False
        if did_something:
            self._retry_s = RETRY_FIRST_S
        return did_something

    def mark_stored(self) -> None:
        """Note in its ledger what the newest step has stored; `publish` must follow. Raises nothing
        that `ClientNode` raises on purpose."""
        if self._node is None or not self._has_stepped:
            return
        with self._own_events():
            try:
                self._node.mark_stored()
            except ShoalError as error:
                self._fail(error)

    def publish(self) -> bool:
        """Publish what the newest step has stored; whether that was anything. Raises nothing that
        `ClientNode` raises on purpose."""
        if self._node is None or not self._has_stepped:
            return False
        with self._own_events():
            try:
                has_published = self._node.publish()
            except ShoalError as error:
                self._fail(error)
                return False
        return has_published

    def delete_published(self) -> None:
        """Delete from its outbox what was published. Raises nothing that `ClientNode` raises on
        purpose."""
        if self._node is None:
            return
        with self._own_events():
            try:
                self._node.delete_published()
            except ShoalError as error:
                self._fail(error)

    def store_unstored(self) -> None:
        """Store what it has learnt since its newest store; `publish` must follow. Raises nothing
        that `ClientNode` raises on purpose."""
        if self._node is None:
            return
        self._has_stepped = True
        with self._own_events():
            try:
                self._node.store_unstored()
            except ShoalError as error:
                self._fail(error)

    def lose(self, error: ShoalError) -> None:
        """Close it: what it shares with the others has failed, which it goes on after."""
        if self._node is not None:
            with self._own_events():
                self._fail(error, says=False)

    def put_away_if_silent(self, idle_s: float) -> None:
        """Close it where no reading has come for `idle_s` seconds and nothing else is to be done.

        What it knows is in its checkpoint: what is not stored yet keeps it open. Its next reading
        opens it.
        """
        now = self._clock()
        if self._node is None or self._active_at is None:
            return
        # A clock that was set back must not keep it open.
        self._active_at = min(self._active_at, now)
        if now < self._active_at + idle_s:
            return
        with self._own_events():
            try:
                if self._node.has_unstored or not self._node.is_quiet:
                    return
                read = self.totals["read"]
                self._updated_at = self._node.updated_at
                end = self._node.readings_end
                self.close()
                readings = None
                if self._of_host is not None:
                    readings = self._readings
                arrivals = Arrivals(self._config, self.name, readings)
            except ShoalError as error:
                self._fail(error)
                return
            # One that has come meanwhile is read at the next step.
            if arrivals.end == end:
                self._arrivals = arrivals
                log_event("client_put_away", logging.DEBUG, readings=read)

    def _is_idle(self) -> bool:
        """Whether a step would do nothing; False where it does not know, as after an error, which
        the step meets again."""
        # A log of the client's own is asked by its step: to ask it twice takes longer.
        if self._node is None or self._of_host is None:
            return False
        try:
            return self._node.is_idle()
        except ShoalError:
            return False

    @property
    def _is_asleep(self) -> bool:
        """Whether it is put away, and has nothing to do yet."""
        if self._arrivals is None or self._arrivals.has_come():
            return False
        return self._clock() < self._wakes_at

    def note(self) -> Asleep | None:
        """What the next host needs to know to open it only when there is something to do; None
        where it must look for itself. Raises nothing that `ClientNode` raises on purpose."""
        if self._arrivals is not None:
            return Asleep(self._arrivals.end, self._wakes_at, self.totals)
        if self._node is None:
            return None
        with self._own_events():
            try:
                wakes_at = self._node.wakes_at
                end = self._node.readings_end
            except ShoalError as error:
                self._fail(error)
                return None
        return None if wakes_at is None else Asleep(end, wakes_at, self.totals)

    def _looked_at_note(self) -> bool:
        """Stay closed at the first step where the host before has noted that nothing is to be done.

        False after an error."""
        if self._note_of is None:
            return True
        note_of = self._note_of
        self._note_of = None
        with self._own_events():
            try:
                note = note_of(self.name)
                if note is not None:
                    self._sleep(note)
            except ShoalError as error:
                self._fail(error)
                return False
        return True

    def _sleep(self, note: Asleep) -> None:
        arrivals = Arrivals(self._config, self.name, self._readings)
        if arrivals.end != note.end:
            return
        self._arrivals = arrivals
        self._wakes_at = note.wakes_at
        self.totals = dict(note.totals)
        self.totals_before = dict(note.totals)
        # As of a client that is opened at a start.
        self._updated_at = self._clock()

    def lag_records(self) -> int:
        """Records in its readings log that it has not read yet; 0 while it is not open."""
        if self._node is None:
            return 0
        with self._own_events():
            try:
                return self._node.lag_records()
            except ShoalError as error:
                self._fail(error)
                return 0

    def rejected(self) -> list[Rejected]:
        """Readings that it has rejected since it was first started; none while it is not open."""
        return [] if self._node is None else self._node.rejected

    def close(self) -> None:
        """Close its logs and its checkpoint. The next one on the same files goes on from there."""
        self._node = None
        opened = self._opened
        # Before it is closed: if that raises, nothing is closed twice.
        self._opened = ExitStack()
        opened.close()

    def _own_events(self) -> AbstractContextManager[None]:
        """All events within are of this client."""
        return EventsOfClient(self.name, self._text)

    def _stepped(self) -> bool:
        opens = self._node is None
        self._has_stepped = True
        if self._node is None:
            if self._active_at is None:
                self._active_at = self._stored_at()
            needs_contract = self._contract_by is not None
            self._node = self._opened.enter_context(
                resumed(
                    open_client(
                        self._config,
                        self.name,
                        clock=self._clock,
                        needs_contract=needs_contract,
                        of_host=None if self._of_host is None else self._of_host(),
                    )
                )
            )
            self._retry_at = -math.inf
            if self.totals_before is None:
                self.totals_before = self._node.totals
                self.totals = self._node.totals
            if self._updated_at is not None:
                self._node.updated_at = self._updated_at
                self._updated_at = None
        if self._of_host is None:
            did_something = self._node.step() or opens
        else:
            did_something = self._node.advance() or opens
        totals = self._node.totals
        if totals["read"] > self.totals["read"]:
            self._active_at = self._clock()
        self.totals = totals
        return did_something

    def _readings(self) -> Log:
        assert self._of_host is not None
        return self._of_host().readings

    def _stored_at(self) -> float:
        """Time at which its state was stored last, seconds since 1970; now for one that is new.

        One that was silent before a restart of the host needs not be waited for again.
        """
        if self._of_host is not None:
            owner = checkpoint_owner(self._config, self.name)
            return self._of_host().checkpoints.saved_at(owner) or self._clock()
        file = self._config.client.folder / self.name / CHECKPOINT
        try:
            return file.stat().st_mtime
        except FileNotFoundError:
            return self._clock()

    def _fail(self, error: ShoalError, *, says: bool = True) -> None:
        """`says`: whether it is logged; otherwise the host does it once for all its clients, of
        which a partition that moves has thousands."""
        self.close()
        contract_by = math.inf if self._contract_by is None else self._contract_by
        if isinstance(error, ContractMissing) and time.monotonic() >= contract_by:
            # `ContractMissing` would be tried again without end.
            error = LogError(str(error))
        if not error.retriable:
            self.failure = error
            if says:
                log_event("client_left_out", logging.ERROR, error=str(error))
            return
        if says:
            log_event("retrying", logging.WARNING, error=str(error), retry_s=self._retry_s)
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
