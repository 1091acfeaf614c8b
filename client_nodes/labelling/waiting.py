"""Readings that are not labelled yet: those from before the first snapshot, and those that wait for
their window.

Where a cluster is seen in successive readings and not in a single one, a reading has the cluster of
the window around it. So it gets its label once half a window more has come, and what is needed
until then is kept in the client's checkpoint: labels do not depend on how readings are split into
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.algorithms.streaming import Rows, SequenceHalf, SequenceLabels
from shoal.algorithms.view import NO_CLUSTER
from shoal.client_nodes.intake import Batch, decode_batch
from shoal.config.resolved import ResolvedContract
from shoal.errors import OffsetOutOfRange
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy.imperfect import CoarseReadings
from shoal.protocol.topics import READINGS
from shoal.transports.base import Log, Positions

CONTEXT: Final = 256
"""labelled rows that are kept, as windows of those that wait begin before them"""
RowsOf = Callable[[Batch], Rows]
"""readings -> (n, d) their rows as models learn them, NaN where a value is missing"""


@dataclass
class Backlog:
    """The unlabelled readings of one model, from the oldest to where labelling goes on by itself."""

    start: Positions = field(default_factory=dict)
    """the oldest unlabelled reading"""
    until: Positions = field(default_factory=dict)
    """the first reading that does not belong to it any more; partitions as in `start`"""
    again: bool = False
    """whether they have been labelled before"""

    @property
    def pending(self) -> bool:
        """Whether there is any reading in it."""
        return bool(self.start)

    def extend(self, batch: Batch) -> None:
        """The readings of a batch cannot be labelled yet."""
        for partition, offset in batch.places:
            self.start.setdefault(partition, offset)
            self.until[partition] = offset + 1

    def take(self, log: Log, limit: int, timeout_s: float, width: int, gaps: bool = False) -> Batch:
        """The next readings of it, oldest first, up to `limit`; what retention has removed is
        passed over.

        `width`, `gaps`: as `decode_batch` takes them.

        Raises as the log does.
        """
        while True:
            try:
                records, after = log.read(READINGS, self.start, limit, timeout_s)
                break
            except OffsetOutOfRange as gone:
                self._move({gone.partition: gone.first})
                if not self.pending:
                    return decode_batch([], width)
        if not records:
            # A log that was restored from a backup may end earlier.
            ends = {partition: end for partition, (_, end) in log.bounds(READINGS).items()}
            after = {
                one: self.until[one] if at >= ends.get(one, 0) else at
                for one, at in self.start.items()
            }
        own = [record for record in records if record.offset < self.until[record.partition]]
        self._move(after)
        return decode_batch(own, width, gaps=gaps)

    def state(self) -> dict[str, Any]:
        return {"start": _pairs(self.start), "until": _pairs(self.until), "again": self.again}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Backlog:
        """Raises `KeyError`, `TypeError` or `ValueError` for a damaged state."""
        return cls(dict(state["start"]), dict(state["until"]), bool(state["again"]))

    def _move(self, after: Positions) -> None:
        self.start |= after
        for partition in [one for one, at in self.start.items() if at >= self.until[one]]:
            del self.start[partition], self.until[partition]
        if not self.start:
            self.again = False


def _pairs(positions: Positions) -> list[list[int]]:
    return [[partition, offset] for partition, offset in sorted(positions.items())]


class Sequences(NamedTuple):
    """What labels of sequences are made from, besides snapshots."""

    halves: Mapping[str, SequenceHalf]
    """model -> its client half, of the models that label sequences"""
    rows_of: RowsOf


def sequences_of(
    contract: ResolvedContract,
    halves: Mapping[str, SequenceHalf],
    key: bytes | None,
    client: str,
    source: bytes,
) -> Sequences | None:
    """None where no model labels sequences. `key`, `source`: as for the mechanism of the client's
    rows."""
    return Sequences(halves, _learnt_rows(contract, key, client, source)) if halves else None


def _learnt_rows(
    contract: ResolvedContract, key: bytes | None, client: str, source: bytes
) -> RowsOf:
    """The function that makes readings of a client the rows which its models have learnt.

    Clusters of sequences were found in rows with noise, whose spread and roughness those without it
    do not have. Noise is a function of a reading's place, so it is drawn again.
    """
    mechanism = contract.mode.mechanism(key, client, source)
    coarse = CoarseReadings(contract.bounds, contract.contract.steps, key, client, source)
    low = contract.bounds.low

    def rows(batch: Batch) -> Rows:
        lacks = np.isnan(batch.values)
        places = np.array(batch.places, np.int64).reshape(-1, 2)
        released = mechanism.privatise(
            np.where(lacks, low, coarse.spread(batch.values, batch.places)), places
        )
        found = np.full(batch.values.shape, np.nan)
        found[released.kept] = released.rows
        found[lacks] = np.nan
        return found

    return rows


class WaitingReadings:
    """Readings of one client in their order, those that wait for a label and the rows before them."""

    def __init__(self, width: int) -> None:
        """`width` is the number of features d."""
        self._width = width
        self._rows: Floats = np.empty((0, width))
        """rows of the readings that wait, after up to `CONTEXT` earlier ones"""
        self._values: Floats = np.empty((0, width))
        """(p, d) the readings that wait"""
        self._places: list[tuple[int, int]] = []
        self._times: list[float | None] = []

    def add(self, batch: Batch, rows: Rows) -> None:
        """The next readings (n, d) and their rows."""
        self._rows = np.concatenate([self._rows, rows])
        self._values = np.concatenate([self._values, batch.values])
        self._places += batch.places
        self._times += batch.times

    def take(self, labels: SequenceLabels, is_last: bool = False) -> tuple[Batch, Ints]:
        """Those whose window is whole, and (n,) the number of their cluster; all where no more come
        (`is_last`)."""
        m = len(self._rows)
        p = len(self._places)
        window = labels.window
        whole = p if is_last else max(0, min(p, p - window + window // 2 + 1))
        if m < window and not is_last:
            whole = 0
        numbers = self._numbers(labels, m - p)[:whole] if whole else np.empty(0, np.int64)
        taken = Batch(self._values[:whole], self._places[:whole], self._times[:whole], [])
        self._values = self._values[whole:]
        self._places = self._places[whole:]
        self._times = self._times[whole:]
        # A copy, so that the array of a large batch is given back.
        self._rows = self._rows[max(0, m - p + whole - CONTEXT) :].copy()
        return taken, numbers

    def _numbers(self, labels: SequenceLabels, first: int) -> Ints:
        """(p,) clusters of the readings from row `first` on."""
        window = labels.window
        start = max(0, min(first - window // 2, len(self._rows) - window))
        rows = self._rows[start:]
        if len(rows) < window:
            return np.full(len(self._rows) - first, NO_CLUSTER, np.int64)
        found = labels.numbers(rows)
        known = np.flatnonzero(found != NO_CLUSTER)
        if not len(known):
            return np.full(len(self._rows) - first, NO_CLUSTER, np.int64)
        at = np.clip(np.arange(first - start, len(rows)) - window // 2, 0, len(found) - 1)
        # A window with too few values has the cluster of the last one that has enough.
        return found[known[np.maximum(np.searchsorted(known, at, side="right") - 1, 0)]]

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        places = [list(place) for place in self._places]
        return {
            "rows": self._rows,
            "values": self._values,
            "places": places,
            "times": list(self._times),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises `KeyError`, `TypeError` or `ValueError` for a damaged state."""
        places = [(int(partition), int(offset)) for partition, offset in state["places"]]
        rows = np.asarray(state["rows"])
        values = np.asarray(state["values"])
        times = list(state["times"])
        fits = values.shape == (len(places), self._width) and len(times) == len(places)
        if not fits or rows.ndim != 2 or rows.shape[1] != self._width or len(rows) < len(places):
            raise ValueError("readings that wait for a label do not fit together")
        self._rows = rows.astype(np.float64)
        self._values = values.astype(np.float64)
        self._places = places
        self._times = times
