"""Identities of clusters of density_tree: merges must last, small groups are confirmed before they
are shown, and what comes back to a place has its number again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.extents import Extents
from shoal.algorithms.density_tree.identities import Identities, IdentitiesState
from shoal.algorithms.density_tree.leaf import Leaf
from shoal.algorithms.density_tree.merging import MERGE_READINGS
from shoal.algorithms.former_clusters import (
    FORMER_MAX,
    FORMER_WIDTHS,
    FormerCluster,
    FormerClusters,
    Place,
    place_of,
    widths_apart,
)

WIDTH = 0.05
"""of the middle 80 % of the readings of a leaf, on both features"""


class Part(NamedTuple):
    """A leaf, by where its readings lie on the first feature."""

    leaf: Leaf
    at: float
    mass: float


def part(at: float, mass: float, recent: float = 0.0) -> Part:
    leaf = Leaf(0, np.zeros(2), np.ones(2), Axes.features(2), 2)
    leaf.recent = recent
    return Part(leaf, at, mass)


def look(
    identities: Identities, parts: list[Part], groups: list[int], readings: int
) -> tuple[Identities, list[int]]:
    """The identities after a look at the parts, saved and restored, and the one as which each part
    is shown."""
    mean = np.array([[part.at, 0.5] for part in parts])
    extent = Extents(mean, mean - WIDTH / 2, mean + WIDTH / 2, np.ones(mean.shape, dtype=bool))
    leaves = [part.leaf for part in parts]
    mass = np.array([part.mass for part in parts])
    shown = identities.assign(leaves, mass, np.array(groups), extent, readings)
    saved = IdentitiesState.read(identities.state().saved(), {"d": 2})
    return Identities.restored(saved, 2), shown.identity[shown.cluster].tolist()


def run(parts: list[Part], looks: dict[int, list[int]]) -> list[list[int]]:
    """Readings -> groups of the parts then -> the identities as which the parts are shown."""
    identities = Identities(2)
    found = []
    for readings, groups in looks.items():
        identities, shown = look(identities, parts, groups, readings)
        found.append(shown)
    return found


def test_two_known_clusters_are_one_only_after_their_merge_has_lasted() -> None:
    parts = [part(0.2, 0.6), part(0.8, 0.4)]
    begun = 20_000
    looks = {
        1000: [0, 1],
        begun: [0, 0],
        begun + MERGE_READINGS - 1: [0, 0],
        begun + MERGE_READINGS: [0, 0],
    }
    assert run(parts, looks) == [[0, 1], [0, 1], [0, 1], [0, 0]]


def test_one_look_at_a_valley_begins_the_wait_for_a_merge_anew() -> None:
    parts = [part(0.2, 0.6), part(0.8, 0.4)]
    looks = {1000: [0, 1], 20_000: [0, 0], 24_000: [0, 1], 25_000: [0, 0], 30_000: [0, 0]}
    assert run(parts, looks) == [[0, 1]] * 5


def test_a_cluster_that_was_known_for_a_short_time_merges_after_as_short_a_time() -> None:
    parts = [part(0.2, 0.6), part(0.8, 0.4)]
    looks = {1000: [0, 0], 2000: [0, 1], 3000: [0, 0], 3500: [0, 0], 4000: [0, 0]}
    assert run(parts, looks) == [[0, 0], [0, 1], [0, 1], [0, 1], [0, 0]]


def test_what_is_there_again_after_a_merge_has_its_number_again() -> None:
    parts = [part(0.2, 0.6), part(0.8, 0.4)]
    looks = {1000: [0, 1], 20_000: [0, 0], 40_000: [0, 0], 60_000: [0, 1], 70_000: [0, 1]}
    assert run(parts, looks) == [[0, 1], [0, 1], [0, 0], [0, 1], [0, 1]]


def test_what_is_found_elsewhere_has_a_number_of_its_own() -> None:
    there = [part(0.2, 0.6), part(0.8, 0.4)]
    identities = Identities(2)
    for readings, groups in ((1000, [0, 1]), (20_000, [0, 0]), (40_000, [0, 0])):
        identities, _ = look(identities, there, groups, readings)
    elsewhere = [there[0], there[1]._replace(at=0.5)]
    _, shown = look(identities, elsewhere, [0, 1], 60_000)
    assert shown == [0, 2]


def test_a_small_group_is_shown_as_what_it_parted_from_until_it_has_lasted() -> None:
    parts = [part(0.2, 0.99), part(0.8, 0.01)]
    looks = {20_000: [0, 0], 40_000: [0, 1], 43_999: [0, 1], 44_000: [0, 1]}
    assert run(parts, looks) == [[0, 0], [0, 0], [0, 0], [0, 1]]


def test_a_speck_that_comes_and_goes_takes_no_number() -> None:
    parts = [part(0.2, 0.98), part(0.8, 0.01), part(0.5, 0.01)]
    looks = {20_000: [0, 0, 0], 40_000: [0, 1, 0], 42_000: [0, 0, 0], 44_000: [0, 0, 1]}
    looks |= {46_000: [0, 0, 1], 48_000: [0, 0, 1]}
    assert run(parts, looks) == [[0, 0, 0]] * 5 + [[0, 0, 1]]


def test_a_small_group_is_shown_at_once_in_a_young_stream_or_where_readings_fall_now() -> None:
    young = [part(0.2, 0.99), part(0.8, 0.01)]
    assert run(young, {1000: [0, 0], 2000: [0, 1], 2500: [0, 1]})[1:] == [[0, 0], [0, 1]]
    new_today = [part(0.2, 0.99, recent=900.0), part(0.8, 0.01, recent=100.0)]
    assert run(new_today, {20_000: [0, 0], 40_000: [0, 1]}) == [[0, 0], [0, 1]]


def test_every_group_is_shown_where_nothing_follows() -> None:
    parts = [part(0.2, 0.99), part(0.8, 0.01)]
    identities, _ = look(Identities(2), parts, [0, 0], 20_000)
    mean = np.array([[part.at, 0.5] for part in parts])
    shown = identities.assign(
        [part.leaf for part in parts],
        np.array([0.99, 0.01]),
        np.array([0, 1]),
        Extents(mean, mean, mean, np.ones(mean.shape, dtype=bool)),
        22_000,
        show_all=True,
    )
    assert shown.identity.tolist() == [0, 1]


# The memory of places.


def test_a_place_is_the_mean_and_variance_of_all_parts_also_across_the_ends_of_a_circle() -> None:
    means = np.array([[0.1, 0.98], [0.3, 0.02]])
    variances = np.array([[0.01, 0.0001], [0.01, 0.0001]])
    place = place_of(means, variances, np.array([1.0, 3.0]), circular=[1])
    np.testing.assert_allclose(place.mean, [0.25, 0.01], atol=1e-4)
    np.testing.assert_allclose(place.variance, [0.01 + 0.0075, 0.0001 + 0.0003], atol=1e-5)
    other = place_of(np.array([[0.25, 0.99]]), variances[:1], np.ones(1), circular=[1])
    assert widths_apart(place, other, circular=[1]) < 2.0 < widths_apart(place, other)


def test_the_nearest_former_cluster_within_two_widths_is_found_and_the_oldest_are_forgotten() -> (
    None
):
    former = FormerClusters()
    for identity in range(FORMER_MAX + 1):
        place = Place(np.array([float(identity)]), np.array([0.25]))
        former.add(identity, FormerCluster(place, 10.0 * identity, -1))
    near = Place(np.array([1.0 + FORMER_WIDTHS / 2 - 0.4]), np.array([0.25]))
    assert former.nearest(near) == 2
    assert former.nearest(near, taken={2}) == 1
    assert former.nearest(Place(np.array([0.0]), np.array([0.01]))) is None
    restored = FormerClusters.restored(former.state(1))
    assert restored.take(2).since == 20.0
    assert restored.nearest(near) == 1
