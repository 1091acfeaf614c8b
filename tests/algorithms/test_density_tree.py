"""density_tree: what it finds, what it forgets, and what late counts cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from shoal.algorithms.counting import CountingAlgorithm
from shoal.algorithms.density_tree import DENSITY_TREE, DensityTreeOptions, DensityTreeServer
from shoal.algorithms.density_tree.arrays import SHARE_ONE
from shoal.algorithms.density_tree.axes import Axes, oblique_axes
from shoal.algorithms.density_tree.clumping import Clumping
from shoal.algorithms.density_tree.clusters import cluster_leaves
from shoal.algorithms.density_tree.cutting import can_be_cut
from shoal.algorithms.density_tree.extents import extents
from shoal.algorithms.density_tree.leaf import BINS, Leaf
from shoal.algorithms.density_tree.plan import CountingPlan
from shoal.algorithms.density_tree.region import DensityTreeAggregator
from shoal.algorithms.density_tree.sampling import axes_of_leaf, axes_sampled, axis_shares
from shoal.algorithms.density_tree.tree import Cut
from shoal.algorithms.density_tree.valleys import is_filled
from shoal.algorithms.from_counts.rounds import KMEANS_FROM_COUNTS
from shoal.algorithms.streaming import Contribution
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy.count_noise import count_noise
from shoal.simulation.counting import CountingFederation

WINDOW = 400


def blobs(
    n: int, centres: list[list[float]], seed: int, spread: float = 0.03
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    middle = np.array(centres)
    of = generator.integers(len(middle), size=n)
    return np.clip(middle[of] + generator.normal(0, spread, (n, middle.shape[1])), 0, 1), of


def learnt(
    rows: NDArray[np.float64],
    epsilon: float | None,
    delay: int = 0,
    clients: int = 20,
    **options: Any,
) -> DensityTreeServer:
    """The server after the rows, dealt to clients in turn; clients see each snapshot `delay`
    updates late."""
    noise = None if epsilon is None else count_noise(epsilon)
    variance = 0.0 if noise is None else noise.variance
    server = DensityTreeServer(
        rows.shape[1], noise_variance=variance, window_readings=WINDOW, **options
    )
    snapshots = [server.plan]
    owner = np.arange(len(rows)) % clients
    windows = [
        (own[min(first + WINDOW, len(own)) - 1], client, own[first : first + WINDOW])
        for client in range(clients)
        for own in [np.flatnonzero(owner == client)]
        for first in range(0, len(own), WINDOW)
    ]
    for number, (_, client, own) in enumerate(sorted(windows, key=lambda each: each[:2])):
        plan = snapshots[max(0, len(snapshots) - 1 - delay)]
        counted = plan.count(rows[own], np.ones(len(own), dtype=bool), str(client).encode(), number)
        private = counted.counts
        if noise is not None:
            private = private + noise.draw(number.to_bytes(4, "little"), len(private))
        server.absorb([Contribution(str(client), number, counted.update(private))], b"")
        snapshots.append(server.plan)
    return server


CORNERS = [[0.2, 0.2, 0.5], [0.8, 0.2, 0.5], [0.2, 0.8, 0.5], [0.8, 0.8, 0.2], [0.8, 0.8, 0.8]]


@pytest.mark.parametrize("epsilon", [1.0, 4.0, None])
@pytest.mark.parametrize("seed", [1, 2])
def test_separate_clusters_are_found_at_an_epsilon_that_protects(
    epsilon: float | None, seed: int
) -> None:
    rows, truth = blobs(20_000, CORNERS, seed)
    server = learnt(rows, epsilon)
    assert adjusted_rand_score(truth, server.predict(rows)) > 0.97
    assert len(np.unique(server.predict(rows))) == 5


@pytest.mark.parametrize("learner", [None, KMEANS_FROM_COUNTS])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_nothing_is_found_in_the_noise_of_windows_without_accepted_readings(
    epsilon: float, learner: CountingAlgorithm | None
) -> None:
    noise = count_noise(epsilon)
    options = {"noise_variance": noise.variance, "window_readings": WINDOW}
    algorithm = learner or DENSITY_TREE
    server = algorithm.server(options, 3)
    refused = np.zeros(WINDOW, dtype=bool)
    accepted = np.random.default_rng(1).normal(0.5, 0.1, (WINDOW, 3)).clip(0, 1)

    def absorb(number: int, valid: NDArray[np.bool_]) -> None:
        plan = CountingPlan.from_arrays(server.snapshot(), 3)
        counted = plan.count(accepted, valid, b"client", number)
        private = counted.counts + noise.draw(number.to_bytes(4, "little"), len(counted.counts))
        server.absorb([Contribution("client", number, counted.update(private))], b"")

    for number in range(400):
        absorb(number, refused)
        assert len(algorithm.view(server.snapshot()).centres) == 0, number
    assert set(server.predict(accepted).tolist()) == {-1}
    for number in range(400, 900):
        absorb(number, ~refused)
    assert len(algorithm.view(server.snapshot()).centres) >= 1, (
        "readings that are accepted later are found"
    )
    assert -1 not in server.predict(accepted).tolist()


def test_one_cluster_and_a_plain_are_not_cut() -> None:
    for rows in (
        blobs(20_000, [[0.5, 0.4]], 3, 0.1)[0],
        np.random.default_rng(3).uniform(size=(20_000, 2)),
    ):
        for epsilon in (1.0, 4.0, None):
            assert len(np.unique(learnt(rows, epsilon).predict(rows))) == 1


def test_a_cluster_that_is_not_seen_any_more_is_kept_and_becomes_quiet() -> None:
    first, _ = blobs(12_000, CORNERS[:2], 4)
    later, _ = blobs(40_000, CORNERS[1:2], 5)
    server = learnt(np.concatenate([first, later]), 4.0)
    view = DENSITY_TREE.view(server.snapshot())
    assert len(set(server.predict(np.array(CORNERS[:2])).tolist())) == 2
    gone, here = server.predict(np.array(CORNERS[:2]))
    assert view.active.tolist()[here]
    assert not view.active.tolist()[gone]


def test_identities_last_while_other_clusters_come() -> None:
    rows = np.concatenate([blobs(12_000, CORNERS[:2], 6)[0], blobs(24_000, CORNERS, 7)[0]])
    noise = count_noise(4.0)
    server = DensityTreeServer(3, noise_variance=noise.variance)
    seen: list[list[int]] = []
    for number, first in enumerate(range(0, len(rows), WINDOW)):
        window = rows[first : first + WINDOW]
        counted = server.plan.count(window, np.ones(len(window), dtype=bool), b"client", number)
        private = counted.counts + noise.draw(number.to_bytes(4, "little"), len(counted.counts))
        server.absorb([Contribution("client", number, counted.update(private))], b"")
        identity = server.snapshot()["identity"]
        seen.append(identity[server.predict(np.array(CORNERS[:2]))].tolist())
    halfway = seen[12_000 // WINDOW - 1]
    assert len(set(halfway)) == 2
    assert seen[-1] == halfway


@pytest.mark.parametrize(("delay", "least"), [(5, 0.97), (50, 0.9)])
def test_snapshots_that_are_read_late_cost_little(delay: int, least: float) -> None:
    rows, truth = blobs(60_000, CORNERS, 8)
    server = learnt(rows, 4.0, delay)
    assert server.dropped == 0
    assert adjusted_rand_score(truth, server.predict(rows)) > least


def box(
    leaf_id: int, low: list[float], high: list[float], middle: list[float], readings: float
) -> Leaf:
    """A leaf of two features whose readings all lie in the bins around a point."""
    leaf = Leaf(leaf_id, np.array(low), np.array(high), Axes.features(2), 2)
    for axis in (0, 1):
        at = int((middle[axis] - low[axis]) / (high[axis] - low[axis]) * BINS)
        counts = np.zeros(BINS)
        counts[at] = readings
        leaf.add(axis, counts, 1000.0, 0.0)
    return leaf


def cut_at(axis: int, at: float, parts: tuple[Leaf | Cut, Leaf | Cut]) -> Cut:
    return Cut(Leaf(99, np.zeros(2), np.ones(2), Axes.features(2), 2), axis, at, 1 / 32, parts)


def clusters_of(
    root: Cut, mass: list[float], filled: float = 0.7, circular: tuple[int, ...] = ()
) -> list[int]:
    """The cluster of each leaf of a tree with these masses."""
    cluster = cluster_leaves(root, np.array(mass), extents(root), filled, circular)
    return [int(number) for number in cluster]


def test_a_bridge_of_few_readings_does_not_make_one_of_two_groups_that_a_clear_valley_parts() -> (
    None
):
    dark = box(0, [0, 0], [0.5, 1], [0.3, 0.45], 5000)
    lit = box(2, [0.5, 0.5], [1, 1], [0.8, 0.55], 5000)
    dusk = box(1, [0.5, 0], [1, 0.5], [0.51, 0.45], 100)
    # Readings at dusk fall off from the cut to the dark, and across the cut to the lit ones.
    dark.coarse[0, -1] = 300
    dusk.coarse[0] = np.where(np.arange(BINS) < 2, 300, 5)
    dusk.coarse[1] = np.where(np.arange(BINS) > 13, 300, 5)
    lit.coarse[1, 0] = 4000
    upper = cut_at(1, 0.5, (dusk, lit))
    root = cut_at(0, 0.5, (dark, upper))
    assert is_filled(root, [dark], [dusk], 0.7)
    assert is_filled(upper, [dusk], [lit], 0.7)
    assert clusters_of(root, [0.6, 0.02, 0.38]) == [0, 0, 1]


def test_clusters_on_either_side_of_a_cut_are_not_one_where_they_do_not_meet() -> None:
    low_left = box(0, [0, 0], [0.5, 1], [0.49, 0.2], 1000)
    others = (
        box(1, [0.5, 0], [1, 0.5], [0.9, 0.2], 1000),
        box(2, [0.5, 0.5], [1, 1], [0.51, 0.8], 1000),
    )
    root = cut_at(0, 0.5, (low_left, cut_at(1, 0.5, others)))
    mass = [1 / 3, 1 / 3, 1 / 3]
    assert clusters_of(root, mass) == [0, 1, 2]
    low_left = box(0, [0, 0], [0.5, 1], [0.49, 0.8], 1000)
    root = cut_at(0, 0.5, (low_left, cut_at(1, 0.5, others)))
    assert clusters_of(root, mass) == [0, 1, 0]


def test_a_leaf_without_significant_mass_does_not_join_the_clusters_beside_it() -> None:
    left = box(0, [0, 0], [0.4, 1], [0.39, 0.5], 1000)
    right = box(2, [0.5, 0], [1, 1], [0.51, 0.5], 1000)
    between = box(1, [0.4, 0], [0.5, 1], [0.45, 0.5], 20)
    between.coarse[0] = 20
    root = cut_at(0, 0.4, (left, cut_at(0, 0.5, (between, right))))
    assert clusters_of(root, [0.49, 0.02, 0.49], filled=0.01) == [0, 0, 0]
    assert clusters_of(root, [0.5, 0.0, 0.5], filled=0.01) == [0, 1, 1]


@pytest.mark.parametrize(
    ("middle", "expected"),
    [([0.51, 0.2], [0, 1, 0, 2]), ([0.51, 0.45], [0, 1, 2, 3]), ([0.9, 0.2], [0, 1, 2, 3])],
    ids=["at one place and no valley", "at another place", "a valley between"],
)
def test_parts_of_a_cluster_are_one_though_their_cut_keeps_its_valley_between_others(
    middle: list[float], expected: list[int]
) -> None:
    left = (
        box(0, [0, 0], [0.5, 0.5], [0.49, 0.2], 1000),
        box(1, [0, 0.5], [0.5, 1], [0.3, 0.8], 5000),
    )
    right = box(2, [0.5, 0], [1, 0.5], middle, 1000), box(3, [0.5, 0.5], [1, 1], [0.7, 0.8], 5000)
    root = cut_at(0, 0.5, (cut_at(1, 0.5, left), cut_at(1, 0.5, right)))
    assert not is_filled(root, list(left), list(right), 0.7)
    assert clusters_of(root, [0.25] * 4) == expected


@pytest.mark.parametrize(
    ("first", "other", "circular", "clusters"),
    [(2, 3, (), 1), (2, 8, (), 2), (0, BINS - 1, (), 2), (0, BINS - 1, (1,), 1)],
    ids=["near", "apart", "at both ends", "at both ends, which meet"],
)
def test_of_parts_at_one_place_more_likely_no_valley_than_one_is_enough(
    first: int, other: int, circular: tuple[int, ...], clusters: int
) -> None:
    parts = box(0, [0, 0], [0.5, 1], [0.49, 0.5], 100), box(1, [0.5, 0], [1, 1], [0.51, 0.5], 100)
    for part, peak, middle in zip(parts, (BINS - 4, 4), (first, other), strict=True):
        part.coarse[0, peak] = 130
        part.coarse[1] = np.round(100 * 0.5 ** np.abs(np.arange(BINS) - middle))
    root = cut_at(0, 0.5, parts)
    assert not is_filled(root, [parts[0]], [parts[1]], 0.7), (
        "a valley within one standard deviation"
    )
    assert len(set(clusters_of(root, [0.5, 0.5], circular=circular))) == clusters


def test_what_no_single_feature_shows_is_found_on_oblique_axes() -> None:
    generator = np.random.default_rng(2)
    along = generator.uniform(0.1, 0.7, 60_000)
    across = np.where(generator.integers(2, size=60_000), 0.09, -0.09)
    across = across + generator.normal(0, 0.015, 60_000)
    rows = np.stack([along + across + 0.1, along - across + 0.1], axis=1)
    rows = np.concatenate([rows, generator.uniform(0.4, 0.6, size=(60_000, 2))], axis=1)
    truth = across > 0
    assert adjusted_rand_score(truth, learnt(rows, 4.0).predict(rows)) < 0.1
    assert adjusted_rand_score(truth, learnt(rows, 4.0, oblique_axes=6).predict(rows)) > 0.9


def test_a_cluster_that_moves_is_followed_when_counts_fade() -> None:
    generator = np.random.default_rng(3)
    n = 60_000
    of = generator.integers(2, size=n)
    middle = np.where(of, 0.2, 0.5 + 0.35 * np.arange(n) / n)
    rows = np.clip(
        np.stack([middle, np.full(n, 0.5)], axis=1) + generator.normal(0, 0.03, (n, 2)), 0, 1
    )
    server = learnt(rows, 4.0, decay=0.98)
    assert adjusted_rand_score(of[-4000:], server.predict(rows[-4000:])) > 0.95


def test_counts_of_a_leaf_or_of_cells_that_are_not_known_are_dropped_and_counted() -> None:
    rows, _ = blobs(4000, CORNERS, 9)
    server = DensityTreeServer(3)
    old = server.plan.count(rows[:WINDOW], np.ones(WINDOW, dtype=bool), b"client", 0)
    for number in range(10):
        window = rows[number * WINDOW : (number + 1) * WINDOW]
        counted = server.plan.count(window, np.ones(WINDOW, dtype=bool), b"client", number)
        server.absorb([Contribution("client", number, counted.update(counted.counts))], b"")
    assert len(server.snapshot()["leaf_id"]) > 1
    before = server.snapshot()
    dropped = server.dropped
    unknown = replace(old, leaf=old.leaf + 1000)
    server.absorb([Contribution("late", 0, unknown.update(old.counts))], b"")
    later = replace(old, epoch=old.epoch + 1000)
    server.absorb([Contribution("late", 1, later.update(old.counts))], b"")
    assert server.dropped == dropped + 6
    for name, array in server.snapshot().items():
        np.testing.assert_array_equal(array, before[name])


def test_an_update_that_contradicts_itself_is_refused_with_the_client_named() -> None:
    server = DensityTreeServer(2)
    counted = server.plan.count(np.full((10, 2), 0.5), np.ones(10, dtype=bool), b"client", 0)
    arrays = {**counted.update(counted.counts), "cells": np.array([16, 15])}
    with pytest.raises(InvalidData, match="plant7"):
        server.absorb([Contribution("plant7", 0, arrays)], b"")


def test_axes_are_sampled_in_proportion_to_their_shares_by_every_client() -> None:
    leaf = Leaf(0, np.zeros(8), np.ones(8), Axes.features(8), 8)
    hint = np.array([4.0, 0, 0, 0, 0, 0, 0, 2.0])
    share = axis_shares(leaf, hint, 2)
    assert share.sum() == 2 * SHARE_ONE
    assert share.max() <= SHARE_ONE
    assert share.argmax() == 0
    server = DensityTreeServer(8, noise_variance=count_noise(1.0).variance)
    arrays = {**server.snapshot(), "axis_share": share}
    plan = CountingPlan.from_arrays(arrays, 8)
    sampled = np.array([plan.sampled_axes(b"client", number) for number in range(400)])
    assert (sampled[:, 0] != sampled[:, 1]).all()
    np.testing.assert_allclose(
        np.bincount(sampled.ravel(), minlength=8) / 400, share / SHARE_ONE, atol=0.02
    )


@pytest.mark.parametrize(("epsilon", "sampled"), [(0.5, 1), (1.0, 2), (2.0, 4), (4.0, 9)])
def test_more_axes_are_sampled_where_there_is_less_noise(epsilon: float, sampled: int) -> None:
    assert axes_sampled(16, 400, count_noise(epsilon).variance) == sampled
    assert axes_sampled(3, 400, count_noise(epsilon).variance) == min(3, sampled)
    assert axes_sampled(16, 400, 0.0) == 16


def weights_of(axes: Axes, d: int) -> Floats:
    """(A, d) the weights of all features."""
    weights = np.zeros((len(axes), d))
    number = np.arange(len(axes))
    weights[number, axes.first] += axes.first_weight
    weights[number, axes.second] += axes.second_weight
    return weights


def test_every_oblique_axis_comes_once_before_any_comes_again() -> None:
    one_by_one = [weights_of(oblique_axes(n, 1, np.ones(4), start=3), 4) for n in range(36)]
    weights = np.concatenate(one_by_one)
    at_once = oblique_axes(0, 36, np.ones(4), start=3)
    np.testing.assert_array_equal(weights, weights_of(at_once, 4))
    np.testing.assert_allclose(np.abs(weights).sum(axis=1), 1)
    assert ((weights != 0).sum(axis=1) == 2).all()
    gaps = np.abs(weights[:, None] - weights[None]).sum(axis=2) + np.eye(36)
    assert gaps.min() > 0.1
    first_six = {tuple(np.flatnonzero(axis)) for axis in weights[:6]}
    assert len(first_six) >= 5, "the first axes already combine most features"


def test_fine_bins_lie_over_the_support() -> None:
    server = learnt(blobs(20_000, [[0.3, 0.7]], 11, 0.01)[0], None)
    arrays = server.snapshot()
    assert (arrays["axis_zoom"] >= 0).all()
    width = arrays["axis_span"] / BINS
    first = arrays["axis_zoom"] / BINS
    assert ((first <= [0.28, 0.68]) & (first + width >= [0.32, 0.72])).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"leaves_max": 0},
        {"depth": 0.9},
        {"decay": 1.1},
        {"finest": 0.0},
        {"noise_variance": -1.0},
        {"oblique_axes": 1.5},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        DensityTreeServer(2, **wrong)
    with pytest.raises(SettingsError, match="no option"):
        DensityTreeOptions.parse({"leafs": 3})


def test_a_leaf_is_not_cut_where_one_part_would_lie_beyond_an_oblique_cut_above() -> None:
    axes = Axes.features(2).with_more(
        Axes(np.array([0]), np.array([1]), np.array([0.5]), np.array([0.5]))
    )
    leaf = Leaf(0, np.zeros(2), np.ones(2), axes, kept=3)
    assert can_be_cut(leaf, 0, 0.3)
    leaf.start[2] = 0.8
    assert not can_be_cut(leaf, 0, 0.3)
    assert can_be_cut(leaf, 0, 0.7)


def around(seed: int, n: int = 9000) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Three clusters: two directions, of which one lies across the ends of feature 0, and calm air
    from anywhere."""
    generator = np.random.default_rng(seed)
    of = generator.integers(3, size=n)
    way = np.array([0.98, 0.48, 0.0])[of] + np.where(
        of == 2, generator.random(n), generator.normal(0, 0.05, n)
    )
    speed = np.array([0.5, 0.5, 0.1])[of] + generator.normal(0, 0.04, n)
    return np.column_stack([way % 1.0, np.clip(speed, 0, 1)]), of


