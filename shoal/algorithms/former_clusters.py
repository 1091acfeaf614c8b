"""Memory of the places of clusters that have ended: a new cluster at such a place is the former
one."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, Self

import numpy as np

from shoal.kernels.arrays import Floats, Ints
from shoal.saved_state import FloatArray, IntArray, SavedState, require, state_type

FORMER_WIDTHS: Final = 2.0
"""standard deviations between the means of two clusters, on every feature, up to which they are at
one place"""
FORMER_MAX: Final = 64
"""clusters that have ended which are remembered"""
# 2.563 deviations of a normal distribution lie between its quantiles .1 and .9.
LEAST_VARIANCE: Final = (1.0 / 256.0 / 2.563) ** 2
"""least variance of a place in unit coordinates: the middle 80 % of its readings are not narrower
than the finest bins"""


@dataclass(frozen=True, eq=False)
class Place:  # noqa: PLW1641 - arrays have no hash
    """The place of a cluster now, or when it ended."""

    mean: Floats
    """(d,)"""
    variance: Floats
    """(d,) of its readings"""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Place):
            return NotImplemented
        same_mean = np.array_equal(self.mean, other.mean)
        return same_mean and np.array_equal(self.variance, other.variance)

    def alone(self) -> Place:
        """The same place in arrays of its own: rows would keep the arrays of all alive with it."""
        return Place(self.mean.copy(), self.variance.copy())


class FormerCluster(NamedTuple):
    """A cluster that has ended."""

    place: Place
    since: float
    """readings absorbed when it was found"""
    parent: int
    """the identity that it parted from"""


def place_of(
    means: Floats, variances: Floats, weights: Floats, circular: Sequence[int] = ()
) -> Place:
    """The place of a cluster of n parts: see `places_of`."""
    (place,) = places_of(means, variances, weights, [0], circular)
    return place


def places_of(
    means: Floats,
    variances: Floats,
    weights: Floats,
    starts: Sequence[int] | Ints,
    circular: Sequence[int] = (),
) -> list[Place]:
    """The places of k clusters, each of one part or more: means (n, d), variances (n, d) and
    weights (n,) of their parts, those of a cluster one after the other, from `starts` (k,) on. The
    parts of a cluster count alike where none has a weight above 0.

    All at once, as every snapshot of a server asks for all of its clusters: they are rows of the
    same arrays. O(n * d).
    """
    parts = np.append(starts, len(weights))
    cluster = np.repeat(np.arange(len(starts)), parts[1:] - parts[:-1])
    weight = np.maximum(weights, 0.0)
    has_weight = np.add.reduceat(weight, starts) > 0.0
    share = np.where(has_weight[cluster], weight, 1.0)
    share /= np.add.reduceat(share, starts)[cluster]
    mean = np.add.reduceat(share[:, None] * means, starts)
    for feature in circular:
        # The mean of directions: that of .01 and .99 is 0 and not .5.
        turns = np.exp(2j * np.pi * means[:, feature])
        direction = np.add.reduceat(share * turns, starts)
        mean[:, feature] = np.angle(direction) / (2.0 * np.pi) % 1.0
    # The variance of a mixture: that within its parts, and that of their means around its own.
    between = np.square(_differences(means, mean[cluster], circular))
    variance = np.add.reduceat(share[:, None] * (variances + between), starts)
    variance = np.maximum(variance, LEAST_VARIANCE)
    return list(map(Place, mean, variance))


def widths_apart(one: Place, other: Place, circular: Sequence[int] = ()) -> float:
    """The largest difference of the means on a feature, in standard deviations of both there."""
    difference = _differences(one.mean, other.mean, circular)
    variance = (one.variance + other.variance) / 2.0
    return float(np.max(np.abs(difference) / np.sqrt(variance)))


def _differences(points: Floats, origin: Floats, circular: Sequence[int]) -> Floats:
    """points (..., d) minus an origin (d,), the short way round on a circular feature."""
    difference = points - origin
    for feature in circular:
        difference[..., feature] = (difference[..., feature] + 0.5) % 1.0 - 0.5
    return difference


@state_type
class FormerClustersState(SavedState):
    """The f remembered clusters, the one that ended first first."""

    former: Annotated[Ints, IntArray("f")]
    """identities"""
    former_mean: Annotated[Floats, FloatArray("f", "d")]
    former_variance: Annotated[Floats, FloatArray("f", "d")]
    former_since: Annotated[Floats, FloatArray("f")]
    former_parent: Annotated[Ints, IntArray("f", least=-1)]

    def check(self) -> None:
        is_different = len(np.unique(self.former)) == len(self.former)
        require(is_different, "two former clusters have the same identity")
        has_width = bool((self.former_variance > 0.0).all())
        require(has_width, "a former cluster has a variance that is not above 0")


class FormerClusters:
    """The clusters that ended last, at most `FORMER_MAX`, by identity.

    Takes O(`FORMER_MAX` * d) of memory, and of time for each new cluster.
    """

    def __init__(self, circular: Sequence[int] = ()) -> None:
        self._circular = tuple(circular)
        self._clusters: dict[int, FormerCluster] = {}

    def add(self, identity: int, cluster: FormerCluster) -> None:
        """Remember a cluster that ends. The one that ended first is forgotten beyond the limit."""
        self._clusters[identity] = cluster
        if len(self._clusters) > FORMER_MAX:
            del self._clusters[next(iter(self._clusters))]

    def nearest(self, place: Place, taken: Container[int] = ()) -> int | None:
        """The identity whose place is nearest, if it is within `FORMER_WIDTHS`; else None.
        Identities that are `taken` are left out."""
        found = None
        least = FORMER_WIDTHS
        # Of equally near ones the one that ended last, which people remember best.
        for identity, cluster in self._clusters.items():
            apart = widths_apart(place, cluster.place, self._circular)
            if apart <= least and identity not in taken:
                found = identity
                least = apart
        return found

    def forget(self, identity: int) -> None:
        """Forget a cluster, if it is remembered."""
        self._clusters.pop(identity, None)

    def take(self, identity: int) -> FormerCluster:
        """A remembered cluster, which is a cluster again from here on."""
        return self._clusters.pop(identity)

    def state(self, width: int) -> FormerClustersState:
        """Everything, of places over `width` features."""
        clusters = self._clusters.values()
        means = [cluster.place.mean for cluster in clusters]
        variances = [cluster.place.variance for cluster in clusters]
        return FormerClustersState(
            former=np.array(list(self._clusters), dtype=np.int64),
            former_mean=np.array(means, dtype=np.float64).reshape(len(means), width),
            former_variance=np.array(variances, dtype=np.float64).reshape(len(means), width),
            former_since=np.array([cluster.since for cluster in clusters], dtype=np.float64),
            former_parent=np.array([cluster.parent for cluster in clusters], dtype=np.int64),
        )

    @classmethod
    def restored(cls, saved: FormerClustersState, circular: Sequence[int] = ()) -> Self:
        """The clusters of a saved state."""
        former = cls(circular)
        rows = zip(
            saved.former.tolist(),
            saved.former_mean,
            saved.former_variance,
            saved.former_since.tolist(),
            saved.former_parent.tolist(),
            strict=True,
        )
        for identity, mean, variance, since, parent in rows:
            # A row that is no copy would keep the arrays of all places alive, after the others
            # went.
            place = Place(mean.copy(), variance.copy())
            former._clusters[identity] = FormerCluster(place, since, parent)
        return former
