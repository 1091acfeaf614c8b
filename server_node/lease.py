"""The lease of a federation: one server holds it and serves; a second one is turned away, or takes
over.

The holder renews it from a thread of its own, with a log of its own, so that no step of the server
can delay it. A renewal is a record of the log; where the log can show one without a record, it is
one every `RECORD_S` only, because a server without work should let the disk rest.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from shoal.config.settings import Config
from shoal.errors import LeaseHeld, LeaseUncertain, LogUnavailable, MessageRejected, ShoalError
from shoal.protocol.lease import LEASE_KEY, Lease, is_lease
from shoal.protocol.topics import ensure_topics
from shoal.runtime.service import in_thread
from shoal.telemetry.events import log_event
from shoal.transports.base import (
    Log,
    Positions,
    Record,
    beginning,
    show_renewal,
    shown_renewal,
)

MISSED_RENEWALS_MAX = 4
"""renewals that a server may miss before another one may take its lease"""
RECORD_S = 600.0
"""seconds after which a renewal is a record of the log in any case: a server without work finds out
by it that the disk refuses to write. Twelve a minute would be a gigabyte a day, these are 8 MB"""
RELEASE_TIMEOUT_S = 5.0
"""seconds to release the lease: a server that ends waits for no log that is away"""
GENERATION_MAX = 10**9
"""one start a second for thirty years"""
GENERATIONS_AHEAD_MAX = 1000
"""servers that may have taken the lease one after the other since a running one has looked last"""


class _Watched(NamedTuple):
    """Another server's lease, as it was first seen."""

    rank: tuple[int, str]
    offset: int
    """offset of its newest record"""
    shown: int | None
    """number of the renewal that its holder showed without a record"""
    since: float
    """time at which it was first seen"""


