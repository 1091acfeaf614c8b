"""Where the readings of a leaf lie, as its noisy counts say: mean and middle, also right after a
cut."""

from __future__ import annotations

import numpy as np
import pytest

from shoal import DensityTree
from shoal.algorithms.density_tree import DENSITY_TREE
from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.cutting import cut_leaf, new_leaf
from shoal.algorithms.density_tree.extents import (
    EDGE_SIGNIFICANCE,
    MASS_SIGNIFICANCE,
    MEAN_ERROR,
    extents,
)
from shoal.algorithms.density_tree.identities import Identities
from shoal.algorithms.density_tree.leaf import BINS, NO_ZOOM, SPANS, Leaf
from shoal.algorithms.density_tree.snapshot import cluster_arrays, known_in
from shoal.algorithms.density_tree.tree import Cut
from shoal.algorithms.view import ClusteringView


def leaf_of(*histograms: list[float], noise: float = 0.5) -> Leaf:
    """A leaf over the unit box, with a histogram of coarse bins for each feature."""
    d = len(histograms)
    leaf = new_leaf(0, np.zeros(d), np.ones(d), Axes.features(d), 0)
    leaf.coarse[:] = histograms
    leaf.coarse_noise[:] = noise
    leaf.exposure[:] = np.sum(histograms, axis=1)
    return leaf


def peak(first: int, *counts: float) -> list[float]:
    """Counts from bin `first` on, and nothing elsewhere."""
    held = [0.0] * BINS
    held[first : first + len(counts)] = counts
    return held


def test_the_middle_of_a_leaf_is_that_of_its_counts_without_the_noise_in_empty_bins() -> None:
    noisy = peak(4, 50.0, 100.0, 50.0)
    noisy[14] = 1.0
    found = extents(leaf_of(noisy))
    assert found.mean[0, 0] == pytest.approx(5.5 / 16)
    assert (found.low[0, 0], found.high[0, 0]) == pytest.approx((4.4 / 16, 6.6 / 16))


def test_fine_bins_spread_what_their_coarse_bin_holds() -> None:
    leaf = leaf_of(peak(4, 100.0))
    leaf.zoom[0], leaf.span[0] = 4, 1
    leaf.fine[0, 0] = 10.0
    assert extents(leaf).mean[0, 0] == pytest.approx((4 + 1 / 32) / 16), (
        "not the middle of the coarse bin"
    )


def test_a_mean_that_a_bin_of_noise_may_have_moved_is_not_a_leafs_own() -> None:
    near = peak(4, 50.0, 100.0, 50.0)
    far = list(near)
    # It stands out from its noise, as one of many bins does by chance.
    far[14] = 25.0
    found = extents(leaf_of(near, far, noise=100.0))
    assert found.own.tolist() == [[True, False]]
    assert extents(leaf_of(near, far, noise=0.0)).own.all(), "without noise each bin is measured"


def test_a_leaf_without_mass_is_described_by_its_box() -> None:
    found = extents(leaf_of(peak(3), peak(3)))
    assert found.mean[0].tolist() == [0.5, 0.5]
    assert (found.low[0].tolist(), found.high[0].tolist()) == ([0.1, 0.1], [0.9, 0.9])


def test_a_leaf_that_was_just_cut_takes_its_features_from_the_leaf_that_was_cut() -> None:
    """Both features have a valley; the cut on the first leaves nothing counted on the second."""
    whole = leaf_of(
        [*[40.0] * 4, *[0.0] * 8, *[40.0] * 4],
        peak(2, 50.0, 200.0, 50.0),
    )
    parts = cut_leaf(whole, 0, 0.5, np.zeros(2), (1, 2), 0)
    assert not any(part.coarse[1].any() for part in parts), "what the test is about"
    found = extents(Cut(whole, 0, 0.5, 1 / 16, parts))
    assert found.mean[:, 1] == pytest.approx([3.5 / 16] * 2)
    assert found.own.tolist() == [[True, False]] * 2
    assert found.mean[:, 0] == pytest.approx([2 / 16, 14 / 16])
    assert (found.high[0, 0], found.low[1, 0]) == pytest.approx((3.6 / 16, 12.4 / 16))


