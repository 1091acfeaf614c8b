"""Places where the readings of all clients lay: a bounded number, each with its readings.

CAEFC (the paper) learns a node of a client like a row, however many readings that has won, and
removes nodes. So its nodes do not show how many readings a cluster has. These places do: they are
given to the clusters of the present, also those that came before a cluster was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

import numpy as np

from shoal.kernels.arrays import AnyInts, Floats, Ints
from shoal.kernels.distance import column_sums, nearest_centres, squared_to
from shoal.saved_state import FloatArray, IntArray, Number, SavedState, require, state_type

PLACES_MAX: Final = 256
"""places that are kept; of more, half as many are made"""
NEARER_MAX: Final = 4.0 * (1.0 + 1e-9)
"""squared distance between two kept places, over that of a place from the one, from which it is no
nearer to the other; more than 4 by what rounding can change"""
SCREENED_FROM: Final = 1 << 14
"""coordinates of all places from which it saves time to find out which may be nearer: those of many
clients that are merged at once"""
RECENT_READINGS: Final = 500.0
"""readings by which what counts as recent has faded to 1/e"""


@state_type
class CountedPlacesState(SavedState):
    """The places and their readings."""

    place: Annotated[Floats, FloatArray("places", "d")]
    readings: Annotated[Ints, IntArray("places", least=1)]
    recent: Annotated[Floats, FloatArray("places")]
    near: Annotated[float, Number(least=0.0)]

    def check(self) -> None:
        require(bool((self.recent >= 0).all()), "recent readings are below 0")


class CountedPlaces:
    """Adds up the readings of clients' nodes by place."""

    def __init__(self, width: int, nodes_max: int | None) -> None:
        """`width`: number of features. There are no more places than nodes, and at least 2."""
        self.place: Floats = np.empty((0, width))
        self.readings: Ints = np.empty(0, dtype=np.int64)
        self.recent: Floats = np.empty(0)
        """the same, but a reading counts less the more came after it"""
        self._near = 0.0
        """squared distance up to which a place is added to the nearest one"""
        self._places_max = max(2, min(PLACES_MAX, nodes_max or PLACES_MAX))

    def add(self, nodes: Sequence[tuple[Floats, AnyInts]]) -> None:
        """Add nodes of clients: of each client their places (n, d), and the readings (n,) that they
        have won since they were added last."""
        new = []
        for place, won in nodes:
            has_won = won > 0
            # The empty table of a client that has learnt nothing may have no features.
            if has_won.any():
                new.append((place[has_won], won[has_won].astype(np.int64)))
        if not new:
            return
        readings = np.concatenate([won for _, won in new])
        # All at once: those of one step are equally recent.
        fade = math.exp(-float(readings.sum()) / RECENT_READINGS)
        self.recent *= fade
        place = np.concatenate([place for place, _ in new])
        if len(self.place):
            nearest = nearest_centres(place, self.place)
            is_near = squared_to(place, self.place[nearest]) <= self._near
            np.add.at(self.readings, nearest[is_near], readings[is_near])
            np.add.at(self.recent, nearest[is_near], readings[is_near])
            place = place[~is_near]
            readings = readings[~is_near]
        self.place = np.concatenate([self.place, place])
        self.readings = np.concatenate([self.readings, readings])
        self.recent = np.concatenate([self.recent, readings.astype(np.float64)])
        if len(self.place) > self._places_max:
            self._halve()

    def _halve(self) -> None:
        """Keep half of the places, and add the readings of each other one to the nearest of them.

        Those that are kept are each the farthest from all before (Gonzalez 1985), so that a state
        with few readings has a place as well. From then on a place that is as near to one of them
        as those that were not kept is added to it at once: nodes of clients are seldom at new ones.
        """
        # A feature a row: differences of all places are then few operations on long rows.
        columns = np.ascontiguousarray(self.place.T)
        kept = [int(self.readings.argmax())]
        distance = _squared_from(columns, self.place[kept[0]])
        nearest = np.zeros(len(self.place), dtype=np.int64)
        everywhere = np.arange(len(self.place))
        while len(kept) < self._places_max // 2:
            farthest = int(distance.argmax())
            candidates = everywhere
            compared = columns
            # A place that is at most half as far from its nearest one as that is from the new one
            # is no nearer to the new one (triangle inequality): most distances are not computed.
            if columns.size >= SCREENED_FROM:
                from_kept = _squared_from(columns.take(kept, axis=1), self.place[farthest])
                candidates = np.flatnonzero(from_kept[nearest] < NEARER_MAX * distance)
                compared = columns.take(candidates, axis=1)
            from_it = _squared_from(compared, self.place[farthest])
            is_nearer = from_it < distance[candidates]
            nearer = candidates[is_nearer]
            nearest[nearer] = len(kept)
            distance[nearer] = from_it[is_nearer]
            kept.append(farthest)
            # All places are among those that are kept, some of them more than once.
            if distance[farthest] == distance.max():
                break
        self._near = float(distance.max())
        readings = np.zeros(len(kept), dtype=np.int64)
        np.add.at(readings, nearest, self.readings)
        recent = np.zeros(len(kept))
        np.add.at(recent, nearest, self.recent)
        self.place = self.place[kept]
        self.readings = readings
        self.recent = recent

    def state(self) -> CountedPlacesState:
        """What `restore` needs."""
        return CountedPlacesState(
            place=self.place, readings=self.readings, recent=self.recent, near=self._near
        )

    def restore(self, saved: CountedPlacesState) -> None:
        """Become the saved places. Raises `InvalidState`."""
        require(len(saved.place) <= self._places_max, "more places than are kept")
        self.place = saved.place
        # They are added to in place, and what was read may be a view of the bytes of a file.
        self.readings = saved.readings.copy()
        self.recent = saved.recent.copy()
        self._near = saved.near


def _squared_from(columns: Floats, place: Floats) -> Floats:
    """columns (d, n), place (d,) -> (n,) squared distance of each column from the place, summed
    feature by feature: `columns` are in the order of C."""
    gaps = columns - place[:, None]
    np.multiply(gaps, gaps, out=gaps)
    return column_sums(gaps)
