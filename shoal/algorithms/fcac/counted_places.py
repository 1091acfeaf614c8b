"""Places where the readings of all clients lay: a bounded number, each with its readings.

CAEFC (the paper) learns a node of a client like a row, however many readings that has won, and
removes nodes. So its nodes do not show how many readings a cluster has. These places do: they are
given to the clusters of the present, also those that came before a cluster was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from shoal.kernels.arrays import AnyInts, Floats, Ints
from shoal.kernels.distance import squared_by_differences
from shoal.saved_state import FloatArray, IntArray, SavedState, require

PLACES_MAX: Final = 512
"""places that are kept; of more, half as many are made"""


@dataclass(frozen=True, kw_only=True)
class CountedPlacesState(SavedState):
    """The places and their readings."""

    place: Annotated[Floats, FloatArray("places", "d")]
    readings: Annotated[Ints, IntArray("places", least=1)]


class CountedPlaces:
    """Adds up the readings of clients' nodes by place."""

    def __init__(self, width: int, nodes_max: int | None) -> None:
        """`width`: number of features. There are no more places than nodes, and at least 2."""
        self.place: Floats = np.empty((0, width))
        self.readings: Ints = np.empty(0, dtype=np.int64)
        self._places_max = max(2, min(PLACES_MAX, nodes_max or PLACES_MAX))

    def add(self, place: Floats, readings: AnyInts) -> None:
        """Add nodes at `place` (n, d), which have won `readings` (n,) since they were added
        last."""
        is_new = readings > 0
        # The empty table of a client that has learnt nothing may have no features.
        if not is_new.any():
            return
        self.place = np.concatenate([self.place, place[is_new]])
        self.readings = np.concatenate([self.readings, readings[is_new].astype(np.int64)])
        if len(self.place) > self._places_max:
            self._halve()

    def _halve(self) -> None:
        """Keep half of the places, and add the readings of each other one to the nearest of them.

        Those that are kept are each the farthest from all before (Gonzalez 1985), so that a state
        with few readings has a place as well.
        """
        kept = [int(self.readings.argmax())]
        distance = self._squared_from(kept[0])
        nearest = np.zeros(len(self.place), dtype=np.int64)
        while len(kept) < self._places_max // 2:
            farthest = int(distance.argmax())
            from_it = self._squared_from(farthest)
            nearest[from_it < distance] = len(kept)
            distance = np.minimum(distance, from_it)
            kept.append(farthest)
            # All places are among those that are kept, some of them more than once.
            if distance[farthest] == distance.max():
                break
        readings = np.zeros(len(kept), dtype=np.int64)
        np.add.at(readings, nearest, self.readings)
        self.place = self.place[kept]
        self.readings = readings

    def _squared_from(self, position: int) -> Floats:
        """(n,) squared distance of each place from the one at `position`."""
        return squared_by_differences(self.place, self.place[position : position + 1])[:, 0]

    def state(self) -> CountedPlacesState:
        """What `restore` needs."""
        return CountedPlacesState(place=self.place, readings=self.readings)

    def restore(self, saved: CountedPlacesState) -> None:
        """Become the saved places. Raises `InvalidState`."""
        require(len(saved.place) <= self._places_max, "more places than are kept")
        self.place = saved.place
        self.readings = saved.readings