@pytest.mark.parametrize("epsilon", [1.0, 4.0, None])
def test_a_cluster_across_the_ends_of_a_circular_feature_is_one(epsilon: float | None) -> None:
    rows, of = around(11)
    plain = learnt(rows, epsilon)
    circular = learnt(rows, epsilon, circular="0")
    assert adjusted_rand_score(of, plain.predict(rows)) < 0.9
    assert adjusted_rand_score(of, circular.predict(rows)) > 0.98
    centre = circular.snapshot()["centre"][circular.predict(np.array([[0.98, 0.5]]))[0]]
    assert abs((centre[0] - 0.98 + 0.5) % 1.0 - 0.5) < 0.03
    # The plan is what it was: only what its leaves are called changes.
    assert circular.plan.digest == plain.plan.digest
    again = DensityTreeServer(2, **circular.options.as_dict())
    again.restore(circular.state())
    assert (again.predict(rows) == circular.predict(rows)).all()


def test_clusters_on_either_side_of_the_ends_stay_two_without_readings_in_between_too() -> None:
    rows, of = blobs(4000, [[0.07, 0.5], [0.93, 0.5], [0.5, 0.5]], seed=2, spread=0.02)
    assert len(set(learnt(rows, 4.0, circular="0").predict(rows))) == 3
    rows, of = blobs(4000, [[0.0, 0.2], [1.0, 0.8]], seed=3, spread=0.04)
    assert adjusted_rand_score(of, learnt(rows, 4.0, circular="0").predict(rows)) > 0.98


