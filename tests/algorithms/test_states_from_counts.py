"""States from private counts: what is counted, what is found and under which noise, and what is
refused."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from benchmarks.states_private import Scheme, learnt, levels, null
from shoal.algorithms.from_counts.pairs import CELL_OF, CELLS, pair_places
from shoal.algorithms.from_counts.states import (
    STATES_FROM_COUNTS,
    PairCounter,
    StatesFromCountsServer,
    predict,
    readings_needed,
    view,
)
from shoal.algorithms.streaming import Contribution
from shoal.errors import SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.privacy.count_noise import count_noise

WIDE = {"window_readings": 10**6, "block_readings": 2}


def table(middles: list[int], dwells: float, pairs: int) -> Ints:
    """Counts (cells,) of pairs of streams that stay in bins about these middles, and change seldom
    and at once."""
    counts = np.zeros(CELLS, dtype=np.int64)
    near = {-1: 0.25, 0: 0.5, 1: 0.25}
    for middle in middles:
        for other in middles:
            part = dwells if middle == other else (1 - dwells) / max(len(middles) - 1, 1)
            for a, x in near.items():
                for b, y in near.items():
                    counts[CELL_OF[middle + a, other + b]] += round(
                        pairs / len(middles) * part * x * y
                    )
    return counts


def add(server: StatesFromCountsServer, feature: int, middles: list[int], pairs: int) -> None:
    """Pairs of a feature at both distances, as one window each."""
    for lag, dwells in enumerate((0.95, 0.9)):
        arrays = {
            "places": np.array([10**5]),
            "kind": np.array([2 * feature + lag]),
            "count": table(middles, dwells, pairs).astype(np.int32),
        }
        server.absorb([Contribution("client", 1, arrays)], b"")


def test_pairs_are_of_blocks_in_order_and_none_is_in_two() -> None:
    assert pair_places(7, 1).tolist() == [0, 2, 4]
    assert pair_places(7, 2).tolist() == [0, 1, 4]
    assert pair_places(1, 1).tolist() == pair_places(2, 2).tolist() == []
    for blocks in range(30):
        for lag in (1, 2):
            first = pair_places(blocks, lag)
            assert len(np.unique(np.concatenate([first, first + lag]))) == 2 * len(first)


def naive_sums(rows: Floats, window: int, w: int) -> Ints:
    """Sums (kinds, cells) of one client, pair by pair."""
    start = int.from_bytes(hashlib.shake_256(b"kindsclient").digest(4), "little")
    sums = np.zeros((2 * rows.shape[1], CELLS), dtype=np.int64)
    for number in range(len(rows) // window):
        own = rows[number * window : (number + 1) * window]
        kind = (start + number) % len(sums)
        bins = []
        for first in range(0, window - w + 1, w):
            block = own[first : first + w, kind // 2]
            there = block[~np.isnan(block)]
            bins.append(
                min(int(np.clip(there, 0, 1).mean() * 16), 15) if 2 * len(there) >= w else None
            )
        for group in range(0, len(bins), 2 * (kind % 2 + 1)):
            for state in range(group, group + kind % 2 + 1):
                other = state + kind % 2 + 1
                if other < len(bins) and bins[state] is not None and bins[other] is not None:
                    sums[kind, CELL_OF[bins[state], bins[other]]] += 1
    return sums


def test_the_sums_are_those_of_the_pairs_of_all_windows_with_gaps_and_short_blocks() -> None:
    rows = np.random.default_rng(5).uniform(-0.1, 1.1, (2_000, 2)).cumsum(axis=0) % 1.0
    rows[np.random.default_rng(6).random(rows.shape) < 0.4] = np.nan
    options = {"window_readings": 150, "block_readings": 7}
    counter = PairCounter(2, **options)
    server = StatesFromCountsServer(2, **options)
    for number in range(len(rows) // 150):
        own = rows[number * 150 : (number + 1) * 150]
        counted = counter.count(own, np.asarray(~np.isnan(own).all(axis=1)), b"client", number)
        server.absorb([Contribution("client", number, counted.update(counted.counts))], b"")
    sums = server.state()["sums"]
    np.testing.assert_array_equal(sums, naive_sums(rows, 150, 7))
    assert sums.sum(axis=1).min() > 5
    assert sums.sum(axis=1).astype(int).tolist() == [17, 13, 17, 24]


@pytest.mark.parametrize(
    "scheme", [Scheme("own", 4.0, 2000), Scheme("masked", 30.0, 400, masked=True)]
)
def test_two_states_are_found_under_noise_and_told_apart_by_the_feature_that_shows_them(
    scheme: Scheme,
) -> None:
    streams = levels(1, 3.0, 400.0, 2, 20, 400_000)
    server = learnt(streams.rows, scheme, b"key")
    shown = view(server.snapshot())
    assert shown.states is not None
    assert shown.states.n_changes >= 20
    assert scheme.masked or not shown.states.provisional
    feature = int(server.snapshot()["header"][4])
    means = np.array([streams.rows[streams.truth == state].mean(axis=0) for state in (0, 1)])
    order = np.argsort(means[:, feature])
    np.testing.assert_allclose(shown.centres[:, feature], means[order, feature], atol=0.03)
    assert 0.5 < shown.states.dwell.mean() / 400 < 2.0
    assert predict(server.snapshot(), means[order]).tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["independent", "AR .99", "cycle of 1000, noise 1", "volatility"])
def test_streams_in_which_nothing_stays_show_one_state(kind: str) -> None:
    rows = null(kind, 3, 100_000)
    for scheme in (Scheme("none", None, 400), Scheme("much", 1.0, 2000)):
        server = learnt(rows, scheme, b"key")
        assert len(view(server.snapshot()).centres) == 1


def test_noise_alone_shows_nothing() -> None:
    noise = count_noise(1.0)
    options = {"noise_variance": noise.variance, "window_readings": 2000}
    counter = PairCounter(1, **options)
    server = StatesFromCountsServer(1, **options)
    for number in range(400):
        counted = counter.count(
            np.full((2000, 1), np.nan), np.zeros(2000, dtype=np.bool_), b"client", number
        )
        arrays = counted.update(noise.draw(b"%d" % number, CELLS))
        server.absorb([Contribution("client", number, arrays)], b"")
    assert len(view(server.snapshot()).centres) == 0


def test_the_heavier_state_goes_on_and_the_lighter_parts_from_it_and_joins_it_again() -> None:
    server = StatesFromCountsServer(2, **WIDE)
    assert len(view(server.snapshot()).centres) == 0, "no readings yet"
    add(server, 1, [8], 1_000)
    assert server.snapshot()["identity"].tolist() == [0]
    assert predict(server.snapshot(), np.array([[0.2, 0.9]])).tolist() == [0]
    for _ in range(4):
        add(server, 1, [3, 3, 12], 9_000)
    shown = server.snapshot()
    assert (shown["identity"].tolist(), shown["parent"].tolist()) == ([0, 1], [-1, 0])
    assert predict(shown, np.array([[0.9, 0.1], [0.1, 0.9]])).tolist() == [0, 1]
    for _ in range(4):
        add(server, 1, [5, 6, 7, 8, 9], 10**6)
    shown = server.snapshot()
    assert (shown["identity"].tolist(), shown["gone"].tolist()) == ([0], [1])
    assert view(shown).cluster.tolist() == [0, 0], (
        "the one that is gone lies in the one that it joined"
    )


def test_a_cut_is_kept_while_its_feature_shows_it_and_another_feature_gives_new_states() -> None:
    server = StatesFromCountsServer(2, **WIDE)
    for _ in range(2):
        add(server, 0, [3, 12], 9_000)
    before = server.snapshot()
    for _ in range(3):
        add(server, 1, [2, 13], 90_000)
    assert server.snapshot()["header"][4] == 0
    assert server.snapshot()["identity"].tolist() == before["identity"].tolist()
    for _ in range(4):
        add(server, 0, [5, 6, 7, 8, 9], 10**6)
    after = server.snapshot()
    assert after["header"][4] == 1
    assert not set(after["identity"].tolist()) & set(before["identity"].tolist())


@pytest.mark.parametrize(
    ("d", "options", "words"),
    [
        (9, {}, "at most 8 features"),
        (1, {"window_readings": 63}, "window_readings of 64 and more"),
        (1, {"window_readings": 100, "block_readings": 26}, "window_readings of 104 and more"),
        (
            3,
            {"noise_variance": 2e4},
            "would find nothing: .* a larger epsilon, larger window_readings or fewer",
        ),
    ],
)
def test_what_would_find_nothing_is_refused_with_what_to_do(
    d: int, options: dict[str, Any], words: str
) -> None:
    for half in (STATES_FROM_COUNTS.counter, STATES_FROM_COUNTS.server):
        with pytest.raises(SettingsError, match=words):
            half(options, d)


def test_more_noise_smaller_windows_and_more_features_take_more_readings() -> None:
    needed = [
        readings_needed({"noise_variance": variance, "window_readings": window}, d)
        for variance, window, d in (
            (0.0, 400, 1),
            (0.5, 2000, 1),
            (0.5, 400, 1),
            (8.0, 400, 1),
            (8.0, 400, 8),
        )
    ]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1] / 100
    batch = {"noise_variance": 8.0, "window_readings": 400, "windows_summed": 100}
    assert readings_needed(batch, 1) < needed[3]