def test_what_a_leaf_has_not_counted_itself_may_lie_anywhere_in_its_box() -> None:
    whole = leaf_of([*[40.0] * 4, *[0.0] * 8, *[40.0] * 4], peak(2, 50.0, 200.0, 50.0))
    parts = cut_leaf(whole, 0, 0.5, np.zeros(2), (1, 2), 0)
    # The first part has counted on since, and its own counts stand out.
    parts[0].coarse[1] = peak(8, 200.0)
    root = Cut(whole, 0, 0.5, 1 / 16, parts)
    mass = np.array([0.9, 0.1])
    identities = Identities(2)
    found = extents(root)
    shown = identities.assign([*parts], mass, np.array([0, 1]), found, 1000, show_all=True)
    arrays = cluster_arrays(root, mass, found, shown, identities, 1000)
    assert known_in(arrays).tolist() == [[True, True], [True, False]]
    assert (arrays["leaf_low"][1, 1], arrays["leaf_high"][1, 1]) == (0.0, 1.0)
    assert arrays["leaf_low"][0, 1] == pytest.approx(8.1 / 16)
    assert arrays["leaf_centre"][:, 1] == pytest.approx([8.5 / 16, 3.5 / 16])


def test_a_mean_is_known_where_nearly_all_of_the_mass_of_a_cluster_is() -> None:
    nodes = np.full((5, 2), 0.5)
    known = np.array([[True, True], [True, False], [True, True], [False, True], [True, False]])
    view = ClusteringView.from_nodes(
        nodes, [95.0, 5.0, 5.0, 95.0, 0.0], [0, 0, 1, 1, 2], node_known=known
    )
    assert view.unknown_means().tolist() == [[False, False], [True, False], [False, True]]
    plain = ClusteringView.from_nodes(nodes, np.ones(5), [0, 0, 1, 1, 2])
    assert not plain.unknown_means().any(), "an algorithm that does not say it knows them"


def plain_extent(chain: tuple[Leaf, ...], feature: int) -> tuple[float, float, float, bool]:
    """Mean, low and high of a leaf on a feature, from the first of its chain whose counts within
    its box stand out, and whether that is the leaf itself, whose mean they show well enough."""
    low = chain[0].low[feature]
    high = chain[0].high[feature]
    for leaf in chain:
        start = leaf.start[feature]
        width = leaf.bin_width[feature]
        pieces: list[tuple[float, float, float, float]] = []
        for number in range(BINS):
            first = start + width * number
            step = width
            shares = [1.0]
            if (
                leaf.zoom[feature] != NO_ZOOM
                and 0 <= number - leaf.zoom[feature] < leaf.span[feature]
            ):
                each = BINS // int(leaf.span[feature])
                fine = np.maximum(
                    leaf.fine[feature].reshape(-1, each)[number - leaf.zoom[feature]], 0.0
                )
                shares = (fine / fine.sum() if fine.any() else np.full(each, 1.0 / each)).tolist()
                step = width / each
            for place, share in enumerate(shares):
                begin = first + step * place
                end = first + step * (place + 1)
                part = max(0.0, min(end, high) - max(begin, low)) / step * share
                inside = max(begin, low), min(end, high)
                pieces.append(
                    (
                        *inside,
                        leaf.coarse[feature, number] * part,
                        leaf.coarse_noise[feature, number] * part,
                    )
                )
        begin, end, counts, noise = (
            np.array([piece for piece in pieces if piece[0] < piece[1] - 1e-12]).reshape(-1, 4).T
        )
        if counts.sum() > MASS_SIGNIFICANCE * np.sqrt(noise.sum()):
            sure = np.flatnonzero(counts > EDGE_SIGNIFICANCE * np.sqrt(noise))
            sure = sure if len(sure) else np.array([counts.argmax()])
            held = np.where(
                (np.arange(len(counts)) >= sure[0]) & (np.arange(len(counts)) <= sure[-1]),
                counts,
                0.0,
            )
            held = np.maximum(held, 0.0)
            reached = np.append(0.0, held.cumsum()) / held.sum()
            middle = np.interp([0.1, 0.9], reached, np.append(begin, end[-1]))
            mean = float(held @ (begin + end) / 2 / held.sum())
            away = (begin + end) / 2 - mean
            error = float(np.sqrt((noise * away**2)[held > 0].sum()) / held.sum())
            own = leaf is chain[0] and error <= MEAN_ERROR
            return mean, float(middle[0]), float(middle[1]), own
    return (low + high) / 2, low + 0.1 * (high - low), low + 0.9 * (high - low), False


