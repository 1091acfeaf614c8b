"""What it costs that clients count under a tree that they have read late: figures of
benchmarks/privacy/README.md."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from shoal.algorithms.density_tree import DensityTreeServer
from shoal.algorithms.density_tree.plan import CountedWindow, CountingPlan
from shoal.algorithms.streaming import Contribution
from shoal.privacy.count_noise import count_noise
from tests.algorithms.test_density_tree import CORNERS, WINDOW, blobs

CLIENTS = 20
SEEDS = (11, 12, 13)


class Outcome(NamedTuple):
    """What became of the blocks of one run, and of the clusters."""

    dropped: int
    """blocks that the server dropped"""
    misfits: int
    """blocks counted on an axis that has changed since, by the oracle"""
    old: int
    """blocks counted under another plan than the newest, on an axis that has not changed"""
    kept: float
    """part of the readings that are in blocks which fit"""
    agreement: float
    """adjusted Rand index"""


def unchanged(
    plan: CountingPlan, newest: CountingPlan, counted: CountedWindow
) -> NDArray[np.bool_]:
    """(b,) which blocks were counted on an axis that the newest plan has as it was: same leaf, same
    axis, same zoom."""

    def described(of: CountingPlan) -> set[tuple[float, ...]]:
        own = np.arange(len(of.axis_leaf)) - np.searchsorted(of.axis_leaf, of.axis_leaf)
        axes = (of.axes.first, of.axes.second, of.axes.first_weight, of.axes.second_weight)
        columns = (of.leaf_ids[of.axis_leaf], own, *axes, of.start, of.end, of.zoom, of.span)
        return {tuple(row) for row in np.column_stack(columns).tolist()}

    there = described(newest)
    before = {row[:2]: row for row in described(plan)}
    return np.array(
        [
            before[leaf, axis] in there
            for leaf, axis in zip(counted.leaf.tolist(), counted.axis.tolist(), strict=True)
        ]
    )


def run(delay: int, readings: int, seed: int, epsilon: float = 4.0) -> Outcome:
    """Windows of clients in turn, each counted under the snapshot of `delay` messages ago."""
    rows, truth = blobs(readings, CORNERS, seed)
    noise = count_noise(epsilon)
    server = DensityTreeServer(3, noise_variance=noise.variance, window_readings=WINDOW)
    plans = [server.plan]
    misfits = 0
    old = 0
    kept = 0
    for number, first in enumerate(range(0, len(rows), WINDOW)):
        plan = plans[max(0, len(plans) - 1 - delay)]
        window = rows[first : first + WINDOW]
        client = str(number % CLIENTS)
        counted = plan.count(window, np.ones(len(window), dtype=bool), client.encode(), number)
        fits = unchanged(plan, server.plan, counted)
        misfits += int((~fits).sum())
        old += int(fits.sum()) if plan.digest != server.plan.digest else 0
        blocks = np.repeat(np.arange(len(counted.cells)), counted.cells)
        kept += int(np.bincount(blocks, weights=counted.counts, minlength=len(fits))[fits].sum())
        private = counted.counts + noise.draw(number.to_bytes(4, "little"), len(counted.counts))
        server.absorb([Contribution(client, number, counted.update(private))], b"")
        plans.append(server.plan)
    agreement = adjusted_rand_score(truth, server.predict(rows))
    return Outcome(server.dropped, misfits, old, kept / len(rows), agreement)


@pytest.mark.parametrize(
    ("delay", "readings", "kept"),
    [(0, 20_000, 1.0), (5, 20_000, 0.58), (5, 60_000, 0.81), (50, 60_000, 0.12)],
)
def test_late_counts_are_absorbed_exactly_where_leaf_and_zoom_are_unchanged(
    delay: int, readings: int, kept: float
) -> None:
    outcomes = [run(delay, readings, seed) for seed in SEEDS]
    assert [one.dropped for one in outcomes] == [one.misfits for one in outcomes]
    assert (min(one.old for one in outcomes) > 0) == (delay > 0), (
        "old counts are not dropped as such"
    )
    assert np.mean([one.kept for one in outcomes]) == pytest.approx(kept, abs=0.05)
    assert min(one.agreement for one in outcomes) > 0.99


def test_without_any_snapshot_in_time_a_short_stream_is_not_separated() -> None:
    """Fifty windows counted under the first plan only: the price of a delay as long as the
    stream."""
    assert max(run(50, 20_000, seed).agreement for seed in SEEDS) < 0.6
