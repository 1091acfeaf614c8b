"""The first stage of a step: reads and decodes records of the readings log, or rejects them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Annotated, Any, Final, NamedTuple, Self

import numpy as np

from shoal.config.sections import ClientSettings
from shoal.errors import MessageRejected
from shoal.kernels.arrays import Bools, Floats
from shoal.privacy.base import Times
from shoal.protocol.messages import envelope_headers
from shoal.protocol.reading_faults import Fault, Reason, fault_of
from shoal.protocol.readings import DecodedReadings, Reading, stored_times, user_of
from shoal.protocol.topics import READINGS, REJECTED
from shoal.runtime.checkpoint import pairs_of, positions_of
from shoal.saved_state import FloatArray, SavedState, state_type
from shoal.transports.base import Log, Positions, Record, RecordColumns, read_next

TIMES_MAX: Final = 1000
"""newest distinct times of readings by which a repeated reading is recognised"""

READINGS_READ_MAX: Final = 1000
"""most readings of one step: more would take memory, and no less time for each"""
INTERRUPT_POLL_S = 0.02
"""shortest interval at which `Intake.read` asks whether to stop waiting"""
INTERRUPT_QUIET_S: Final = 0.25
QUIET_SHARE: Final = 50
"""the interval is 1/`QUIET_SHARE` of the time since the last reading or interrupt, and never more
than `INTERRUPT_QUIET_S`: a client asks less often where a round has no answers"""


class RejectedReading(NamedTuple):
    """A record that is no reading of d finite numbers, and why. It stays on the client."""

    record: Record
    reason: Reason
    time: float | None = None
    """event time, seconds since 1970, where the record has one"""
    feature: int | None = None
    """position of the feature that it was rejected for, where it is a single one"""
    number: int = 0
    """which of the records of its batch it was"""

    @property
    def fault(self) -> Fault:
        """Why it was rejected."""
        return Fault(self.reason, self.feature)


class TimeSpan(NamedTuple):
    """The oldest and the newest of some times, seconds since 1970; None where there is none."""

    oldest: float | None = None
    newest: float | None = None

    def joined(self, times: Sequence[float | None]) -> TimeSpan:
        """The span of these times as well."""
        known = [time for time in (*self, *times) if time is not None]
        if not known:
            return self
        return TimeSpan(min(known), max(known))

    def in_seconds(self) -> TimeSpan:
        """The same in whole seconds, rounded down."""
        return TimeSpan(_whole_seconds(self.oldest), _whole_seconds(self.newest))


NO_SPAN: Final = TimeSpan()


def _whole_seconds(time: float | None) -> float | None:
    if time is None:
        return None
    return float(math.floor(time))


@state_type
class SpanState(SavedState):
    """The oldest and the newest event time, seconds since 1970; None for none."""

    oldest: float | None
    newest: float | None

    @classmethod
    def of(cls, span: TimeSpan) -> Self:
        return cls(oldest=span.oldest, newest=span.newest)

    @property
    def span(self) -> TimeSpan:
        return TimeSpan(self.oldest, self.newest)


class Batch(NamedTuple):
    """Records of the readings log, decoded."""

    values: Floats
    """(n, d) in the units of the contract; NaN where a value is missing, if the contract lets those
    be learnt"""
    places: list[tuple[int, int]]
    """(partition, offset) of each of the n readings"""
    times: list[float | None]
    """event time of each, seconds since 1970"""
    rejected: list[RejectedReading]
    numbers: Sequence[int] = ()
    """(n,) which of the `records` each of the n readings was, ascending"""
    record_times: Sequence[float | None] = ()
    """event time of each record, rejected or not, where it has one that can be"""
    taken_in_ms: Sequence[int] = ()
    """times at which the log took each record in, milliseconds since 1970"""
    public_times: Sequence[float | None] = ()
    """times that updates may state of each record: see `public_times`"""
    users: Sequence[bytes] = ()
    """(n,) user id of each of the n readings, where the privacy unit is a user; it never leaves the
    client"""
    lost: int = 0
    """readings before these that retention had removed, and that `accept_gap` has skipped"""

    @property
    def records(self) -> int:
        """Number of records that were read."""
        return len(self.places) + len(self.rejected)


def no_batch(width: int) -> Batch:
    """A batch without records of d = `width` features."""
    return Batch(np.empty((0, width)), [], [], [])


@state_type
class IntakeState(SavedState):
    """Positions in the readings log, and the newest event times."""

    positions: list[list[int]]
    """[partition, next offset to read]"""
    recent_times: Annotated[Floats, FloatArray("times")]


class Intake:
    """Reads a client's readings log from a position on."""

    def __init__(
        self,
        readings: Log,
        width: int,
        settings: ClientSettings,
        needs_users: bool = False,
        gaps: bool = False,
        times: Times | None = None,
    ) -> None:
        """`width` is the number of features d.

        `needs_users`: readings without a user id are rejected; `gaps`: readings may lack values;
        `times`: those that updates state, None without a guarantee.
        """
        self._times = times
        self._readings = readings
        self._gaps = gaps
        self._width = width
        self._settings = settings
        self._needs_users = needs_users
        self.positions: Positions = {}
        """the next offsets to read"""
        self.found_none = False
        """whether the newest read found no record that it had not read"""
        self._roused_s = monotonic()
        """time of the last record or interrupt, monotonic"""
        self._lost = 0
        self.recent_times: dict[float, None] = {}
        """the newest distinct times of readings, the oldest first; none unless repeats are dropped
        """

    def read(
        self,
        timeout_s: float,
        interrupt: Callable[[], bool] | None = None,
        limit: int | None = None,
    ) -> Batch:
        """The next batch, at most `limit` records, or as many as the settings let it read.

        Waits up to `timeout_s` seconds for a first record, or until `interrupt` returns true.
        Raises as `Log.read` does, and `OffsetOutOfRange` unless the settings accept gaps.
        """
        if limit is None:
            limit = min(self._settings.batch_readings_max, READINGS_READ_MAX)
        records = self._wait_for_records(timeout_s, interrupt, limit)
        self.found_none = not records
        batch = self._decoded(records)
        if self._lost:
            batch = batch._replace(lost=self._lost)
            self._lost = 0
        return batch

    def _decoded(self, records: Sequence[Record]) -> Batch:
        # First, as it is every step of an idle client, and of one that answers rounds.
        if not records:
            return no_batch(self._width)
        batch = decode_batch(records, self._width, self._settings.ahead_s, self._gaps)
        batch = batch._replace(
            public_times=public_times(records, batch, self._times, self._settings.ahead_s)
        )
        if self._needs_users:
            # One user's times must not decide on readings of another, so that repeats are not
            # dropped here: the window of counts drops them for each user.
            batch = with_users(batch, records)
        elif self._settings.drop_repeats:
            batch = self._without_repeats(batch, records)
        return batch

    def _wait_for_records(
        self, timeout_s: float, interrupt: Callable[[], bool] | None, limit: int
    ) -> Sequence[Record]:
        left_s = timeout_s
        while True:
            # A log can only wait for records, so an interrupt is looked for between short waits.
            wait_s = left_s if interrupt is None else min(left_s, self._interrupt_pause_s())
            records, self.positions = read_next(
                self._readings,
                READINGS,
                self.positions,
                limit,
                wait_s,
                self._settings.accept_gap,
                self._count_lost,
            )
            left_s -= wait_s
            is_interrupted = interrupt is not None and interrupt()
            if records or is_interrupted:
                self._roused_s = monotonic()
            if records or is_interrupted or left_s <= 0:
                return records

    def _interrupt_pause_s(self) -> float:
        """Seconds between two looks for an interrupt: the more, the longer nothing has come."""
        quiet_s = monotonic() - self._roused_s
        return max(INTERRUPT_POLL_S, min(quiet_s / QUIET_SHARE, INTERRUPT_QUIET_S))

    def write_rejected(self, batch: Batch) -> None:
        """Write the rejected readings of a batch to the client's own log; the caller flushes.

        The key is the reading's place, so writing it again after a kill changes nothing in the
        compacted view. Raises as the log does.
        """
        for rejected in batch.rejected:
            record = rejected.record
            key = f"{record.partition}/{record.offset}".encode()
            headers = (*envelope_headers("rejected"), ("reason", rejected.reason.encode()))
            # A record without a value would delete the key from the compacted view.
            self._readings.publish(REJECTED, record.value or b"", key, headers)

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        times = np.fromiter(self.recent_times, dtype=np.float64, count=len(self.recent_times))
        return IntakeState(positions=pairs_of(self.positions), recent_times=times).saved()

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        saved = IntakeState.read(state)
        self.positions = positions_of(saved.positions)
        self.recent_times = dict.fromkeys(saved.recent_times.tolist())

    def _without_repeats(self, batch: Batch, records: Sequence[Record]) -> Batch:
        """The batch with every reading rejected that has the time of an earlier one.

        The time alone decides, and it is not protected: whether a reading is dropped depends on no
        other one's values.
        """
        seen = np.zeros(len(records), dtype=np.bool_)
        for number, time in enumerate(batch.record_times):
            if time is None:
                continue
            seen[number] = time in self.recent_times
            self.recent_times[time] = None
            # The oldest is first, as a dict keeps the order in which times came.
            if len(self.recent_times) > TIMES_MAX:
                del self.recent_times[next(iter(self.recent_times))]
        return _reject(batch, records, [bool(seen[number]) for number in batch.numbers], "repeat")

    def has_come(self) -> bool:
        """Whether the log ends elsewhere than where the newest read has ended. Raises as the log
        does."""
        ends = self._readings.bounds(READINGS)
        return any(end != self.positions.get(partition) for partition, (_, end) in ends.items())

    def _count_lost(self, records: int) -> None:
        self._lost += records

    def lag_records(self) -> int:
        """Number of records that are not read yet."""
        ends = self._readings.bounds(READINGS)
        lag = 0
        for partition, (_, end) in ends.items():
            # A log that was restored from a copy may end before the position.
            lag += max(0, end - self.positions.get(partition, 0))
        return lag


