"""The pump: takes readings from a source when they are due, and stores each in its log, once.

A kill at any instant loses no reading and repeats none. The order is: publish, flush, save the
bookmark. At the start, the source is read from the bookmark on, and every log is searched for later
readings that it has already; a log that has lost readings (deleted, or restored from a backup) gets
them again. A log that fails is closed and opened again, as at a start.
"""

from __future__ import annotations

import contextlib
import logging
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.errors import InvalidState, LogUnavailable, SettingsError, ShoalError
from shoal.producers.pacing import Pacing
from shoal.producers.publisher import Bookmark, Mark, ReadingsPublisher
from shoal.producers.reading_watch import ReadingWatch
from shoal.producers.source import Source, SourceReadings
from shoal.protocol.topics import READINGS, READINGS_SETTINGS
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, TopicSettings

SAVE_EVERY_S = 1.0
"""seconds between two saves of the bookmark, which only spares the search of later records"""
LINGER_S = 0.05
"""seconds after which readings due one by one are stored together: each store syncs the disk"""
LINGER_READINGS = 250
"""readings that are stored together sooner: a store costs little beside what each of them costs"""
# At 10 000 readings a second up to 0.05 s of the 0.30 s that a reading took (p99) were this wait;
# with 20 ms at least, slower sources are stored as often as before.
LINGER_LEAST_S = 0.02
"""seconds that are waited even so"""
RETRY_LEAST_S = 0.1
"""first wait before a log that is unavailable is tried again; each wait is twice the one before"""
RETRY_MOST_S = 30.0


class NumberedReadings(NamedTuple):
    """Readings of one client."""

    numbers: list[int]
    """numbers in the source, ascending"""
    readings: SourceReadings


