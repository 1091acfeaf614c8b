"""Places where the readings of all clients lay: a bounded number, each with its readings.

CAEFC (the paper) learns a node of a client like a row, however many readings that has won, and
removes nodes. So its nodes do not show how many readings a cluster has. These places do: they are
given to the clusters of the present, also those that came before a cluster was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import numpy as np

from shoal.kernels.arrays import AnyInts, Floats, Ints
from shoal.kernels.distance import (
    column_sums,
    nearest_centres,
    squared_by_differences,
    squared_to,
)
from shoal.saved_state import FloatArray, IntArray, Number, SavedState, require, state_type

PLACES_MAX: Final = 256
"""places that are kept; of more, half as many are made"""
NEARER_MAX: Final = 4.0 * (1.0 + 1e-9)
"""squared distance between two kept places, over that of a place from the one, from which it is no
nearer to the other; more than 4 by what rounding can change"""
SCREENED_FROM: Final = 1 << 14
"""coordinates of all places from which it saves time to find out which may be nearer: those of many
clients that are merged at once"""
WAITING_MAX: Final = 512
"""nodes that wait until the places are asked for: those of a dozen updates"""
FAR_MAX: Final = 64
"""nodes far from all places that are compared with each other at once"""
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


class _Won(NamedTuple):
    """Nodes of clients that have won readings, all of one step."""

    place: Floats
    """(n, d)"""
    readings: Ints
    """(n,) each at least 1"""


class CountedPlaces:
    """Adds up the readings of clients' nodes by place.

    Nodes are added a step at a time: the readings of one step are equally recent, and a place that
    one step has made can be the nearest of the next. Where the places are only asked for after
    many steps, `settle` adds those of all of them together. That gives the bits that one step
    after the other gives, whenever it is called, so neither a snapshot nor a checkpoint in between
    changes the places. It takes a third less time, because an update has few nodes, and each call
    of NumPy takes longer than what it computes for them.
    """

    def __init__(self, width: int, nodes_max: int | None) -> None:
        """`width`: number of features. There are no more places than nodes, and at least 2."""
        self._place: Floats = np.empty((0, width))
        self._readings: Ints = np.empty(0, dtype=np.int64)
        self._recent: Floats = np.empty(0)
        """the same, but a reading counts less the more came after it"""
        self._near = 0.0
        """squared distance up to which a place is added to the nearest one"""
        self._places_max = max(2, min(PLACES_MAX, nodes_max or PLACES_MAX))
        self._waiting: list[_Won] = []
        """steps that are not settled yet, in their order"""
        self._n_waiting = 0
        """nodes of these"""

    def add(self, nodes: Sequence[tuple[Floats, AnyInts]]) -> None:
        """Add the nodes of a step: of each client their places (n, d), and the readings (n,) that
        they have won since they were added last."""
        new = []
        for place, won in nodes:
            has_won = won > 0
            # The empty table of a client that has learnt nothing may have no features.
            if has_won.any():
                new.append(_Won(place[has_won], won[has_won].astype(np.int64)))
        if not new:
            return
        step = _together(new)
        self._waiting.append(step)
        self._n_waiting += len(step.place)
        if self._n_waiting >= WAITING_MAX:
            self.settle()

    def settle(self) -> None:
        """Add the nodes of all steps that wait."""
        while self._waiting:
            self._settle_some()

    def _settle_some(self) -> None:
        """Add the nodes of the steps that wait: of all of them, or up to one after which there are
        too many places or `FAR_MAX` nodes far from all places."""
        nodes = _together(self._waiting)
        sizes = [len(step.readings) for step in self._waiting]
        step = np.repeat(np.arange(len(sizes)), sizes)
        nearest, distance = self._nearest_of(nodes.place)
        far = np.flatnonzero(~(distance <= self._near))
        settled = len(sizes)
        if len(far) > FAR_MAX:
            # The whole of the first step, however many it has.
            settled = max(1, int(step[far[FAR_MAX]]))
            far = far[step[far] < settled]
        made = np.empty(0, dtype=np.int64)
        if len(far):
            room = self._places_max - len(self._place)
            made = far[_first_at_places(nodes.place[far], step[far], self._near, room)]
            if len(made) > room:
                settled = int(step[made[-1]]) + 1
            taken = slice(0, sum(sizes[:settled]))
            self._compare(nodes.place[taken], step[taken], made, nearest[taken], distance[taken])
        self._count(self._waiting[:settled], nearest, nodes.place[made])
        del self._waiting[:settled]
        self._n_waiting = sum(sizes[settled:])
        if len(self._place) > self._places_max:
            self._halve()

    def _nearest_of(self, place: Floats) -> tuple[Ints, Floats]:
        """place (n, d) -> the nearest of the places of each (n,), and its squared distance; where
        there are none, an infinite one."""
        if not len(self._place):
            return np.zeros(len(place), dtype=np.int64), np.full(len(place), np.inf)
        nearest = nearest_centres(place, self._place)
        return nearest, squared_to(place, self._place[nearest])

    def _compare(
        self, place: Floats, step: Ints, made: Ints, nearest: Ints, distance: Floats
    ) -> None:
        """Give the nodes (n, d) of later steps to those of the new places, `made` (m,) of them,
        that are nearer than their `nearest` ones, at a squared `distance` (n,)."""
        if step[made[0]] < step[-1]:
            from_made = squared_by_differences(place, place[made])
            from_made[step[:, None] <= step[made]] = np.inf
            found = from_made.argmin(axis=1)
            # Of equally near places the first one wins, as among places that are compared at once.
            nearer = np.flatnonzero(from_made[np.arange(len(place)), found] < distance)
            nearest[nearer] = len(self._place) + found[nearer]
        nearest[made] = len(self._place) + np.arange(len(made))

    def _count(self, steps: Sequence[_Won], nearest: Ints, made: Floats) -> None:
        """Count the nodes of some steps to their nearest places: (n,) positions among those that
        are there and then those that they have `made` (m, d)."""
        self._place = np.concatenate([self._place, made])
        self._readings = np.concatenate([self._readings, np.zeros(len(made), dtype=np.int64)])
        self._recent = np.concatenate([self._recent, np.zeros(len(made))])
        first = 0
        for step in steps:
            own = nearest[first : first + len(step.readings)]
            first += len(own)
            # Step by step: sums of fractions in another order would be other bits.
            self._recent *= math.exp(-float(step.readings.sum()) / RECENT_READINGS)
            np.add.at(self._recent, own, step.readings)
        np.add.at(self._readings, nearest[:first], _together(steps).readings)

    def _halve(self) -> None:
        """Keep half of the places, and add the readings of each other one to the nearest of them.

        Those that are kept are each the farthest from all before (Gonzalez 1985), so that a state
        with few readings has a place as well. From then on a place that is as near to one of them
        as those that were not kept is added to it at once: nodes of clients are seldom at new ones.
        """
        # A feature a row: differences of all places are then few operations on long rows.
        columns = np.ascontiguousarray(self._place.T)
        kept = [int(self._readings.argmax())]
        distance = _squared_from(columns, self._place[kept[0]])
        nearest = np.zeros(len(self._place), dtype=np.int64)
        while len(kept) < self._places_max // 2:
            farthest = int(distance.argmax())
            if columns.size >= SCREENED_FROM:
                self._give_screened(columns, kept, farthest, nearest, distance)
            else:
                from_it = _squared_from(columns, self._place[farthest])
                nearest[from_it < distance] = len(kept)
                np.minimum(distance, from_it, out=distance)
            kept.append(farthest)
            # All places are among those that are kept, some of them more than once.
            if distance[farthest] == distance.max():
                break
        self._near = float(distance.max())
        readings = np.zeros(len(kept), dtype=np.int64)
        np.add.at(readings, nearest, self._readings)
        recent = np.zeros(len(kept))
        np.add.at(recent, nearest, self._recent)
        self._place = self._place[kept]
        self._readings = readings
        self._recent = recent

    def _give_screened(
        self,
        columns: Floats,
        kept: Sequence[int],
        farthest: int,
        nearest: Ints,
        distance: Floats,
    ) -> None:
        """Give the place at `farthest`, the next that is kept, the places (d, n) that are nearer to
        it than to their `nearest` one of those `kept` so far, at a squared `distance` (n,).

        A place that is at most half as far from its nearest one as that is from the new one is no
        nearer to the new one (triangle inequality): of many places, most distances are not
        computed.
        """
        from_kept = _squared_from(columns.take(kept, axis=1), self._place[farthest])
        candidates = np.flatnonzero(from_kept[nearest] < NEARER_MAX * distance)
        from_it = _squared_from(columns.take(candidates, axis=1), self._place[farthest])
        is_nearer = from_it < distance[candidates]
        nearer = candidates[is_nearer]
        nearest[nearer] = len(kept)
        distance[nearer] = from_it[is_nearer]

    def state(self) -> CountedPlacesState:
        """What `restore` needs. No later addition changes it."""
        self.settle()
        return CountedPlacesState(
            place=self._place, readings=self._readings, recent=self._recent, near=self._near
        )

    def restore(self, saved: CountedPlacesState) -> None:
        """Become the saved places. Raises `InvalidState`."""
        require(len(saved.place) <= self._places_max, "more places than are kept")
        self._place = saved.place
        self._readings = saved.readings
        self._recent = saved.recent
        self._near = saved.near
        self._waiting = []
        self._n_waiting = 0


def _together(steps: Sequence[_Won]) -> _Won:
    """The nodes of all of them, in their order."""
    if len(steps) == 1:
        return steps[0]
    return _Won(
        np.concatenate([step.place for step in steps]),
        np.concatenate([step.readings for step in steps]),
    )


def _first_at_places(place: Floats, step: Ints, near: float, room: int) -> Ints:
    """place (n, d) and step (n,), ascending, of nodes that are far from all places -> positions of
    those that are not near one of an earlier step of which that is said too: each is a new place.

    Of no step after the first one by which there are more than `room`.
    """
    made: list[int] = []
    if step[0] == step[-1]:
        return np.arange(len(place))
    near_pairs = squared_by_differences(place, place) <= near
    starts = np.flatnonzero(np.append(True, step[1:] != step[:-1])).tolist()
    for start, end in zip(starts, [*starts[1:], len(place)], strict=True):
        is_near = near_pairs[start:end, made].any(axis=1)
        made += (start + np.flatnonzero(~is_near)).tolist()
        if len(made) > room:
            break
    return np.array(made, dtype=np.int64)


def _squared_from(columns: Floats, place: Floats) -> Floats:
    """columns (d, n), place (d,) -> (n,) squared distance of each column from the place, summed
    feature by feature: `columns` are in the order of C."""
    gaps = columns - place[:, None]
    np.multiply(gaps, gaps, out=gaps)
    return column_sums(gaps)
