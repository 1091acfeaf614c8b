"""Description of each cluster in the units of the contract: place, features that set it apart, and
its readings.

Descriptions are made from snapshots and the lineage alone, so they reveal nothing that was not
published. Noise can place nodes outside the declared bounds; a description shows the nearest value
within them and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np

from shoal.algorithms.view import ClusteringView
from shoal.config.contract import (
    Contract,
    Feature,
    category_text,
    digits_shown,
    ends_text,
    names_without_units,
    range_text,
    rounded,
    value_text,
    within,
)
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.server_node.report.lineage.clusters import Lineage
from shoal.server_node.report.types import BoundSide, Interval

SHARES = (0.1, 0.5, 0.9)
"""quantiles of the mass of a cluster, between which its values are said to lie"""
FEATURES_APART_MAX = 2
APART_MIN = 1.0
"""distance between two middles, in half widths of both intervals together, from which a feature
sets a cluster apart"""
TOLD_BEFORE: Final = 1.5
"""what the distance in a feature that told a cluster apart before counts more, so that names last
"""
RATIO_APART: Final = 0.4
"""logarithm of the ratio of two spreads, or of two roughnesses, that counts as much as `APART_MIN`:
a factor of 1.5"""
WIDTH_MIN = 0.02
"""least width that an interval counts with, as a share of the range between the bounds"""

COMPARED_SHARE_MIN: Final = 0.02
"""least share of the mass with which a cluster counts among those that names are decided by: beside
two states, a few odd readings on the other side would leave the largest one without a name
"""

AT_BOUND: Final[Mapping[BoundSide, str]] = {"low": "at most", "high": "at least"}
"""what is known of readings at a declared bound"""
ONLY: Final = "all readings"
"""name of a cluster without others"""
ORDINARY: Final = "ordinary"
"""name of the cluster that nothing sets apart while others are set apart"""


def bound_text(side: BoundSide, bound: float, feature: Feature) -> str:
    """What is known of readings at a declared bound, such as "at most 26.0 °C"."""
    return f"{AT_BOUND[side]} {value_text(bound, feature)}"


@dataclass(frozen=True)
class Distinction:
    """A feature by which a cluster differs from all others."""

    feature: int
    """position in the contract"""
    high: bool
    """whether the cluster lies above the others, else below; of one between the others without
    meaning"""
    here: Interval
    elsewhere: Interval
    """values of all others; beside `above`, of those below"""
    above: Interval | None = None
    """values of the others above, where the cluster lies between them; else None"""
    at_bound: BoundSide | None = None
    """the declared bound at which its readings lie"""


@dataclass(frozen=True)
class Manner:
    """A way in which readings of a state move in one feature, where those of the others move
    differently."""

    feature: int
    """position in the contract"""
    word: str
    """such as "restless" or "rising\""""
    text: str
    """values here and elsewhere, such as "varies by 40 lux, elsewhere 8\""""


@dataclass(frozen=True)
class Description:
    """One cluster."""

    centre: tuple[float, ...]
    """per feature, in units, within the bounds"""
    intervals: tuple[Interval, ...]
    """per feature"""
    distinctions: tuple[Distinction, ...]
    """the features that set it apart, the most telling first; empty: none does"""
    manners: tuple[Manner, ...] = ()
    """movements of a state that set it apart; with the features above at most `FEATURES_APART_MAX`
    """
    label: str = ONLY
    """a short name such as "Light high, CO2 low, mostly by day", which no other cluster of the
    model has"""
    time: str = ""
    """time at which most of its readings fall, such as "at night"; empty where nothing shows that
    """
    at_bounds: Mapping[int, BoundSide] = field(default_factory=dict)
    """feature, by its position -> the declared bound at which its readings lie: what is beyond a
    bound counts as it, so the true values may be any from there on"""

    def text(self, contract: Contract) -> str:
        """One sentence such as "Light high: 430-560 lux, elsewhere 0-90"."""
        names = names_without_units(contract.features)
        parts = []
        for distinction in self.distinctions:
            feature = contract.features[distinction.feature]
            parts.append(_sentence(names[distinction.feature], distinction, feature))
        for manner in self.manners:
            parts.append(f"{names[manner.feature]} {manner.word}: {manner.text}")
        if not parts and self.label == ONLY:
            parts.append("the only cluster")
        elif not parts:
            parts.append("no feature sets it apart from the other clusters")
        if self.time:
            parts.append(f"most of its readings fall {self.time}")
        for j, side in self.at_bounds.items():
            bound = bound_text(side, self.intervals[j].middle, contract.features[j])
            parts.append(
                f"{names[j]} is {bound}, a bound of the contract, as which all readings beyond it "
                "count: a wider one shows where they lie"
            )
        return "; ".join(parts)


