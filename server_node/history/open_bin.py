"""A bin that is being counted: readings by cluster, by client, and by client and cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from server_node.history.attribution import without_small
from shoal.protocol.checks import COUNT_MAX
from shoal.protocol.history import CELLS_MAX, CLUSTERS_PER_BIN_MAX, NO_CLUSTER, HistoryBin, pairs, triples
from shoal.protocol.tables import Table, pack_table


class Cells:
    """Readings by client and cluster. A matrix, as 60 clusters of 200 clients are 12 000 counts."""

    def __init__(
        self, clients: NDArray[np.int64], identities: NDArray[np.int64], counts: NDArray[np.int64] | None = None
    ) -> None:
        """clients (r,), identities (c,), none twice, and counts (r, c), by default 0."""
        self._row = {client: place for place, client in enumerate(clients.tolist())}
        self._column = {identity: place for place, identity in enumerate(identities.tolist())}
        self._counts = np.zeros((len(self._row), len(self._column)), dtype=np.int64) if counts is None else counts

    @classmethod
    def of(cls, table: Table) -> Self:
        """The cells of a table (n, 3) of client, identity and readings."""
        clients, rows = np.unique(table[:, 0], return_inverse=True)
        identities, columns = np.unique(table[:, 1], return_inverse=True)
        cells = cls(clients, identities)
        cells._counts[rows, columns] = table[:, 2]
        return cells

    def add(self, client: int, parts: Mapping[int, int]) -> None:
        """Add readings of a client by cluster."""
        row = self._row.setdefault(client, len(self._row))
        columns = [self._column.setdefault(identity, len(self._column)) for identity in parts]
        self._make_room()
        counts = self._counts[row]
        # Clients claim the readings: what can be encoded is the limit.
        counts[columns] = np.minimum(counts[columns] + list(parts.values()), COUNT_MAX)

    def keep_largest(self, number: int) -> Table:
        """Leave only the so many largest counts, of equal ones the first in the order of client and cluster.

        -> table (n, 3) of client, identity and readings, in the order of these, without counts of 0.
        """
        clients, identities, matrix = self.parts()
        counts = matrix.ravel()
        there = np.flatnonzero(counts)
        if len(there) > number:
            there_counts = counts[there]
            least = np.partition(there_counts, -number)[-number]
            more = there_counts > least
            more[np.flatnonzero(there_counts == least)[: number - np.count_nonzero(more)]] = True
            counts[there[~more]] = 0
            there = there[more]
            self._row = {client: place for place, client in enumerate(clients.tolist())}
            self._column = {identity: place for place, identity in enumerate(identities.tolist())}
            self._counts = matrix
        rows, columns = np.divmod(there, max(1, len(identities)))
        return np.column_stack([clients[rows], identities[columns], counts[there]])

    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """clients (r,) and identities (c,) in their order, and counts (r, c): what a like one is made of."""
        rows, columns = sorted(self._row), sorted(self._column)
        places = np.ix_([self._row[client] for client in rows], [self._column[identity] for identity in columns])
        return np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64), self._counts[places]

    def _make_room(self) -> None:
        """Twice the clients or clusters, where there are more than the matrix has places."""
        shape = self._counts.shape
        needed = len(self._row), len(self._column)
        grown = tuple(max(n, 2 * there) if n > there else there for n, there in zip(needed, shape, strict=True))
        if grown != shape:
            counts = np.zeros(grown, dtype=np.int64)
            counts[: shape[0], : shape[1]] = self._counts
            self._counts = counts


def _no_cells() -> Cells:
    return Cells(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass
class OpenBin:
    """A bin that is being counted."""

    updates: int = 0
    """of the model, as it was last published: those up to this number are in it"""
    clusters: dict[int, int] = field(default_factory=dict)
    clients: dict[int, int] = field(default_factory=dict)
    cells: Cells = field(default_factory=_no_cells)
    changed: bool = False

    @classmethod
    def of(cls, published: HistoryBin) -> Self:
        """Go on with a bin that was published."""
        cells = Cells.of(np.array(triples(published.cells), dtype=np.int64).reshape(-1, 3))
        return cls(published.updates, dict(pairs(published.clusters)), dict(pairs(published.clients)), cells)

    def add(self, client: int, parts: Mapping[int, int], with_cells: bool) -> None:
        """Add the readings of one update by cluster."""
        clusters = self.clusters
        for identity, readings in parts.items():
            clusters[identity] = clusters.get(identity, 0) + readings
        self.clients[client] = self.clients.get(client, 0) + sum(parts.values())
        if with_cells:
            self.cells.add(client, parts)
        self.changed = True

    def take(self, updates: int) -> tuple[bytes, bytes, bytes]:
        """The packed tables of clusters, clients and cells, to publish when the model has absorbed `updates`.

        What a message cannot carry is left out from now on: a bin that is read again goes on alike.
        """
        self.changed, self.updates = False, updates
        self.clusters = without_small(self.clusters, CLUSTERS_PER_BIN_MAX, NO_CLUSTER)
        cells = self.cells.keep_largest(CELLS_MAX)
        return pack_table(_counted(self.clusters)), pack_table(_counted(self.clients)), pack_table(cells)

    def state(self) -> list[Any]:
        """Plain values and arrays for `restored`."""
        return [self.updates, _counted(self.clusters), _counted(self.clients), *self.cells.parts()]

    @classmethod
    def restored(cls, state: list[Any]) -> Self:
        """The saved one, which has changed since it was published. Raises `ValueError` or `TypeError` if damaged."""
        updates, clusters, clients, *parts = state
        return cls(updates, dict(clusters.tolist()), dict(clients.tolist()), Cells(*parts), changed=True)


def _counted(counts: Mapping[int, int]) -> Table:
    """The table (n, 2) of keys and readings, in the order of keys; sums are capped at what can be encoded."""
    rows = [(key, min(COUNT_MAX, readings)) for key, readings in sorted(counts.items())]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)