@pytest.mark.parametrize("circular", ["2", "0,x", "-1", "0,,1"])
def test_circular_features_that_are_none_are_refused(circular: str) -> None:
    with pytest.raises(SettingsError, match="circular"):
        DensityTreeServer(2, circular=circular)


def windows_of(mixed: bool, seed: int, noise: float = 8.0) -> Clumping:
    """Windows of 400 readings in two bins of four: each with both alike, or each with one of
    them."""
    random = np.random.default_rng(seed)
    clumping = Clumping()
    earlier = np.zeros(4)
    variances = np.zeros(4)
    for number in range(200):
        shares = np.array([0.5, 0.5, 0, 0] if mixed else np.roll([1.0, 0, 0, 0], number % 2))
        counts = random.multinomial(400, shares) + random.normal(0, math.sqrt(noise), 4)
        clumping.compare(earlier, variances, counts, np.full(4, noise))
        earlier = earlier + counts
        variances = variances + noise
    return clumping


@pytest.mark.parametrize(("mixed", "expected"), [(True, 0.0), (False, 0.5)])
def test_how_much_windows_differ_is_known_from_noisy_counts(mixed: bool, expected: float) -> None:
    assert windows_of(mixed, 3).variance == pytest.approx(expected, abs=0.01)


def test_windows_are_not_compared_with_what_noise_alone_has_made() -> None:
    clumping = Clumping()
    for earlier in (-500.0, 0.0, 10.0):
        clumping.compare(np.full(4, earlier), np.full(4, 800.0), np.full(4, 100.0), np.full(4, 8.0))
    assert clumping.variance is None