def describe(
    view: ClusteringView,
    contract: Contract,
    times: Mapping[int, str] = MappingProxyType({}),
    *,
    apart_min: float = APART_MIN,
    told: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> dict[int, Description]:
    """number of each cluster in the view -> its description. O(nodes log nodes) per feature.

    `times` are the words for when most readings of a cluster fall: by its number, empty for none.
    From `apart_min` on a feature sets a cluster apart; those in `told`, by its number, told it
    apart before and count for more.
    """
    member = view.cluster >= 0
    numbers = np.unique(view.cluster[member]).tolist()
    if not numbers:
        return {}
    bounds = contract.bounds
    features = contract.features
    places, mass, cluster = places_of(view, member)
    nodes = bounds.shown(places)
    centres = bounds.shown(view.centres)
    described: dict[int, Description] = {}
    weaker: dict[int, Distinction] = {}
    every = []
    for number in numbers:
        own = cluster == number
        every.append(_intervals(nodes[own], mass[own], features))
    cluster_place = np.searchsorted(numbers, cluster)
    placed = nodes, mass, cluster_place
    own_mass = np.bincount(cluster_place, weights=mass, minlength=len(numbers))
    large = _large(np.asarray(own_mass, dtype=np.float64))
    for place, (number, intervals) in enumerate(zip(numbers, every, strict=True)):
        others = cluster != number
        if (others & large[cluster_place]).any():
            others &= large[cluster_place]
        elsewhere = {}
        if len(numbers) > 1:
            elsewhere = dict(enumerate(_intervals(nodes[others], mass[others], features)))
        compared = _kept(_compared(intervals, elsewhere, contract), told.get(number, ()))
        manners = _manners(view, number, numbers, contract)
        apart, telling_manners = _most_telling(compared, manners, apart_min)
        is_apart = bool(apart or telling_manners)
        # Where no feature sets it apart from all others together, one may lie between them.
        if not is_apart and len(numbers) > 2:
            compared_places = np.flatnonzero(large | (np.arange(len(numbers)) == place))
            apart = _between(place, compared_places, every, placed, contract, apart_min)
        if number in told:
            apart = _in_order(apart, told[number])
        centre = [
            within(value, feature)
            for value, feature in zip(centres[number].tolist(), features, strict=True)
        ]
        described[number] = Description(
            tuple(centre), tuple(intervals), apart, telling_manners, time=times.get(number, "")
        )
        if not (apart or telling_manners) and compared and compared[0][0] > 0:
            weaker[number] = compared[0][1]
    described = _with_bounds(described, features)
    held = {number: float(mass[cluster == number].sum()) for number in numbers}
    labels = _labels(described, weaker, held, contract)
    return {
        number: replace(description, label=labels[number])
        for number, description in described.items()
    }


def _with_bounds(
    described: Mapping[int, Description], features: Sequence[Feature]
) -> dict[int, Description]:
    """The descriptions, by number, with the bounds at which all of the middle 80 % lies.

    A feature of which some cluster lies at one bound and some at the other has two values, as a
    switch, and nothing beyond them. What noise has put beyond a bound is no reading.
    """
    found: dict[int, dict[int, BoundSide]] = {number: {} for number in described}
    for j, feature in enumerate(features):
        sides: dict[int, BoundSide] = {}
        for number, description in described.items():
            side = _side_of(description.intervals[j], feature)
            if side is not None:
                sides[number] = side
        if len(set(sides.values())) == 1:
            for number, side in sides.items():
                found[number][j] = side
    with_bounds = {}
    for number, description in described.items():
        apart = tuple(
            replace(distinction, at_bound=found[number].get(distinction.feature))
            for distinction in description.distinctions
        )
        with_bounds[number] = replace(description, distinctions=apart, at_bounds=found[number])
    return with_bounds


def _side_of(interval: Interval, feature: Feature) -> BoundSide | None:
    """The bound at which all of an interval lies, as far as its shown digits say."""
    if feature.kind != "number" or interval.beyond_bounds:
        return None
    # What is shown alike is less than a step apart; with most intervals no text has to be made.
    apart = 2.0 * 10.0 ** -digits_shown(feature)
    if interval.high - feature.low > apart and feature.high - interval.low > apart:
        return None
    ends = rounded((interval.low, interval.high), feature)
    if ends == rounded((feature.low, feature.low), feature):
        return "low"
    if ends == rounded((feature.high, feature.high), feature):
        return "high"
    return None


def _large(mass: Floats) -> Bools:
    """mass (k,) of clusters -> (k,) whether names are decided by them; all where none has mass."""
    total = mass.sum()
    if total <= 0:
        return np.ones(len(mass), dtype=np.bool_)
    return np.asarray(mass >= COMPARED_SHARE_MIN * total)


def places_of(view: ClusteringView, member: Bools) -> tuple[Floats, Floats, Ints]:
    """The nodes of clusters -> places (n, d) in unit coordinates, their mass (n,) and their cluster
    (n,).

    A node of which the view knows how far its rows spread stands at three places, each with a third
    of its mass: a tenth, the middle and nine tenths of its rows, so that the quantiles of a single
    node are those of its rows.
    """
    nodes = view.nodes[member]
    mass = view.mass[member]
    cluster = view.cluster[member]
    if view.node_low is None or view.node_high is None:
        return nodes, mass, cluster
    places = np.concatenate([view.node_low[member], nodes, view.node_high[member]])
    return places, np.tile(mass / 3, 3), np.tile(cluster, 3)


def _intervals(nodes: Floats, mass: Floats, features: Sequence[Feature]) -> list[Interval]:
    """The interval of each feature over nodes (n, d) with their mass (n,); n >= 1."""
    quantiles = weighted_quantiles(nodes, mass, SHARES)
    intervals = []
    for j, feature in enumerate(features):
        if feature.kind == "circular":
            intervals.append(_around(nodes[:, j], mass, feature))
        else:
            intervals.append(_shown_interval(quantiles[j], feature))
    return intervals


def _around(values: Floats, mass: Floats, feature: Feature) -> Interval:
    """The interval along a circle, which is cut opposite the mean of the directions."""
    weights = mass if mass.sum() > 0 else np.ones(len(values))
    turn = feature.period
    # Of directions: 23:50 and 00:10 have their mean at midnight and not at noon.
    mean = np.angle((weights * np.exp(2j * np.pi / turn * values)).sum()) * turn / (2 * np.pi)
    from_mean = (values - mean + turn / 2) % turn - turn / 2
    [quantiles] = weighted_quantiles(from_mean[:, None], mass, SHARES)
    low, middle, high = (float(mean + quantile) % turn for quantile in quantiles)
    return Interval(low, middle, high)


def _shown_interval(quantiles: list[float], feature: Feature) -> Interval:
    low, middle, high = (within(quantile, feature) for quantile in quantiles)
    return Interval(low, middle, high, beyond_bounds=[low, middle, high] != quantiles)


def interval_width(interval: Interval, feature: Feature) -> float:
    """Distance from its low end to its high one, on a circle around it."""
    width = interval.high - interval.low
    return width % feature.period if feature.kind == "circular" else width


def distance_between(here: float, there: float, feature: Feature) -> float:
    """Distance between two values, on a circle the shorter way."""
    distance = abs(here - there)
    if feature.kind == "circular":
        return min(distance, feature.period - distance)
    return distance


def weighted_quantiles(values: Floats, mass: Floats, shares: Sequence[float]) -> list[list[float]]:
    """values (n, d), mass (n,), n >= 1 -> for each column the value at each share of the mass;
    without mass, of n."""
    order = np.argsort(values.T, axis=1, kind="stable")
    columns = np.take_along_axis(values.T, order, axis=1)
    weights = mass[order] if mass.sum() > 0 else np.ones(order.shape)
    # A value stands in the middle of its mass, so that the median of two values lies between them.
    reached = np.cumsum(weights, axis=1) - 0.5 * weights
    wanted = np.multiply.outer(weights.sum(axis=1), shares)
    return [
        np.interp(*of_column).tolist() for of_column in zip(wanted, reached, columns, strict=True)
    ]


def _compared(
    intervals: list[Interval], elsewhere: Mapping[int, Interval], contract: Contract
) -> list[tuple[float, Distinction]]:
    """Distance in each feature, and its distinction; the farthest first."""
    scored = []
    for j, others in elsewhere.items():
        here = intervals[j]
        feature = contract.features[j]
        # Without a least width, a feature that hardly varies in either would set them apart at any
        # distance.
        least = WIDTH_MIN * (feature.high - feature.low)
        widths = max(interval_width(here, feature), least) + max(
            interval_width(others, feature), least
        )
        apart = 2 * distance_between(here.middle, others.middle, feature) / widths
        scored.append((apart, Distinction(j, here.middle > others.middle, here, others)))
    # Of equal distances the first feature: the same clusters must have the same names.
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].feature))


