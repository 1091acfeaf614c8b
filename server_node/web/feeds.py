"""Which client feeds which cluster in a span of time, as JSON: `/v1/feeds`."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import QueryParams

from server_node.history.store import HistoryReader
from server_node.history.summary import client_name
from server_node.web.history_json import asked_span
from server_node.web.overview import feeds_json
from shoal.protocol.checks import MOMENT_MAX
from shoal.protocol.history import FINE_S, NO_CLUSTER, cells_table

BINS_AT_ONCE = 25
"""bins that are read before other requests get their turn"""


async def read_feeds(reader: HistoryReader, model: str, asked: QueryParams) -> dict[str, Any]:
    """How the readings of each client from `from` to `to` are divided among the clusters, in percent.

    Raises `HTTPException` (400) for values that cannot be, and as `HistoryReader` does.
    """
    first, last = asked_span(asked)
    start: float | None = -MOMENT_MAX if first is None else first // FINE_S * FINE_S
    together, starts = np.empty((0, 3), dtype=np.int64), []
    while start is not None:
        bins = reader.bins(model, FINE_S, start, MOMENT_MAX if last is None else last, BINS_AT_ONCE + 1)
        starts += [one.start for one in bins[:BINS_AT_ONCE]]
        together = summed(np.concatenate([together, *(cells_table(one.cells) for one in bins[:BINS_AT_ONCE])]))
        start = bins[BINS_AT_ONCE].start if len(bins) > BINS_AT_ONCE else None
        await asyncio.sleep(0)
    names = reader.names(model)
    clients = [] if names is None else names.clients
    return {
        "model": model,
        "from": min(starts, default=None),
        "to": max(starts) + FINE_S if starts else None,
        "clients": feeds_json(by_client(together[together[:, 1] != NO_CLUSTER], clients)),
    }


def summed(cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """cells (n, 3) of client, identity and readings -> (m, 3), each client and identity once, in their order."""
    pairs, place = np.unique(cells[:, :2], axis=0, return_inverse=True)
    readings = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(readings, place.ravel(), cells[:, 2])
    return np.column_stack([pairs, readings])


def by_client(cells: NDArray[np.int64], clients: list[str]) -> dict[str, list[tuple[int, float]]]:
    """cells (n, 3) -> client -> its clusters with their shares, the largest first; clients with most readings first."""
    of_client: dict[str, list[tuple[int, int]]] = {}
    for number, identity, readings in cells.tolist():
        of_client.setdefault(client_name(number, clients), []).append((identity, readings))
    totals = {client: sum(readings for _, readings in parts) for client, parts in of_client.items()}
    return {
        client: [
            (identity, readings / totals[client])
            for identity, readings in sorted(of_client[client], key=lambda part: (-part[1], part[0]))
        ]
        for client in sorted(of_client, key=lambda client: (-totals[client], client))
    }
