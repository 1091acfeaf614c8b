"""The function that every engine runs: readings in, updates out, both as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onebox.replay.client import DatedUpdate, ReplayedClient, Stages
from onebox.replay.parquet import CLIENT, SEQUENCE, TIME, schema_of
from shoal.algorithms.streaming import Rows
from shoal.errors import InvalidData

UPDATES: Final = pa.schema(
    [
        ("t", pa.float64()),
        ("client", pa.string()),
        ("number", pa.int64()),
        ("model", pa.string()),
        ("value", pa.binary()),
    ]
)
"""a record of the updates topic: when it was made (seconds since 1970), by whom, which one of this client's it is
counted from 0, the model, and the record's value"""
READINGS_AT_ONCE: Final = 16 * 1024
"""of one client: noise and learning take whole chunks, and the memory that they take does not grow with the readings"""

KeepWindow = Callable[[str, Rows], None]


def make_updates(
    readings: Iterable[Any], stages: Stages, keep_window: KeepWindow = lambda client, rows: None
) -> Iterator[Any]:
    """Readings of whole clients, one after the other, each in the order (t, sequence) -> the updates of those clients.

    Batches of the form `onebox.replay.parquet.schema_of` come in, batches of the form `UPDATES` come out. How the
    readings are cut into batches makes no difference. `keep_window` gets each client with its newest noisy rows.
    Raises `InvalidData` for readings out of order.
    """
    finished: set[str] = set()
    for name, runs in groupby(_runs(readings, stages.plan.contract.width), key=itemgetter(0)):
        if name in finished:
            raise InvalidData(f"the readings of client {name} are not all together")
        finished.add(name)
        yield from _updates_of(name, (run for _, run in runs), stages, keep_window)


def _updates_of(
    name: str, runs: Iterator[NDArray[np.float64]], stages: Stages, keep_window: KeepWindow
) -> Iterator[Any]:
    """The updates of one client, whose runs (n, 1 + d) hold times and values; there is at least one."""
    first = next(runs)
    client = ReplayedClient(name, stages, float(first[0, 0]))
    number = 0
    for run in chain([first], runs, [None]):
        made = client.finish() if run is None else client.learn(run[:, 1:], run[:, 0])
        for batch in _batches(name, made, number):
            number += len(batch)
            yield batch
    keep_window(name, client.window.rows)


def in_order(readings: Any) -> Any:
    """A table of readings in the canonical order: by client, time and sequence number."""
    keys = [(name, "ascending") for name in (CLIENT, TIME, SEQUENCE)]
    return readings.take(pc.sort_indices(readings, sort_keys=keys))


def _runs(readings: Iterable[Any], width: int) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """(client, (n, 1 + d) times and values) of at most `READINGS_AT_ONCE` successive readings of one client."""
    schema = schema_of(width)
    for batch in readings:
        if batch.schema.names != schema.names:
            raise InvalidData(f"readings of a replay have the columns {', '.join(schema.names)}")
        encoded = pc.run_end_encode(batch.column(CLIENT))
        start = 0
        for name, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
            while start < end:
                stop = min(end, start + READINGS_AT_ONCE)
                piece = batch.slice(start, stop - start)
                yield name, _block(piece, width)
                start = stop


def _block(batch: Any, width: int) -> NDArray[np.float64]:
    block = np.empty((len(batch), 1 + width))
    for column, name in enumerate(chain([TIME], (f"x{number}" for number in range(width)))):
        block[:, column] = batch.column(name).to_numpy(zero_copy_only=False)
    return block


def _batches(client: str, updates: Sequence[DatedUpdate], first: int) -> Iterator[Any]:
    """The records of updates as one batch, if there are any."""
    records = [(at, update.model, record.value) for at, update in updates for record in update.records]
    if records:
        at, models, values = zip(*records, strict=True)
        numbers = range(first, first + len(records))
        yield pa.record_batch([at, [client] * len(records), numbers, models, values], schema=UPDATES)