def _kept(
    compared: list[tuple[float, Distinction]], told: Sequence[int]
) -> list[tuple[float, Distinction]]:
    """Features that told a cluster apart before stay ahead of others that tell little more."""
    scored = []
    for score, distinction in compared:
        weight = TOLD_BEFORE if distinction.feature in told else 1.0
        scored.append((score * weight, distinction))
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].feature))


def _in_order(apart: tuple[Distinction, ...], told: Sequence[int]) -> tuple[Distinction, ...]:
    """Features that told a cluster apart before come first, in their order."""
    order = {feature: place for place, feature in enumerate(told)}

    def place(distinction: Distinction) -> int:
        return order.get(distinction.feature, len(order))

    return tuple(sorted(apart, key=place))


def _between(
    place: int,
    compared: Ints,
    intervals: Sequence[Sequence[Interval]],
    placed: tuple[Floats, Floats, Ints],
    contract: Contract,
    apart_min: float,
) -> tuple[Distinction, ...]:
    """The feature in which a cluster lies apart from each other one, between them; () where there
    is none.

    `intervals` are those of all clusters, of which this is the one at `place`; the places of the
    clusters that it is compared with, and its own, are in `compared`. `placed`: nodes (n, d) in
    units, their mass (n,), and the places of their clusters (n,).
    """
    nodes, mass, cluster = placed
    middles = np.array([[interval.middle for interval in row] for row in intervals])
    spans = np.array([feature.high - feature.low for feature in contract.features])
    lows = np.array([[interval.low for interval in row] for row in intervals])
    highs = np.array([[interval.high for interval in row] for row in intervals])
    widths = np.maximum(highs - lows, WIDTH_MIN * spans)
    apart = 2 * np.abs(middles - middles[place]) / (widths + widths[place])
    # Infinite, so that the minimum over all clusters passes over those it is not compared with.
    apart[place] = np.inf
    is_compared = np.zeros(len(middles), dtype=np.bool_)
    is_compared[compared] = True
    apart[~is_compared] = np.inf
    is_above = (middles > middles[place]) & is_compared[:, None]
    # A circle has no sides.
    has_sides = np.array([feature.kind != "circular" for feature in contract.features])
    has_sides &= is_above.any(axis=0) & (is_above.sum(axis=0) < len(compared) - 1)
    scores = np.where(has_sides, apart.min(axis=0), 0.0)
    j = int(np.argmax(scores))
    if scores[j] < apart_min:
        return ()
    feature = contract.features[j]
    of_above = is_above[cluster, j]
    others = (cluster != place) & is_compared[cluster]
    is_below = others & ~of_above
    [below] = _intervals(nodes[is_below, j, None], mass[is_below], [feature])
    [above] = _intervals(nodes[of_above, j, None], mass[of_above], [feature])
    return (Distinction(j, False, intervals[place][j], below, above),)