def counted_at_random(leaf: Leaf, generator: np.random.Generator) -> None:
    """Give a leaf counts on each feature that are many, few or none, and on most of them fine
    bins."""
    for feature in range(leaf.d):
        level = generator.choice([0.0, 3.0, 100.0])
        leaf.coarse[feature] = level * generator.random(BINS) + generator.normal(0, 1, BINS)
        leaf.coarse_noise[feature] = generator.uniform(0.5, 2.0)
        span = int(generator.choice([0, *SPANS]))
        if span:
            leaf.zoom[feature], leaf.span[feature] = generator.integers(BINS - span + 1), span
            leaf.fine[feature] = generator.choice([-1.0, 0.0, 1.0, 50.0], BINS) * generator.random()
    leaf.exposure[:] = 1000.0


def test_the_extents_of_all_leaves_and_features_at_once_are_those_of_each_alone() -> None:
    generator = np.random.default_rng(5)
    seen = set()
    own = set()
    for _ in range(20):
        whole = new_leaf(0, np.zeros(6), np.ones(6), Axes.features(6), 2)
        counted_at_random(whole, generator)
        parts = cut_leaf(whole, 0, 0.4, np.zeros(8), (1, 2), 2)
        counted_at_random(parts[0], generator)
        deeper = cut_leaf(parts[0], 3, generator.uniform(0.1, 0.9), np.zeros(8), (3, 4), 2)
        counted_at_random(deeper[1], generator)
        root = Cut(whole, 0, 0.4, 1 / 16, (Cut(parts[0], 3, 0.5, 1 / 16, deeper), parts[1]))
        chains = [(deeper[0], parts[0], whole), (deeper[1], parts[0], whole), (parts[1], whole)]
        plain = np.array(
            [[plain_extent(chain, feature) for feature in range(6)] for chain in chains]
        )
        np.testing.assert_allclose(np.stack(extents(root), axis=2), plain, rtol=0, atol=1e-12)
        own |= set(plain[..., 3].ravel().tolist())
        boxes = np.array([(chain[0].low + chain[0].high) / 2 for chain in chains])
        seen |= set((plain[..., 0] == boxes).ravel().tolist())
    assert seen == {True, False}, "some are described by their box, and others by their counts"
    assert own == {True, False}, "some by their own counts, and others by those of a leaf above"


def test_at_an_epsilon_that_protects_centres_lie_among_their_readings() -> None:
    """A cluster in the corner of the box, where the middle of a leaf is far from its readings."""
    rng = np.random.default_rng(11)
    corners = np.array([[0.05, 0.9, 0.1], [0.25, 0.1, 0.05], [0.9, 0.15, 0.85]])
    rows = np.clip(
        corners[rng.integers(3, size=20_000)] + rng.normal(0, 0.02, size=(20_000, 3)), 0, 1
    )
    model = DensityTree(epsilon=2.0, clients=5, random_state=0).fit(rows)
    centres = model.cluster_centers_
    nearest = np.abs(centres[:, None] - corners).max(axis=2).min(axis=0)
    assert len(centres) == 3
    assert (nearest < 0.03).all(), nearest


def test_the_readings_that_an_update_counts_are_those_of_the_leaves_they_lie_in() -> None:
    snapshot = {"leaf_id": np.array([3, 7]), "leaf_centre": np.array([[0.2], [0.8]])}
    update = {
        "leaf": np.array([7, 3, 1, 7]),
        "cells": np.array([2, 2, 1, 1]),
        "count": np.array([30, 1, 10, -2, 99, 9]),
    }
    points, readings = DENSITY_TREE.points(update, snapshot)
    assert points.tolist() == [[0.2], [0.8]]
    assert readings.tolist() == [8.0, 40.0]
    assert len(DENSITY_TREE.points(update)[0]) == 0, "before the first snapshot"
