"""A bin that is being counted: readings by cluster, by client, and by client and cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shoal.protocol.checks import COUNT_MAX
from shoal.protocol.history import (
    CELLS_MAX,
    CLUSTERS_PER_BIN_MAX,
    NO_CLUSTER,
    HistoryBin,
    Table,
    cells_table,
    pack_table,
    readings_table,
)

Ints = NDArray[np.int64]


class Counts:
    """Readings by number, of clusters or of clients."""

    def __init__(self, keys: Ints | None = None, readings: Ints | None = None) -> None:
        """keys (n,) in their order, none twice, and readings (n,)."""
        self._keys = np.empty(0, dtype=np.int64) if keys is None else keys
        self._readings = np.empty(0, dtype=np.int64) if readings is None else readings

    @classmethod
    def of(cls, table: Table) -> Self:
        """Those of a table (n, 2) of key and readings, in the order of keys."""
        return cls(*np.ascontiguousarray(table.T))

    def add(self, keys: Ints, readings: Ints) -> None:
        """Add readings (n,) by key (n,), in the order of keys, none twice."""
        places = places_in(self._keys, keys)
        if places is None:
            before, sums = self._keys, self._readings
            self._keys = np.union1d(before, keys)
            self._readings = np.zeros(len(self._keys), dtype=np.int64)
            self._readings[self._keys.searchsorted(before)] = sums
            places = self._keys.searchsorted(keys)
        # Clients claim the readings: what can be encoded is the limit.
        self._readings[places] = np.minimum(self._readings[places] + readings, COUNT_MAX)

    def keep_largest(self, number: int, rest: int) -> None:
        """Leave only the so many largest, of equal ones the first; the others are added up under the key `rest`."""
        if len(self._keys) <= number:
            return
        largest = np.lexsort((self._keys, -self._readings, self._keys == rest))[: number - 1]
        kept, left = np.sort(largest), np.ones(len(self._keys), dtype=bool)
        left[kept] = False
        others = min(int(self._readings[left].sum(dtype=np.float64)), COUNT_MAX)
        self._keys, self._readings = self._keys[kept], self._readings[kept]
        self.add(np.array([rest]), np.array([others]))

    def table(self) -> Table:
        """table (n, 2) of key and readings, in the order of keys."""
        return np.array([self._keys, self._readings]).T


class Cells:
    """Readings by client and cluster. A matrix, as 60 clusters of 200 clients are 12 000 counts."""

    def __init__(self, clients: Ints | None = None, identities: Ints | None = None, counts: Ints | None = None) -> None:
        """clients (r,) and identities (c,) in their order, none twice, and counts (r, c), by default 0."""
        self._clients = np.empty(0, dtype=np.int64) if clients is None else clients
        self._identities = np.empty(0, dtype=np.int64) if identities is None else identities
        shape = len(self._clients), len(self._identities)
        self._counts = np.zeros(shape, dtype=np.int64) if counts is None else counts

    @classmethod
    def of(cls, table: Table) -> Self:
        """The cells of a table (n, 3) of client, identity and readings."""
        clients, rows = np.unique(table[:, 0], return_inverse=True)
        identities, columns = np.unique(table[:, 1], return_inverse=True)
        cells = cls(clients, identities)
        cells._counts[rows, columns] = table[:, 2]
        return cells

    def add(self, clients: Ints, identities: Ints, readings: Ints) -> None:
        """Add readings (r, c) by client (r,) and identity (c,), both in their order, none twice."""
        rows, columns = places_in(self._clients, clients), places_in(self._identities, identities)
        if rows is None or columns is None:
            before = self._clients, self._identities, self._counts
            self._clients = np.union1d(self._clients, clients)
            self._identities = np.union1d(self._identities, identities)
            self._counts = np.zeros((len(self._clients), len(self._identities)), dtype=np.int64)
            self.add(*before)
            rows, columns = self._clients.searchsorted(clients), self._identities.searchsorted(identities)
        here = np.ix_(rows, columns)
        # Clients claim the readings: what can be encoded is the limit.
        self._counts[here] = np.minimum(self._counts[here] + readings, COUNT_MAX)

    def keep_largest(self, number: int) -> Table:
        """Leave only the so many largest counts, of equal ones the first in the order of client and cluster.

        -> table (n, 3) of client, identity and readings, in the order of these, without counts of 0.
        """
        counts = self._counts.ravel()
        there = np.flatnonzero(counts)
        there_counts = counts[there]
        if len(there) > number:
            least = np.partition(there_counts, -number)[-number]
            more = there_counts > least
            more[np.flatnonzero(there_counts == least)[: number - np.count_nonzero(more)]] = True
            counts[there[~more]] = 0
            there, there_counts = there[more], there_counts[more]
        rows, columns = np.divmod(there, max(1, len(self._identities)))
        return np.array([self._clients[rows], self._identities[columns], there_counts]).T

    def parts(self) -> tuple[Ints, Ints, Ints]:
        """clients (r,), identities (c,) and counts (r, c): what a like one is made of."""
        return self._clients, self._identities, self._counts.copy()


def places_in(keys: Ints, some: Ints) -> Ints | None:
    """keys (n,) in their order, none twice, some (m,) -> (m,) where these are; None unless all are there."""
    if len(some) > len(keys):
        return None
    places = keys.searchsorted(some)
    return places if np.array_equal(keys.take(places, mode="clip"), some) else None


class Summed(NamedTuple):
    """The readings of updates that fall into the same bin."""

    clients: Ints
    """(r,) in their order, none twice"""
    identities: Ints
    """(c,) the same"""
    of_clients: Ints
    """(r,)"""
    of_clusters: Ints
    """(c,), all above 0"""
    cells: Ints
    """(r, c)"""

    @classmethod
    def of(cls, clients: Ints, identities: Ints, readings: Ints) -> Self:
        """Clients (u,) of updates, identities (k,) in their order, and readings (u, k).

        So few updates wait together that 64 bits hold their sums, whatever clients claim.
        """
        order = np.argsort(clients, kind="stable")
        clients = clients[order]
        starts = np.flatnonzero(np.append(True, clients[1:] != clients[:-1]))
        cells = np.add.reduceat(readings[order], starts, axis=0)
        of_clusters = cells.sum(axis=0)
        there = np.flatnonzero(of_clusters)
        return cls(clients[starts], identities[there], cells.sum(axis=1), of_clusters[there], cells[:, there])


@dataclass
class OpenBin:
    """A bin that is being counted."""

    updates: int = 0
    """of the model, as it was last published: those up to this number are in it"""
    clusters: Counts = field(default_factory=Counts)
    clients: Counts = field(default_factory=Counts)
    cells: Cells = field(default_factory=Cells)
    changed: bool = False

    @classmethod
    def of(cls, published: HistoryBin) -> Self:
        """Go on with a bin that was published."""
        clusters, clients = (Counts.of(readings_table(packed)) for packed in (published.clusters, published.clients))
        return cls(published.updates, clusters, clients, Cells.of(cells_table(published.cells)))

    def add(self, summed: Summed, with_cells: bool) -> None:
        """Add the readings of updates."""
        self.clusters.add(summed.identities, summed.of_clusters)
        self.clients.add(summed.clients, summed.of_clients)
        if with_cells:
            self.cells.add(summed.clients, summed.identities, summed.cells)
        self.changed = True

    def take(self, updates: int) -> tuple[bytes, bytes, bytes]:
        """The packed tables of clusters, clients and cells, to publish when the model has absorbed `updates`.

        What a message cannot carry is left out from now on: a bin that is read again goes on alike.
        """
        self.changed, self.updates = False, updates
        self.clusters.keep_largest(CLUSTERS_PER_BIN_MAX, NO_CLUSTER)
        cells = self.cells.keep_largest(CELLS_MAX)
        return pack_table(self.clusters.table()), pack_table(self.clients.table()), pack_table(cells)

    def state(self) -> list[Any]:
        """Plain values and arrays for `restored`."""
        return [self.updates, self.clusters.table(), self.clients.table(), *self.cells.parts()]

    @classmethod
    def restored(cls, state: list[Any]) -> Self:
        """The saved one, which has changed since it was published. Raises `ValueError` or `TypeError` if damaged."""
        updates, clusters, clients, *parts = state
        return cls(updates, Counts.of(clusters), Counts.of(clients), Cells(*parts), changed=True)
