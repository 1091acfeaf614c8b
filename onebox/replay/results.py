"""The results of a replay: the updates of each part in a file of its own, and all of them in the
canonical order."""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from shoal.algorithms.streaming import Rows
from shoal.errors import InvalidState
from shoal.files import atomic_file
from shoal.onebox.replay.client import UPDATES, Counts, ReplayedClient, Stages, make_updates
from shoal.onebox.replay.plan import ReplayPlan

ABOUT: Final = b"shoal.replay"
RECORDS_AT_ONCE: Final = 16
"""records of a batch in a file of updates: few, so that all files can be read side by side"""


@dataclass
class PartSummary(Counts):
    """The outcome of one part."""

    part: int = 0
    records: int = 0
    """records for the updates topic"""


class ReplayedRecord(NamedTuple):
    """A record for the updates topic. Their canonical order is that of the first three fields."""

    at: float
    """time at which the client made it, seconds since 1970"""
    client: str
    number: int
    """number of the record among those of this client, from 0"""
    model: str
    value: bytes


def updates_file(plan: ReplayPlan, part: int) -> Path:
    """The file with the updates of a part, in the canonical order. It exists once the part is
    learnt."""
    return plan.folder / f"updates-{part:05d}.arrow"


def rows_file(plan: ReplayPlan, part: int) -> Path:
    """The file with the newest noisy rows of the clients of a part, for models in rounds."""
    return plan.folder / f"rows-{part:05d}.arrow"


def learn_part(plan: ReplayPlan, part: int, readings: Iterable[Any]) -> PartSummary:
    """Learn readings in the canonical order, those of one part, and write its results. Raises
    `InvalidData`."""
    stages = Stages(plan)
    windows: list[Any] = []

    def keep(client: ReplayedClient) -> None:
        if len(client.window.rows):
            windows.append(_window(client.name, client.window.rows))

    updates = pa.Table.from_batches(make_updates(readings, stages, keep), UPDATES)
    # Sorted within a part, so that `records` merges parts without holding any in memory.
    updates = updates.sort_by(
        [("t", "ascending"), ("client", "ascending"), ("number", "ascending")]
    )
    summary = PartSummary(**asdict(stages.counts), part=part, records=len(updates))
    if plan.contract.in_rounds:
        _write(rows_file(plan, part), windows, _window("", _no_rows(plan)).schema)
    about = {ABOUT: json.dumps(asdict(summary)).encode()}
    _write(
        updates_file(plan, part),
        updates.to_batches(RECORDS_AT_ONCE),
        updates.schema.with_metadata(about),
    )
    return summary


def learnt(plan: ReplayPlan, parts: Iterable[int] | None = None) -> list[PartSummary]:
    """Those of `parts`, or of all, that are learnt. Raises `InvalidState` for a damaged file."""
    files = (updates_file(plan, part) for part in (range(plan.parts) if parts is None else parts))
    return [_summary(file) for file in files if file.exists()]


def windows_of(plan: ReplayPlan, part: int) -> Iterator[tuple[str, Rows]]:
    """Each client of a part with its newest noisy rows (n, d), by name."""
    with pa.memory_map(str(rows_file(plan, part))) as file:
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield (
                batch.column(0)[0].as_py(),
                np.column_stack([column.to_numpy() for column in batch.columns[1:]]),
            )


def records(plan: ReplayPlan) -> Iterator[ReplayedRecord]:
    """The records of all parts, in the canonical order and in bounded memory."""
    files = [updates_file(plan, part) for part in range(plan.parts)]
    # Records compare by their first three fields, which are unique: the order needs no other rule.
    return heapq.merge(*map(_records_of, files))


def digest_of(all_records: Iterable[ReplayedRecord]) -> str:
    """SHA-256 over records in the canonical order, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for record in all_records:
        names = [record.client.encode(), record.model.encode()]
        digest.update(
            # With all lengths first, so that no two lists of records have the same bytes.
            struct.pack("<dqHHI", record.at, record.number, *map(len, names), len(record.value))
        )
        digest.update(b"".join(names) + record.value)
    return digest.hexdigest()


def _records_of(file: Path) -> Iterator[ReplayedRecord]:
    """The records of one part, a batch at a time. The file is open only meanwhile: there may be
    thousands of parts."""
    number = 0
    while True:
        with pa.memory_map(str(file)) as opened:
            reader = pa.ipc.open_file(opened)
            if number == reader.num_record_batches:
                return
            columns = [column.to_pylist() for column in reader.get_batch(number).columns]
        yield from map(ReplayedRecord._make, zip(*columns, strict=True))
        number += 1


def _summary(file: Path) -> PartSummary:
    try:
        with pa.memory_map(str(file)) as opened:
            about = json.loads(pa.ipc.open_file(opened).schema.metadata[ABOUT])
        return PartSummary(**{field.name: about[field.name] for field in fields(PartSummary)})
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        # One part alone: others are whole files, and need not be learnt again.
        raise InvalidState(
            f"{file}: damaged; remove it, and replay again: the other parts stay"
        ) from None


def _window(client: str, rows: Rows) -> Any:
    columns = {"client": pa.array([client] * len(rows), pa.string())}
    return pa.record_batch(
        columns | {f"x{number}": rows[:, number] for number in range(rows.shape[1])}
    )


def _no_rows(plan: ReplayPlan) -> Rows:
    return np.empty((0, plan.contract.width))


def _write(path: Path, batches: Iterable[Any], schema: Any) -> None:
    """An Arrow file that appears whole, and is on the disk."""
    with atomic_file(path, replace=True) as temporary:
        with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with temporary.open("rb") as written:
            # Before it gets its name: a part that exists counts as learnt after a power cut too.
            os.fsync(written.fileno())