def public_times(
    records: Sequence[Record], batch: Batch, times: Times | None, ahead_s: float
) -> Sequence[float | None]:
    """Times (n,) that updates may state of n records, which were decoded to `batch`.

    Without a guarantee (`times` None) those of the readings. With one, no value may decide on them,
    and whether a record can be decoded at all follows from its values: `public` times are those
    that the producer noted beside each reading, none of them more than `ahead_s` seconds after its
    arrival; `arrival` is when the log took each record in. Both are in whole seconds.
    """
    if times is None:
        return batch.record_times
    if times == "arrival":
        # Readings that a producer stored together have one arrival.
        seconds = {
            taken_in_ms: float(taken_in_ms // 1000) for taken_in_ms in set(batch.taken_in_ms)
        }
        return [seconds[taken_in_ms] for taken_in_ms in batch.taken_in_ms]
    noted = stored_times(records)
    for number, taken_in_ms in enumerate(batch.taken_in_ms):
        time = noted[number]
        if time is not None and time > taken_in_ms / 1000 + ahead_s:
            noted[number] = None
    return noted


def positions_in(state: dict[str, Any]) -> Positions:
    """The positions in a state of `Intake`. Raises `InvalidState`."""
    return positions_of(IntakeState.read(state).positions)


def decode_batch(
    records: Sequence[Record], width: int, ahead_s: float = math.inf, gaps: bool = False
) -> Batch:
    """Decode records of the readings log of d = `width` features. Rejects records; raises nothing.

    With `gaps` a reading may lack values, but not all. A reading whose time lies more than
    `ahead_s` seconds after the one at which the log took it in is rejected.
    """
    # All that are as they should be at once; the others one by one, for the reason of each.
    decoded = Reading.decode_many(records, width, gaps)
    if len(decoded.indices) == len(records):
        batch = _usual_batch(records, decoded, ahead_s)
        if batch is not None:
            return batch
    values = np.empty((len(records), width))
    times: list[float | None] = [None] * len(records)
    accepted = np.zeros(len(records), dtype=np.bool_)
    rejected: list[RejectedReading] = []
    values[decoded.indices] = decoded.values
    accepted[decoded.indices] = True
    # `fmax` leaves out the NaN of readings without a time.
    latest = float(np.fmax.reduce(decoded.times, initial=-math.inf))
    if not np.isnan(decoded.times).all():
        for number, time in zip(decoded.indices.tolist(), decoded.times.tolist(), strict=True):
            times[number] = None if math.isnan(time) else time
    for number in np.flatnonzero(~accepted).tolist():
        result = _decode_one(records[number], width, gaps)
        if isinstance(result, RejectedReading):
            rejected.append(result._replace(number=number))
            times[number] = result.time
            continue
        time, values[number] = result
        times[number] = time
        accepted[number] = True
        if time is not None:
            latest = max(latest, time)
    # The latest of all beside the earliest arrival: nearly every batch is done with this one
    # comparison.
    if latest > min(_taken_in_ms(records), default=0) / 1000 + ahead_s:
        rejected += _reject_future(records, times, accepted, ahead_s)
    kept = np.flatnonzero(accepted).tolist()
    kept_times = [times[number] for number in kept]
    return Batch(
        values[accepted],
        _places(records, kept),
        kept_times,
        rejected,
        kept,
        times,
        _taken_in_ms(records),
    )


def _usual_batch(
    records: Sequence[Record], decoded: DecodedReadings, ahead_s: float
) -> Batch | None:
    """The batch of records that were all decoded at once; None where the time of one may be one
    that cannot be.

    Nearly every batch is such a one, and many have a few readings: of these, what is left out here
    takes longer than all else.
    """
    times: list[float | None] = decoded.times.tolist()
    taken_in_ms = _taken_in_ms(records)
    latest = -math.inf
    for number, time in enumerate(times):
        if time is None or math.isnan(time):
            times[number] = None
        else:
            latest = max(latest, time)
    if latest > min(taken_in_ms, default=0) / 1000 + ahead_s:
        return None
    numbers = range(len(records))
    places = _places(records, numbers)
    return Batch(decoded.values, places, times, [], numbers, times, taken_in_ms)


def _taken_in_ms(records: Sequence[Record]) -> Sequence[int]:
    """Times at which the log took each record in, milliseconds since 1970."""
    if isinstance(records, RecordColumns):
        return records.timestamps_ms
    return [record.timestamp_ms for record in records]


def _places(records: Sequence[Record], kept: Sequence[int]) -> list[tuple[int, int]]:
    """(partition, offset) of the records `kept`, by number."""
    if isinstance(records, RecordColumns):
        partition = records.partition
        offsets = records.offsets
        return [(partition, offsets[number]) for number in kept]
    return [(records[number].partition, records[number].offset) for number in kept]


def with_users(batch: Batch, records: Sequence[Record]) -> Batch:
    """The batch with the user id of every reading; a reading without one is rejected."""
    users = [user_of(records[number].headers) for number in batch.numbers]
    batch = _reject(batch, records, [user is None for user in users], "user")
    return batch._replace(users=[user for user in users if user is not None])


def _reject(
    batch: Batch, records: Sequence[Record], rejected: Sequence[bool], reason: Reason
) -> Batch:
    """The batch with those of its n readings rejected that are marked in `rejected` (n,)."""
    kept: list[int] = []
    all_rejected = list(batch.rejected)
    for position, number in enumerate(batch.numbers):
        if rejected[position]:
            time = batch.record_times[number]
            all_rejected.append(RejectedReading(records[number], reason, time, number=number))
        else:
            kept.append(position)
    return batch._replace(
        values=batch.values[kept],
        places=[batch.places[position] for position in kept],
        times=[batch.times[position] for position in kept],
        rejected=all_rejected,
        numbers=[batch.numbers[position] for position in kept],
    )


def _reject_future(
    records: Sequence[Record], times: list[float | None], accepted: Bools, ahead_s: float
) -> list[RejectedReading]:
    """The readings whose time cannot be; takes their marks from `accepted` (n,), and their `times`.

    One reading of a far future would push all others out of a window by age, and would keep doing
    so.
    """
    rejected = []
    for number in np.flatnonzero(accepted).tolist():
        record = records[number]
        time = times[number]
        # By when the log took it in, not by the time now: a reading that is read again is judged
        # alike.
        if time is not None and time > record.timestamp_ms / 1000 + ahead_s:
            accepted[number] = False
            times[number] = None
            rejected.append(RejectedReading(record, "time", number=number))
    return rejected


def _decode_one(
    record: Record, width: int, gaps: bool
) -> tuple[float | None, Floats] | RejectedReading:
    try:
        reading = Reading.decode(record.value, record.headers)
    except MessageRejected:
        return RejectedReading(record, "malformed")
    fault = fault_of(reading.values, width, gaps)
    if fault is not None:
        return RejectedReading(record, fault.reason, reading.time, fault.feature)
    return reading.time, np.asarray(reading.values, dtype=np.float64)
