"""The first stage of a step: reads records of the readings log and decodes them, or rejects them
with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.config.sections import ClientSettings
from shoal.errors import InvalidState, MessageRejected
from shoal.kernels.arrays import Bools, Floats
from shoal.protocol.messages import envelope_headers
from shoal.protocol.reading_faults import Fault, Reason, fault_of
from shoal.protocol.readings import Reading, user_of
from shoal.protocol.topics import READINGS, REJECTED
from shoal.transports.base import Log, Positions, Record, RecordColumns, read_next

TIMES_MAX: Final = 1000
"""newest distinct times of readings by which a repeated reading is recognised"""

READINGS_READ_MAX: Final = 1000
"""most readings of one step: more would take memory, and no less time for each"""
INTERRUPT_POLL_S = 0.02
"""interval at which `Intake.read` asks whether to stop waiting"""


class RejectedReading(NamedTuple):
    """A record that is no reading of d finite numbers, and why. It stays on the client."""

    record: Record
    reason: Reason
    time: float | None = None
    """event time, seconds since 1970, where the record has one"""
    feature: int | None = None
    """position of the feature that it was rejected for, where it is a single one"""

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
        return TimeSpan(min(known), max(known)) if known else self

    def in_seconds(self) -> TimeSpan:
        """The same in whole seconds, rounded down."""
        return TimeSpan(*(None if time is None else float(math.floor(time)) for time in self))


NO_SPAN: Final = TimeSpan()


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


class Intake:
    """Reads a client's readings log from a position on."""

    def __init__(
        self,
        readings: Log,
        width: int,
        settings: ClientSettings,
        needs_users: bool = False,
        gaps: bool = False,
    ) -> None:
        """`width` is the number of features d; `needs_users`: readings without a user id are
        rejected; `gaps`: readings may lack values."""
        self._readings = readings
        self._gaps = gaps
        self._width = width
        self._settings = settings
        self._needs_users = needs_users
        self.positions: Positions = {}
        """the next offsets to read"""
        self.found_none = False
        """whether the newest read found no record that it had not read"""
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
        """The next batch, at most `limit` records, or as many as the settings and
        `READINGS_READ_MAX` let it read.

        Waits up to `timeout_s` seconds for a first record, or until `interrupt` returns true.
        Raises as `Log.read` does, and `OffsetOutOfRange` unless the settings accept gaps.
        """
        limit = (
            min(self._settings.batch_readings_max, READINGS_READ_MAX) if limit is None else limit
        )
        accept_gap = self._settings.accept_gap
        left_s = timeout_s
        while True:
            # A log can only wait for records, so an interrupt is looked for between short waits.
            wait_s = left_s if interrupt is None else min(left_s, INTERRUPT_POLL_S)
            records, self.positions = read_next(
                self._readings,
                READINGS,
                self.positions,
                limit,
                wait_s,
                accept_gap,
                self._count_lost,
            )
            left_s -= wait_s
            self.found_none = not records
            if records or left_s <= 0 or (interrupt is not None and interrupt()):
                lost = self._lost
                self._lost = 0
                if not records:  # every step of an idle client, and of one that answers
                    return no_batch(self._width)._replace(lost=lost)
                batch = decode_batch(records, self._width, self._settings.ahead_s, self._gaps)
                # Where a user is the privacy unit, one user's times must not decide on readings of
                # another: the window of counts drops repeats there.
                if self._settings.drop_repeats and not self._needs_users:
                    batch = self._without_repeats(batch, records)
                return (with_users(batch, records) if self._needs_users else batch)._replace(
                    lost=lost
                )

    def write_rejected(self, batch: Batch) -> None:
        """Write the rejected readings of a batch to the client's own log; the caller flushes.
        Raises as the log does.

        The key is the reading's place, so writing it again after a kill changes nothing in the
        compacted view.
        """
        for rejected in batch.rejected:
            record = rejected.record
            key = f"{record.partition}/{record.offset}".encode()
            headers = (*envelope_headers("rejected"), ("reason", rejected.reason.encode()))
            # A record without a value would delete the key from the compacted view.
            self._readings.publish(REJECTED, record.value or b"", key, headers)

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        positions = [[partition, offset] for partition, offset in sorted(self.positions.items())]
        return {"positions": positions, "recent_times": list(self.recent_times)}

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `InvalidState`."""
        try:
            self.positions = positions_in(state)
            self.recent_times = dict.fromkeys(state["recent_times"])
        except (KeyError, TypeError, ValueError) as broken:
            raise InvalidState(
                f"the checkpoint's positions in the readings log are damaged: {broken}"
            ) from None

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

    def _count_lost(self, records: int) -> None:
        self._lost += records

    def lag_records(self) -> int:
        """Number of records that are not read yet."""
        ends = self._readings.bounds(READINGS)
        return sum(
            max(0, end - self.positions.get(partition, 0)) for partition, (_, end) in ends.items()
        )


def positions_in(state: dict[str, Any]) -> Positions:
    """The positions in what `Intake.state` gave. Raises `KeyError`, `TypeError` or `ValueError` for
    a damaged state."""
    return {int(partition): int(offset) for partition, offset in state["positions"]}


def decode_batch(
    records: Sequence[Record], width: int, ahead_s: float = math.inf, gaps: bool = False
) -> Batch:
    """Decode records of the readings log; `width` is the number of features d. Rejects records, and
    raises nothing.

    With `gaps` a reading may lack values, but not all.

    A reading whose time lies more than `ahead_s` seconds after the one at which the log took it in
    is rejected.
    """
    values = np.empty((len(records), width))
    times: list[float | None] = [None] * len(records)
    accepted = np.zeros(len(records), dtype=np.bool_)
    rejected: list[RejectedReading] = []
    # All that are as they should be at once; the others one by one, for the reason of each.
    decoded = Reading.decode_many(records, width, gaps)
    values[decoded.indices] = decoded.values
    accepted[decoded.indices] = True
    latest = float(np.fmax.reduce(decoded.times, initial=-math.inf))
    if not np.isnan(decoded.times).all():
        for number, time in zip(decoded.indices.tolist(), decoded.times.tolist(), strict=True):
            times[number] = None if math.isnan(time) else time
    for number in np.flatnonzero(~accepted).tolist():
        result = _decode_one(records[number], width, gaps)
        if isinstance(result, RejectedReading):
            rejected.append(result)
            times[number] = result.time
        else:
            times[number], values[number] = result
            accepted[number] = True
            latest = max(latest, -math.inf if result[0] is None else result[0])
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


def _taken_in_ms(records: Sequence[Record]) -> Sequence[int]:
    """Times at which the log took each record in, milliseconds since 1970."""
    return (
        records.timestamps_ms
        if isinstance(records, RecordColumns)
        else [record.timestamp_ms for record in records]
    )


def _places(records: Sequence[Record], kept: Sequence[int]) -> list[tuple[int, int]]:
    """(partition, offset) of the records `kept`, by number."""
    if isinstance(records, RecordColumns):
        return [(records.partition, records.offsets[number]) for number in kept]
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
    kept = [position for position, one in enumerate(rejected) if not one]
    numbers = [number for number, one in zip(batch.numbers, rejected, strict=True) if one]
    return batch._replace(
        values=batch.values[kept],
        places=[batch.places[position] for position in kept],
        times=[batch.times[position] for position in kept],
        rejected=[
            *batch.rejected,
            *(
                RejectedReading(records[number], reason, batch.record_times[number])
                for number in numbers
            ),
        ],
        numbers=[batch.numbers[position] for position in kept],
    )


def _reject_future(
    records: Sequence[Record], times: list[float | None], accepted: Bools, ahead_s: float
) -> list[RejectedReading]:
    """The readings whose time cannot be, no longer marked in `accepted` (n,), and their times taken
    from `times`.

    One reading of a far future would push all others out of a window by age, and would keep doing
    so.
    """
    rejected = []
    for number in np.flatnonzero(accepted).tolist():
        record = records[number]
        time = times[number]
        if time is not None and time > record.timestamp_ms / 1000 + ahead_s:
            accepted[number], times[number] = False, None
            rejected.append(RejectedReading(record, "time"))
    return rejected


def _decode_one(
    record: Record, width: int, gaps: bool
) -> tuple[float | None, Floats] | RejectedReading:
    try:
        reading = Reading.decode(record.value, record.headers)
    except MessageRejected:
        return RejectedReading(record, "malformed")
    if (fault := fault_of(reading.values, width, gaps)) is not None:
        return RejectedReading(record, fault.reason, reading.time, fault.feature)
    return reading.time, np.asarray(reading.values, dtype=np.float64)
