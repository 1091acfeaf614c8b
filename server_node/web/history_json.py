"""The history of a model as JSON: one row of numbers for each cluster and client, one column for each bin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from server_node.history.store import HistoryReader
from server_node.history.summary import client_name
from server_node.web.changes import as_json
from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.history import BINS_KEPT, COARSE_S, FINE_S, NO_CLUSTER, HistoryNames, readings_table

BINS_MAX = 2000
"""bins in one answer"""
BINS_AT_ONCE = 50
"""bins that are read before other requests get their turn; `BINS_MAX` is a multiple"""
PIECE_CHARACTERS = 1 << 15
"""from which a piece of the JSON is sent: each is compressed by itself, small ones less"""


class Columns:
    """Readings by number, a column for each bin; packed until they are read, as the bins of a year are many."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._numbers: set[int] = set()
        self._most = 0

    def add(self, packed: bytes) -> int:
        """One more bin, a packed table of number and readings (n, 2); returns its readings in all."""
        table = readings_table(packed)
        self._packed.append(packed)
        self._numbers.update(table[:, 0].tolist())
        self._most = max(self._most, int(table[:, 1].max(initial=0)))
        return int(table[:, 1].sum())

    def rows(self, fields: Callable[[int], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """One row for each number that occurs, with its readings in each bin."""
        numbers = np.array(sorted(self._numbers), dtype=np.int64)
        readings = np.zeros((len(numbers), len(self._packed)), dtype=np.min_scalar_type(self._most))
        for place, packed in enumerate(self._packed):
            table = readings_table(packed)
            readings[np.searchsorted(numbers, table[:, 0]), place] = table[:, 1]
        for number, row in zip(numbers.tolist(), readings, strict=True):
            yield {**fields(number), "readings": row.tolist()}


@dataclass(frozen=True)
class History:
    """The bins of a model in a span of time."""

    model: str
    width_s: int
    starts: list[int]
    """of the bins, seconds since 1970"""
    readings: list[int]
    """in all, of each bin"""
    clusters: Columns
    """by identity"""
    clients: Columns
    """by number"""
    names: HistoryNames | None
    more_from: int | None
    """the start of the next bin, where there are more than fit into an answer"""

    async def pieces(self) -> AsyncIterator[bytes]:
        """The JSON, some rows at a time: so it is never in memory as a whole, and other requests get their turn."""
        head = {
            "model": self.model,
            "step_s": self.width_s,
            "kept_s": BINS_KEPT[self.width_s] * self.width_s,
            "starts": self.starts,
            "readings": self.readings,
        }
        piece = as_json(head)[:-1]
        for name, rows in (
            ("clusters", self.clusters.rows(_titles(self.names))),
            ("clients", self.clients.rows(lambda number: _client(number, self.names))),
        ):
            piece, separator = f'{piece},"{name}":[', ""
            for row in rows:
                piece, separator = f"{piece}{separator}{as_json(row)}", ","
                if len(piece) >= PIECE_CHARACTERS:
                    yield piece.encode()
                    piece = ""
                    await asyncio.sleep(0)
            piece += "]"
        yield f'{piece},"more_from":{as_json(self.more_from)}}}'.encode()


async def read_history(reader: HistoryReader, model: str, asked: QueryParams) -> History:
    """The bins from `from` to `to`, as the query asks; at most `BINS_MAX`.

    Raises `HTTPException` (400) for values that cannot be, and as `HistoryReader` does.
    """
    width = _width(asked.get("step"))
    first, last = (_moment(name, asked.get(name)) for name in ("from", "to"))
    start: float | None = -MOMENT_MAX if first is None else first // width * width
    latest = MOMENT_MAX if last is None else last
    found = History(model, width, [], [], Columns(), Columns(), reader.names(model), None)
    while start is not None and len(found.starts) < BINS_MAX:
        bins = reader.bins(model, width, start, latest, BINS_AT_ONCE + 1)
        for one in bins[:BINS_AT_ONCE]:
            found.starts.append(one.start)
            found.readings.append(found.clusters.add(one.clusters))
            found.clients.add(one.clients)
        start = bins[BINS_AT_ONCE].start if len(bins) > BINS_AT_ONCE else None
        await asyncio.sleep(0)
    return replace(found, more_from=None if start is None else int(start))


def _titles(names: HistoryNames | None) -> Callable[[int], dict[str, Any]]:
    """Identity, name and label of a cluster; all null for readings that fell to no known cluster."""
    known = {} if names is None else {identity: (name, label) for identity, name, label in names.clusters}

    def fields(identity: int) -> dict[str, Any]:
        if identity == NO_CLUSTER:
            return {"identity": None, "name": None, "label": None}
        name, label = known.get(identity, ("", ""))
        return {"identity": identity, "name": name, "label": label}

    return fields


def _client(number: int, names: HistoryNames | None) -> dict[str, Any]:
    return {"client": client_name(number, [] if names is None else names.clients)}


def _width(text: str | None) -> int:
    if text is None:
        return COARSE_S
    if text not in map(str, BINS_KEPT):
        raise HTTPException(400, f"step is {FINE_S} or {COARSE_S}, in seconds")
    return int(text)


def _moment(name: str, text: str | None) -> float | None:
    """Seconds since 1970, given as such or as a time of ISO 8601 (UTC where it names no zone)."""
    if not text:
        return None
    try:
        moment = float(text)
    except ValueError:
        try:
            given = datetime.fromisoformat(text)
            moment = (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            moment = float("nan")
    if not -MOMENT_MAX <= moment <= MOMENT_MAX:
        raise HTTPException(400, f"{name} is a time in seconds since 1970, or like 2026-03-01T08:15:00Z")
    return moment
