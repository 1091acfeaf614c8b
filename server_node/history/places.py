"""Counts where the readings of each known cluster of a model lay, in bins of time; gives out those
that are over.

Beside them, the readings of each client in each cluster, while these are few enough to be kept for
a year.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal.config.contract import Contract
from shoal.errors import InvalidState
from shoal.kernels.arrays import Ints
from shoal.protocol.history import (
    EMPTY,
    PAIRS_MAX,
    PLACE_UNITS,
    PLACED_MAX,
    PLACES_FEATURES_MAX,
    PLACES_KEPT,
    BinKey,
    HistoryPlaces,
    cells_table,
    clusters_placed,
    pack_table,
)
from shoal.server_node.history.attribution import Placed, with_directions
from shoal.server_node.history.recorder import Cells, PublishedHistory, Summed, places_in

OPEN_MAX: Final = 8
"""bins of a model that stay in memory after they were published, those that updates fell into last
"""


class OpenPlaces:
    """A bin that is being counted."""

    def __init__(
        self,
        updates: int,
        identities: Ints,
        sums: Ints,
        cells: Cells | None,
        circular: Sequence[int] = (),
        changed: bool = False,
    ) -> None:
        """identities (k,) in their order, each once, and sums (k, 1 + f + c) as in `Placed`, of c
        `circular` features.

        `updates` of the model are in it, as it was last published. `cells` None: there are too many
        to be kept.
        """
        self.updates = updates
        self.changed = changed
        self._circular = list(circular)
        self._identities = identities
        self._sums = sums
        self._cells = cells

    @classmethod
    def empty(cls, features: int, circular: Sequence[int] = ()) -> OpenPlaces:
        """A bin without readings."""
        none = np.empty((0, 1 + features + len(circular)), dtype=np.int64)
        return cls(0, np.empty(0, dtype=np.int64), none, Cells(), circular)

    @classmethod
    def of(cls, published: HistoryPlaces, circular: Sequence[int] = ()) -> OpenPlaces:
        """Go on with a bin that was published."""
        table = published.table()
        few = published.cells != EMPTY[3] or not len(table)
        cells = Cells.of(cells_table(published.cells)) if few else None
        sums = sums_at(table[:, 1:-1], table[:, -1:], list(circular))
        return cls(published.updates, table[:, 0], sums, cells, circular)

    @property
    def features(self) -> int:
        """Number of features."""
        return int(self._sums.shape[1]) - 1 - len(self._circular)

    def add(self, identities: Ints, sums: Ints, summed: Summed) -> None:
        """Add sums (r, 1 + f) by identity (r,), which may repeat, and the readings by client and
        cluster."""
        self.changed = True
        if self._cells is not None:
            self._cells.add(summed.clients, summed.identities, summed.cells)
        if not len(identities):
            return
        names = identities
        added = sums
        if len(names) > 1 and (names[1:] <= names[:-1]).any():  # of several updates
            names, rows = np.unique(identities, return_inverse=True)
            added = np.zeros((len(names), sums.shape[1]), dtype=np.int64)
            np.add.at(added, rows, sums)
        if not len(self._identities):
            self._identities = names
            self._sums = np.zeros_like(added)
        places = places_in(self._identities, names)
        if places is None:
            merged = np.union1d(self._identities, names)
            grown = np.zeros((len(merged), self._sums.shape[1]), dtype=np.int64)
            grown[merged.searchsorted(self._identities)] = self._sums
            self._identities = merged
            self._sums = grown
            places = merged.searchsorted(names)
        # Clients claim the readings: what can be encoded is the limit.
        room = self._sums[places, 0] + added[:, 0] <= PLACED_MAX
        self._sums[places[room]] += added[room]

    def take(self, updates: int) -> tuple[int, bytes, bytes]:
        """Number of features, and the packed tables of places and cells, to publish when the model
        has absorbed `updates`. What a message cannot carry is left out from now on, and means are
        as they are published."""
        self.changed = False
        self.updates = updates
        if len(self._identities) > (most := clusters_placed(self.features)):
            # The heaviest, of equal ones the older; then again in the order of identities, which
            # lookups rely on.
            kept = np.sort(np.lexsort((self._identities, -self._sums[:, 0]))[:most])
            self._identities = self._identities[kept]
            self._sums = self._sums[kept]
        pairs = None if self._cells is None else self._cells.keep_largest(PAIRS_MAX + 1)
        if pairs is None or len(pairs) > PAIRS_MAX:
            self._cells = None
            pairs = np.empty((0, 3), dtype=np.int64)
        readings = self._sums[:, :1]
        features = self.features
        means = np.rint(self._sums[:, 1 : 1 + features] / readings).astype(np.int64)
        for feature, sines in zip(self._circular, self._sums[:, 1 + features :].T, strict=True):
            turns = np.arctan2(sines, self._sums[:, 1 + feature]) / (2.0 * np.pi)
            means[:, feature] = np.rint(turns * PLACE_UNITS).astype(np.int64) % PLACE_UNITS
        self._sums = sums_at(means, readings, self._circular)
        table = np.column_stack([self._identities, means, readings])
        return features, pack_table(table), pack_table(pairs)

    def state(self) -> list[Any]:
        """Plain values and arrays for `restored`."""
        cells = None if self._cells is None else list(self._cells.parts())
        return [self.updates, self._identities, self._sums, cells]

    @classmethod
    def restored(cls, state: list[Any], circular: Sequence[int] = ()) -> OpenPlaces:
        """The saved one, which has changed since it was published. Raises `ValueError` or
        `TypeError` if damaged."""
        updates, identities, sums, cells = state
        return cls(
            updates,
            identities,
            sums,
            None if cells is None else Cells(*cells),
            circular,
            changed=True,
        )


def sums_at(means: Ints, readings: Ints, circular: Sequence[int]) -> Ints:
    """means (k, f) in whole units, readings (k, 1) -> the sums of `OpenPlaces`, if all readings lay
    at the means."""
    places = (
        with_directions(means, means[:, circular] / PLACE_UNITS, circular) if circular else means
    )
    return np.column_stack([readings, places * readings])


class PlacesRecorder:
    """The places of one model since its newest snapshot, and the bins that updates may still fall
    into."""

    def __init__(self, contract: Contract, model: str, published: PublishedHistory) -> None:
        self._origin = (contract.federation, contract.digest, model)
        self._features = min(len(contract.features), PLACES_FEATURES_MAX)
        self._circular = [each for each in contract.bounds.circular if each < self._features]
        self._published = published
        self._bins: dict[tuple[int, int], OpenPlaces] = {}
        """(width, start) -> bin, the one counted into last at the end"""
        self._newest: dict[int, int] = {}
        """width -> start of the newest bin"""
        self._begun = False

    def count(self, placed: Placed, clients: Ints, again: bool) -> None:
        """Count updates, whose clients have these numbers (w,). `again`: nothing that was published
        belongs to it.

        An update that a published bin holds already, or that is older than all bins kept, is not
        counted.
        """
        self._begin(again)
        for width, number in PLACES_KEPT.items():
            starts = (placed.at // width).astype(np.int64) * width
            # A reading counts by what was newest before it: one that is late must not remove bins
            # that came after.
            newest = np.maximum.accumulate(np.maximum(starts, self._newest.get(width, starts[0])))
            self._newest[width] = int(newest[-1])
            kept = starts > newest - number * width
            for start in dict.fromkeys(starts[kept].tolist()):
                one = self._open(width, start, again)
                here = kept & (starts == start) & (placed.numbers > one.updates)
                if not here.any():
                    continue
                rows = here[placed.update]
                some = np.flatnonzero(here)
                summed = Summed.of(clients[some], placed.identities, placed.readings[some])
                one.add(placed.cluster[rows], placed.sums[rows], summed)

    def begin_again(self) -> None:
        """Forget everything."""
        self._bins.clear()
        self._newest.clear()

    def take_changed(self, updates: int) -> list[HistoryPlaces]:
        """The bins that have changed since the last call and are over; the model has absorbed
        `updates`.

        A bin is over once a newer one has begun: spans of time are compared, for which the newest
        bin is not needed.
        """
        for width, start in list(self._bins):
            if start <= self._newest[width] - PLACES_KEPT[width] * width:
                del self._bins[width, start]
        changed = [
            HistoryPlaces(*self._origin, width, start, updates, *one.take(updates))
            for (width, start), one in sorted(self._bins.items())
            if one.changed and start < self._newest[width]
        ]
        published = [key for key, one in self._bins.items() if not one.changed]
        for key in published[: max(0, len(published) - OPEN_MAX)]:
            del self._bins[key]
        return changed

    def state(self) -> dict[str, Any]:
        """Plain values and arrays for `restore`. Bins as they were published are read again where
        they were."""
        return {
            "bins": [[*key, *one.state()] for key, one in self._bins.items() if one.changed],
            "newest": [list(pair) for pair in self._newest.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved one. Raises `InvalidState`."""
        try:
            bins = [((width, start), saved) for width, start, *saved in state["bins"]]
            self._bins = {key: OpenPlaces.restored(saved, self._circular) for key, saved in bins}
            self._newest = dict(state["newest"])
        except (AttributeError, KeyError, TypeError, ValueError) as broken:
            raise InvalidState(
                f"the places of clusters of {self._origin[2]} are damaged: {broken}"
            ) from None
        self._begun = False

    def _begin(self, again: bool) -> None:
        """Go on from what was published, should it be ahead: the checkpoint may be lost, or an
        older one restored."""
        if self._begun or again:
            return
        self._begun = True
        for width in PLACES_KEPT:
            newest = self._published.newest(self._origin[2], width, "places")
            if newest is not None:
                self._newest[width] = max(self._newest.get(width, newest), newest)

    def _open(self, width: int, start: int, again: bool) -> OpenPlaces:
        one = self._bins.pop((width, start), None)
        if one is None:
            published = (
                None
                if again
                else self._published.places(BinKey(self._origin[2], width, start, "places"))
            )
            if published is None:
                one = OpenPlaces.empty(self._features, self._circular)
            else:
                one = OpenPlaces.of(published, self._circular)
        self._bins[width, start] = one
        return one