def _most_telling(
    compared: list[tuple[float, Distinction]], moving: list[tuple[float, Manner]], apart_min: float
) -> tuple[tuple[Distinction, ...], tuple[Manner, ...]]:
    """The places and the manners that set a cluster apart most, a place before a manner that tells
    as much."""
    # `sorted` is stable, and places come first: people see a value sooner than a way of moving.
    candidates: list[tuple[float, Distinction | Manner]] = [*compared, *moving]
    ranked = sorted(candidates, key=lambda pair: -pair[0])[:FEATURES_APART_MAX]
    places: list[Distinction] = []
    manners: list[Manner] = []
    for score, telling in ranked:
        if score < apart_min:
            continue
        if isinstance(telling, Distinction):
            places.append(telling)
        else:
            manners.append(telling)
    return tuple(places), tuple(manners)


def _manners(
    view: ClusteringView, number: int, numbers: list[int], contract: Contract
) -> list[tuple[float, Manner]]:
    """Distances of spread and roughness of a state from those of the others, in each feature."""
    states = view.states
    if states is None or len(numbers) < 2:
        return []
    others = [other for other in numbers if other != number]
    weight = view.centre_mass[others] / view.centre_mass[others].sum()
    scored: list[tuple[float, Manner]] = []
    for j, feature in enumerate(contract.features):
        if feature.kind == "category":
            continue
        span = feature.high - feature.low
        # A constant sensor has no spread to divide by.
        spreads = np.maximum(states.spread[:, j], WIDTH_MIN / 10) * span
        # The geometric mean: spreads differ by factors, and one wild state must not decide.
        here = float(spreads[number])
        elsewhere = float(np.exp(weight @ np.log(spreads[others])))
        score = abs(np.log(here / elsewhere)) / RATIO_APART
        word = "restless" if here > elsewhere else "steady"
        text = (
            f"varies by {value_text(here, feature)}, elsewhere {rounded((elsewhere,), feature)[0]}"
        )
        scored.append((float(score), Manner(j, word, text)))
        rough = float(states.rough[number, j])
        rough_there = float(weight @ states.rough[others, j])
        word = "rough" if rough > rough_there else "smooth"
        text = (
            f"successive readings {np.exp(rough):.2g} spreads apart, "
            f"elsewhere {np.exp(rough_there):.2g}"
        )
        scored.append((abs(rough - rough_there) / RATIO_APART, Manner(j, word, text)))
    return scored