class LeaseHolder:
    """The lease of this process, through every restart of its node.

    `clock` is monotonic, seconds.
    """

    def __init__(
        self,
        config: Config,
        take_over: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`take_over`: acquire the lease without waiting, even if another server holds it; once."""
        self._config = config
        self._take_over = take_over
        self._clock = clock
        self._federation = config.contract.federation
        self._topic = config.contract.snapshots_topic
        self._renew_s = config.server.lease_renew_s
        self._process_id = secrets.token_hex(8)
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._watched: _Watched | None = None
        self._log: Log
        self._positions: Positions = {}
        self._own: Lease | None = None
        self._renewal_due = 0.0
        self._record_due = 0.0
        """time from which on a renewal is a record"""
        self._renewals = 0
        """how often the lease was renewed"""
        self._others = False
        """whether a record was read, or left out, since the own lease was published, that may have
        taken its place in the topic"""

    @contextmanager
    def held(self, log: Log, instance: str) -> Iterator[None]:
        """Acquire the lease, and release it if the server ends in order.

        `instance` identifies the server's checkpoint: a server that finds its own lease after a
        crash acquires it at once. Raises `LeaseHeld`, `LeaseUncertain` while it is not known
        whether the holder runs, and as the log does.
        """
        self._log = log
        try:
            self._acquire(instance)
        except LogUnavailable:
            # The holder could not renew its lease in that time either.
            self._watched = None
            raise
        yield
        # The thread that renewed the lease used a log of its own, which is closed by now.
        self._log = log
        self._release()

    @property
    def renewal_in_s(self) -> float:
        """Seconds until it is time to renew the lease."""
        return max(0.0, self._renewal_due - self._clock())

    def renew(self, log: Log | None = None) -> None:
        """Look for a greater lease, and renew the own one, if it is time to.

        `log`: the one to use from now on. Raises `LeaseUncertain` once there is a greater lease,
        and as the log does.
        """
        self._log = log or self._log
        now = self._clock()
        own = self._own
        if own is None or now < self._renewal_due:
            return
        greatest = self._read_greatest()
        if greatest is not None and greatest[0].rank > own.rank:
            # The record may be forged: who renews it is a server, and then this one ends.
            raise LeaseUncertain(
                f"another server has taken over {self._federation} ({greatest[0].holder}); this "
                "one serves no more, and returns if that one does not renew its lease for "
                f"{MISSED_RENEWALS_MAX * self._renew_s:.0f} s"
            )
        self._renewals += 1
        is_shown = show_renewal(self._log, own.process_id, self._renewals)
        # The topic keeps the newest record of this key alone, be it a lesser lease or no valid one:
        # a further server finds this one only where it is published again.
        if not is_shown or self._others or now >= self._record_due:
            self._others = False
            self._publish(own)
            self._record_due = now + RECORD_S
        # From the time before it was published: a slow log must not stretch the interval by which
        # others measure.
        self._renewal_due = now + self._renew_s

    def _acquire(self, instance: str) -> None:
        ensure_topics(self._log, self._config.contract, self._config.log)
        # Without an own one, a lease is not measured by its generation: this server does not know
        # how many there have been since it ran.
        self._own = None
        self._positions = beginning(self._log, self._topic)
        greatest = self._read_greatest()
        generation = 1
        if greatest is not None:
            lease, offset = greatest
            if not self._take_over:
                self._check_expired(lease, offset, instance)
            generation = min(lease.generation + 1, GENERATION_MAX)
        self._own = Lease(
            self._federation, instance, self._process_id, generation, self._renew_s, self._holder
        )
        self._publish(self._own)
        self._others = False
        now = self._clock()
        self._renewal_due = now + self._renew_s
        self._record_due = now + RECORD_S
        # Once: after an error of its node, this server must not take the lease from the one that
        # has it by then.
        self._take_over = False
        self._watched = None
        log_event("lease_acquired", generation=generation)

    def _check_expired(self, lease: Lease, offset: int, instance: str) -> None:
        """Raises `LeaseHeld` or `LeaseUncertain` unless the lease is released, expired, or this
        server's own; `offset` is that of its newest record."""
        if lease.released or instance == lease.instance:
            return
        now = self._clock()
        shown = shown_renewal(self._log, lease.process_id)
        if self._watched is None:
            self._watched = _Watched(lease.rank, offset, shown, now)
        watched = self._watched
        # A renewal that is shown no longer is that of a process that has ended.
        shows_another = shown is not None and shown != watched.shown
        if shows_another or (lease.rank, offset) != (watched.rank, watched.offset):
            raise LeaseHeld(
                f"another server holds the lease of {self._federation} ({lease.holder}). Stop that "
                "one; or start this one with --take-over, and that one ends"
            )
        # By this server's own setting: a lease that says it will be renewed in a day may be forged.
        if now < watched.since + MISSED_RENEWALS_MAX * self._renew_s:
            raise LeaseUncertain(
                f"another server has the lease of {self._federation} ({lease.holder}); waiting up "
                f"to {MISSED_RENEWALS_MAX * self._renew_s:.0f} s to see whether it still renews it "
                "(--take-over does not wait)"
            )

    def _read_greatest(self) -> tuple[Lease, int] | None:
        """The greatest lease published since the last call, and the offset of its newest record."""
        greatest: tuple[Lease, int] | None = None
        while True:
            before = sum(self._positions.values())
            records, self._positions = self._log.read(self._topic, self._positions)
            # Records without a valid signature are left out: only the offsets show that one came.
            self._others |= sum(self._positions.values()) - before != len(records)
            if not records:
                return greatest
            for record in records:
                lease = self._lease_of(record)
                if record.key == LEASE_KEY and self._own is not None:
                    self._others |= lease is None or lease.process_id != self._own.process_id
                # Not only a greater one: of a lease that is renewed the newest record tells that it
                # still is.
                if lease is not None and (greatest is None or lease.rank >= greatest[0].rank):
                    greatest = lease, record.offset

    def _lease_of(self, record: Record) -> Lease | None:
        if not is_lease(record):
            return None
        try:
            lease = Lease.decode(record.value, record.headers)
            self._check_generation(lease)
        except MessageRejected as rejected:
            log_event("lease_rejected", reason=rejected.reason, detail=rejected.detail)
            return None
        if lease.federation == self._federation:
            return lease
        return None

    def _check_generation(self, lease: Lease) -> None:
        """Raises `MessageRejected` for a generation that no server can have reached: it would end
        every other one."""
        generation_max = GENERATION_MAX
        if self._own is not None:
            generation_max = self._own.generation + GENERATIONS_AHEAD_MAX
        if lease.generation > generation_max:
            raise MessageRejected(
                "malformed", f"generation {lease.generation} is above {generation_max}"
            )

    def _publish(self, lease: Lease, timeout_s: float = 30.0) -> None:
        self._log.publish(self._topic, lease.encode(), LEASE_KEY, Lease.headers())
        self._log.flush(timeout_s)

    def _release(self) -> None:
        # Without it the next server would wait for the lease to expire, which is no harm.
        if self._own is not None:
            with suppress(ShoalError):
                self._publish(replace(self._own, released=True), RELEASE_TIMEOUT_S)


STUCK_S = 300.0
"""longest step of a server that renews its lease; after it the server is stuck, and another one may
take over"""
RETRY_S = 1.0
"""seconds after which a log that was away is tried again: few of the time that a lease lasts"""


class LeaseRenewal:
    """The thread that renews one lease.

    `open_log` opens the log of the federation; it is called in the thread.
    """

    def __init__(self, holder: LeaseHolder, open_log: Callable[[], Log]) -> None:
        self._holder = holder
        self._open_log = open_log
        self._error: BaseException | None = None
        self._checked_at = 0.0
        self.is_failing = False
        """whether the log could not be written when the lease was to be renewed last"""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Renew the lease, which `LeaseHolder.held` has acquired, until the context ends."""
        self._error = None
        # The lease was written just now.
        self.is_failing = False
        self._checked_at = time.monotonic()
        with in_thread("lease", self._run):
            yield

    def check(self) -> None:
        """Check before each step: raises `LeaseUncertain` once another server has the lease, and as
        the log does."""
        self._checked_at = time.monotonic()
        if self._error is not None:
            raise self._error

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    with closing(self._open_log()) as log:
                        self._renew(log, stop)
                # Before the other errors, as it can be tried again: that is for the main loop to
                # do. This thread must not renew a lease that another server has.
                except LeaseUncertain as displaced:
                    self._error = displaced
                    return
                except ShoalError as error:
                    if not error.retriable:
                        self._error = error
                        return
                    self.is_failing = True
                    stop.wait(RETRY_S)
        except BaseException as error:
            # The thread of the server raises it, too: otherwise it would serve without a lease.
            self._error = error
            raise

    def _renew(self, log: Log, stop: threading.Event) -> None:
        while not stop.wait(self._holder.renewal_in_s):
            # A server that is stuck must not keep its lease.
            if time.monotonic() < self._checked_at + STUCK_S:
                self._holder.renew(log)
                self.is_failing = False
            else:
                stop.wait(RETRY_S)
