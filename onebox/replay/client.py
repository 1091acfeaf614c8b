"""A replayed client: the stages of a client node, on readings that are there already, by the clock
of the readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.client_nodes.intake import Batch
from shoal.client_nodes.learner import Learner
from shoal.client_nodes.privacy import PrivateBatch, privatise
from shoal.client_nodes.publisher import EncodedUpdate, Publisher
from shoal.client_nodes.row_window import RowWindow
from shoal.errors import InvalidData
from shoal.kernels.arrays import Floats
from shoal.onebox.replay.parquet import CLIENT, SEQUENCE, TIME, schema_of
from shoal.onebox.replay.plan import ReplayPlan
from shoal.privacy.imperfect import CoarseReadings, row_mechanism
from shoal.protocol.validation import Validator


class DatedUpdate(NamedTuple):
    """An update, and when the client made it, by its clock: seconds since 1970."""

    at: float
    update: EncodedUpdate


@dataclass
class Counts:
    """Counts of a replay. The last three are made from raw readings and stay where those are."""

    clients: int = 0
    readings: int = 0
    rejected: int = 0
    """readings with a value that is no finite number, and repeated ones if the settings drop those
    """
    clipped: int = 0


@dataclass
class Stages:
    """Stages that the clients of one worker share."""

    plan: ReplayPlan
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.validator = Validator(self.plan.contract)


class ReplayedClient:
    """One client: learns its readings in the order (t, sequence) and makes its updates.

    Its clock is the time of the reading at hand. So it makes the updates, bit for bit, that a
    client node makes which reads every reading at the time of that reading. The place of a reading
    is partition 0 and its number in that order.
    """

    def __init__(self, name: str, stages: Stages, started_at: float) -> None:
        """`started_at`: the time of its first reading."""
        plan = stages.plan
        self.name = name
        self._contract = plan.contract
        self._settings = plan.settings
        self._counts = stages.counts
        self._mechanism = row_mechanism(
            plan.contract.mode, plan.client_key(name), name, plan.source
        )
        contract = plan.contract
        self._coarse = CoarseReadings(
            contract.bounds, contract.contract.steps, plan.client_key(name), name, plan.source
        )
        publisher = Publisher(plan.contract, name, stages.validator, plan.update_bytes_max)
        self._learner = Learner(plan.contract, publisher, plan.settings, started_at)
        self.window = RowWindow(
            plan.contract.width, plan.settings.window_rows, plan.settings.window_s
        )
        """its newest noisy rows, from which it answers rounds; empty without models in rounds"""
        self._keeps_window = bool(plan.contract.in_rounds)
        self._readings = 0
        self._newest = -np.inf
        stages.counts.clients += 1

    def learn(self, values: Floats, times: Floats) -> list[DatedUpdate]:
        """values (n, d) in the units of the contract, times (n,) ascending -> the updates that
        became due.

        Raises `InvalidData` for readings out of order.
        """
        if not len(times):
            return []
        # Out of order, an update would be due at another reading than at a client node.
        if times[0] < self._newest or (np.diff(times) < 0).any():
            raise InvalidData(
                f"the readings of client {self.name} are not in the order of their times"
            )
        private = privatise(self._mechanism, self._batch(values, times), self._contract.bounds)
        self._count(private)
        if self._keeps_window:
            self.window.add(private.rows, private.times, float(times[-1]))
        self._readings += len(times)
        self._newest = float(times[-1])
        updates: list[DatedUpdate] = []
        start = 0
        while start < len(times):
            places, due_at = self._learner.due
            stop = min(
                # Up to the reading at which an update is due: by its number, or by its time.
                len(times),
                start + places,
                start + int(np.searchsorted(times[start:], due_at)) + 1,
            )
            now = float(times[stop - 1])
            updates += [
                DatedUpdate(now, update)
                for update in self._learner.learn(_cut(private, start, stop), now)
            ]
            start = stop
        return updates

    def finish(self) -> list[DatedUpdate]:
        """The updates that a client node makes when no reading comes any more: when `publish_s`
        have passed."""
        if not self._learner.has_unpublished:
            return []
        # At the time that a client node would have waited for, which decides bits of the update.
        _, due_at = self._learner.due
        nothing = PrivateBatch(
            np.empty((0, self._contract.width)), [], np.empty(0, dtype=np.int64), []
        )
        return [DatedUpdate(due_at, update) for update in self._learner.learn(nothing, due_at)]

    def _batch(self, values: Floats, times: Floats) -> Batch:
        """The batch that the intake of a client node makes of these readings."""
        finite = np.isfinite(values)
        accepted = finite.all(axis=1)
        if self._contract.learns_gaps:
            # NaN is a missing value here; infinity is no reading, and a row needs one value at
            # least.
            accepted = finite.any(axis=1) & ~np.isinf(values).any(axis=1)
        if self._settings.drop_repeats:
            # Times ascend, so an earlier reading with this time is the one before.
            accepted &= np.diff(times, prepend=self._newest) > 0
        numbers = np.flatnonzero(accepted)
        # Noise is drawn by place: rejected readings keep theirs, as in the log of a client.
        places = list(zip(repeat(0), (numbers + self._readings).tolist(), strict=False))
        spread = self._coarse.spread(values[numbers], places)
        # A replayed reading arrives when it was taken: with a guarantee both kinds of times that
        # updates may state are these, in whole seconds.
        stated = np.floor(times) if self._contract.mode.formal else times
        return Batch(
            spread,
            places,
            times[numbers].tolist(),
            [],
            numbers.tolist(),
            times.tolist(),
            public_times=stated.tolist(),
        )

    def _count(self, private: PrivateBatch) -> None:
        places = len(private.place_times)
        self._counts.readings += places
        self._counts.rejected += places - len(private.rows) - private.withheld
        self._counts.clipped += private.clipped


def _cut(batch: PrivateBatch, start: int, stop: int) -> PrivateBatch:
    """The places from `start` to `stop` of a batch."""
    first, end = np.searchsorted(batch.numbers, [start, stop])
    return PrivateBatch(
        batch.rows[first:end],
        batch.times[first:end],
        batch.numbers[first:end] - start,
        batch.place_times[start:stop],
    )


UPDATES: Final = pa.schema(
    [
        ("t", pa.float64()),
        ("client", pa.string()),
        ("number", pa.int64()),
        ("model", pa.string()),
        ("value", pa.binary()),
    ]
)
"""form of a record of the updates topic: when it was made (seconds since 1970), its client, its
number among those of the client, from 0, the model, and the record's value"""
READINGS_AT_ONCE: Final = 16 * 1024
"""readings of one client at a time: noise and learning take whole chunks, and their memory does not
grow with the readings"""

