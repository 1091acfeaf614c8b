"""The sensors of one client: their messages become numbered readings in its log."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from typing import Annotated

from shoal.kernels.arrays import Floats
from shoal.producers.mqtt.readings import AlignedReading, Aligner, AlignerState, Rules
from shoal.producers.mqtt.silence import SilenceMonitor
from shoal.producers.publisher import Mark, MarkState, ReadingsPublisher
from shoal.producers.source import SourceReadings
from shoal.protocol.topics import READINGS
from shoal.saved_state import FloatArray, SavedState, state_type
from shoal.telemetry.events import log_event
from shoal.transports.base import Log, TopicSettings


class IngestCounts:
    """Counts since the process started, and the silence of topics: they outlive a connection."""

    def __init__(self, silence: SilenceMonitor) -> None:
        self.silence = silence
        self.position = 0
        """readings made so far, by all processes"""
        self.by_client: Counter[str] = Counter()
        """readings stored, by client"""
        self.already_there = 0
        """readings that an earlier process had stored"""
        self.faults: Counter[str] = Counter()
        """messages, values and readings that were not used, or changed, by reason (see `FAULTS`)"""

    @property
    def published(self) -> int:
        """Readings stored."""
        return self.by_client.total()


@state_type
class UnstoredState(SavedState):
    """One numbered reading that may not be in the log yet."""

    number: int
    time: float
    values: Annotated[Floats, FloatArray("d", gaps=True)]
    user: str | None


@state_type
class ClientStreamState(SavedState):
    """The sensors of one client: open readings, numbered ones, and the log."""

    source: str
    aligner: AlignerState
    next_number: int
    unstored: list[UnstoredState]
    """numbered readings that may not be in the log yet"""
    mark: MarkState | None


class ClientStream:
    """The sensors of one client: its messages become readings, numbered from 0, in its log."""

    def __init__(self, client: str, log: Log, rules: Rules, received_at: float) -> None:
        self.client = client
        self.received_at = received_at
        self.aligner = Aligner(rules)
        self.publisher: ReadingsPublisher
        """set by `open`"""
        self.aligned: list[AlignedReading] = []
        """readings of this step"""
        self._log = log
        # Drawn, and kept by the checkpoint: without a checkpoint the numbers begin at 0 again, and
        # under the same source the log would take the new readings for those it has.
        self._source = secrets.token_hex(8)
        self._next_number = 0
        self._mark: Mark | None = None
        self._unstored: list[tuple[int, AlignedReading]] = []
        """numbered readings that may not be in the log yet"""

    @property
    def position(self) -> int:
        """Readings made so far, by all processes."""
        return self._next_number

    def state(self) -> ClientStreamState:
        """What a checkpoint holds of it; the readings of this step are numbered."""
        # Numbered with the state that is saved before they are stored: after a kill in between they
        # get the same numbers again, and the log shows which of them it has.
        self._unstored = list(enumerate(self.aligned, self._next_number))
        self._next_number += len(self.aligned)
        self.aligned = []
        unstored = []
        for number, (time, values, user) in self._unstored:
            unstored.append(UnstoredState(number=number, time=time, values=values, user=user))
        return ClientStreamState(
            source=self._source,
            aligner=self.aligner.state(),
            next_number=self._next_number,
            unstored=unstored,
            mark=None if self._mark is None else MarkState(**self._mark._asdict()),
        )

    def restore(self, saved: ClientStreamState) -> None:
        """Continue from a saved state."""
        self.aligner.restore(saved.aligner)
        self._source = saved.source
        self._next_number = saved.next_number
        if saved.mark is not None:
            self._mark = Mark(saved.mark.identity, saved.mark.end, saved.mark.last_number)
        self._unstored = []
        for reading in saved.unstored:
            aligned = AlignedReading(reading.time, reading.values, reading.user)
            self._unstored.append((reading.number, aligned))

    def open(self, settings: TopicSettings) -> None:
        """Find what the log holds."""
        self.publisher = ReadingsPublisher(self._log, READINGS, self._source, self._mark, settings)
        if not self.publisher.intact:
            log_event("readings_log_replaced", logging.WARNING, client=self.client)

    def store(self, counts: IngestCounts) -> None:
        """Publish the readings of the newest state, unless they are in the log."""
        stored = 0
        readings = self._unstored
        for number, (moment, values, user) in readings:
            if number > self.publisher.last_number:
                reading = SourceReadings([self.client], [moment], [values], users=[user])
                self.publisher.publish([number], reading)
                stored += 1
        if stored:
            self.publisher.flush()
        if readings:
            self._mark = self.publisher.mark()
        self._unstored = []
        counts.by_client[self.client] += stored
        counts.already_there += len(readings) - stored

    def skip_used_numbers(self) -> None:
        """Skip numbers in use: with an older checkpoint, of a backup, some of the next ones are."""
        self._next_number = max(self._next_number, self.publisher.last_number + 1)

    def close(self) -> None:
        """Close the log."""
        self._log.close()
