"""Readings joined with their labels by place."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.client_nodes.intake import Batch, decode_batch
from shoal.errors import (
    MessageRejected,
    OffsetOutOfRange,
)
from shoal.kernels.arrays import Floats
from shoal.protocol.labels import Label, place_of_key
from shoal.protocol.topics import (
    LABELS,
    READINGS,
)
from shoal.transports.base import Log, Positions, Record, beginning

Place = tuple[int, int]


CHUNK_RECORDS = 1000


ALL_CHUNK_RECORDS = 10_000


GAP_RECORDS = 100
"""readings that lie no further apart are read at once"""


# A command that follows labels looks this often whether it is to stop.
WAIT_S = 0.5


class LabelledBlock(NamedTuple):
    """n readings with their labels."""

    times: list[float | None]
    """event time of each, seconds since 1970"""
    values: Floats
    """(n, d) in the units of the contract; NaN where a value is missing"""
    labels: list[Label | None]
    """None for a reading without one"""


class LabelledReadings:
    """The readings of one client with the labels of one model.

    It only reads; the client may run meanwhile.
    """

    def __init__(self, readings: Log, model: str, width: int, gaps: bool = False) -> None:
        """`readings` is the client's own log and has both topics.

        `width` is the number of features d; `gaps`: readings may lack values.
        """
        self._readings = readings
        self._gaps = gaps
        self._model = model
        self._width = width

    def all(self) -> Iterator[LabelledBlock]:
        """Every reading that the log still has, in order, with its newest label.

        The labels are held in memory, about 300 bytes each. Raises as the log does.
        """
        ends = {partition: end for partition, (_, end) in self._readings.bounds(READINGS).items()}
        labels = dict[Place, bytes]()
        for record in self._records(LABELS):
            place = place_of_key(record.key, self._model)
            if place is not None and record.value is not None:
                labels[place] = record.value
        at = beginning(self._readings, READINGS)
        while any(at[partition] < end for partition, end in ends.items()):
            records, at = self._read(READINGS, at, WAIT_S, ALL_CHUNK_RECORDS)
            # What comes while this runs would make it endless.
            own = [record for record in records if record.offset < ends[record.partition]]
            batch = decode_batch(own, self._width, gaps=self._gaps)
            of_batch = [_label(labels.get(place)) for place in batch.places]
            yield LabelledBlock(batch.times, batch.values, of_batch)

    def follow(self, stop: threading.Event) -> Iterator[LabelledBlock]:
        """Readings in the order in which they are labelled, until `stop` is set.

        It begins with the labels that the log has. Readings that are labelled again come again.
        """
        at = beginning(self._readings, LABELS)
        while not stop.is_set():
            records, at = self._read(LABELS, at, WAIT_S)
            newest: dict[Place, bytes | None] = {}
            for record in records:
                place = place_of_key(record.key, self._model)
                if place is not None:
                    newest[place] = record.value
            for run in _runs(sorted(newest)):
                batch = self._read_run(run)
                labels = [_label(newest.get(place)) for place in batch.places]
                labelled = [number for number, label in enumerate(labels) if label is not None]
                yield LabelledBlock(
                    [batch.times[number] for number in labelled],
                    batch.values[labelled],
                    [labels[number] for number in labelled],
                )

    def _records(self, topic: str) -> Iterator[Record]:
        """The records of a topic up to its present end."""
        ends = {partition: end for partition, (_, end) in self._readings.bounds(topic).items()}
        at = beginning(self._readings, topic)
        while any(at[partition] < end for partition, end in ends.items()):
            records, at = self._read(topic, at, WAIT_S)
            yield from records

    def _read_run(self, run: Sequence[Place]) -> Batch:
        """The readings from the first place to the last, of one partition."""
        (partition, first) = run[0]
        (_, last) = run[-1]
        records = list[Record]()
        at = {partition: first}
        while at[partition] <= last:
            # The log may have lost what was labelled.
            if at[partition] >= self._readings.bounds(READINGS)[partition][1]:
                break
            more, at = self._read(READINGS, at, WAIT_S, last - at[partition] + 1)
            records += [record for record in more if record.offset <= last]
        return decode_batch(records, self._width, gaps=self._gaps)

    def _read(
        self, topic: str, at: Positions, timeout_s: float, limit: int = CHUNK_RECORDS
    ) -> tuple[Sequence[Record], Positions]:
        """See `Log.read`; what retention removes meanwhile is passed over."""
        while True:
            try:
                return self._readings.read(topic, at, limit, timeout_s)
            except OffsetOutOfRange as gone:
                at = {**at, gone.partition: gone.first}


def _runs(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Ascending places in runs of one partition without large gaps."""
    run: list[Place] = []
    for partition, offset in places:
        if run:
            newest_partition, newest_offset = run[-1]
            if partition != newest_partition or offset - newest_offset > GAP_RECORDS:
                yield run
                run = []
        run.append((partition, offset))
    if run:
        yield run


def _label(value: bytes | None) -> Label | None:
    """None for a record that is no label, as the reading is still there."""
    if value is None:
        return None
    try:
        return Label.decode(value)
    except MessageRejected:
        return None
