"""Which clusters the readings behind updates fell to, as far as their points show it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.protocol.history import NO_CLUSTER

POINTS_MIN, POINTS_MAX = 16, 128
"""points of an update that are looked at, where it has as many: the fewer, the more each has to be compared with"""
COORDINATES_COMPARED = 2**16
"""of nodes, in all, that the points of an update are compared with; `POINTS_MIN` are, whatever that takes"""
COORDINATES_MAX = 2**18
"""of points of updates that wait (2 MiB)"""
UPDATES_MAX = 256
"""that wait"""
GOLDEN = (math.sqrt(5) - 1) / 2
"""its multiples less their whole parts spread evenly over 0 to 1, however many there are"""


class WaitingUpdate(NamedTuple):
    """An update that has not been counted yet."""

    at: float
    """its time, seconds since 1970"""
    client: str
    readings: int
    update: int
    """its number among those of the model"""
    points: NDArray[np.float64]
    """(n, d)"""
    weights: NDArray[np.float64]
    """(n,)"""


class WaitingUpdates:
    """The updates since the last look, whose points are then given to clusters in one call: one for each update would
    cost several times as much."""

    def __init__(self) -> None:
        self._updates: list[WaitingUpdate] = []
        self._coordinates = 0

    def add(self, update: WaitingUpdate, points_max: int = POINTS_MAX) -> bool:
        """Keep an update, of its points at most so many. True if there are so many that all should be taken."""
        largest = update.weights.max(initial=0.0)
        if not 0 < largest < math.inf:
            update = update._replace(points=update.points[:0], weights=update.weights[:0])
        elif len(update.points) > points_max:
            points, weights = sampled(update.points, update.weights / largest, points_max, update.update)
            update = update._replace(points=points, weights=weights)
        else:
            # Clients claim these weights: their sum must not overflow.
            update = update._replace(weights=update.weights / largest)
        self._updates.append(update)
        self._coordinates += update.points.size
        return self._coordinates >= COORDINATES_MAX or len(self._updates) >= UPDATES_MAX

    def take(
        self, predict: Callable[[NDArray[np.float64]], NDArray[np.int64]], of_number: Mapping[int, int]
    ) -> Iterator[tuple[WaitingUpdate, dict[int, int]]]:
        """Each update with its readings by identity, in the order in which they came; none of them waits any more.

        `predict` gives points (n, d) their clusters (n,), `of_number` a cluster its identity; readings near points of
        other clusters count as those of `NO_CLUSTER`.
        """
        updates, with_points = self._updates, [one for one in self._updates if len(one.points)]
        self.clear()
        parts: Iterator[dict[int, int]] = iter(())
        if with_points:
            clusters = predict(np.concatenate([one.points for one in with_points])).tolist()
            identities = np.array([of_number.get(number, NO_CLUSTER) for number in clusters], dtype=np.int64)
            parts = dealt_out(with_points, identities)
        for one in updates:
            none = {NO_CLUSTER: one.readings} if one.readings else {}
            yield one, next(parts) if len(one.points) else none

    def clear(self) -> None:
        """Drop them."""
        self._updates, self._coordinates = [], 0


def dealt_out(updates: Sequence[WaitingUpdate], identities: NDArray[np.int64]) -> Iterator[dict[int, int]]:
    """identity -> readings of each update: its own, dealt out over the identities of its points by their weights.

    `identities` (n,) are those of all points of all updates, in this order; each update has some, and weights from 0 to
    1. The parts are whole numbers that add up to the readings: each is the rounded share so far less the parts before
    it, in the order of identities. So they do not depend on the other updates.
    """
    names, column = np.unique(identities, return_inverse=True)
    row = np.repeat(np.arange(len(updates)), [len(one.points) for one in updates])
    weights = np.concatenate([one.weights for one in updates])
    mass = np.bincount(row * len(names) + column, weights, minlength=len(updates) * len(names))
    reached = np.cumsum(mass.reshape(len(updates), len(names)), axis=1)
    readings = np.array([[one.readings] for one in updates])
    # What is reached at the end is exactly 1, so that all readings are dealt out.
    upto = np.rint(readings * (reached / reached[:, -1:])).astype(np.int64)
    parts = np.diff(upto, axis=1, prepend=0)
    known: list[int] = names.tolist()
    for of_update in parts.tolist():
        yield {identity: part for identity, part in zip(known, of_update, strict=True) if part}


def points_compared(nodes: NDArray[np.float64]) -> int:
    """How many points of an update are looked at where they are compared with nodes (n, d)."""
    return max(POINTS_MIN, min(POINTS_MAX, COORDINATES_COMPARED // max(1, nodes.size)))


def sampled(
    points: NDArray[np.float64], weights: NDArray[np.float64], number: int, update: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """So many of the points (n, d), each as often as its share of the weights (n,), some of which is above 0; and ones.

    They are those at equal steps through the sum of the weights (systematic sampling): what a point is counted differs
    from its share by less than one step. Where the first step begins depends on the number of the update, so that over
    many updates points with small weights get their shares too.
    """
    reached = np.cumsum(weights)
    steps = (np.arange(number) + update * GOLDEN % 1.0) * (reached[-1] / number)
    # Rounding must not lead beyond the last point.
    kept = np.minimum(reached.searchsorted(steps, side="right"), len(points) - 1)
    return points[kept], np.ones(number)


def without_small(counts: Mapping[int, int], most: int, rest: int) -> dict[int, int]:
    """The `most` largest counts by key; the others are added up under the key `rest`."""
    if len(counts) <= most:
        return dict(counts)
    order: Sequence[int] = sorted(counts, key=lambda key: (key != rest, -counts[key], key))
    kept = {key: counts[key] for key in order[: most - 1]}
    kept[rest] = kept.get(rest, 0) + sum(counts[key] for key in order[most - 1 :])
    return kept
