"""Novelty as the quantile of a distance among those before it, from a histogram."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.client_nodes.labelling.novelty import (
    BINS,
    KNOWN_MAX,
    KNOWN_MIN,
    distance_bins,
    halve,
    rank,
)

EMPTY = np.zeros(BINS, dtype=np.int64)


def ranked(distances: np.ndarray, counts: np.ndarray = EMPTY) -> tuple[np.ndarray, np.ndarray]:
    return rank(distance_bins(distances), counts, np.ones(len(distances), dtype=bool))


def test_no_distances_change_nothing() -> None:
    novelty, counts = ranked(np.empty(0))
    assert novelty.shape == (0,)
    np.testing.assert_array_equal(counts, EMPTY)


def test_one_distance_has_no_novelty_and_is_known_afterwards() -> None:
    novelty, counts = ranked(np.array([0.3]))
    assert np.isnan(novelty).all()
    assert counts.sum() == 1


def test_novelty_is_known_once_a_hundred_distances_are() -> None:
    novelty, _ = ranked(np.linspace(0.1, 0.2, KNOWN_MIN + 5))
    assert np.isnan(novelty[:KNOWN_MIN]).all()
    assert np.isfinite(novelty[KNOWN_MIN:]).all()


@pytest.mark.parametrize("distance", [0.0, 0.25])
def test_of_equal_distances_none_is_novel(distance: float) -> None:
    novelty, _ = ranked(np.full(5000, distance))
    assert (novelty[KNOWN_MIN:] == 0).all()


def test_a_distance_far_beyond_all_others_has_the_greatest_novelty_that_their_number_allows() -> (
    None
):
    novelty, _ = ranked(np.append(np.full(999, 0.01), [0.5, np.inf]))
    np.testing.assert_allclose(novelty[-2:], [1 - 1 / 1000, 1 - 1 / 1001])


def test_bins_are_in_the_order_of_distance_and_bounded() -> None:
    bins = distance_bins(np.array([0.0, 1e-9, 1.01e-5, 0.1, 0.2, 1.0, 99.0, 1e300, np.inf]))
    assert (np.diff(bins) >= 0).all()
    assert (bins[0], bins[-1]) == (0, BINS - 1)
    assert len(set(bins[2:7].tolist())) == 5


def test_novelty_is_the_share_of_nearer_distances_up_to_the_width_of_a_bin() -> None:
    rng = np.random.default_rng(0)
    known = np.abs(rng.normal(0, 0.05, 10_000))
    _, counts = ranked(known)
    asked = np.linspace(0.001, 0.2, 50)
    novelty, after = rank(distance_bins(asked), counts, np.zeros(50, dtype=bool))
    np.testing.assert_array_equal(after, counts)
    for distance, found in zip(asked, novelty, strict=True):
        assert (known < distance / 1.04).mean() - 1e-3 <= found <= (known < distance).mean()


@pytest.mark.parametrize("d", [1, 2, 16, 64])
def test_of_a_steady_stream_at_most_the_share_beyond_a_quantile_is_novel(d: int) -> None:
    rows = np.random.default_rng(d).normal(0, 0.03, (40_000, d))
    novelty, _ = ranked(np.sqrt((rows**2).sum(axis=1)))
    for quantile in (0.5, 0.9, 0.99, 0.999):
        share = (novelty[KNOWN_MIN:] >= quantile).mean()
        assert share <= 1.3 * (1 - quantile)
        assert share > 0.3 * (1 - quantile)


def test_any_batching_gives_the_same_novelty() -> None:
    rng = np.random.default_rng(1)
    bins = distance_bins(rng.exponential(0.1, KNOWN_MAX + 3000))
    counted = rng.random(KNOWN_MAX + 3000) < 0.9
    whole = rank(bins, EMPTY, counted)
    counts = EMPTY
    parts = []
    start = 0
    while start < len(bins):
        size = int(rng.integers(1, 2000))
        part, counts = rank(bins[start : start + size], counts, counted[start : start + size])
        parts.append(part)
        start += size
    np.testing.assert_array_equal(np.concatenate(parts), whole.novelty)
    np.testing.assert_array_equal(counts, whole.counts)


def test_the_number_of_known_distances_is_bounded_and_far_ones_survive_the_halving() -> None:
    distances = np.full(3 * KNOWN_MAX, 0.01)
    distances[::100] = np.geomspace(0.1, 1.0, len(distances[::100]))
    _, counts = ranked(distances)
    assert counts.sum() <= KNOWN_MAX
    far = counts[distance_bins(np.array([0.05]))[0] :].sum() / counts.sum()
    assert far == pytest.approx(0.01, rel=0.05)


def test_halving_keeps_the_number_beyond_each_bin_to_within_one() -> None:
    counts = np.random.default_rng(2).integers(0, 4, BINS)
    half = halve(counts)
    assert (half >= 0).all()
    beyond = np.cumsum(counts[::-1])
    assert np.abs(np.cumsum(half[::-1]) - beyond / 2).max() <= 0.5


def test_old_distances_lose_weight() -> None:
    _, counts = ranked(np.full(10_000, 0.01))
    _, counts = ranked(np.full(5 * KNOWN_MAX, 0.1), counts)
    novelty, _ = ranked(np.array([0.1]), counts)
    assert novelty[0] < 0.02


def test_inputs_are_not_changed() -> None:
    counts = np.ones(BINS, dtype=np.int64)
    bins = distance_bins(np.array([0.1, 0.2]))
    before = bins.copy()
    rank(bins, counts, np.array([True, False]))
    np.testing.assert_array_equal(bins, before)
    assert (counts == 1).all()
