"""What is known of distances is moved with the nodes of a cluster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shoal.algorithms.registry import load_algorithm
from shoal.client_nodes.labelling.calibration import CALIBRATED_MIN, Calibration, Move
from shoal.client_nodes.labelling.novelty import BINS
from shoal.client_nodes.labelling.snapshot_clusters import SnapshotClusters
from shoal.client_nodes.labelling.spread import Spread
from shoal.client_nodes.labelling.visits import KeptReadings
from shoal.kernels.arrays import Floats
from shoal.protocol.codec import pack, unpack
from tests.client_nodes.known_clusters import FIRST_IDENTITY, known_snapshot
from tests.small_plant import plant


def clusters_at(shift: float, version: int) -> SnapshotClusters:
    """The known clusters with all their nodes moved by `shift` in each feature."""
    snapshot = known_snapshot(plant(), version)
    arrays = {**snapshot.arrays, "weight": snapshot.arrays["weight"] + shift}
    return SnapshotClusters(replace(snapshot, arrays=arrays), load_algorithm(snapshot.algorithm))


def readings_near(clusters: SnapshotClusters, n: int, seed: int) -> Floats:
    """(n, d) readings near the nodes of the first known cluster."""
    rng = np.random.default_rng(seed)
    nodes = known_snapshot(plant()).arrays["weight"]
    own = nodes[clusters.identities_of(nodes) == FIRST_IDENTITY]
    rows: Floats = own[rng.integers(0, len(own), n)] + rng.normal(0, 0.004, (n, 2))
    return rows


def kept_of(rows: Floats) -> KeptReadings:
    return KeptReadings([(0, key) for key in range(len(rows))], rows)


def novel_share(
    clusters: SnapshotClusters, spread: Spread, rows: Floats, *, counts: bool = False
) -> float:
    """The part of readings that are novel; `counts`: they become known."""
    assigned = clusters.assign(rows, rows)
    counted = np.full(len(rows), counts)
    novelty = spread.judge(assigned.reference, assigned.distance, counted).novelty
    return float(np.mean(novelty >= 0.999))


def test_readings_that_are_as_they_were_are_not_novel_where_nodes_have_moved() -> None:
    here = clusters_at(0.0, 1)
    # There and back: far from its nodes all readings of a cluster are about as far.
    for shifts in ([0.05], [0.05, 0.0]):
        calibration = Calibration()
        moved = Spread()
        unmoved = Spread()
        for spread in (moved, unmoved):
            novel_share(here, spread, readings_near(here, 2000, 0), counts=True)
        kept = kept_of(readings_near(here, 200, 1))
        assert calibration.follow(here, None, kept) == {}
        before = here
        for version, shift in enumerate(shifts, start=2):
            there = clusters_at(shift, version)
            moves = calibration.follow(there, before, kept)
            assert list(moves) == [FIRST_IDENTITY]
            moved.move(FIRST_IDENTITY, moves[FIRST_IDENTITY].counts)
            assert calibration.follow(there, before, kept) == {}, "once for each snapshot"
            before = there
        rows = readings_near(here, 500, 2)
        assert novel_share(before, moved, rows) < 0.01
        if len(shifts) == 1:
            assert novel_share(before, unmoved, rows) > 0.5


def test_readings_far_outside_are_novel_however_often_nodes_have_moved() -> None:
    here = clusters_at(0.0, 1)
    spread = Spread()
    calibration = Calibration()
    kept = kept_of(readings_near(here, 60, 1))
    novel_share(here, spread, readings_near(here, 2000, 0), counts=True)
    calibration.follow(here, None, kept)
    before = here
    moves = 0
    for version in range(2, 22):
        there = clusters_at(0.05 * (version % 2 == 0), version)
        for identity, move in calibration.follow(there, before, kept).items():
            spread.move(identity, move.counts)
            moves += 1
        before = there
    assert moves == 20
    assert novel_share(before, spread, readings_near(here, 500, 2)) < 0.01
    outside = readings_near(here, 20, 3) - [0.0, 0.2]
    assigned = before.assign(readings_near(here, 20, 3), outside)
    assert (assigned.reference == FIRST_IDENTITY).all()
    counted = np.zeros(20, dtype=np.bool_)
    novelty = spread.judge(assigned.reference, assigned.distance, counted).novelty
    assert (novelty >= 0.999).all()


def test_clusters_that_stay_and_readings_that_are_too_few_move_nothing() -> None:
    here = clusters_at(0.0, 1)
    calibration = Calibration()
    kept = kept_of(readings_near(here, 200, 1))
    calibration.follow(here, None, kept)
    assert calibration.follow(clusters_at(0.0, 2), here, kept) == {}
    few = Calibration()
    kept = kept_of(readings_near(here, CALIBRATED_MIN - 1, 1))
    few.follow(here, None, kept)
    assert few.follow(clusters_at(0.05, 2), here, kept) == {}
    assert Calibration().follow(here, None, kept_of(np.empty((0, 2)))) == {}


def test_readings_that_came_since_are_measured_by_the_snapshot_before() -> None:
    here = clusters_at(0.0, 1)
    calibration = Calibration()
    calibration.follow(here, None, kept_of(np.empty((0, 2))))
    kept = kept_of(readings_near(here, 200, 1))
    assert list(calibration.follow(clusters_at(0.05, 2), here, kept)) == [FIRST_IDENTITY]


def test_a_saved_calibration_goes_on() -> None:
    here = clusters_at(0.0, 1)
    kept = kept_of(readings_near(here, 200, 1))
    calibration = Calibration()
    calibration.follow(here, None, kept)
    restored = Calibration()
    restored.restore(unpack(pack(calibration.state())))
    assert pack(restored.state()) == pack(calibration.state())
    assert restored.follow(here, None, kept) == {}, "it was measured by this snapshot"
    assert list(restored.follow(clusters_at(0.05, 2), None, kept)) == [FIRST_IDENTITY]


def test_a_move_keeps_the_number_of_readings_and_spreads_what_lay_together() -> None:
    old = np.array([100, 100, 100, 110])
    new = np.array([50, 60, 70, 90])
    counts = np.zeros(BINS, dtype=np.int64)
    counts[[90, 100, 105, 110, 120]] = [1, 7, 1, 5, 2]
    moved = Move(old, new, 90).counts(counts)
    there = np.flatnonzero(moved)
    # Of seven that lay together two, two and three; 105 is half the way from their mean, 60, to 90.
    # Bin 120 is 43 % farther than 110, which is as much as 108 is farther than 90.
    assert dict(zip(there.tolist(), moved[there].tolist(), strict=True)) == {
        50: 3,
        60: 2,
        70: 3,
        75: 1,
        90: 5,
        108: 2,
    }
