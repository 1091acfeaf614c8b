"""Which clusters the readings behind updates fell to, as far as their points show it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.protocol.history import NO_CLUSTER

POINTS_MAX = 128
"""points of an update that are looked at: shares need no more"""
COORDINATES_MAX = 2**18
"""of points of updates that wait (2 MiB)"""


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
    cost a tenth of all that the server does for it."""

    def __init__(self) -> None:
        self._updates: list[WaitingUpdate] = []
        self._coordinates = 0

    def add(self, update: WaitingUpdate) -> bool:
        """Keep an update. True if there are so many that all should be taken."""
        if len(update.points) > POINTS_MAX:
            points, weights = thinned(update.points, update.weights)
            update = update._replace(points=points, weights=weights)
        self._updates.append(update)
        self._coordinates += update.points.size
        return self._coordinates >= COORDINATES_MAX

    def take(
        self, predict: Callable[[NDArray[np.float64]], NDArray[np.int64]], of_number: Mapping[int, int]
    ) -> Iterator[tuple[WaitingUpdate, dict[int, int]]]:
        """Each update with its readings by identity, in the order in which they came; none of them waits any more.

        `predict` gives points (n, d) their clusters (n,), `of_number` a cluster its identity.
        """
        updates, with_points = self._updates, [one.points for one in self._updates if len(one.points)]
        self.clear()
        clusters = predict(np.concatenate(with_points)) if with_points else np.empty(0, dtype=np.int64)
        first = 0
        for one in updates:
            own = clusters[first : first + len(one.points)]
            first += len(own)
            yield one, attribute(one.readings, own, one.weights, of_number)

    def clear(self) -> None:
        """Drop them."""
        self._updates, self._coordinates = [], 0


def attribute(
    readings: int, clusters: NDArray[np.int64], weights: NDArray[np.float64], of_number: Mapping[int, int]
) -> dict[int, int]:
    """identity -> readings: `readings` dealt out over the clusters (n,) of the update's points by their weights (n,).

    `of_number` is number -> identity; other numbers count as `NO_CLUSTER`. The parts are whole numbers whose sum is
    `readings`: each is the rounded share so far less the parts before it, in the order of identities.
    """
    shares = weights.tolist()
    largest = max(shares, default=0.0) or 1.0
    mass: defaultdict[int, float] = defaultdict(float)
    # Clients claim these weights: their sum must not overflow.
    for number, share in zip(clusters.tolist(), shares, strict=True):
        mass[of_number.get(number, NO_CLUSTER)] += share / largest
    total = math.fsum(mass.values())
    if not 0 < total < math.inf:
        return {NO_CLUSTER: readings} if readings else {}
    parts, reached, given = {}, 0.0, 0
    for identity, part in sorted(mass.items()):
        reached += part
        upto = min(readings, round(readings * min(1.0, reached / total)))
        parts[identity], given = upto - given, upto
    parts[identity] += readings - given
    return {identity: part for identity, part in parts.items() if part}


def thinned(
    points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most `POINTS_MAX` of the points (n, d) and their weights (n,), evenly spaced in their order."""
    if len(points) <= POINTS_MAX:
        return points, weights
    kept = np.linspace(0, len(points) - 1, POINTS_MAX).astype(np.int64)
    return points[kept], weights[kept]


def without_small(counts: Mapping[int, int], most: int, rest: int) -> dict[int, int]:
    """The `most` largest counts by key; the others are added up under the key `rest`."""
    if len(counts) <= most:
        return dict(counts)
    order: Sequence[int] = sorted(counts, key=lambda key: (key != rest, -counts[key], key))
    kept = {key: counts[key] for key in order[: most - 1]}
    kept[rest] = kept.get(rest, 0) + sum(counts[key] for key in order[most - 1 :])
    return kept
