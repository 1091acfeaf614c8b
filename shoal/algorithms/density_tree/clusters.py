"""Clusters of the leaves: leaves are joined where the valley between them has filled up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from shoal.algorithms.density_tree.extents import Extents
from shoal.algorithms.density_tree.gaps import LEAST_EXTENT, MIDDLE_80
from shoal.algorithms.density_tree.joining import Bridges, Groups, Touching
from shoal.algorithms.density_tree.leaf import Leaf
from shoal.algorithms.density_tree.tree import Cut, Node, axis_in, cuts_of, leaves_of
from shoal.algorithms.density_tree.valleys import ends_meet, is_filled, saddle_of
from shoal.kernels.arrays import Bools, Floats, Ints

MASS_SIGNIFICANCE: Final = 2.5
"""standard deviations above zero from which a leaf has mass"""
REACHING_SHARE: Final = 0.1
"""share of its readings that a leaf has where it touches a neighbour of the same cluster"""
NEAR_WIDTHS: Final = 3.0
"""standard deviations between the means of two leaves on a feature up to which they are at one
place there"""

LEAST_PEAK: Final = 1e-9
"""density below which a peak counts as this, so that none is divided by zero"""


def masses(leaves: list[Leaf]) -> Floats:
    """(l,) share of the readings in each leaf; 0 where it is not significant, equal shares as long
    as none is."""
    mass = np.zeros(len(leaves))
    for number, leaf in enumerate(leaves):
        d = leaf.d
        # Features alone: an oblique axis that shows nothing is drawn anew, and counts from 0 again.
        counted = float(leaf.coarse[:d].sum())
        noise = float(leaf.coarse_noise[:d].sum())
        # One reading more, so that a leaf without noise and readings is not certain.
        if counted > MASS_SIGNIFICANCE * np.sqrt(noise + max(counted, 0.0) + 1.0):
            # By exposure: leaves differ in how many of their axes windows sample.
            mass[number] = counted / max(float(leaf.exposure[:d].sum()), 1e-9)
    total = float(mass.sum())
    if total <= 0.0:
        return np.full(len(leaves), 1.0 / len(leaves))
    return mass / total


def cluster_leaves(
    root: Node, mass: Floats, extent: Extents, filled: float, circular: Sequence[int] = ()
) -> Ints:
    """(l,) the cluster of each leaf, numbered from 0 in the order of their first leaves.

    Leaves on either side of a cut whose valley has filled up are joined where they touch, and so
    are those at both ends of a `circular` feature, which is one place. A cut may keep its valley
    between other leaves: two that have none between them and are at one place in all other features
    are joined all the same. What holds no significant mass is no cluster and goes with the heaviest
    leaf on the other side of its cut.
    """
    leaves = leaves_of(root)
    place = {leaf.leaf_id: number for number, leaf in enumerate(leaves)}
    groups = Groups(len(leaves))
    cuts = list(cuts_of(root))
    if cuts:
        at_one_place = _near(extent, circular)
        touching: list[Touching] = []
        for cut in cuts:
            touching += _touching_across(cut, mass, place, at_one_place, filled)
        Bridges(leaves, cuts, mass, filled).join(groups, touching)
    for feature in circular:
        _join_ends(feature, leaves, groups, mass, place, filled)
    # From the leaves up: the groups within a part are known before the part is joined.
    for cut in reversed(cuts):
        left, right = ([place[leaf.leaf_id] for leaf in leaves_of(part)] for part in cut.parts)
        _join_empty(left, right, groups, mass)
        _join_empty(right, left, groups, mass)
    return groups.numbers()


def _touching_across(
    cut: Cut, mass: Floats, place: dict[int, int], near: Bools, filled: float
) -> list[Touching]:
    """The leaves that touch across a cut where no valley is left; `near` (l, l, d) as `_near` gives
    it."""
    left, right = (leaves_of(part) for part in cut.parts)
    no_valley = is_filled(cut, left, right, filled)
    # On an oblique cut all features are others.
    is_other = np.arange(near.shape[-1]) != cut.axis
    at_one_place = np.asarray(near[..., is_other].all(axis=-1))
    touching = []
    for below, above in product(_with_mass(left, mass, place), _with_mass(right, mass, place)):
        pair = place[below.leaf_id], place[above.leaf_id]
        if not (no_valley or at_one_place[pair]) or not _touch(cut, below, above):
            continue
        # Of leaves at one place it is enough that there is more likely none than one.
        # Measured on office readings: with 1 standard deviation here, too, three times as many
        # events are about nothing, as cuts that noise has made are not healed.
        sure = 0.0 if at_one_place[pair] else 1.0
        saddle = saddle_of(cut, [below], [above])
        if saddle.is_filled(filled, sure):
            touching.append(Touching(saddle.height / max(saddle.peak, LEAST_PEAK), *pair))
    return touching


def _join_ends(
    feature: int,
    leaves: list[Leaf],
    groups: Groups,
    mass: Floats,
    place: dict[int, int],
    filled: float,
) -> None:
    """Join leaves at both ends of a circular feature, which is one place, where no valley is."""
    at_end = _with_mass([leaf for leaf in leaves if leaf.high[feature] >= 1.0], mass, place)
    at_start = _with_mass([leaf for leaf in leaves if leaf.low[feature] <= 0.0], mass, place)
    for last, first in product(at_end, at_start):
        if last is first or not _overlap(last, first, feature):
            continue
        if ends_meet(feature, last, first, filled):
            groups.join(place[last.leaf_id], place[first.leaf_id])


def _join_empty(part: list[int], others: list[int], groups: Groups, mass: Floats) -> None:
    """Join the leaves of a part that holds no significant mass to the heaviest other one."""
    if mass[part].sum() != 0.0 or mass[others].sum() <= 0.0:
        return
    # Of equally heavy leaves the first.
    heaviest = max(others, key=lambda leaf: float(mass[leaf]))
    for leaf in part:
        groups.join(leaf, heaviest)


def _with_mass(side: list[Leaf], mass: Floats, place: dict[int, int]) -> list[Leaf]:
    """Leaves of a side that hold significant mass: others would join the clusters between which
    they lie."""
    return [leaf for leaf in side if mass[place[leaf.leaf_id]] > 0.0]


def _touch(cut: Cut, left: Leaf, right: Leaf) -> bool:
    """Whether two leaves lie on either side of the cut and meet there, both with readings."""
    # Exactly: both ends were set to the same number when the leaf was cut.
    if left.end[axis_in(left, cut)] != cut.at or right.start[axis_in(right, cut)] != cut.at:
        return False
    return _overlap(left, right, cut.axis)


def _overlap(left: Leaf, right: Leaf, axis: int) -> bool:
    """Whether two leaves have readings at the same places of all features but the one that is
    `axis`."""
    low = np.maximum(left.low, right.low)
    high = np.minimum(left.high, right.high)
    features = [feature for feature in range(left.d) if feature != axis]
    if not all(low[feature] < high[feature] for feature in features):
        return False
    return all(_reaches(leaf, feature, low, high) for leaf in (left, right) for feature in features)


def _reaches(leaf: Leaf, feature: int, low: Floats, high: Floats) -> bool:
    """Whether a leaf has some of its readings within low .. high (d,) of a feature, as far as noise
    can tell.

    What it has near a cut does not bound a neighbour that it meets where it has no readings.
    """
    if low[feature] <= leaf.low[feature] and leaf.high[feature] <= high[feature]:
        return True
    first = np.array([low[feature], leaf.low[feature]])
    last = np.array([high[feature], leaf.high[feature]])
    (within, whole), (variance, _) = leaf.density(feature, first, last)
    return bool(within + np.sqrt(variance) >= REACHING_SHARE * whole)


def _near(extent: Extents, circular: Sequence[int]) -> Bools:
    """(l, l, d) whether the means of two leaves differ little on a feature, by the widths of their
    readings.

    Extents are made from released counts, as all else that is looked at here.
    """
    distance = np.abs(extent.mean[:, None] - extent.mean)
    for feature in circular:
        distance[..., feature] = np.minimum(distance[..., feature], 1.0 - distance[..., feature])
    variance = np.square(np.maximum(extent.high - extent.low, LEAST_EXTENT) / MIDDLE_80)
    return np.asarray(distance <= NEAR_WIDTHS * np.sqrt((variance[:, None] + variance) / 2.0))