def _labels(
    described: Mapping[int, Description],
    weaker: Mapping[int, Distinction],
    mass: Mapping[int, float],
    contract: Contract,
) -> dict[int, str]:
    """number -> a name that no other cluster has. `weaker` is the best feature of clusters that
    none sets apart."""
    if len(described) == 1:
        return dict.fromkeys(described, ONLY)
    names = names_without_units(contract.features)
    ordinary = _ordinary(described, mass)
    labels: dict[int, str] = {}
    for number, description in described.items():
        if number == ordinary:
            words = [ORDINARY]
        else:
            words = _words(description, names, contract)
            if not words and number in weaker:
                words = [_weaker_words(weaker[number], names, contract)]
        if description.time:
            words.append(f"mostly {description.time}")
        labels[number] = ", ".join(words) or ORDINARY
    total = sum(mass.values())
    for label, times in Counter(labels.values()).items():
        if times > 1:
            alike = {number: described[number] for number, own in labels.items() if own == label}
            apart = _told_apart(label, alike, contract)
            large = [number for number in alike if mass[number] >= COMPARED_SHARE_MIN * total]
            # Beside small ones alone, a large one keeps its name: it was there before them.
            if len(large) == 1:
                del apart[large[0]]
            labels |= apart
    return labels


def _ordinary(described: Mapping[int, Description], mass: Mapping[int, float]) -> int | None:
    """The heaviest cluster that nothing sets apart while others are set apart; None without one."""
    plain = [
        number
        for number, description in described.items()
        if not (description.distinctions or description.manners or description.time)
    ]
    # The heaviest is what the others are compared with; where nothing is set apart, none is the
    # ordinary one.
    if not 0 < len(plain) < len(described):
        return None
    return max(plain, key=lambda number: (mass[number], -number))