def test_of_a_leaf_with_few_readings_fewer_axes_are_sampled_unless_windows_differ() -> None:
    most = 4
    variance = count_noise(2.0).variance
    sampled = [
        axes_of_leaf(most, readings, variance, clumping)
        for readings in (400, 40, 0)
        for clumping in (0.5, 0.0)
    ]
    assert sampled == [4, 1, 3, 1, 1, 1]
    assert axes_of_leaf(most, 40, variance, None) == most, "as long as nothing is known"
    assert axes_of_leaf(most, 400, count_noise(4.0).variance, 0.0) == most, (
        "where noise is of little weight"
    )


def test_windows_are_compared_one_by_one_and_sums_of_them_are_not() -> None:
    rows, _ = blobs(4 * WINDOW, CORNERS, 1)
    options = {"noise_variance": count_noise(4.0).variance, "window_readings": WINDOW}
    alone = DensityTreeServer(3, **options)
    summed = DensityTreeServer(3, **options)
    aggregator = DensityTreeAggregator(WINDOW, options["noise_variance"])
    everyone = np.ones(WINDOW, dtype=bool)
    for half in range(2):
        for number in (2 * half, 2 * half + 1):
            counted = alone.plan.count(rows[number * WINDOW :][:WINDOW], everyone, b"a", number)
            update = counted.update(counted.counts)
            alone.absorb([Contribution("a", number, update)], b"")
            aggregator.add(update, WINDOW)
        summed.absorb([Contribution("b", half, aggregator.contribute())], b"")
    assert alone.state()["compared"] > 0.0
    assert summed.state()["compared"] == 0.0


