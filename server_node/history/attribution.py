"""Attribution of the readings behind updates to clusters, as far as their points show it.

All updates since the last look are worked out together, array by array, as a call of NumPy for each
of them would cost several times as much. What one of them gets does not depend on the others: their
sums are of whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, Self

import numpy as np

from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.protocol.history import (
    FINE_S,
    NO_CLUSTER,
    PLACE_MAX,
    PLACE_MIN,
    PLACE_UNITS,
    PLACES_FEATURES_MAX,
)
from shoal.saved_state import FloatArray, IntArray, SavedState, require, state_type

# Against 1 000 nodes the points of 20 updates took 30 ms of a step when all were compared. Of a
# sample, each update shows its rare clusters seldom, but all of them together in their shares.
POINTS_MIN = 16
POINTS_MAX = 128
"""fewest and most points of an update that are compared with the nodes: fewer where there are more
nodes"""
COORDINATES_COMPARED = 2**16
"""coordinates of nodes that the points of an update are compared with; `POINTS_MIN` points are
compared in any case"""
COORDINATES_MAX = 2**18
"""coordinates of the points of updates that wait (2 MiB)"""
UPDATES_MAX = 256
"""updates that wait"""
# An update that spanned five hours or more cost the server 10 to 13 ms when it was spread over
# every bin, and .9 with eight moments.
PARTS_MAX = 8
"""moments over which the readings of an update are spread"""
LARGEST_WEIGHT = 2**32
"""the largest weight of an update, when its weights are made whole numbers; 64 bits hold the sum of
2^31 of them"""
# Places are below 2^17 units, so the sums of one update are below 2^48, and those of 256 updates
# together stay within 64 bits.
READINGS_PLACED_MAX = 2**31
"""readings of an update in a cluster beyond which their place counts no more"""
SUM_MIN = -(2**63)
"""sums of places are below 0 where places are"""
SUM_UNKNOWN = SUM_MIN
"""instead of the sum of places of which some are not known"""
NOTHING_UNKNOWN: Final[Mapping[int, Bools]] = MappingProxyType({})
GOLDEN = (math.sqrt(5) - 1) / 2
"""its multiples less their whole parts spread evenly over 0 to 1, however many there are"""


class WaitingUpdate(NamedTuple):
    """An update that has not been counted yet."""

    at: float
    """time of its newest reading, seconds since 1970"""
    client: str
    readings: int
    number: int
    """among the updates of the model"""
    points: Floats
    """(n, d)"""
    weights: Floats
    """(n,)"""
    span_s: float = 0.0
    """seconds from its oldest reading to the newest"""


class Placed(NamedTuple):
    """Attribution of the readings of updates to clusters.

    Each update counts whole, at the time of its newest reading: the mean of its points is of all of
    them, so parts of it would show no movement.
    """

    at: Floats
    """(w,) times of the updates, seconds since 1970, in the order in which they came"""
    numbers: Ints
    """(w,) of the updates among those of the model"""
    update: Ints
    """(r,) place among the updates"""
    cluster: Ints
    """(r,) identity of a known cluster"""
    sums: Ints
    """(r, 1 + f + c): the readings of the update that fell to the cluster, and the sums of their
    places in each feature; of the c circular features sums of cosines of directions, and behind all
    features those of sines; `SUM_UNKNOWN` where the mean of the cluster is not known"""


class Attribution(NamedTuple):
    """The readings of updates by the cluster that they fell to."""

    at: Floats
    """(u,) times of the readings, seconds since 1970; updates, or the parts of one, in the order in
    which they came"""
    clients: Sequence[str]
    """client of each update"""
    numbers: Ints
    """(u,) of the updates among those of the model"""
    identities: Ints
    """(k,) in their order, each once; `NO_CLUSTER` stands for no known cluster"""
    readings: Ints
    """(u, k)"""
    placed: Placed | None = None

    @property
    def size(self) -> int:
        """The numbers that it is made of."""
        placed = 0 if self.placed is None else self.placed.sums.size
        return self.readings.size + placed


class Sample(NamedTuple):
    """The points of updates that are looked at, those of one update in the order in which it has
    them."""

    place: Ints
    """(m,) among the points of all updates"""
    update: Ints
    """(m,) place of the update that has it"""
    weight: Ints
    """(m,)"""


class TimedPoints(NamedTuple):
    """Points of updates with the times of these."""

    points: Floats
    """(m, d)"""
    readings: Floats
    """(m,) that each stands for"""
    first: Floats
    """(m,) time of the oldest reading of its update, seconds since 1970"""
    last: Floats
    """(m,) of the newest one"""
    upto_update: int
    """number of the newest of the updates"""


@state_type
class PlacedState(SavedState):
    """See the fields of `Placed`."""

    at: Annotated[Floats, FloatArray("w")]
    numbers: Annotated[Ints, IntArray("w")]
    update: Annotated[Ints, IntArray("r")]
    cluster: Annotated[Ints, IntArray("r")]
    sums: Annotated[Ints, IntArray("r", "placed", least=SUM_MIN)]

    def check(self) -> None:
        require(bool((self.update < len(self.at)).all()), "places of updates that are not there")


@state_type
class AttributionState(SavedState):
    """See the fields of `Attribution`."""

    at: Annotated[Floats, FloatArray("u")]
    clients: list[str]
    numbers: Annotated[Ints, IntArray("u")]
    identities: Annotated[Ints, IntArray("k", least=NO_CLUSTER)]
    readings: Annotated[Ints, IntArray("u", "k")]
    placed: PlacedState | None

    def check(self) -> None:
        require(len(self.clients) == len(self.at), "readings of another number of clients")
        require(bool((np.diff(self.identities) > 0).all()), "identities do not ascend")

    @classmethod
    def of(cls, readings: Attribution) -> Self:
        """The saved state of readings that are attributed."""
        placed = None
        if readings.placed is not None:
            placed = PlacedState(**readings.placed._asdict() | _times(readings.placed.at))
        entries = readings._asdict() | _times(readings.at)
        return cls(**entries | {"clients": list(readings.clients), "placed": placed})

    def restored(self) -> Attribution:
        """The readings that were saved."""
        placed = None if self.placed is None else Placed(**vars(self.placed))
        return Attribution(**vars(self) | {"placed": placed})


def _times(at: Floats) -> dict[str, Floats]:
    # Where all times in updates are whole numbers, so are these.
    return {"at": at.astype(np.float64)}


@state_type
class WaitingUpdateState(SavedState):
    """See the fields of `WaitingUpdate`."""

    at: float
    client: str
    readings: int
    number: int
    points: Annotated[Floats, FloatArray("points", "features")]
    # Whole ones, as they count: clients may claim some that are not finite.
    weights: Annotated[Ints, IntArray("points")]
    span_s: float


@state_type
class WaitingUpdatesState(SavedState):
    """The updates that no bin has yet."""

    updates: list[WaitingUpdateState]


class WaitingUpdates:
    """The updates since the last look."""

    def __init__(self, circular: Sequence[int] = ()) -> None:
        """`circular`: positions of the features whose ends meet."""
        self._circular = circular
        self._updates: list[WaitingUpdate] = []
        self._coordinates = 0
        self._sampled: tuple[int, tuple[Sample, Floats]] | None = None
        """most points of an update, and the sample of these of all updates that wait"""

    def add(self, update: WaitingUpdate) -> bool:
        """Keep an update. True once those that wait should be taken."""
        self._updates.append(update)
        self._sampled = None
        self._coordinates += update.points.size
        return self._coordinates >= COORDINATES_MAX or len(self._updates) >= UPDATES_MAX

    def fill(self, points: Floats, weights: Floats) -> None:
        """Give points (n, d) with weights (n,) to the updates that have none."""
        self._updates = [
            update if len(update.weights) else update._replace(points=points, weights=weights)
            for update in self._updates
        ]
        self._sampled = None

    def take(
        self,
        predict: Callable[[Floats], Ints],
        of_number: Mapping[int, int],
        points_max: int = POINTS_MAX,
        unknown: Mapping[int, Bools] = NOTHING_UNKNOWN,
    ) -> Attribution | None:
        """Attribute the readings of the updates that wait, and empty the list; None if none waits.

        At most `points_max` points of each are looked at. `predict` gives points (n, d) their
        clusters (n,), and `of_number` gives a cluster its identity. Readings near points of other
        clusters count as those of `NO_CLUSTER`, and so do all readings of an update that has no
        points, or no positive weight. `unknown` has, by identity, the features (d,) on which the
        place of a cluster is not known.
        """
        updates = self._updates
        if not updates:
            return None
        sampled_points = self._sample(points_max)
        self.clear()
        return attributed(updates, sampled_points, predict, of_number, self._circular, unknown)

    def timed_points(self, after: int, points_max: int) -> TimedPoints | None:
        """Points of the updates with a number above `after`, at most `points_max` of each; None
        where these have none."""
        updates = [
            update for update in self._updates if update.number > after and len(update.weights)
        ]
        if not updates:
            return None
        # Mostly these are all: then the same sample is attributed to clusters.
        if len(updates) == len(self._updates):
            sample, points = self._sample(points_max)
        else:
            sample, points = sampled_points_of(updates, points_max)
        weight = np.bincount(sample.update, weights=sample.weight, minlength=len(updates))
        readings = np.array([update.readings for update in updates], dtype=np.float64)
        # Of an update without a positive weight nothing says where its readings lay.
        of_weight = np.divide(readings, weight, out=np.zeros(len(updates)), where=weight > 0)
        last = np.array([update.at for update in updates])
        first = last - np.array([update.span_s for update in updates])
        return TimedPoints(
            points,
            of_weight[sample.update] * sample.weight,
            first[sample.update],
            last[sample.update],
            max(update.number for update in updates),
        )

    def _sample(self, points_max: int) -> tuple[Sample, Floats]:
        """The sample of all updates that wait: see `sampled_points_of`."""
        if self._sampled is None or self._sampled[0] != points_max:
            self._sampled = (points_max, sampled_points_of(self._updates, points_max))
        return self._sampled[1]

    def clear(self) -> None:
        """Drop them."""
        self._updates = []
        self._coordinates = 0
        self._sampled = None

    @property
    def first_number(self) -> int | None:
        """The number of the update that has waited longest; None if none waits."""
        return self._updates[0].number if self._updates else None

    def state(self) -> dict[str, Any]:
        """The saved state for `restore`."""
        updates = []
        for update in self._updates:
            points_of = np.array([len(update.weights)])
            weights = whole_weights(update.weights, points_of)
            entries = update._asdict() | {"weights": weights}
            updates.append(WaitingUpdateState(**entries))
        return WaitingUpdatesState(updates=updates).saved()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        self.clear()
        for saved in WaitingUpdatesState.read(state).updates:
            weights = saved.weights.astype(np.float64)
            self.add(WaitingUpdate(**vars(saved) | {"weights": weights}))


def attributed(
    updates: Sequence[WaitingUpdate],
    sampled_points: tuple[Sample, Floats],
    predict: Callable[[Floats], Ints],
    of_number: Mapping[int, int],
    circular: Sequence[int] = (),
    unknown: Mapping[int, Bools] = NOTHING_UNKNOWN,
) -> Attribution:
    """Attribute the readings of updates to clusters by a sample of their points: see
    `WaitingUpdates.take` and `sampled_points_of`."""
    counts = [(update.number, update.readings) for update in updates]
    numbers, claimed = np.array(counts, dtype=np.int64).T
    sample, points = sampled_points
    identities = np.full(len(sample.place), NO_CLUSTER, dtype=np.int64)
    if len(identities):
        clusters = predict(points)
        # The last place is that of the number -1: of no cluster.
        known = [of_number.get(number, NO_CLUSTER) for number in range(int(clusters.max()) + 1)]
        identities = np.array([*known, NO_CLUSTER], dtype=np.int64)[clusters]
    names, readings = divided_readings(claimed, sample, identities)
    columns = names.searchsorted(identities)
    update, cluster, sums = placed_readings(sample, points, columns, names, readings, circular)
    sums = _only_known(cluster, sums, unknown, circular)
    times = np.array([update.at for update in updates])
    placed = Placed(times, numbers, update, cluster, sums)
    return spread(updates, numbers, names, readings)._replace(placed=placed)


def sampled_points_of(updates: Sequence[WaitingUpdate], points_max: int) -> tuple[Sample, Floats]:
    """Sample of at most `points_max` points of each update, and where they lie (m, d)."""
    updates = [
        _ordered(update) if len(update.weights) > points_max else update for update in updates
    ]
    numbers = np.array([update.number for update in updates], dtype=np.int64)
    points_of = np.array([len(update.weights) for update in updates], dtype=np.int64)
    weights = whole_weights(np.concatenate([update.weights for update in updates]), points_of)
    sample = sampled(weights, points_of, numbers, points_max)
    if not len(sample.place):
        return sample, np.empty((0, 0))
    # The empty points of an update without any may have no features.
    some = [update.points for update in updates if len(update.points)]
    return sample, np.concatenate(some)[sample.place]


def _ordered(update: WaitingUpdate) -> WaitingUpdate:
    """The update with its points in the order of the feature in which they spread most.

    A sample at equal steps then has of each cluster nearly the part that is in the update.
    """
    widest = int(np.argmax(np.ptp(update.points, axis=0)))
    order = np.argsort(update.points[:, widest], kind="stable")
    return update._replace(points=update.points[order], weights=update.weights[order])


def placed_readings(
    sample: Sample,
    points: Floats,
    column: Ints,
    identities: Ints,
    readings: Ints,
    circular: Sequence[int] = (),
) -> tuple[Ints, Ints, Ints]:
    """Updates (r,), known clusters (r,) and sums (r, 1 + f + c) of `Placed`, of sampled points (m,
    d), the place of the identity of each (m,) among `identities` (k,), and readings (w, k).

    The mean place of an update's points in a cluster stands for its readings there. Sums are of
    whole numbers, so the order of points and updates changes no bit.
    """
    features = min(points.shape[1], PLACES_FEATURES_MAX)
    circles = [feature for feature in circular if feature < features]
    kept = np.flatnonzero((identities[column] != NO_CLUSTER) & (sample.weight > 0))
    if not len(kept):
        none = np.empty(0, dtype=np.int64)
        return none, none, np.empty((0, 1 + features + len(circles)), dtype=np.int64)
    # One number for each pair of update and cluster, so that one sort brings equal pairs together.
    pair = sample.update[kept] * len(identities) + column[kept]
    order = np.argsort(pair, kind="stable")
    kept = kept[order]
    pair = pair[order]
    starts = np.append(0, (pair[1:] != pair[:-1]).nonzero()[0] + 1)
    places = points[kept, :features]
    # Whole units: sums of whole numbers are the same in every order, and rounding happens once.
    units = np.rint(np.clip(places * PLACE_UNITS, PLACE_MIN + 1, PLACE_MAX)).astype(np.int64)
    if circles:
        units = with_directions(units, places[:, circles], circles)
    weights = sample.weight[kept]
    masses = np.add.reduceat(weights, starts)
    means = np.add.reduceat(units * weights[:, None], starts) / masses[:, None]
    update, cluster = np.divmod(pair[starts], len(identities))
    counts = np.minimum(readings[update, cluster], READINGS_PLACED_MAX)
    sums = np.rint(means * counts[:, None]).astype(np.int64)
    # A cluster whose points weigh little may have got none of the whole readings.
    counted = counts > 0
    table = np.column_stack([counts, sums])[counted]
    return update[counted], identities[cluster[counted]], table


def _only_known(
    cluster: Ints, sums: Ints, unknown: Mapping[int, Bools], circular: Sequence[int]
) -> Ints:
    """Sums (r, 1 + f + c) of clusters (r,), with `SUM_UNKNOWN` where `unknown` has a feature of the
    cluster."""
    if not unknown:
        return sums
    known = sums.copy()
    for row, identity in enumerate(cluster.tolist()):
        if identity in unknown:
            known[row, _columns_of(unknown[identity], circular)] = SUM_UNKNOWN
    return known


def _columns_of(chosen: Bools, circular: Sequence[int]) -> Bools:
    """Features (d,) -> the columns (1 + f + c,) of sums of places that are of these."""
    features = min(len(chosen), PLACES_FEATURES_MAX)
    circles = [feature for feature in circular if feature < features]
    return np.concatenate([[False], chosen[:features], chosen[circles]])


def with_directions(units: Ints, places: Floats, circles: Sequence[int]) -> Ints:
    """Places (n, f) in whole units, those of circular features (n, c) in unit coordinates -> (n, f
    + c).

    A circular feature has the cosine of its direction in its own column, and the sine behind all
    features: so sums show the mean direction, also of readings on both sides of the place where the
    circle is cut.
    """
    turns = 2.0 * np.pi * places
    sines = np.rint(PLACE_UNITS * np.sin(turns)).astype(np.int64)
    directions = np.column_stack([units, sines])
    directions[:, circles] = np.rint(PLACE_UNITS * np.cos(turns)).astype(np.int64)
    return directions


def spread(
    updates: Sequence[WaitingUpdate], numbers: Ints, identities: Ints, readings: Ints
) -> Attribution:
    """Readings (u, k) of updates, with their numbers (u,), spread evenly over the time that each
    spans.

    An update becomes parts, one for each bin of `FINE_S` in its span and each reading, and at most
    `PARTS_MAX`. Like readings at equal intervals, the first part is at the oldest time and the last
    one at the newest.
    """
    at = np.array([update.at for update in updates])
    clients = [update.client for update in updates]
    spans = np.array([update.span_s for update in updates])
    bins = spans // FINE_S + 1
    if (bins == 1).all():
        return Attribution(at, clients, numbers, identities, readings)
    parts = np.clip(np.minimum(bins, readings.sum(axis=1)), 1, PARTS_MAX).astype(np.int64)
    update = np.repeat(np.arange(len(updates)), parts)
    part = np.arange(len(update)) - np.repeat(np.cumsum(parts) - parts, parts)
    divisor = parts[update, None]
    total = readings[update]
    # Whole numbers, so that the parts add up; quotient and rest apart, as claims may be near the
    # largest number.
    quotient = total // divisor
    rest = total % divisor
    counts = quotient + rest * (part[:, None] + 1) // divisor - rest * part[:, None] // divisor
    # The last part ends a span and the first one begins it; a single part is at the newest reading.
    back = (1.0 - part / np.maximum(1, parts[update] - 1)) * (parts[update] > 1)
    moments = at[update] - spans[update] * back
    part_clients = [clients[place] for place in update.tolist()]
    return Attribution(moments, part_clients, numbers[update], identities, counts)


def whole_weights(weights: Floats, points_of: Ints) -> Ints:
    """weights (n,) of all updates, how many each of them has (u,) -> (n,) in whole numbers up to
    `LARGEST_WEIGHT`.

    All of an update are 0 where clients claim what are no weights, or none above 0.
    """
    if not len(weights):
        return np.empty(0, dtype=np.int64)
    filled = points_of[points_of > 0]
    starts = np.cumsum(filled) - filled
    # Clients claim these weights: relative to the largest of an update, so that no sum overflows.
    largest = np.repeat(np.maximum.reduceat(weights, starts), filled)
    shares = np.divide(
        weights, largest, out=np.zeros(len(weights)), where=(largest > 0) & (largest < math.inf)
    )
    whole: Ints = np.rint(np.maximum(shares, 0.0) * LARGEST_WEIGHT).astype(np.int64)
    return whole


def sampled(weights: Ints, points_of: Ints, numbers: Ints, points_max: int) -> Sample:
    """weights (n,) of the points of all updates, how many each of them has (u,), numbers (u,) of
    the updates.

    An update with more points than `points_max` gives those at that many equal steps through the
    sum of its weights (systematic sampling), each with the same weight: what a point is counted
    differs from its share by less than one step. Where the first step begins depends on the number
    of the update, so that over many updates points with small weights get their shares too. Of the
    others all points, with their own weights.
    """
    update = np.repeat(np.arange(len(points_of)), points_of)
    if (points_of <= points_max).all():
        return Sample(np.arange(len(weights)), update, weights)
    ends = np.cumsum(points_of)
    reached = np.append(0, np.cumsum(weights))
    before = reached[ends - points_of]
    total = reached[ends] - before
    many = np.flatnonzero((points_of > points_max) & (total > 0))
    whole = np.flatnonzero(points_of[update] <= points_max)
    # By the number of the update, not drawn: a model that is rebuilt from the log must take the
    # same sample.
    begin = numbers[many] * GOLDEN % 1.0
    steps = (np.arange(points_max) + begin[:, None]) * (total[many, None] / points_max)
    # Each whole number below the sum lies in the weight of exactly one point. Rounding must not
    # lead beyond the last point.
    steps = np.minimum(steps.astype(np.int64), total[many, None] - 1) + before[many, None]
    kept = reached[1:].searchsorted(steps.ravel(), side="right")
    return Sample(
        np.concatenate([whole, kept]),
        np.concatenate([update[whole], np.repeat(many, points_max)]),
        np.concatenate([weights[whole], np.ones(len(kept), dtype=np.int64)]),
    )


def divided_readings(claimed: Ints, sample: Sample, identities: Ints) -> tuple[Ints, Ints]:
    """The readings claimed by updates (u,), divided over the identities (m,) of their points by the
    weights of these.

    -> identities (k,) in their order, each once, `NO_CLUSTER` among them, and readings (u, k). They
    are whole numbers that add up to those claimed: each is the rounded share so far less those
    before it.
    """
    names, column = np.unique(np.append(identities, NO_CLUSTER), return_inverse=True)
    shape = len(claimed), len(names)
    # A sum of whole numbers, which 64-bit floats hold exactly.
    mass = np.bincount(
        sample.update * shape[1] + column[:-1], sample.weight, math.prod(shape)
    ).reshape(shape)
    # NO_CLUSTER is the first: it gets all where no weight says otherwise.
    mass[~mass.any(axis=1), 0] = 1.0
    reached = np.cumsum(mass, axis=1)
    # What is reached at the end is exactly 1, so that all readings are divided.
    upto = np.rint(claimed[:, None] * (reached / reached[:, -1:])).astype(np.int64)
    # A copy, as the right side would change while it is taken off.
    upto[:, 1:] -= upto[:, :-1].copy()
    return names, upto


def points_compared(nodes: Floats) -> int:
    """Number of points of an update that are compared with nodes (n, d)."""
    return max(POINTS_MIN, min(POINTS_MAX, COORDINATES_COMPARED // max(1, nodes.size)))