def _words(description: Description, names: Sequence[str], contract: Contract) -> list[str]:
    """What sets a cluster apart, such as "Light high and restless": an entry for each feature."""
    words_of: dict[int, list[str]] = {}
    for distinction in description.distinctions:
        feature = contract.features[distinction.feature]
        words_of.setdefault(distinction.feature, []).append(_direction(distinction, feature))
    for manner in description.manners:
        words_of.setdefault(manner.feature, []).append(manner.word)
    return [f"{names[j]} {' and '.join(words)}" for j, words in words_of.items()]


def _weaker_words(distinction: Distinction, names: Sequence[str], contract: Contract) -> str:
    """The feature in which a cluster differs most where that is too little to set it apart:
    "Light higher"."""
    feature = contract.features[distinction.feature]
    ending = "er" if feature.kind == "number" else ""
    return f"{names[distinction.feature]} {_direction(distinction, feature)}{ending}"


def _told_apart(label: str, alike: Mapping[int, Description], contract: Contract) -> dict[int, str]:
    """The names of clusters with one label: with the middle in the feature in which they differ
    most, else numbered."""

    def spread(j: int) -> float:
        """How far the middles of two neighbours are apart at least, as a share of the range between
        the bounds."""
        middles = sorted(description.intervals[j].middle for description in alike.values())
        feature = contract.features[j]
        least = min(after - before for before, after in pairwise(middles))
        return least / (feature.high - feature.low)

    # Of equal spreads the first feature, as the contract lists them.
    best = max(range(contract.width), key=lambda j: (spread(j), -j))
    feature = contract.features[best]
    name = names_without_units(contract.features)[best]
    values = {}
    for number, description in alike.items():
        values[number] = value_text(description.intervals[best].middle, feature)
    times = Counter(values.values())
    labels = {}
    for place, number in enumerate(sorted(alike), start=1):
        value = f"{name} {values[number]}"
        if times[values[number]] > 1:
            value = f"{value}, no. {place}"
        labels[number] = f"{label} ({value})"
    return labels


def _direction(distinction: Distinction, feature: Feature) -> str:
    if feature.kind == "category":
        return category_text(distinction.here.middle, feature)
    if feature.kind == "circular":
        return range_text(distinction.here.low, distinction.here.high, feature)
    if distinction.above is not None:
        return "medium"
    return "high" if distinction.high else "low"


def _sentence(name: str, distinction: Distinction, feature: Feature) -> str:
    here = range_text(distinction.here.low, distinction.here.high, feature)
    if distinction.at_bound is not None:
        here = bound_text(distinction.at_bound, distinction.here.middle, feature)
    elsewhere = ends_text(distinction.elsewhere.low, distinction.elsewhere.high, feature)
    if (above := distinction.above) is not None:
        elsewhere = f"{elsewhere} or {ends_text(above.low, above.high, feature)}"
    if feature.kind != "number":
        return f"{name} {here}, elsewhere {elsewhere}"
    return f"{name} {_direction(distinction, feature)}: {here}, elsewhere {elsewhere}"


def heaviest_numbers(
    lineage: Lineage, view: ClusteringView, described: Mapping[int, Description]
) -> dict[int, int]:
    """identity -> the number in the view that describes it.

    Parts of a cluster that are not confirmed yet are shown as that cluster: its heaviest number
    describes it.
    """
    numbers = [number for number in lineage.of_number if number in described]
    # The heaviest comes last and so replaces the others of its identity.
    by_mass = sorted(numbers, key=lambda number: float(view.centre_mass[number]))
    return {lineage.of_number[number]: number for number in by_mass}
