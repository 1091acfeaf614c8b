"""The one form of a bin of the history while it is counted: readings by cluster and by client, the
pairs of both, and, where a bin has them, sums of the places of readings.

All of it is immutable. Adding updates gives another bin, so a bin that a checkpoint, a message and
the recorder share can be held by all three. The types are their own saved state
(`shoal.saved_state`). As it travels, packed, a bin is a `HistoryBin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, Self

import numpy as np

from shoal.kernels.arrays import Ints
from shoal.kernels.constants import COUNT_MAX
from shoal.protocol.history import (
    CELLS_MAX,
    CLUSTERS_PER_BIN_MAX,
    EMPTY,
    FINE_S,
    NO_CLUSTER,
    PAIRS_MAX,
    PLACE_UNITS,
    PLACE_UNKNOWN,
    PLACED_MAX,
    WITH_PLACES,
    HistoryBin,
    PackedTable,
    cells_table,
    clusters_placed,
    pack_table,
    readings_table,
)
from shoal.saved_state import IntArray, SavedState, require
from shoal.server_node.history.attribution import SUM_MIN, SUM_UNKNOWN, with_directions

PackedTables = dict[tuple[bytes, bytes], PackedTable]
"""keys and readings of a table -> the table packed: bins of several widths often hold the same"""
NONE: Final[Ints] = np.empty(0, dtype=np.int64)


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
        # Of a single update nothing is sorted or added: for its few numbers those calls would cost
        # more than all else.
        if len(clients) == 1:
            of_clusters = readings[0]
            there = np.flatnonzero(of_clusters)
            positive = of_clusters[there]
            return cls(
                clients, identities[there], positive.sum(keepdims=True), positive, positive[None]
            )
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


@dataclass(frozen=True, eq=False)
class Counts(SavedState):
    """Readings by number, of clusters or of clients."""

    keys: Annotated[Ints, IntArray("n", least=NO_CLUSTER)]
    """(n,) in their order, none twice"""
    readings: Annotated[Ints, IntArray("n")]
    """(n,)"""

    def check(self) -> None:
        require(_ascend(self.keys), "keys of counts do not ascend")

    @classmethod
    def empty(cls) -> Self:
        """No readings."""
        return cls(NONE, NONE)

    @classmethod
    def of(cls, table: Ints) -> Self:
        """Counts of a table (n, 2) of key and readings, in the order of keys."""
        return cls(*np.ascontiguousarray(table.T))

    def plus(self, keys: Ints, readings: Ints) -> Counts:
        """These and readings (n,) by key (n,), in the order of keys, none twice."""
        # Clients claim the readings: what can be encoded is the limit, here and below.
        if not len(self.keys):
            return Counts(keys, np.minimum(readings, COUNT_MAX))
        merged, sums, places = _with_keys(self.keys, self.readings, keys)
        sums[places] = np.minimum(sums[places] + readings, COUNT_MAX)
        return Counts(merged, sums)

    def largest(self, number: int, rest: int) -> Counts:
        """The `number` largest, of equal ones the first; all others under the key `rest`."""
        if len(self.keys) <= number:
            return self
        # The rest last, whatever it has: it takes in the others. Of equal ones the smaller key.
        order = np.lexsort((self.keys, -self.readings, self.keys == rest))
        # Back in the order of keys, by which readings are added.
        kept = np.sort(order[: number - 1])
        is_other = np.ones(len(self.keys), dtype=bool)
        is_other[kept] = False
        # As a float: sums of claims may leave 64 bits.
        others = min(int(self.readings[is_other].sum(dtype=np.float64)), COUNT_MAX)
        largest = Counts(self.keys[kept], self.readings[kept])
        return largest.plus(np.array([rest]), np.array([others]))

    def table(self) -> Ints:
        """table (n, 2) of key and readings, in the order of keys."""
        return np.array([self.keys, self.readings]).T

    def packed(self, known: PackedTables) -> PackedTable:
        """The table, packed; `known` are those that are packed already, and it joins them."""
        key = (self.keys.tobytes(), self.readings.tobytes())
        packed = known.get(key)
        if packed is None:
            packed = pack_table(self.table())
            known[key] = packed
        return packed


@dataclass(frozen=True, eq=False)
class Cells(SavedState):
    """Readings by client and cluster. A matrix, as 60 clusters of 200 clients are 12 000 counts."""

    clients: Annotated[Ints, IntArray("r", least=-1)]
    """(r,) in their order, none twice"""
    identities: Annotated[Ints, IntArray("c", least=NO_CLUSTER)]
    """(c,) the same"""
    counts: Annotated[Ints, IntArray("r", "c")]
    """(r, c)"""

    def check(self) -> None:
        require(_ascend(self.clients), "clients of cells do not ascend")
        require(_ascend(self.identities), "identities of cells do not ascend")

    @classmethod
    def empty(cls) -> Self:
        """No readings."""
        return cls(NONE, NONE, NONE.reshape(0, 0))

    @classmethod
    def of(cls, table: Ints) -> Self:
        """The cells of a table (n, 3) of client, identity and readings."""
        clients, rows = np.unique(table[:, 0], return_inverse=True)
        identities, columns = np.unique(table[:, 1], return_inverse=True)
        counts = np.zeros((len(clients), len(identities)), dtype=np.int64)
        counts[rows, columns] = table[:, 2]
        return cls(clients, identities, counts)

    def plus(self, clients: Ints, identities: Ints, readings: Ints) -> Cells:
        """These and readings (r, c) by client (r,) and identity (c,), both in their order."""
        # Clients claim the readings: what can be encoded is the limit, here and below.
        if not self.counts.size:
            return Cells(clients, identities, np.minimum(readings, COUNT_MAX))
        rows = places_in(self.clients, clients)
        columns = places_in(self.identities, identities)
        if rows is not None and columns is not None:
            grown = Cells(self.clients, self.identities, self.counts.copy())
        else:
            grown = self._grown(clients, identities)
            rows = grown.clients.searchsorted(clients)
            columns = grown.identities.searchsorted(identities)
        here = np.ix_(rows, columns)
        # The copy above may be written to: no reader has it yet.
        grown.counts[here] = np.minimum(grown.counts[here] + readings, COUNT_MAX)
        return grown

    def _grown(self, clients: Ints, identities: Ints) -> Cells:
        """The same counts, with room for these clients and identities."""
        all_clients = np.union1d(self.clients, clients)
        all_identities = np.union1d(self.identities, identities)
        counts = np.zeros((len(all_clients), len(all_identities)), dtype=np.int64)
        rows = all_clients.searchsorted(self.clients)
        columns = all_identities.searchsorted(self.identities)
        counts[np.ix_(rows, columns)] = self.counts
        return Cells(all_clients, all_identities, counts)

    @property
    def number(self) -> int:
        """Number of pairs that have readings."""
        return int(np.count_nonzero(self.counts))

    def largest(self, number: int) -> Cells:
        """The `number` largest counts, of equal ones the first by client and cluster."""
        counts = self.counts.ravel()
        there = np.flatnonzero(counts)
        if len(there) <= number:
            return self
        positive = counts[there]
        # The least count that stays; of those that equal it the first, until there are enough. By
        # `partition`: one number is looked for, and not the order of up to 12 000.
        least = np.partition(positive, -number)[-number]
        stays = positive > least
        missing = number - np.count_nonzero(stays)
        stays[np.flatnonzero(positive == least)[:missing]] = True
        kept = np.zeros(len(counts), dtype=np.int64)
        kept[there[stays]] = positive[stays]
        return Cells(self.clients, self.identities, kept.reshape(self.counts.shape))

    def table(self) -> Ints:
        """table (n, 3) of client, identity and readings, in their order, without counts of 0."""
        rows, columns = np.nonzero(self.counts)
        return np.array(
            [self.clients[rows], self.identities[columns], self.counts[rows, columns]]
        ).T


@dataclass(frozen=True, eq=False)
class Places(SavedState):
    """Sums of the places of readings, by cluster, in units of 1/`PLACE_UNITS` of unit coordinates.

    A circular feature has the sum of cosines of directions in its own column and that of sines
    behind all features, so that readings on both sides of the place where a circle is cut have
    their mean between them.

    Where the place of one reading in a cluster is not known on a feature, neither is their sum
    there: `SUM_UNKNOWN` stands for it.
    """

    identities: Annotated[Ints, IntArray("k")]
    """(k,) in their order, none twice"""
    sums: Annotated[Ints, IntArray("k", "placed", least=SUM_MIN)]
    """(k, 1 + f + c): readings, sums of f features, and those of sines of c circular ones"""
    circular: list[int]
    """positions of the circular features"""

    def check(self) -> None:
        require(_ascend(self.identities), "identities of places do not ascend")
        require(bool((self.sums[:, 0] > 0).all()), "places of no readings")

    @classmethod
    def empty(cls, features: int, circular: Sequence[int] = ()) -> Self:
        """No readings, of this number of features."""
        width = 1 + features + len(circular)
        return cls(NONE, np.empty((0, width), dtype=np.int64), list(circular))

    @classmethod
    def at_means(cls, table: Ints, circular: Sequence[int] = ()) -> Self:
        """Those of a table (k, 2 + f) of identity, means, readings, as if all lay at the means."""
        means = table[:, 1:-1]
        readings = table[:, -1:]
        units = means
        if circular:
            units = with_directions(means, means[:, list(circular)] / PLACE_UNITS, list(circular))
        sums = units * readings
        is_unknown = means == PLACE_UNKNOWN
        sums[np.column_stack([is_unknown, is_unknown[:, list(circular)]])] = SUM_UNKNOWN
        return cls(table[:, 0], np.column_stack([readings, sums]), list(circular))

    @property
    def features(self) -> int:
        """Number of features."""
        return int(self.sums.shape[1]) - 1 - len(self.circular)

    def plus(self, identities: Ints, sums: Ints) -> Places:
        """These and sums (r, 1 + f + c) by identity (r,), which may repeat."""
        if not len(identities):
            return self
        names = identities
        added = sums
        if len(names) > 1 and not _ascend(names):  # of several updates
            names, rows = np.unique(identities, return_inverse=True)
            added = np.zeros((len(names), sums.shape[1]), dtype=np.int64)
            np.add.at(added, rows, sums)
            # A sum with an unknown part is unknown, in whichever order the parts come.
            unknown_rows, columns = np.nonzero(sums == SUM_UNKNOWN)
            added[rows[unknown_rows], columns] = SUM_UNKNOWN
        merged, total, places = _with_keys(self.identities, self.sums, names)
        # Clients claim the readings. Beyond what can be encoded those of an update are left out
        # whole, as a limit on each sum would move the mean.
        room = total[places, 0] + added[:, 0] <= PLACED_MAX
        before = total[places]
        is_unknown = (before == SUM_UNKNOWN) | (added == SUM_UNKNOWN)
        total[places[room]] = np.where(is_unknown, SUM_UNKNOWN, before + added)[room]
        return Places(merged, total, self.circular)

    def largest(self, number: int) -> Places:
        """Those of the `number` clusters with the most readings, of equal ones the older."""
        if len(self.identities) <= number:
            return self
        order = np.lexsort((self.identities, -self.sums[:, 0]))
        # Back in the order of identities, which lookups rely on.
        kept = np.sort(order[:number])
        return Places(self.identities[kept], self.sums[kept], self.circular)

    def table(self) -> Ints:
        """table (k, 2 + f) of identity, mean places in whole units, and readings."""
        features = self.features
        if not len(self.identities):
            return np.empty((0, 2 + features), dtype=np.int64)
        readings = self.sums[:, :1]
        means = np.rint(self.sums[:, 1 : 1 + features] / readings).astype(np.int64)
        for feature, sines in zip(self.circular, self.sums[:, 1 + features :].T, strict=True):
            # By the direction of the sum: the mean of 359 and 1 degrees is 0, not 180.
            turns = np.arctan2(sines, self.sums[:, 1 + feature]) / (2.0 * np.pi)
            means[:, feature] = np.rint(turns * PLACE_UNITS).astype(np.int64) % PLACE_UNITS
        means[self.sums[:, 1 : 1 + features] == SUM_UNKNOWN] = PLACE_UNKNOWN
        return np.column_stack([self.identities, means, readings])


@dataclass(frozen=True, eq=False)
class Bin(SavedState):
    """A span of time: how many readings fell to each cluster and came from each client."""

    clusters: Counts
    clients: Counts
    cells: Cells | None
    """None where pairs of client and cluster are not kept, or were too many"""
    places: Places | None
    """None in widths that have none"""
    updates: int = 0
    """updates of the model up to which readings are in it, as it was last published"""
    placed_updates: int = 0
    """the same for places, which are published once the bin is over; 0 before"""

    @classmethod
    def empty(cls, width_s: int, features: int, circular: Sequence[int] = ()) -> Self:
        """A bin without readings."""
        if width_s not in WITH_PLACES:
            return cls(Counts.empty(), Counts.empty(), None, None)
        places = Places.empty(features, circular)
        return cls(Counts.empty(), Counts.empty(), Cells.empty(), places)

    @classmethod
    def of(cls, published: HistoryBin, features: int, circular: Sequence[int] = ()) -> Self:
        """Go on with a bin that was published."""
        width_s = published.width_s
        empty = cls.empty(width_s, features, circular)
        clusters = Counts.of(readings_table(published.clusters))
        cells = empty.cells
        # A bin with readings and no pair was published without its pairs: it must not go on with
        # the pairs that come now, which would be taken for all.
        too_many = width_s != FINE_S and len(clusters.keys) and published.cells == EMPTY[3]
        if cells is not None:
            cells = None if too_many else Cells.of(cells_table(published.cells))
        places = empty.places
        placed_updates = 0
        if places is not None and published.places is not None:
            places = Places.at_means(published.place_table(), circular)
            placed_updates = published.updates
        clients = Counts.of(readings_table(published.clients))
        return cls(clusters, clients, cells, places, published.updates, placed_updates)

    def plus(self, summed: Summed) -> Bin:
        """This bin and the readings of updates."""
        cells = self.cells
        if cells is not None:
            cells = cells.plus(summed.clients, summed.identities, summed.cells)
        return Bin(
            self.clusters.plus(summed.identities, summed.of_clusters),
            self.clients.plus(summed.clients, summed.of_clients),
            cells,
            self.places,
            self.updates,
            self.placed_updates,
        )

    def plus_places(self, identities: Ints, sums: Ints) -> Bin:
        """This bin and sums (r, 1 + f + c) of `Places` by identity (r,), which may repeat."""
        assert self.places is not None
        places = self.places.plus(identities, sums)
        return Bin(
            self.clusters,
            self.clients,
            self.cells,
            places,
            self.updates,
            self.placed_updates,
        )

    def carried(self, width_s: int, updates: int, over: bool) -> Bin:
        """What of it a message carries when the model has absorbed `updates`.

        Counting goes on from that, so that a bin which is read again goes on alike: what is left
        out stays out, and places are at the means that were published.
        """
        cells = self.cells
        if cells is not None and width_s == FINE_S:
            cells = cells.largest(CELLS_MAX)
        # For six hours all or none: some of the pairs would be taken for all of them.
        elif cells is not None and cells.number > PAIRS_MAX:
            cells = None
        places = self.places
        placed_updates = self.placed_updates
        # A bin that is not over has published no places, so a rebuild has to count all of them
        # again.
        if places is not None and over:
            placed_updates = updates
        if places is not None and over and len(places.identities):
            table = places.largest(clusters_placed(places.features)).table()
            places = Places.at_means(table, places.circular)
        clusters = self.clusters.largest(CLUSTERS_PER_BIN_MAX, NO_CLUSTER)
        return Bin(clusters, self.clients, cells, places, updates, placed_updates)

    def message(
        self,
        origin: tuple[str, str, str],
        width_s: int,
        start: int,
        over: bool,
        known: PackedTables,
    ) -> HistoryBin:
        """The message of what `carried` has left, of this origin: federation, contract and model.

        Places are in it once the bin is `over`: spans of time are compared by them, for which the
        newest bin is not needed, and their tables are the largest.
        """
        cells: bytes = EMPTY[3] if self.cells is None else pack_table(self.cells.table())
        counts = (self.clusters.packed(known), self.clients.packed(known), cells)
        if self.places is None or not over:
            return HistoryBin(*origin, width_s, start, self.updates, *counts)
        places = pack_table(self.places.table())
        features = self.places.features
        return HistoryBin(*origin, width_s, start, self.updates, *counts, places, features)


def places_in(keys: Ints, searched: Ints) -> Ints | None:
    """keys (n,) in their order, none twice, searched (m,) -> (m,) where these are; None unless all
    are there."""
    if len(searched) > len(keys):
        return None
    places = keys.searchsorted(searched)
    # `searchsorted` gives the place at which a key would be, which may be one behind the last:
    # `clip` makes that a wrong key, and no error.
    if np.array_equal(keys.take(places, mode="clip"), searched):
        return places
    return None


def _with_keys(keys: Ints, sums: Ints, added: Ints) -> tuple[Ints, Ints, Ints]:
    """A copy of sums (n, ...) by key (n,) that has a row for each key in `added` (m,), too, with 0
    in those that are new. Both keys in their order, none twice.

    -> the keys (k,), the sums (k, ...), and where those of `added` are (m,).
    """
    places = places_in(keys, added)
    # Most updates bring no new key: then nothing is merged and sorted.
    if places is not None:
        return keys, sums.copy(), places
    merged = np.union1d(keys, added)
    total = np.zeros((len(merged), *sums.shape[1:]), dtype=np.int64)
    total[merged.searchsorted(keys)] = sums
    return merged, total, merged.searchsorted(added)


def _ascend(keys: Ints) -> bool:
    return bool((keys[1:] > keys[:-1]).all())
