"""The history of a model as JSON: columns of readings by cluster and client, and which client feeds
which cluster."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from shoal.kernels.arrays import AnyInts, Ints
from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.history import (
    BINS_KEPT,
    COARSE_S,
    FINE_S,
    NO_CLUSTER,
    HistoryBin,
    HistoryNames,
    cells_table,
    pack_table,
    readings_table,
)
from shoal.server_node.history.shares import client_name
from shoal.server_node.history.store import HistoryReader
from shoal.server_node.outputs.encoding import as_json
from shoal.server_node.outputs.web.answers import Feeds
from shoal.server_node.outputs.web.query import asked_span
from shoal.server_node.report.clusters import feeds_of

COLUMNS_MAX = 2000
"""columns in one answer"""
STEP_MAX_S = 7 * 86_400
"""longest time in one column"""
BINS_AT_ONCE = 50
"""bins that are read before other requests get their turn"""
ROWS_AT_ONCE = 64
"""rows that are unpacked together, as all columns are unpacked for them"""
PIECE_CHARACTERS = 1 << 15
"""length of the pieces in which the JSON is sent: each is compressed by itself, and small ones less
"""


class Columns:
    """Readings by number, in columns; packed until they are read, as those of a year are many."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._numbers: set[int] = set()
        self._most = 0

    def add(self, packed: Sequence[bytes]) -> int:
        """One more column: the sum of some packed tables of number and readings (n, 2). Returns its
        readings in all."""
        together = packed[0]
        tables = [readings_table(table) for table in packed]
        if len(tables) > 1:
            count: Counter[int] = Counter()
            for table in tables:
                count.update(dict(table.tolist()))
            tables = [np.array(sorted(count.items()), dtype=np.int64).reshape(-1, 2)]
            together = pack_table(tables[0])
        self._packed.append(together)
        self._numbers.update(tables[0][:, 0].tolist())
        self._most = max(self._most, int(tables[0][:, 1].max(initial=0)))
        return int(tables[0][:, 1].sum())

    @property
    def digest(self) -> str:
        """A digest of all columns, as they are packed."""
        digest = hashlib.sha256()
        for packed in self._packed:
            # With the length of each, or two lists of columns with the same bytes could have one
            # digest.
            digest.update(len(packed).to_bytes(8) + packed)
        return digest.hexdigest()

    def rows(self, fields: Callable[[int], dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """One row for each number that occurs, with its readings in each column."""
        numbers = np.array(sorted(self._numbers), dtype=np.int64)
        for start in range(0, len(numbers), ROWS_AT_ONCE):
            some = numbers[start : start + ROWS_AT_ONCE]
            for number, row in zip(some.tolist(), self._rows(some), strict=True):
                yield {**fields(number), "readings": row.tolist()}

    def _rows(self, numbers: Ints) -> AnyInts:
        """numbers (n,) in their order -> their readings (n, columns)."""
        # The smallest type that holds all: 64 rows of 2 000 columns are a megabyte of 64-bit
        # numbers.
        readings = np.zeros((len(numbers), len(self._packed)), dtype=np.min_scalar_type(self._most))
        for place, packed in enumerate(self._packed):
            keys, counts = readings_table(packed).T
            here = (keys >= numbers[0]) & (keys <= numbers[-1])
            readings[np.searchsorted(numbers, keys[here]), place] = counts[here]
        return readings


@dataclass(frozen=True)
class History:
    """The readings of a model in a span of time, in columns of equal length. A column has one bin
    or several."""

    model: str
    width_s: int
    """seconds of a bin"""
    step_s: int
    """seconds of a column, a multiple of `width_s`"""
    starts: list[int]
    """start of each column, seconds since 1970"""
    readings: list[int]
    """number of readings in each column"""
    clusters: Columns
    """readings by the identity of the cluster"""
    clients: Columns
    """readings by the number of the client; empty where only clusters were asked for"""
    names: HistoryNames | None
    more_from: int | None
    """the start of the next column, where there are more than fit into an answer"""

    @property
    def etag(self) -> str:
        """A digest of all that the JSON is made of, before it is made."""
        parts = self.model, self.step_s, self.starts, self.more_from, self.names
        return hashlib.sha256(
            repr((parts, self.clusters.digest, self.clients.digest)).encode()
        ).hexdigest()[:16]

    async def pieces(self) -> AsyncIterator[bytes]:
        """The JSON, some rows at a time: so it is never in memory as a whole, and other requests
        get their turn."""
        head = {
            "model": self.model,
            "step_s": self.step_s,
            "kept_s": BINS_KEPT[self.width_s] * self.width_s,
            "starts": self.starts,
            "readings": self.readings,
        }
        piece = as_json(head)[:-1]
        for name, rows in (
            ("clusters", self.clusters.rows(_titles(self.names))),
            ("clients", self.clients.rows(lambda number: _client(number, self.names))),
        ):
            piece = f'{piece},"{name}":['
            separator = ""
            for row in rows:
                piece = f"{piece}{separator}{as_json(row)}"
                separator = ","
                if len(piece) >= PIECE_CHARACTERS:
                    yield piece.encode()
                    piece = ""
                    # Other requests are answered between two parts of a long answer.
                    await asyncio.sleep(0)
            piece += "]"
        yield f'{piece},"more_from":{as_json(self.more_from)}}}'.encode()


async def read_history(reader: HistoryReader, model: str, asked: QueryParams) -> History:
    """The readings from `from` to `to`, as the query asks; at most `COLUMNS_MAX` columns.

    Raises `HTTPException` (400) for values that cannot be, and as `HistoryReader` does.
    """
    step = _step(asked.get("step"))
    with_clients = _with_clients(asked.get("of"))
    # The longest bins that fit: fewer are read, and they are kept for longer.
    width = next(width for width in sorted(BINS_KEPT, reverse=True) if step % width == 0)
    first, last = asked_span(asked)
    start: float | None = -MOMENT_MAX if first is None else first // step * step
    latest = MOMENT_MAX if last is None else last
    history = History(model, width, step, [], [], Columns(), Columns(), reader.names(model), None)
    column: list[HistoryBin] = []
    while start is not None:
        # One more than is used shows whether there are more, and where they begin.
        bins = reader.bins(model, width, start, latest, BINS_AT_ONCE + 1)
        for history_bin in bins[:BINS_AT_ONCE]:
            if column and history_bin.start // step != column[0].start // step:
                _add(history, column, with_clients)
                column = []
                if len(history.starts) == COLUMNS_MAX:
                    return replace(history, more_from=history_bin.start // step * step)
            column.append(history_bin)
        start = bins[BINS_AT_ONCE].start if len(bins) > BINS_AT_ONCE else None
        await asyncio.sleep(0)
    if column:
        _add(history, column, with_clients)
    return history


def _add(history: History, bins: Sequence[HistoryBin], with_clients: bool) -> None:
    """One more column, of these bins."""
    history.starts.append(bins[0].start // history.step_s * history.step_s)
    history.readings.append(history.clusters.add([history_bin.clusters for history_bin in bins]))
    if with_clients:
        history.clients.add([history_bin.clients for history_bin in bins])


def _titles(names: HistoryNames | None) -> Callable[[int], dict[str, Any]]:
    """Identity, name and label of a cluster; all null for readings of no known cluster."""
    known = {}
    if names is not None:
        known = {identity: (name, label) for identity, name, label in names.clusters}

    def fields(identity: int) -> dict[str, Any]:
        if identity == NO_CLUSTER:
            return {"identity": None, "name": None, "label": None}
        name, label = known.get(identity, ("", ""))
        return {"identity": identity, "name": name, "label": label}

    return fields


def _client(number: int, names: HistoryNames | None) -> dict[str, Any]:
    return {"client": client_name(number, [] if names is None else names.clients)}


def _step(text: str | None) -> int:
    if text is None:
        return COARSE_S
    step = 0
    if text.isascii() and text.isdigit() and len(text) <= len(str(STEP_MAX_S)):
        step = int(text)
    if step % FINE_S or not 0 < step <= STEP_MAX_S:
        raise HTTPException(400, f"step is a multiple of {FINE_S}, in seconds, up to {STEP_MAX_S}")
    return step


def _with_clients(text: str | None) -> bool:
    if text not in {None, "clusters"}:
        raise HTTPException(400, "of is clusters, for an answer without clients")
    return text is None


CELL_BINS_AT_ONCE = 25
"""bins that are read before other requests get their turn"""


async def read_feeds(reader: HistoryReader, model: str, asked: QueryParams) -> Feeds:
    """Division of each client's readings from `from` to `to` among the clusters, in percent.

    Raises `HTTPException` (400) for values that cannot be, and as `HistoryReader` does.
    """
    first, last = asked_span(asked)
    start: float | None = -MOMENT_MAX if first is None else first // FINE_S * FINE_S
    together = np.empty((0, 3), dtype=np.int64)
    starts = []
    while start is not None:
        bins = reader.bins(
            model, FINE_S, start, MOMENT_MAX if last is None else last, CELL_BINS_AT_ONCE + 1
        )
        starts += [history_bin.start for history_bin in bins[:CELL_BINS_AT_ONCE]]
        cells = [cells_table(history_bin.cells) for history_bin in bins[:CELL_BINS_AT_ONCE]]
        together = summed(np.concatenate([together, *cells]))
        start = None
        if len(bins) > CELL_BINS_AT_ONCE:
            start = bins[CELL_BINS_AT_ONCE].start
        await asyncio.sleep(0)
    names = reader.names(model)
    clients = [] if names is None else names.clients
    known = together[together[:, 1] != NO_CLUSTER]
    return Feeds(
        model=model,
        start=min(starts, default=None),
        end=max(starts) + FINE_S if starts else None,
        clients=feeds_of(by_client(known, clients)),
    )


def summed(cells: Ints) -> Ints:
    """cells (n, 3) of client, identity and readings -> (m, 3), each client and identity once, in
    their order."""
    pairs, place = np.unique(cells[:, :2], axis=0, return_inverse=True)
    readings = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(readings, place.ravel(), cells[:, 2])
    return np.column_stack([pairs, readings])


def by_client(cells: Ints, clients: list[str]) -> dict[str, list[tuple[int, float]]]:
    """cells (n, 3) -> client -> its clusters with their shares, the largest first; clients with
    most readings first."""
    of_client: dict[str, list[tuple[int, int]]] = {}
    for number, identity, readings in cells.tolist():
        of_client.setdefault(client_name(number, clients), []).append((identity, readings))
    totals = {client: sum(readings for _, readings in parts) for client, parts in of_client.items()}
    shares = {}
    for client in sorted(of_client, key=lambda client: (-totals[client], client)):
        largest_first = sorted(of_client[client], key=lambda part: (-part[1], part[0]))
        shares[client] = [
            (identity, readings / totals[client]) for identity, readings in largest_first
        ]
    return shares