def leaf_with_fine_bins(before: float, since: float) -> Leaf:
    """A leaf with readings on its first axis, all in the second of the fine bins, of which
    `before` came before these were laid and `since` came with half of the exposure."""
    leaf = Leaf(0, np.zeros(2), np.ones(2), Axes.features(2), 2)
    leaf.coarse[0, 4] = before + since
    leaf.exposure[0] = 1000.0
    leaf.zoom[0] = 4
    leaf.span[0] = 1
    leaf.fine[0, 1] = since
    leaf.fine_exposure[0] = 500.0
    return leaf


@pytest.mark.parametrize("since", [0.0, 40.0, 200.0])
def test_fine_bins_that_were_laid_while_a_state_was_absent_do_not_make_it_a_low_one(
    since: float,
) -> None:
    leaf = leaf_with_fine_bins(400.0, since)
    fine_width = 1 / BINS**2
    start = 4 / BINS
    whole, _ = leaf.density(0, np.array([start]), np.array([start + 1 / BINS]))
    assert whole == pytest.approx((400.0 + since) / 1000.0)
    at = start + fine_width * np.arange(BINS)
    parts, _ = leaf.density(0, at, at + fine_width)
    # Without readings of its own the fine bins show no form: each has an equal part.
    expected = np.full(BINS, whole[0] / BINS)
    if since:
        expected = np.zeros(BINS)
        expected[1] = whole[0]
    assert parts == pytest.approx(expected)


