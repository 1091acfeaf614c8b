"""The engine `local`: it brings the readings of each client together on disk and learns on worker
processes."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.files import atomic_file
from shoal.onebox.replay.client import in_order
from shoal.onebox.replay.parquet import CLIENT, Piece, scan, schema_of
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import PartSummary, learn_part
from shoal.runtime.workers import Workers

FOLDER: Final = "sorting"
"""folder of raw readings, so only its owner may read it; it is removed once all parts are learnt"""


def part_of(client: str, parts: int) -> int:
    """The part that a client is in, of `parts`. Spark has the same function, crc32."""
    # Not `hash`, which differs in each process: all workers must find a client in the same part.
    return zlib.crc32(client.encode()) % parts


def piece_file(plan: ReplayPlan, piece: Piece) -> Path:
    """The file to which a piece is taken apart."""
    return plan.folder / FOLDER / f"{piece.file:06d}-{piece.number:06d}.arrow"


def pieces_to_take_apart(plan: ReplayPlan) -> list[Piece]:
    """The pieces that are not taken apart yet."""
    (plan.folder / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file that is there is whole, as it gets its name last: after a kill only the others are
    # made.
    return [piece for piece in plan.pieces if not piece_file(plan, piece).exists()]


def take_apart(plan: ReplayPlan, piece: Piece) -> int:
    """Write the readings of a piece by part; returns how many. Raises `InvalidData`.

    Of every batch of readings the file has one batch for each part, in the order of the parts, also
    an empty one. So the batches of part p are those with the numbers p, p + parts, p + 2 parts, ...
    """
    readings = 0
    schema = schema_of(plan.contract.width)
    with (
        atomic_file(piece_file(plan, piece)) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        for batch in scan(piece, plan.columns):
            for part in _by_part(batch, plan.parts):
                writer.write_batch(part)
            readings += len(batch)
    return readings


def read_part(plan: ReplayPlan, part: int) -> Any:
    """All readings of a part as one table, not in order."""
    batches: list[Any] = []
    for piece in plan.pieces:
        with pa.memory_map(str(piece_file(plan, piece))) as file:
            reader = pa.ipc.open_file(file)
            numbers = range(part, reader.num_record_batches, plan.parts)
            batches += [batch for number in numbers if len(batch := reader.get_batch(number))]
    return pa.Table.from_batches(batches, schema_of(plan.contract.width))


def remove(plan: ReplayPlan) -> None:
    """Remove the pieces that were taken apart."""
    shutil.rmtree(plan.folder / FOLDER, ignore_errors=True)


def _by_part(batch: Any, parts: int) -> list[Any]:
    """The readings of a batch as one batch for each part."""
    # Encoded, so that each name is hashed once and not once for each of its readings.
    clients = pc.dictionary_encode(batch.column(CLIENT))
    part_of_client = np.array(
        [part_of(name, parts) for name in clients.dictionary.to_pylist()], dtype=np.int64
    )
    part_of_reading = part_of_client[clients.indices.to_numpy()]
    # Stable: the readings of a client keep their order.
    order = np.argsort(part_of_reading, kind="stable")
    ends = np.cumsum(np.bincount(part_of_reading, minlength=parts))
    ordered = batch.take(pa.array(order))
    return [
        ordered.slice(end - size, size)
        for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)
    ]


J = TypeVar("J")
R = TypeVar("R")


class Engine(Protocol):
    """Runs the work of a replay. No result depends on the engine, or on how many workers it has."""

    def spread(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterable[R]:
        """`work(job)` of each job, in the order in which they finish. Raises what `work` raises."""
        ...

    def learn(self, plan: ReplayPlan, parts: Sequence[int]) -> Iterator[PartSummary]:
        """Learn these parts; each is yielded once its results are on the disk. Raises
        `InvalidData`."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class LocalEngine:
    """Worker processes on this machine."""

    def __init__(self, workers: int) -> None:
        self._workers = Workers(workers)

    def spread(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """See `Engine.spread`."""
        return (result for _, result in self._workers.spread(work, jobs))

    def learn(self, plan: ReplayPlan, parts: Sequence[int]) -> Iterator[PartSummary]:
        """Learn parts, whose readings are brought together in files first; see `Engine.learn`."""
        for _ in self.spread(partial(take_apart, plan), pieces_to_take_apart(plan)):
            pass
        yield from self.spread(partial(learn_gathered, plan), parts)

    def close(self) -> None:
        """See `Engine.close`."""
        self._workers.close()


def learn_gathered(plan: ReplayPlan, part: int) -> PartSummary:
    """Learn a part from the files of the shuffle."""
    return learn_part(plan, part, in_order(read_part(plan, part)).to_batches())
