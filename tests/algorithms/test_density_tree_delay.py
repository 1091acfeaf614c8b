"""Counts of windows that were counted under a tree of before: where they go, and what a delay
costs: figures of benchmarks/privacy/README.md."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from shoal.algorithms.density_tree import DensityTreeServer
from shoal.algorithms.density_tree.arrays import Block
from shoal.algorithms.density_tree.axes import Axes
from shoal.algorithms.density_tree.cutting import cut_leaf, take_back
from shoal.algorithms.density_tree.late import (
    FORMER_MAX,
    FormerLeafState,
    LateCounts,
    Recent,
    add_late,
    nodes_by_leaf,
)
from shoal.algorithms.density_tree.leaf import BINS, EPOCHS_KEPT, NO_ZOOM, Leaf
from shoal.algorithms.density_tree.plan import CountedWindow
from shoal.algorithms.density_tree.tree import Cut
from shoal.algorithms.streaming import Contribution
from shoal.kernels.arrays import Floats
from shoal.privacy.count_noise import count_noise
from tests.algorithms.test_density_tree import CORNERS, WINDOW, blobs

CLIENTS = 20
SEEDS = (11, 12, 13)


class WatchedServer(DensityTreeServer):
    """Adds up what the histograms of the tree's leaves take."""

    taken = 0.0
    _before = 0.0

    def grow(self) -> None:
        self.taken += sum(float(leaf.coarse.sum()) for leaf in self._leaves) - self._before
        super().grow()
        self._before = sum(float(leaf.coarse.sum()) for leaf in self._leaves)

    @property
    def taken_share(self) -> float:
        """Part of all counts that the leaves have taken; leaves take none twice."""
        return self.taken / self._counted


class Outcome(NamedTuple):
    """What became of the counts of one run, and of the clusters."""

    taken: float
    """part of the counts that the leaves of the time took"""
    dropped: int
    """blocks whose cells were no longer known"""
    agreement: float
    """adjusted Rand index"""


def run(delay: int, readings: int, seed: int, epsilon: float = 4.0) -> Outcome:
    """Windows of clients in turn, each counted under the snapshot of `delay` messages ago."""
    rows, truth = blobs(readings, CORNERS, seed)
    noise = count_noise(epsilon)
    server = WatchedServer(3, noise_variance=noise.variance, window_readings=WINDOW)
    plans = [server.plan]
    for number, first in enumerate(range(0, len(rows), WINDOW)):
        plan = plans[max(0, len(plans) - 1 - delay)]
        window = rows[first : first + WINDOW]
        client = str(number % CLIENTS)
        counted = plan.count(window, np.ones(len(window), dtype=bool), client.encode(), number)
        private = counted.counts + noise.draw(number.to_bytes(4, "little"), len(counted.counts))
        server.absorb([Contribution(client, number, counted.update(private))], b"")
        plans.append(server.plan)
    agreement = adjusted_rand_score(truth, server.predict(rows))
    return Outcome(server.taken_share, server.dropped, agreement)


@pytest.mark.parametrize(
    ("delay", "readings", "taken"),
    [(0, 20_000, 1.0), (5, 20_000, 0.84), (5, 60_000, 0.95), (50, 60_000, 0.53)],
)
def test_late_counts_are_taken_by_the_leaves_that_there_are_now(
    delay: int, readings: int, taken: float
) -> None:
    outcomes = [run(delay, readings, seed) for seed in SEEDS]
    assert np.mean([outcome.taken for outcome in outcomes]) == pytest.approx(taken, abs=0.03)
    assert max(outcome.dropped for outcome in outcomes) == 0
    assert min(outcome.agreement for outcome in outcomes) > 0.99


def test_without_any_snapshot_in_time_a_short_stream_is_not_separated() -> None:
    """Fifty windows counted under the first plan only: the price of a delay as long as the
    stream."""
    assert max(run(50, 20_000, seed).agreement for seed in SEEDS) < 0.6


def absorb(server: DensityTreeServer, client: str, counted: CountedWindow) -> None:
    server.absorb([Contribution(client, 0, counted.update(counted.counts))], b"")


def count(server: DensityTreeServer, rows: Floats, number: int) -> CountedWindow:
    return server.plan.count(rows, np.ones(len(rows), dtype=bool), b"client", number)


def test_late_counts_of_other_fine_bins_are_added_to_the_coarse_ones() -> None:
    rows = np.random.default_rng(3).normal(0.5, 0.02, (4000, 2))
    server = DensityTreeServer(2)
    late = count(server, rows[:WINDOW], 0)
    for number in range(5):
        absorb(
            server, "client", count(server, rows[number * WINDOW : (number + 1) * WINDOW], number)
        )
    (leaf,) = server._leaves
    assert (leaf.zoom != NO_ZOOM).all()
    coarse = leaf.coarse.copy()
    fine = leaf.fine.copy()
    exposure = leaf.exposure.copy()
    absorb(server, "late", late)
    np.testing.assert_array_equal(leaf.coarse - coarse, late.counts.reshape(2, BINS))
    np.testing.assert_array_equal(leaf.fine, fine)
    np.testing.assert_array_equal(leaf.exposure - exposure, [WINDOW / 2, WINDOW / 2])
    assert server.dropped == 0