PLACES = np.array([[0.2, 0.25], [0.7, 0.58], [0.4, 0.83], [0.85, 0.17]])


def readings_by_cluster(state: Ints, epsilon: float | None = None) -> list[float]:
    """States of rows (n,) at `PLACES` -> the parts of all readings that clusters say they have."""
    generator = np.random.default_rng(4)
    rows = PLACES[state] + generator.normal(0.0, 0.025, (len(state), 2))
    federation = CountingFederation({}, 2, 2, 1, epsilon, 400)
    federation.learn(rows, None, is_last=True)
    counted = DENSITY_TREE.view(federation.server.snapshot()).counted
    assert counted is not None
    assert counted.sum() == pytest.approx(len(state), rel=0.03 if epsilon else 1e-9)
    return sorted((counted / counted.sum()).tolist())


@pytest.mark.filterwarnings("ignore:noise that is a function")
@pytest.mark.parametrize("epsilon", [None, 4.0])
def test_a_cluster_has_the_readings_that_came_before_it_was_found(epsilon: float | None) -> None:
    state = np.random.default_rng(4).choice(4, 20_000, p=[0.4, 0.3, 0.25, 0.05])
    truth = np.sort(np.bincount(state) / len(state))
    assert readings_by_cluster(state, epsilon) == pytest.approx(truth.tolist(), abs=0.01)


def test_a_new_state_takes_no_readings_of_before_it_came() -> None:
    generator = np.random.default_rng(3)
    before = generator.choice(2, 12_000)
    state = np.concatenate([before, generator.choice(3, 8_000, p=[0.3, 0.3, 0.4])])
    truth = np.sort(np.bincount(state) / len(state))
    # A leaf that kept most of what was counted may still show what it no longer has: below 1 %.
    assert readings_by_cluster(state)[-3:] == pytest.approx(truth.tolist(), abs=0.01)