Keep = Callable[[ReplayedClient], None]


def make_updates(
    readings: Iterable[Any], stages: Stages, keep: Keep = lambda client: None
) -> Iterator[Any]:
    """Readings of whole clients, one after the other, each in the order (t, sequence) -> the
    updates of those clients.

    Batches of the form `shoal.onebox.replay.parquet.schema_of` come in, batches of the form
    `UPDATES` come out. How the readings are cut into batches makes no difference. `keep` gets each
    client once it has learnt everything. Raises `InvalidData` for readings out of order.
    """
    finished: set[str] = set()
    for name, runs in groupby(_runs(readings, stages.plan.contract.width), key=itemgetter(0)):
        # A second learner of one client would number its updates from 1 again.
        if name in finished:
            raise InvalidData(f"the readings of client {name} are not all together")
        finished.add(name)
        yield from _updates_of(name, (run for _, run in runs), stages, keep)


def _updates_of(name: str, runs: Iterator[Floats], stages: Stages, keep: Keep) -> Iterator[Any]:
    """The updates of one client, whose runs (n, 1 + d) hold times and values; there is at least
    one."""
    first = next(runs)
    client = ReplayedClient(name, stages, float(first[0, 0]))
    number = 0
    for run in chain([first], runs, [None]):
        made = client.finish() if run is None else client.learn(run[:, 1:], run[:, 0])
        for batch in _batches(name, made, number):
            number += len(batch)
            yield batch
    keep(client)


def in_order(readings: Any) -> Any:
    """A table of readings in the canonical order: by client, time and sequence number."""
    keys = [(name, "ascending") for name in (CLIENT, TIME, SEQUENCE)]
    return readings.take(pc.sort_indices(readings, sort_keys=keys))


def _runs(readings: Iterable[Any], width: int) -> Iterator[tuple[str, Floats]]:
    """(client, (n, 1 + d) times and values) of at most `READINGS_AT_ONCE` successive readings of
    one client."""
    schema = schema_of(width)
    for batch in readings:
        if batch.schema.names != schema.names:
            raise InvalidData(f"readings of a replay have the columns {', '.join(schema.names)}")
        # Runs and not rows: names are texts, and to compare each would take longer than learning.
        encoded = pc.run_end_encode(batch.column(CLIENT))
        start = 0
        for name, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
            while start < end:
                stop = min(end, start + READINGS_AT_ONCE)
                piece = batch.slice(start, stop - start)
                yield name, _block(piece, width)
                start = stop


def _block(batch: Any, width: int) -> Floats:
    block = np.empty((len(batch), 1 + width))
    for column, name in enumerate(chain([TIME], (f"x{number}" for number in range(width)))):
        block[:, column] = batch.column(name).to_numpy(zero_copy_only=False)
    return block


def _batches(client: str, updates: Sequence[DatedUpdate], first: int) -> Iterator[Any]:
    """The records of updates as one batch, if there are any."""
    records = [
        (at, update.model, record.value) for at, update in updates for record in update.records
    ]
    if records:
        at, models, values = zip(*records, strict=True)
        numbers = range(first, first + len(records))
        yield pa.record_batch(
            [at, [client] * len(records), numbers, models, values], schema=UPDATES
        )
