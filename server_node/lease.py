"""One server answers for a federation: it claims that in the log, says so again and again, and ends when it is fenced.

No two clocks are compared. Whoever finds another server's claim watches, by its own clock, whether it is renewed: then
that one lives and this one is turned away. One that has been silent for `MISSED` renewals is followed at once by the
next generation; should it wake up again, it finds the greater claim before it says anything else, and ends.

Kafka can fence producers itself, by transactions. It would turn away the older server, which is the right one when the
newer was started by mistake; it would need a transaction around each snapshot; and the embedded log has nothing alike.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from shoal.config.settings import Config
from shoal.errors import LeaseHeld, LeaseUncertain, LogUnavailable, MessageRejected, ShoalError
from shoal.protocol.lease import LEASE_KEY, Lease, is_lease
from shoal.protocol.topics import ensure_topics
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, Positions, Record, beginning

MISSED = 4
"""renewals that a server may miss before another one takes it for dead"""
RELEASE_S = 5.0


class LeaseHolder:
    """The claim of this process, through all the lives of its node. `clock` is monotonic, seconds."""

    def __init__(
        self,
        config: Config,
        take_over: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._take_over, self._clock = config, take_over, clock
        self._federation, self._topic = config.contract.federation, config.contract.snapshots_topic
        self._renew_s = config.server.lease_renew_s
        self._process_id = secrets.token_hex(8)
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._watched: tuple[tuple[int, str], int, float] | None = None
        """rank and offset of another's claim, and when it was first seen"""
        self._log: Log
        self._at: Positions = {}
        self._own: Lease
        self._due = 0.0

    @contextmanager
    def held(self, log: Log, instance: str) -> Iterator[None]:
        """Hold the claim, and give it back at an end in order.

        `instance` names the server's memory: after a crash the same server goes on at once. Raises `LeaseHeld`,
        `LeaseUncertain` while that is not known yet, and what the log raises.
        """
        self._log = log
        try:
            self._take(instance)
        except LogUnavailable:
            self._watched = None  # who could not speak meanwhile was not silent
            raise
        yield
        self._release()

    def keep(self) -> None:
        """Before each step: look for a greater claim, and renew the own one, when it is time to.

        Raises `LeaseHeld`, and what the log raises.
        """
        now = self._clock()
        if now < self._due:
            return
        greatest = self._read_on()
        if greatest is not None and greatest[0].rank > self._own.rank:
            raise LeaseHeld(
                f"another server has taken over {self._federation} ({greatest[0].holder}); this one ends. Started "
                "again when that one has been stopped, it goes on from its checkpoint"
            )
        self._say(self._own)
        self._due = now + self._renew_s

    def _take(self, instance: str) -> None:
        ensure_topics(self._log, self._config.contract, self._config.log)
        self._at = beginning(self._log, self._topic)
        found = self._read_on()
        if found is not None and not self._take_over:
            self._make_way(*found, instance)
        generation = 1 if found is None else found[0].generation + 1
        self._own = Lease(self._federation, instance, self._process_id, generation, self._renew_s, self._holder)
        self._say(self._own)
        self._due = self._clock() + self._renew_s
        self._take_over, self._watched = False, None
        log_event("claimed", generation=generation)

    def _make_way(self, claim: Lease, offset: int, instance: str) -> None:
        """Return when the claim found is none in our way."""
        if claim.released or instance == claim.instance:
            return
        now = self._clock()
        if self._watched is None:
            self._watched = claim.rank, offset, now
        rank, seen_offset, since = self._watched
        if (claim.rank, offset) != (rank, seen_offset):
            raise LeaseHeld(
                f"another server answers for {self._federation} ({claim.holder}). Stop that one; or start this one "
                "with --take-over, and that one ends"
            )
        if now < since + MISSED * claim.renew_s:
            raise LeaseUncertain(
                f"another server has claimed {self._federation} ({claim.holder}); waiting up to "
                f"{MISSED * claim.renew_s:.0f} s to see whether it still answers (--take-over does not wait)"
            )

    def _read_on(self) -> tuple[Lease, int] | None:
        """The greatest claim that came since the last look, and the offset at which it was said last."""
        greatest: tuple[Lease, int] | None = None
        while True:
            records, self._at = self._log.read(self._topic, self._at)
            if not records:
                return greatest
            for record in records:
                claim = self._claim_of(record)
                if claim is not None and (greatest is None or claim.rank >= greatest[0].rank):
                    greatest = claim, record.offset

    def _claim_of(self, record: Record) -> Lease | None:
        if not is_lease(record):
            return None
        try:
            claim = Lease.decode(record.value, record.headers)
        except MessageRejected as rejected:
            log_event("claim_rejected", reason=rejected.reason, detail=rejected.detail)
            return None
        return claim if claim.federation == self._federation else None

    def _say(self, claim: Lease, timeout_s: float = 30.0) -> None:
        self._log.publish(self._topic, claim.encode(), LEASE_KEY, Lease.headers())
        self._log.flush(timeout_s)

    def _release(self) -> None:
        # Only a courtesy to the next server: without it, that one watches for a while.
        with suppress(ShoalError):
            self._say(replace(self._own, released=True), RELEASE_S)