def test_late_counts_of_a_leaf_that_was_cut_fall_to_its_parts_on_the_axis_of_the_cut() -> None:
    rows, truth = blobs(4000, [[0.2, 0.3], [0.7, 0.6]], 4)
    server = DensityTreeServer(2)
    late = count(server, rows[:WINDOW], 0)
    for number in range(5):
        absorb(
            server, "client", count(server, rows[number * WINDOW : (number + 1) * WINDOW], number)
        )
    cut = server._root
    assert isinstance(cut, Cut)
    left, right = cut.parts
    assert isinstance(left, Leaf)
    assert isinstance(right, Leaf)
    before = [part.coarse.sum(axis=1) for part in (left, right)]
    recent = [part.recent for part in (left, right)]
    of_leaf = cut.leaf.coarse.sum(axis=1)
    absorb(server, "late", late)
    on_axes = late.counts.reshape(2, BINS).sum(axis=1)
    after = [part.coarse.sum(axis=1) for part in (left, right)]
    taken = np.array(after) - before
    # One of both clusters on either side; each part takes its side of the axis of the cut alone.
    on_left = late.counts.reshape(2, BINS)[cut.axis, : BINS // 2].sum()
    np.testing.assert_allclose(taken[:, cut.axis], [on_left, on_axes[cut.axis] - on_left])
    np.testing.assert_array_equal(taken[:, 1 - cut.axis], 0.0)
    # The leaf has all, for the case that the cut is taken back.
    np.testing.assert_allclose(cut.leaf.coarse.sum(axis=1) - of_leaf, on_axes)
    assert server.dropped == 0
    # All of them are recent readings of one part or the other.
    faded = np.exp(-WINDOW / 4000.0)
    gained = [part.recent - was * faded for part, was in zip((left, right), recent, strict=True)]
    assert sum(gained) == pytest.approx(WINDOW)
    assert gained[0] == pytest.approx(WINDOW * (truth[:WINDOW] == 0).mean(), abs=30)


def cut_in_two() -> Cut:
    """A leaf with 600 readings below and 200 above .5 on the first of two features, cut there."""
    leaf = Leaf(0, np.zeros(2), np.ones(2), Axes.features(2), 2)
    below = np.repeat([75.0, 25.0], BINS // 2)
    leaf.add(0, below, 800.0, 0.0)
    leaf.add(1, np.full(BINS, 50.0), 800.0, 0.0)
    return Cut(leaf, 0, 0.5, 1 / BINS, cut_leaf(leaf, 0, 0.5, np.zeros(2), (1, 2), 0))


def block_of(part: int, readings: float, epoch: int = 0) -> Block:
    """Late counts on the second feature: evenly, of a window of 400 readings on this axis."""
    return Block(part, 1, epoch, np.full(BINS, readings / BINS), 400.0)


def test_late_counts_of_the_parts_of_a_cut_that_was_taken_back_change_no_density() -> None:
    cut = cut_in_two()
    late = LateCounts()
    late.remember(cut, 3)
    leaf = take_back(cut, 3)
    exposure = leaf.exposure.copy()
    mass = leaf.coarse.sum(axis=1) / exposure
    saved = [FormerLeafState.read(former.saved()) for former in late.state()]
    restored = LateCounts.restored(saved)
    for part, readings in ((1, 300.0), (2, 100.0)):
        for memory in (late, restored):
            place = memory.place_of(block_of(part, readings), 0.0, nodes_by_leaf(leaf))
            assert place is not None
            counts, node = place
            assert node is leaf
        add_late(node, counts, Recent(readings, 0.0, readings))
        # Also after the first of both: the exposure is that of its share.
        np.testing.assert_allclose(leaf.coarse.sum(axis=1) / leaf.exposure, mass)
    assert leaf.exposure[1] == pytest.approx(exposure[1] + 400.0)
    # The leaf has had another number before it was cut.
    place = late.place_of(block_of(0, 400.0), 0.0, nodes_by_leaf(leaf))
    assert place is not None
    assert place[1] is leaf


def test_counts_of_a_cut_that_was_taken_back_follow_the_leaf_into_its_next_parts() -> None:
    cut = cut_in_two()
    late = LateCounts()
    late.remember(cut, 3)
    leaf = take_back(cut, 3)
    again = Cut(leaf, 1, 0.5, 1 / BINS, cut_leaf(leaf, 1, 0.5, np.zeros(2), (4, 5), 0))
    place = late.place_of(block_of(1, 320.0), 0.0, nodes_by_leaf(again))
    assert place is not None
    before = [part.coarse[1].sum() for part in again.parts if isinstance(part, Leaf)]
    add_late(place[1], place[0], Recent(320.0, 0.0, 320.0))
    after = [part.coarse[1].sum() for part in again.parts if isinstance(part, Leaf)]
    np.testing.assert_allclose(np.subtract(after, before), [160.0, 160.0])


def test_what_is_remembered_of_earlier_plans_is_bounded() -> None:
    late = LateCounts()
    for number in range(0, 3 * FORMER_MAX, 3):
        cut = cut_in_two()
        cut.leaf.leaf_id = number
        for part, leaf_id in zip(cut.parts, (number + 1, number + 2), strict=True):
            assert isinstance(part, Leaf)
            part.leaf_id = leaf_id
        late.remember(cut, number + 3)
    assert late.leaf_ids == set(range(2 * FORMER_MAX, 3 * FORMER_MAX))
    leaf = Leaf(0, np.zeros(2), np.ones(2), Axes.features(2), 2)
    for _ in range(EPOCHS_KEPT + 1):
        leaf.clear_fine(1)
    nodes = nodes_by_leaf(leaf)
    assert late.place_of(block_of(0, 10.0, epoch=0), 0.0, nodes) is None
    assert late.place_of(block_of(0, 10.0, epoch=1), 0.0, nodes) is not None
    assert late.place_of(block_of(1, 10.0), 0.0, nodes) is None
    # An axis that was drawn anew is another one.
    leaf.redraw(1, Axes.features(2).take([0]))
    assert late.place_of(block_of(0, 10.0, epoch=EPOCHS_KEPT + 1), 0.0, nodes) is None
