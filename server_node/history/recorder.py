"""Counts the readings of one model into bins of time, by cluster and client; gives out the bins
that have changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np

from shoal.config.contract import Contract
from shoal.errors import InvalidState
from shoal.kernels.arrays import Ints
from shoal.protocol.checks import COUNT_MAX
from shoal.protocol.history import (
    BINS_KEPT,
    CELLS_MAX,
    CLIENTS_MAX,
    CLUSTERS_MAX,
    CLUSTERS_PER_BIN_MAX,
    FINE_S,
    NO_CLUSTER,
    OTHER_CLIENTS,
    BinKey,
    HistoryBin,
    HistoryMessage,
    HistoryNames,
    HistoryPlaces,
    Holds,
    PackedTable,
    cells_table,
    pack_table,
    readings_table,
)
from shoal.server_node.history.attribution import Attribution


class Counts:
    """Readings by number, of clusters or of clients."""

    def __init__(self, keys: Ints | None = None, readings: Ints | None = None) -> None:
        """keys (n,) in their order, none twice, and readings (n,)."""
        self._keys = np.empty(0, dtype=np.int64) if keys is None else keys
        self._readings = np.empty(0, dtype=np.int64) if readings is None else readings

    @classmethod
    def of(cls, table: Ints) -> Self:
        """Counts of a table (n, 2) of key and readings, in the order of keys."""
        return cls(*np.ascontiguousarray(table.T))

    def add(self, keys: Ints, readings: Ints) -> None:
        """Add readings (n,) by key (n,), in the order of keys, none twice."""
        if not len(self._keys):
            self._keys = keys
            self._readings = np.minimum(readings, COUNT_MAX)
            return
        places = places_in(self._keys, keys)
        if places is None:
            before = self._keys
            sums = self._readings
            self._keys = np.union1d(before, keys)
            self._readings = np.zeros(len(self._keys), dtype=np.int64)
            self._readings[self._keys.searchsorted(before)] = sums
            places = self._keys.searchsorted(keys)
        # Clients claim the readings: what can be encoded is the limit.
        self._readings[places] = np.minimum(self._readings[places] + readings, COUNT_MAX)

    def keep_largest(self, number: int, rest: int) -> None:
        """Leave only the `number` largest, the first of equal ones; the others are added up under
        the key `rest`."""
        if len(self._keys) <= number:
            return
        # The rest last, whatever it has: it takes in the others. Of equal ones the smaller key.
        largest = np.lexsort((self._keys, -self._readings, self._keys == rest))[: number - 1]
        # Back in the order of keys, by which readings are added.
        kept = np.sort(largest)
        left = np.ones(len(self._keys), dtype=bool)
        left[kept] = False
        # As a float: sums of claims may leave 64 bits.
        others = min(int(self._readings[left].sum(dtype=np.float64)), COUNT_MAX)
        self._keys = self._keys[kept]
        self._readings = self._readings[kept]
        self.add(np.array([rest]), np.array([others]))

    def table(self) -> Ints:
        """table (n, 2) of key and readings, in the order of keys."""
        return np.array([self._keys, self._readings]).T

    def packed(self, known: dict[tuple[bytes, bytes], PackedTable]) -> PackedTable:
        """The table, packed; `known`: those that are packed already, as bins of either width often
        hold the same."""
        key = self._keys.tobytes(), self._readings.tobytes()
        if (packed := known.get(key)) is None:
            packed = known[key] = pack_table(self.table())
        return packed


class Cells:
    """Readings by client and cluster. A matrix, as 60 clusters of 200 clients are 12 000 counts."""

    def __init__(
        self,
        clients: Ints | None = None,
        identities: Ints | None = None,
        counts: Ints | None = None,
    ) -> None:
        """clients (r,) and identities (c,) in their order, none twice, and counts (r, c), by
        default 0."""
        self._clients = np.empty(0, dtype=np.int64) if clients is None else clients
        self._identities = np.empty(0, dtype=np.int64) if identities is None else identities
        shape = len(self._clients), len(self._identities)
        self._counts = np.zeros(shape, dtype=np.int64) if counts is None else counts

    @classmethod
    def of(cls, table: Ints) -> Self:
        """The cells of a table (n, 3) of client, identity and readings."""
        clients, rows = np.unique(table[:, 0], return_inverse=True)
        identities, columns = np.unique(table[:, 1], return_inverse=True)
        cells = cls(clients, identities)
        cells._counts[rows, columns] = table[:, 2]
        return cells

    def add(self, clients: Ints, identities: Ints, readings: Ints) -> None:
        """Add readings (r, c) by client (r,) and identity (c,), both in their order, none twice."""
        if not self._counts.size:
            self._clients = clients
            self._identities = identities
            self._counts = np.minimum(readings, COUNT_MAX)
            return
        rows = places_in(self._clients, clients)
        columns = places_in(self._identities, identities)
        if rows is None or columns is None:
            before = self._clients, self._identities, self._counts
            self._clients = np.union1d(self._clients, clients)
            self._identities = np.union1d(self._identities, identities)
            self._counts = np.zeros((len(self._clients), len(self._identities)), dtype=np.int64)
            self.add(*before)
            rows = self._clients.searchsorted(clients)
            columns = self._identities.searchsorted(identities)
        here = np.ix_(rows, columns)
        # Clients claim the readings: what can be encoded is the limit.
        self._counts[here] = np.minimum(self._counts[here] + readings, COUNT_MAX)

    def keep_largest(self, number: int) -> Ints:
        """Leave only the `number` largest counts, the first of equal ones in the order of client
        and cluster.

        -> table (n, 3) of client, identity and readings, in the order of these, without counts of
        0.
        """
        if not self._counts.size:
            return np.empty((0, 3), dtype=np.int64)
        if len(self._clients) == 1 and len(self._identities) <= number and self._counts.all():
            return np.array(
                [np.repeat(self._clients, len(self._identities)), self._identities, self._counts[0]]
            ).T
        counts = self._counts.ravel()
        there = np.flatnonzero(counts)
        there_counts = counts[there]
        if len(there) > number:
            # The least count that stays; of those that equal it the first, until there are enough.
            least = np.partition(there_counts, -number)[-number]
            more = there_counts > least
            more[np.flatnonzero(there_counts == least)[: number - np.count_nonzero(more)]] = True
            counts[there[~more]] = 0
            there = there[more]
            there_counts = there_counts[more]
        rows, columns = np.divmod(there, max(1, len(self._identities)))
        return np.array([self._clients[rows], self._identities[columns], there_counts]).T

    def parts(self) -> tuple[Ints, Ints, Ints]:
        """clients (r,), identities (c,) and counts (r, c): what a like one is made of."""
        return self._clients, self._identities, self._counts.copy()


def places_in(keys: Ints, some: Ints) -> Ints | None:
    """keys (n,) in their order, none twice, some (m,) -> (m,) where these are; None unless all are
    there."""
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
        if len(clients) == 1:
            of_clusters = readings[0]
            there = np.flatnonzero(of_clusters)
            some = of_clusters[there]
            return cls(clients, identities[there], some.sum(keepdims=True), some, some[None])
        order = np.argsort(clients, kind="stable")
        clients = clients[order]
        starts = np.flatnonzero(np.append(True, clients[1:] != clients[:-1]))
        cells = np.add.reduceat(readings[order], starts, axis=0)
        of_clusters = cells.sum(axis=0)
        there = np.flatnonzero(of_clusters)
        return cls(
            clients[starts],
            identities[there],
            cells.sum(axis=1),
            of_clusters[there],
            cells[:, there],
        )


@dataclass
class OpenBin:
    """A bin that is being counted."""

    updates: int = 0
    """updates of the model up to which readings are in the bin, as it was last published"""
    clusters: Counts = field(default_factory=Counts)
    clients: Counts = field(default_factory=Counts)
    cells: Cells = field(default_factory=Cells)
    changed: bool = False

    @classmethod
    def of(cls, published: HistoryBin) -> Self:
        """Go on with a bin that was published."""
        clusters, clients = (
            Counts.of(readings_table(packed)) for packed in (published.clusters, published.clients)
        )
        return cls(published.updates, clusters, clients, Cells.of(cells_table(published.cells)))

    def add(self, summed: Summed, with_cells: bool) -> None:
        """Add the readings of updates."""
        self.clusters.add(summed.identities, summed.of_clusters)
        self.clients.add(summed.clients, summed.of_clients)
        if with_cells:
            self.cells.add(summed.clients, summed.identities, summed.cells)
        self.changed = True

    def take(
        self, updates: int, known: dict[tuple[bytes, bytes], PackedTable]
    ) -> tuple[bytes, bytes, bytes]:
        """The packed tables of clusters, clients and cells, to publish when the model has absorbed
        `updates`.

        `known`: see `Counts.packed`.

        What a message cannot carry is left out from now on: a bin that is read again goes on alike.
        """
        self.changed = False
        self.updates = updates
        self.clusters.keep_largest(CLUSTERS_PER_BIN_MAX, NO_CLUSTER)
        cells = self.cells.keep_largest(CELLS_MAX)
        return self.clusters.packed(known), self.clients.packed(known), pack_table(cells)

    def state(self) -> list[Any]:
        """Plain values and arrays for `restored`."""
        return [self.updates, self.clusters.table(), self.clients.table(), *self.cells.parts()]

    @classmethod
    def restored(cls, state: list[Any]) -> Self:
        """The saved one, which has changed since it was published. Raises `ValueError` or
        `TypeError` if damaged."""
        updates, clusters, clients, *parts = state
        return cls(updates, Counts.of(clusters), Counts.of(clients), Cells(*parts), changed=True)


OPEN_MAX = 16
"""bins of a model that stay in memory after they were published, those that updates fell into last
"""


class PublishedHistory(Protocol):
    """The history published so far, from which a recorder goes on."""

    def bin(self, key: BinKey) -> HistoryBin | None:
        """The newest version of a bin; None if there is none."""
        ...

    def names(self, model: str) -> HistoryNames | None:
        """The newest names of a model; None if there are none."""
        ...

    def places(self, key: BinKey) -> HistoryPlaces | None:
        """The newest version of a bin that holds places; None if there is none."""
        ...

    def bins_at(self, model: str, width_s: int, starts: Sequence[int]) -> Sequence[HistoryBin]:
        """The bins of this width that start at these times, as many as there are."""
        ...

    def newest(self, model: str, width_s: int, holds: Holds = "bins") -> int | None:
        """The start of its newest bin of this width; None if there is none."""
        ...


class _NothingPublished:
    """See `PublishedHistory`."""

    def bin(self, key: BinKey) -> None:
        return None

    def names(self, model: str) -> None:
        return None

    def places(self, key: BinKey) -> None:
        return None

    def bins_at(self, model: str, width_s: int, starts: Sequence[int]) -> Sequence[HistoryBin]:
        return ()

    def newest(self, model: str, width_s: int, holds: Holds = "bins") -> None:
        return None


NOTHING_PUBLISHED: Final[PublishedHistory] = _NothingPublished()


class Recorder:
    """The history of one model since its newest snapshot, and the bins that updates may still fall
    into."""

    def __init__(self, contract: Contract, model: str, published: PublishedHistory) -> None:
        self._origin = (contract.federation, contract.digest, model)
        self._model = model
        self._published = published
        self._bins: OrderedDict[tuple[int, int], OpenBin] = OrderedDict()
        """(width, start) -> bin, the one counted into last at the end"""
        self._newest: dict[int, int] = {}
        """width -> start of the newest bin"""
        self._clients: dict[str, int] = {}
        """name -> number; they count from 0, in the order of the mapping"""
        self._clusters: dict[int, tuple[str, str]] = {}
        """identity -> name and label"""
        self._names_changed = False
        self._begun = False
        """whether what had been published before has been looked at"""
        self.begins_again = False
        """whether nothing that was published before belongs to it any more"""

    def count(self, found: Attribution) -> None:
        """Count the readings of updates.

        An update that a published bin holds already is not counted again: so a model that is
        rebuilt from the log gets the bins that were published. One that is older than all bins kept
        is not counted at all.
        """
        self._begin()
        clients = self.client_numbers(found.clients)
        summed: dict[bytes, Summed] = {}
        for width, number in BINS_KEPT.items():
            starts = (found.at // width).astype(np.int64) * width
            newest = np.maximum.accumulate(np.maximum(starts, self._newest.get(width, starts[0])))
            self._newest[width] = int(newest[-1])
            kept = np.flatnonzero(starts > newest - number * width)
            # The parts of a bin one after the other, in the order in which they came.
            kept = kept[np.argsort(starts[kept], kind="stable")]
            ordered = starts[kept]
            begins = [0, *((ordered[1:] != ordered[:-1]).nonzero()[0] + 1).tolist(), len(kept)]
            for first, end in pairwise(begins) if len(kept) else ():
                parts = kept[first:end]
                one = self._open(width, int(ordered[first]))
                here = parts[found.numbers[parts] > one.updates]
                if not len(here):
                    continue
                # Mostly the same ones fall into a bin of either width.
                if (key := here.tobytes()) not in summed:
                    summed[key] = Summed.of(clients[here], found.identities, found.readings[here])
                one.add(summed[key], with_cells=width == FINE_S)

    def client_numbers(self, clients: Iterable[str]) -> Ints:
        """The numbers of clients, which those that have none get."""
        return np.array([self._number_of(client) for client in clients], dtype=np.int64)

    @property
    def open_bins(self) -> int:
        """Bins in memory."""
        return len(self._bins)

    def newest(self, width_s: int) -> int | None:
        """The start of the newest bin of this width; None if there is none."""
        return self._newest.get(width_s)

    def begin_again(self) -> None:
        """Forget everything: a client is unlearned, and bins do not show which of their readings
        were its own."""
        self._bins.clear()
        self._newest.clear()
        self._clients.clear()
        self.begins_again = self._names_changed = True

    def name(self, identity: int, name: str, label: str) -> None:
        """Keep the name of a cluster and what sets it apart. An empty label leaves the one before."""
        self._begin()
        former = self._clusters.pop(identity, ("", ""))
        self._clusters[identity] = (name, label or former[1])
        self._names_changed |= self._clusters[identity] != former
        while len(self._clusters) > CLUSTERS_MAX:
            # Identities ascend, so the smallest is the oldest.
            self._clusters.pop(min(self._clusters))

    def take_changed(self, updates: int) -> list[HistoryMessage]:
        """The bins and names that have changed since the last call; the model has absorbed
        `updates`."""
        changed: list[HistoryMessage] = []
        known: dict[tuple[bytes, bytes], PackedTable] = {}
        for width, start in [key for key in self._bins if self._is_too_old(*key)]:
            del self._bins[width, start]
        for (width, start), one in sorted(self._bins.items()):
            if one.changed:
                changed.append(
                    HistoryBin(*self._origin, width, start, updates, *one.take(updates, known))
                )
        self.begins_again = False
        while len(self._bins) > OPEN_MAX:
            self._bins.popitem(last=False)
        if self._names_changed:
            self._names_changed = False
            clusters: list[list[int | str]] = [
                [identity, *texts] for identity, texts in sorted(self._clusters.items())
            ]
            changed.append(HistoryNames(*self._origin, list(self._clients), clusters))
        return changed

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`. Bins as they were published are read again where
        they were."""
        return {
            "bins": [[*key, *one.state()] for key, one in self._bins.items() if one.changed],
            "newest": [list(pair) for pair in self._newest.items()],
            "clients": list(self._clients),
            "clusters": [[identity, *texts] for identity, texts in self._clusters.items()],
            "names_changed": self._names_changed,
            "begins_again": self.begins_again,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        try:
            self._bins = OrderedDict(
                ((width, start), OpenBin.restored(saved)) for width, start, *saved in state["bins"]
            )
            self._newest = dict(state["newest"])
            self._clients = _numbered(state["clients"])
            self._clusters = {
                identity: (name, label) for identity, name, label in state["clusters"]
            }
            self._names_changed = bool(state["names_changed"])
            self.begins_again = bool(state["begins_again"])
        except (AttributeError, KeyError, TypeError, ValueError) as broken:
            raise InvalidState(f"the history of {self._model} is damaged: {broken}") from None
        self._begun = False

    def _begin(self) -> None:
        """Go on from what was published, should it be ahead: the checkpoint may be lost, or an
        older one restored."""
        if self._begun or self.begins_again:
            return
        self._begun = True
        names = self._published.names(self._model)
        if names is not None:
            if len(names.clients) > len(self._clients):
                self._clients = _numbered(names.clients)
            known = {
                int(identity): (str(name), str(label)) for identity, name, label in names.clusters
            }
            self._clusters = {**known, **self._clusters}
        for width in BINS_KEPT:
            newest = self._published.newest(self._model, width)
            if newest is not None:
                self._newest[width] = max(self._newest.get(width, newest), newest)

    def _number_of(self, client: str) -> int:
        if (number := self._clients.get(client)) is not None:
            return number
        if len(self._clients) >= CLIENTS_MAX:
            return OTHER_CLIENTS
        self._clients[client] = len(self._clients)
        self._names_changed = True
        return self._clients[client]

    def _is_too_old(self, width: int, start: int) -> bool:
        return start <= self._newest[width] - BINS_KEPT[width] * width

    def _open(self, width: int, start: int) -> OpenBin:
        one = self._bins.get((width, start))
        if one is None:
            key = BinKey(self._model, width, start)
            published = None if self.begins_again else self._published.bin(key)
            one = OpenBin() if published is None else OpenBin.of(published)
            self._bins[width, start] = one
        self._bins.move_to_end((width, start))
        return one


def _numbered(clients: Iterable[str]) -> dict[str, int]:
    return {client: number for number, client in enumerate(clients)}