class Pump:
    """Moves one source into its clients' logs.

    `step` never waits; `wait_s` is for how long nothing is due. open_log: opens the readings log of
    a client. limit: the source ends after this many readings from its start. topic_settings: how
    the readings logs are declared. clock: steady, in seconds. Raises `SettingsError` when readings
    cannot be paced by time.
    """

    def __init__(
        self,
        source: Source,
        open_log: Callable[[str], Log],
        *,
        clock: Callable[[], float],
        pacing: Pacing | None = None,
        bookmark: Bookmark | None = None,
        limit: int | None = None,
        batch_readings_max: int = 2000,
        topic_settings: TopicSettings = READINGS_SETTINGS,
    ) -> None:
        self.watch: ReadingWatch | None = None
        """counts what clients will reject or clip, if it is set"""
        self._pacing = pacing or Pacing()
        if self._pacing.by_time and not source.timed:
            raise SettingsError(
                "these readings cannot be paced by time: name a time column (--time-column) and do"
                " not shuffle, or give a --rate, or --speed max"
            )
        self._source = source
        self._open_log = open_log
        self._clock = clock
        self._bookmark = bookmark or Bookmark()
        self._limit = limit
        self._batch_readings_max = batch_readings_max
        self._topic_settings = topic_settings
        self.run = f"{source.identity}.{self._bookmark.run}"
        """header `source` of the records of this source, published once"""
        self._publishers: dict[str, ReadingsPublisher] = {}
        self._marks: dict[str, Mark] = dict(self._bookmark.marks)
        self._read_ahead = SourceReadings.of([])
        self._pending: list[tuple[int, SourceReadings]] = []
        """number of the first reading, and readings that follow each other"""
        self._next_number: int | None = None
        self._due: float | None = None
        """time at which the next reading is due; None where that is not computed yet"""
        self._saved_at = -math.inf
        self._retry_at = -math.inf
        self._linger_until = -math.inf
        self._stored_at = -math.inf
        self._failures = 0
        self.finished = False
        """every reading of the source (up to the limit) is stored"""
        self.published: Counter[str] = Counter()
        """readings this pump has stored, by client"""
        self._before: dict[str, int] = {}
        """client -> the last reading of the source in its log when this pump first opened that"""
        self._counted: dict[str, int] = {}
        """client -> the last reading that is in `published` or `already_there`"""
        self.already_there = 0
        """readings that an earlier run had stored"""

    @property
    def position(self) -> int:
        """The number of readings of the source that are stored."""
        if self._next_number is None:
            return self._bookmark.number
        return self._next_number - self._n_pending

    @property
    def total(self) -> int | None:
        """The number of readings there will be, if that is known."""
        known = [number for number in (self._limit, self._source.total) if number is not None]
        return min(known, default=None)

    @property
    def wait_s(self) -> float:
        """Seconds for which `step` will have nothing to do; 0 when it has something."""
        until = max(self._retry_at, self._linger_until)
        if self._due is not None and not self._pending:
            until = max(until, self._due)
        return max(0.0, until - self._clock())

    def step(self) -> bool:
        """Store the readings that are due, one batch at most; False when there was none.

        Raises `ShoalError` for what a later try cannot mend.
        """
        now = self._clock()
        if self.finished or now < max(self._retry_at, self._linger_until):
            return False
        try:
            if self._next_number is None:
                self._find_start()
            ended = self._take_due(now)
            stored = self._store_pending(now)
            # After the store: a bookmark that is too old costs a search, one that is too new loses
            # readings.
            if ended or now >= self._saved_at + SAVE_EVERY_S:
                self._save_position(now)
        except LogUnavailable as unavailable:
            self._retry_later(now, unavailable)
            return False
        self.finished = ended
        self._failures = 0
        return stored

    def close(self) -> None:
        """Save the bookmark and close everything; the next start stores what is not stored."""
        # With an older bookmark the next start reads more again; the logs show what they have.
        with contextlib.suppress(LogUnavailable):
            if not self._pending and self._next_number is not None:
                self._save_position(self._clock())
        if self._pending:
            # What was published and not flushed is stored now, or never: the logs show it when they
            # are opened again.
            self._close_publishers()
            self._settle()
        self._close_publishers()
        self._bookmark.close()

    def _find_start(self) -> None:
        """Find the first reading that may not be stored.

        That is the one of the bookmark, or an earlier one that a log has lost.
        """
        number = self._bookmark.number
        for client in self._bookmark.marks:
            publisher = self._publisher(client)
            if not publisher.intact:
                log_event("readings_log_replaced", logging.WARNING, client=client)
                number = min(number, publisher.last_number + 1)
        self._source.skip(number)
        self._next_number = number

    def _take_due(self, now: float) -> bool:
        """Fill the batch from the source; True when there is nothing more to come."""
        assert self._next_number is not None
        while self._n_pending < self._batch_readings_max:
            room = self._batch_readings_max - self._n_pending
            if self._limit is not None:
                room = min(room, self._limit - self._next_number)
            if room <= 0:
                return True
            if not self._read_ahead:
                try:
                    readings = self._source.read(self._batch_readings_max)
                except ShoalError:
                    if self._pending:
                        # The readings before the damaged place come first; the source raises again
                        # at the next step.
                        return False
                    raise
                self._read_ahead = SourceReadings.of(readings)
                if not self._read_ahead:
                    return True
            self._take(self._count_due(room, now))
            if self._due is not None:
                return False
        return False

    def _count_due(self, limit: int, now: float) -> int:
        """How many of the readings read ahead are due now, at most `limit`.

        Afterwards `_due` is when the next one is due, where that is later than now.
        """
        times = self._read_ahead.times[:limit]
        if self._pacing.at_once:
            return len(times)
        for count, time in enumerate(times):
            if self._due is None:
                self._due = self._pacing.due(time, now)
            if self._due > now:
                return count
            self._due = None
        return len(times)

    def _take(self, count: int) -> None:
        """Add the first readings that were read ahead to the batch."""
        assert self._next_number is not None
        if not count:
            return
        readings = self._read_ahead[:count]
        self._read_ahead = self._read_ahead[count:]
        if not self._pacing.at_once:
            readings.times = [self._pacing.time_of(time) for time in readings.times]
        self._pending.append((self._next_number, readings))
        self._next_number += count

    def _store_pending(self, now: float) -> bool:
        if not self._pending:
            return False
        by_client = self._pending_by_client()
        # Published to all logs before the first flush: each flush waits for a disk or a broker.
        for client, parts in by_client.items():
            publisher = self._publisher(client)
            for numbers, readings in parts:
                # Numbers ascend, so the readings that the log has already are the first ones.
                new = bisect_right(numbers, publisher.last_number)
                publisher.publish(numbers[new:], readings[new:])
        for client, parts in by_client.items():
            self._publishers[client].flush()
            self._count_stored(client, parts)
        # A reading waits for its time, and later ones will come one by one as well: some are stored
        # together. The more come, the sooner, so that a fast source is not slowed down.
        if self._due is not None:
            sooner_s = LINGER_READINGS * (now - self._stored_at) / self._n_pending
            self._linger_until = now + min(LINGER_S, max(LINGER_LEAST_S, sooner_s))
        # Only after all flushes: if one fails, all are published again, and each log leaves out
        # what it has.
        self._stored_at = now
        self._pending.clear()
        return True

    @property
    def _n_pending(self) -> int:
        return sum(len(readings) for _, readings in self._pending)

    def _pending_by_client(self) -> dict[str, list[NumberedReadings]]:
        """The pending readings of each client, in order."""
        by_client: dict[str, list[NumberedReadings]] = {}
        for first, readings in self._pending:
            places: defaultdict[str, list[int]] = defaultdict(list)
            for place, client in enumerate(readings.clients):
                places[client].append(place)
            for client, own in places.items():
                numbered = NumberedReadings([first + place for place in own], readings.select(own))
                by_client.setdefault(client, []).append(numbered)
        return by_client

    def _count_stored(self, client: str, parts: Sequence[NumberedReadings]) -> None:
        """Count the pending readings of a client that its log has.

        Each counts once, however often it was tried.
        """
        counted = self._counted[client]
        last = self._publishers[client].last_number
        before = self._before[client]
        for numbers, readings in parts:
            stored = numbers[bisect_right(numbers, counted) : bisect_right(numbers, last)]
            new = len(stored) - bisect_right(stored, before)
            if self.watch is not None and new:
                end = bisect_right(numbers, last)
                own = slice(end - new, end)
                self.watch.add(client, numbers[own], readings.values[own])
            self._counted[client] = max(stored, default=self._counted[client])
            self.published[client] += new
            self.already_there += len(stored) - new

    def _settle(self) -> None:
        """Count readings that a log has, although their store ended in an error."""
        for client, parts in self._pending_by_client().items():
            # A log that is away shows what it has when it is opened at the next start.
            with contextlib.suppress(ShoalError):
                self._publisher(client)
                self._count_stored(client, parts)

    def _save_position(self, now: float) -> None:
        self._saved_at = now
        if self.position != self._bookmark.number:
            for client, publisher in self._publishers.items():
                self._marks[client] = publisher.mark()
            self._bookmark.save(self.position, self._marks)

    def _publisher(self, client: str) -> ReadingsPublisher:
        if client not in self._publishers:
            log = self._open_log(client)
            try:
                publisher = ReadingsPublisher(
                    log, READINGS, self.run, self._marks.get(client), self._topic_settings
                )
                if not publisher.intact and self._next_number is not None:
                    raise InvalidState(
                        f"the readings log of {client} was replaced while it was written; start"
                        " the producer again: it publishes what is missing"
                    )
            except BaseException:
                log.close()
                raise
            self._publishers[client] = publisher
            # Not set again when a log is opened after a failure: what this pump has stored itself
            # would then count as stored by an earlier run.
            self._before.setdefault(client, publisher.last_number)
            self._counted.setdefault(client, -1)
        return self._publishers[client]

    def _retry_later(self, now: float, unavailable: LogUnavailable) -> None:
        # It is unknown how much of the batch is stored: the logs show it once they are opened
        # again.
        self._close_publishers()
        delay_s = min(RETRY_LEAST_S * 2**self._failures, RETRY_MOST_S)
        # Bounded, so that the power does not overflow in a long outage.
        self._failures = min(self._failures + 1, 30)
        self._retry_at = now + delay_s
        log_event("retrying", logging.WARNING, error=str(unavailable), retry_s=delay_s)

    def _close_publishers(self) -> None:
        while self._publishers:
            _, publisher = self._publishers.popitem()
            with contextlib.suppress(ShoalError):
                publisher.close()
