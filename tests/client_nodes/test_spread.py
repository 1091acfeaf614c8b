"""The bounded histograms of distances that a client keeps by lasting identity."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.client_nodes.labelling.spread import CLUSTERS_MAX, Spread
from shoal.errors import InvalidState
from shoal.protocol.codec import pack, unpack

ALL = np.ones(200, dtype=bool)


def ids(*identities: int) -> np.ndarray:
    return np.repeat(np.array(identities, dtype=np.int64), 200 // len(identities))


def test_no_readings_are_no_trouble() -> None:
    spread = Spread()
    nothing = spread.judge(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0, dtype=bool))
    assert nothing.novelty.shape == (0,)
    assert spread.state()["identities"] == []


def test_readings_without_a_reference_have_no_novelty() -> None:
    spread = Spread()
    assert np.isnan(spread.judge(ids(-1), np.full(200, 0.1), ALL).novelty).all()
    assert spread.state()["identities"] == []


def test_each_identity_has_a_spread_of_its_own() -> None:
    spread = Spread()
    for _ in range(3):
        spread.judge(ids(3, 8), np.concatenate([np.full(100, 0.01), np.full(100, 0.2)]), ALL)
    asked = spread.judge(np.array([3, 8]), np.array([0.1, 0.1]), np.zeros(2, bool)).novelty
    assert asked[0] > 0.99
    assert asked[1] == 0


def test_readings_that_do_not_count_change_nothing() -> None:
    spread = Spread()
    spread.judge(ids(3), np.full(200, 0.01), ALL)
    before = pack(spread.state())
    assert spread.judge(ids(3), np.full(200, 0.5), ~ALL).novelty[0] > 0.99
    spread.judge(ids(4), np.full(200, 0.5), ~ALL)
    assert pack(spread.state()) == before


def test_it_restores_as_it_was_saved() -> None:
    rng = np.random.default_rng(0)
    spread = Spread()
    restored = Spread()
    spread.judge(ids(3, 8), rng.exponential(0.1, 200), ALL)
    state = unpack(pack(spread.state()))
    restored.restore(state)
    assert pack(restored.state()) == pack(spread.state())
    more = rng.exponential(0.1, 200)
    np.testing.assert_array_equal(
        restored.judge(ids(8, 3), more, ALL).novelty, spread.judge(ids(8, 3), more, ALL).novelty
    )


def test_only_the_clusters_used_last_are_kept() -> None:
    spread = Spread()
    for identity in range(CLUSTERS_MAX + 10):
        spread.judge(ids(identity), np.full(200, 0.1), ALL)
        spread.judge(ids(0), np.full(200, 0.1), ALL)
    kept = spread.state()["identities"]
    assert len(kept) == CLUSTERS_MAX
    assert {0, CLUSTERS_MAX + 9} <= set(kept)
    assert 1 not in kept


@pytest.mark.parametrize(
    "changed",
    [
        {"identities": [1]},
        {"bin": None},
        {"count": np.array([-1], dtype=np.int32)},
        {"row": np.array([9], dtype=np.int32)},
    ],
    ids=str,
)
def test_a_damaged_state_is_reported(changed: dict[str, object]) -> None:
    spread = Spread()
    spread.judge(ids(3, 8), np.full(200, 0.1), ALL)
    state = spread.state() | changed
    if "identities" in changed:
        state["row"] = state["row"] + 1
    with pytest.raises(InvalidState):
        Spread().restore(state)


QUANTILE = 0.999


def usual_distances(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(0.02, n)


def judged(spread: Spread, distances: np.ndarray, day: int, pieces: int = 1) -> np.ndarray:
    """Which readings of one cluster are novel."""
    novelty = []
    for piece in np.array_split(distances, pieces):
        reference = np.full(len(piece), 3)
        there = np.ones(len(piece), dtype=bool)
        novelty.append(spread.judge(reference, piece, there, QUANTILE, day).novelty)
    return np.concatenate(novelty) >= QUANTILE


def test_an_outage_of_hours_does_not_become_usual_before_it_is_over() -> None:
    spread = Spread()
    judged(spread, usual_distances(1500), day=1)
    assert judged(spread, np.full(36, 0.6), day=2).all()
    assert not judged(spread, np.full(50, 0.01), day=2).any()
    assert judged(spread, np.full(36, 0.6), day=2).all(), "the first ones are not known yet"
    plain = Spread()
    plain.judge(np.full(1500, 3), usual_distances(1500), np.ones(1500, dtype=bool))
    at_once = plain.judge(np.full(36, 3), np.full(36, 0.6), np.ones(36, dtype=bool)).novelty
    assert not (at_once >= QUANTILE).all(), "without holding back they swallow themselves"


def test_what_has_lasted_for_days_is_usual() -> None:
    spread = Spread()
    judged(spread, usual_distances(1500), day=1)
    for day in range(2, 8):
        spread.begin_day(day)
        novel = judged(spread, np.full(288, 0.6), day=day)
        assert novel.all() == (day < 4), day
        assert novel.any() == (day < 4), day


def test_of_steady_days_no_more_are_novel_than_before() -> None:
    rates = []
    for seed in range(5):
        spread = Spread()
        distances = np.random.default_rng(seed).exponential(0.02, (20, 2000))
        novel = 0
        for day, of_day in enumerate(distances):
            spread.begin_day(day)
            novel += int(judged(spread, of_day, day).sum())
        rates.append(novel / distances.size)
    assert np.mean(rates) <= 1 - QUANTILE


def test_what_is_held_back_does_not_depend_on_batches_or_restarts() -> None:
    rng = np.random.default_rng(7)
    distances = usual_distances(4000, seed=2)
    for start in rng.integers(1200, 3900, 12).tolist():
        distances[start : start + rng.integers(1, 30)] = 0.7
    ends = []
    for pieces in (1, 7, 400):
        spread = Spread()
        novel = []
        for day, of_day in enumerate(np.split(distances, 4)):
            spread.begin_day(day)
            novel.append(judged(spread, of_day, day, pieces))
            restored = Spread()
            restored.restore(unpack(pack(spread.state())))
            spread = restored
        ends.append((np.concatenate(novel).tolist(), pack(spread.state())))
    assert ends[0] == ends[1] == ends[2]
    assert sum(ends[0][0]) > 50
