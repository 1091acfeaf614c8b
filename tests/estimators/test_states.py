"""States in time: found by whatever tells them apart, and one where nothing changes for good."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import shoal
from benchmarks.states import heartbeats
from benchmarks.states_streams import autoregressive, dwells, levels
from shoal.algorithms.states import Route, StateLearner
from shoal.algorithms.states.returns import comes_regularly, is_cycle
from shoal.algorithms.states.segments import Tiles, weakest_boundary
from shoal.algorithms.states.switching import Switching, find_switching
from shoal.algorithms.states.tiles import HALF_TILES_MAX, TileMemory
from shoal.algorithms.states.views import DEFAULT
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.kernels.arrays import Floats, Ints
from shoal.protocol.codec import pack, unpack

N = 6_000


def rows_of(kind: str, truth: Ints, rng: np.random.Generator) -> Floats:
    """Rows (n, 2) of two states that differ in one way."""
    n = len(truth)
    rows = autoregressive(rng, n, 2, 0.5)
    if kind == "level":
        rows += 2.1 * truth[:, None]
    if kind == "spread":
        rows *= 1.0 + truth[:, None]
    if kind == "rhythm":
        period = np.where(truth, 17, 29)
        rows = 0.5 * rows + np.sin(2 * np.pi * np.arange(n) / period)[:, None]
    if kind == "correlation":
        rows[:, 1] = np.where(truth, 0.9, -0.9) * rows[:, 0] + 0.44 * rows[:, 1]
    return rows


@pytest.mark.parametrize("kind", ["level", "spread", "rhythm", "correlation"])
def test_states_are_found_whatever_tells_them_apart(kind: str) -> None:
    rng = np.random.default_rng(3)
    truth = dwells(rng, N, 2, 500)
    model = shoal.States().fit(rows_of(kind, truth, rng))
    assert model.n_states_ == 2
    assert adjusted_rand_score(truth, model.labels_) > 0.8
    assert model.returns_.all()
    assert np.all((model.dwell_ > 150) & (model.dwell_ < 1_000))
    assert model.transitions_.sum() == len(model.segments_) - 1 >= 6


def test_a_phase_that_is_seen_once_is_found_where_it_was() -> None:
    rng = np.random.default_rng(4)
    truth = (np.abs(np.arange(6_000) - 3_000) < 800).astype(np.int64)
    rows = rows_of("rhythm", truth, rng)
    model = shoal.States().fit(rows)
    assert model.returns_.tolist() == [True, False]
    assert model.segments_[:, 2].tolist() == [0, 1, 0]
    assert np.abs(model.segments_[1, :2] - [2_200, 3_800]).max() < 60
    assert np.isnan(shoal.States().fit(rng.normal(size=(3_000, 1))).periods_).all()


def test_a_level_that_takes_longer_than_tiles_to_change_is_found() -> None:
    rng = np.random.default_rng(31)
    times = np.arange(4_000)
    rows = autoregressive(rng, 4_000, 3, 0.5)
    rows[:, :2] += 2.5 * np.clip((times - 2_000) / 300, 0, 1)[:, None]
    model = shoal.States().fit(rows)
    assert model.n_states_ >= 2
    assert adjusted_rand_score(times >= 2_150, model.labels_) > 0.85


def test_a_level_that_changes_slowly_and_little_is_found_where_it_stays_on_both_sides() -> None:
    rng = np.random.default_rng([9, 0])
    times = np.arange(4_000)
    rows = autoregressive(rng, 4_000, 3, 0.5)
    truth = np.zeros(4_000)
    for place, begin in enumerate((1_000, 2_000, 3_000)):
        # 150 rows for a change, up and down in turn.
        truth += (-1) ** place * np.clip((times - begin) / 150, 0, 1)
    rows[:, :2] -= truth[:, None]
    model = shoal.States().fit(rows)
    assert model.n_states_ == 2
    assert adjusted_rand_score(truth > 0.5, model.labels_) > 0.8


def test_sides_of_a_change_wander_in_a_walk_and_stay_where_readings_go_back_to_their_mean() -> None:
    rng = np.random.default_rng(25)
    wandering = []
    for walks in (True, False):
        found = []
        for _ in range(100):
            means = rng.normal(size=123)
            if walks:
                readings = np.cumsum(rng.normal(size=123 * 15))
                means = readings.reshape(-1, 15).mean(axis=1)
            tiles = Tiles(((means[1:] + means[:-1]) / 2)[:, None])
            found.append(tiles.wandering(tiles.segment((0, 61)), tiles.segment((61, 122))))
        wandering.append(found)
    # 1/6 is the mean of the statistic of Cramér and von Mises.
    assert np.mean(wandering[0]) == pytest.approx(1 / 6, rel=0.15)
    assert np.mean(np.array(wandering[0]) < DEFAULT.level.wander) <= 0.05
    assert np.max(wandering[1]) < DEFAULT.level.wander


def test_a_difference_that_only_the_tiles_have_in_which_it_is_sought_is_no_boundary() -> None:
    rng = np.random.default_rng(24)
    noise = rng.normal(size=(160, 6))
    noise -= np.repeat([noise[:80].mean(axis=0), noise[80:].mean(axis=0)], 80, axis=0)
    # The level of one axis in the tiles of the first fold, of another one in those of the second.
    step = (np.arange(160) >= 80) * 3.0
    is_first = np.arange(160) % 8 < 4
    apart = noise.copy()
    apart[:, 0] += step * is_first
    apart[:, 1] += step * ~is_first
    shared = noise.copy()
    shared[:, 0] += step
    least = []
    for values in (apart, shared):
        tiles = Tiles(values)
        segments = [tiles.segment((0, 80)), tiles.segment((80, 160))]
        least.append(weakest_boundary(tiles, segments, DEFAULT.rhythm)[1])
    assert least[0] < 0.2
    assert least[1] >= 1


@pytest.mark.parametrize(("kind", "dwell", "least"), [("level", 100, 0.75), ("spread", 150, 0.7)])
def test_states_that_return_every_hundred_rows_are_found(
    kind: str, dwell: int, least: float
) -> None:
    rng = np.random.default_rng(5)
    truth = dwells(rng, N, 2, dwell)
    model = shoal.States().fit(rows_of(kind, truth, rng))
    assert model.n_states_ == 2
    assert adjusted_rand_score(truth, model.labels_) > least
    later = dwells(rng, 3_000, 2, dwell)
    assert adjusted_rand_score(later, model.predict(rows_of(kind, later, rng))) > least


def test_three_levels_that_return_every_hundred_rows_are_told_apart() -> None:
    own = levels(1, distance=3.0, dwell=100.0, k=3, readings=6_000, clients=1)
    model = shoal.States().fit(own.rows)
    assert model.n_states_ == 3
    assert adjusted_rand_score(own.truth, model.labels_) > 0.85
    gaps = np.linalg.norm(model.means_[:, None] - model.means_, axis=2)
    assert np.abs(gaps[np.triu_indices(3, 1)] - 3.0).max() < 0.6


@pytest.mark.parametrize(
    ("phi", "apart", "dwell", "least"), [(0.9, 2.0, 200, 0.75), (0.5, 3.0, 20, 0.85)]
)
def test_levels_that_overlap_or_are_short_are_told_by_their_jumps(
    phi: float, apart: float, dwell: int, least: float
) -> None:
    rng = np.random.default_rng(21)
    truth = dwells(rng, 4_000, 2, dwell)
    rows = autoregressive(rng, 4_000, 2, phi) + apart / np.sqrt(2) * truth[:, None]
    model = shoal.States().fit(rows)
    assert model.n_states_ == 2
    assert adjusted_rand_score(truth, model.labels_) > least
    # What follows is told by the same two levels, without learning.
    later = dwells(rng, 2_000, 2, dwell)
    rows = autoregressive(rng, 2_000, 2, phi) + apart / np.sqrt(2) * later[:, None]
    assert adjusted_rand_score(later, model.predict(rows)) > least


def test_large_steps_that_do_not_alternate_are_no_switching() -> None:
    rng = np.random.default_rng(22)
    steps = np.where(rng.random(3_000) < 0.02, 6 * rng.normal(size=3_000), rng.normal(size=3_000))
    decaying = np.zeros((3_000, 1))
    for row in range(1, 3_000):
        decaying[row] = 0.9 * decaying[row - 1] + steps[row]
    assert find_switching(decaying) is None
    outliers = rng.normal(size=(3_000, 1))
    outliers[::25] += 6.0
    assert find_switching(outliers) is None
    assert find_switching(np.zeros((3_000, 2))) is None
    truth = dwells(rng, 3_000, 2, 100)
    # Missing readings have no level.
    jumping = autoregressive(rng, 3_000, 1, 0.9) + 3.0 * truth[:, None]
    jumping[50:60] = np.nan
    found = find_switching(jumping)
    assert found is not None
    assert abs(found.phi - 0.9) < 0.05
    state = found.of_block(jumping)
    assert state[50:60].tolist() == [-1] * 10
    assert adjusted_rand_score(truth[60:], state[60:]) > 0.9


def test_readings_of_which_each_fits_another_rise_only_have_levels() -> None:
    model = Switching(np.ones(1), np.array([0.0, 1.0]), 0.5, 1e-3, np.array([0.01, 0.01]))
    # From 0 to 1, and once more by as much: no sequence of levels fits both.
    climbing = np.array([0.0, 0.0, 0.0, 1.0, 1.5, 1.25, 1.125, 1.0625])
    state = model.of_block(climbing[:, None])
    assert state[:3].tolist() == [0, 0, 0]
    assert state[4:].tolist() == [1, 1, 1, 1]


def test_states_are_found_beside_columns_that_drift_and_one_that_follows_slowly() -> None:
    # As light in a room, beside its warmth and what comes and goes with the seasons: along the
    # slowest directions alone no state shows.
    rng = np.random.default_rng(15)
    n = 10_000
    truth = dwells(rng, n, 2, 300)
    light = autoregressive(rng, n, 1, 0.5)[:, 0] + 5.0 * truth
    warmth = np.zeros(n)
    for row in range(1, n):
        warmth[row] = warmth[row - 1] + (truth[row] - warmth[row - 1]) / 100
    rows = np.column_stack([light, 5 * warmth, 3 * autoregressive(rng, n, 3, 0.999)])
    model = shoal.States().fit(rows)
    assert model.n_states_ == 2
    assert adjusted_rand_score(truth, model.labels_) > 0.9


def sine(rng: np.random.Generator, period: float, noise: float) -> Floats:
    times = np.arange(4_000)[:, None]
    return np.sin(2 * np.pi * times / period) + noise * rng.normal(size=(4_000, 1))


NULLS: dict[str, Callable[[np.random.Generator], Floats]] = {
    "white": lambda rng: rng.normal(size=(4_000, 2)),
    "AR .9": lambda rng: autoregressive(rng, 4_000, 1, 0.9),
    "random walk": lambda rng: np.cumsum(rng.normal(size=(4_000, 1)), axis=0),
    "trend": lambda rng: rng.normal(size=(4_000, 1)) + np.linspace(0, 3, 4_000)[:, None],
    "heavy tails": lambda rng: rng.standard_t(3, size=(4_000, 1)),
    "cycle": lambda rng: sine(rng, 60, 0.3),
    "clean cycle": lambda rng: sine(rng, 150, 0.02),
    "square cycle": lambda rng: np.sign(sine(rng, 90, 0.0)) + 0.3 * rng.normal(size=(4_000, 1)),
    "slow cycle": lambda rng: sine(rng, 1_440, 0.3),
    "constant": lambda rng: np.full((4_000, 2), 7.0),
}


def test_streams_without_states_are_in_one() -> None:
    several = []
    for seed, (name, make) in enumerate(NULLS.items()):
        rows = make(np.random.default_rng(seed))
        model = shoal.States().fit(rows)
        if model.n_states_ > 1:
            several.append(name)
            continue
        assert set(model.labels_.tolist()) == {0}
        assert model.segments_.tolist() == [[0, len(rows), 0]]
        assert not model.returns_.any()
        np.testing.assert_allclose(model.means_[0], rows.mean(axis=0), atol=0.1 * rows.std() + 1e-9)
    # About one in forty is taken for several states; never a cycle that is plain, nor nothing.
    assert len(several) <= 1
    assert not {"cycle", "clean cycle", "square cycle", "constant"} & set(several)


@pytest.mark.parametrize(("name", "period"), [("cycle", 60), ("clean cycle", 150)])
def test_a_cycle_is_one_state_with_a_period(name: str, period: int) -> None:
    model = shoal.States(strict=True).fit(NULLS[name](np.random.default_rng(1)))
    assert model.n_states_ == 1
    assert abs(model.periods_[0] - period) <= 1


def test_parts_of_a_cycle_follow_each_other_regularly_and_states_do_not() -> None:
    rng = np.random.default_rng(0)
    lengths = np.rint(rng.normal(30, 3, 200)).astype(np.int64)
    regular = np.repeat(np.arange(200) % 2, lengths)
    for state, is_one in ((regular, True), (dwells(rng, 6_000, 2, 30), False)):
        blocks = state[:, None] + 0.3 * rng.normal(size=(len(state), 2))
        assert is_cycle(blocks, state, 400) is is_one
        # What takes longer than that is no cycle of it.
        assert not is_cycle(blocks, state, 20)
    assert not is_cycle(np.zeros((100, 1)), np.zeros(100, dtype=np.int64), 50)


def test_peaks_that_come_late_or_are_missed_are_parts_of_a_cycle_and_states_are_not() -> None:
    rng = np.random.default_rng(25)
    beats = np.rint(100 * np.arange(1, 40) + rng.normal(0, 5, 39)).astype(np.int64)
    beats = beats[rng.random(39) > 0.2]
    peaks = np.zeros(4_000, dtype=np.int64)
    for beat in beats:
        peaks[beat : beat + 6] = 1
    assert comes_regularly(peaks, 400)
    # What takes longer than that is no cycle, and of few returns nothing is known.
    assert not comes_regularly(peaks, 90)
    assert not comes_regularly(peaks[:700], 400)
    for seed in range(10):
        assert not comes_regularly(dwells(np.random.default_rng(seed), 4_000, 2, 50), 400)
    assert not comes_regularly(np.zeros(100, dtype=np.int64), 400)
    # Of one column, whose peaks and rests would else be two states that return.
    late = heartbeats(np.random.default_rng([6, 1, 5_000]), 5_000)
    assert shoal.States().fit(late[:, None]).n_states_ == 1


def changing(seed: int, n: int = 3_000) -> Floats:
    """Rows (n, 2) of three states in turn, some values of which are missing."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) // 700 % 3
    rows = rng.normal(size=(n, 2)) * np.array([1.0, 2.5, 1.0])[truth][:, None]
    rows[:, 0] += np.where(truth == 2, 4.0, 0.0)
    rows[rng.random(rows.shape) < 0.05] = np.nan
    return rows


def test_any_division_into_calls_finds_the_same_bit_for_bit() -> None:
    rows = changing(1)
    saved = []
    for step in (3_000, 613, 7):
        model = shoal.States(evaluate_every=1_500)
        for first in range(0, len(rows), step):
            model.partial_fit(rows[first : first + step])
        saved.append(pack(model.state()))
    assert saved[0] == saved[1] == saved[2]
    assert model.n_states_ == 3


def test_columns_that_each_repeat_at_a_period_of_their_own_are_in_one_state() -> None:
    """In a short stream axes are fitted to what such columns have in common by chance."""
    rng = np.random.default_rng([81_000, 1, 5])
    columns = []
    for _ in range(3):
        period = int(rng.integers(24, 300))
        wave = np.sin(2 * np.pi * np.arange(2_000) / period + rng.uniform(0, 2 * np.pi))
        columns.append(wave + 0.3 * rng.normal(size=2_000))
    assert set(shoal.States().fit(np.column_stack(columns)).labels_.tolist()) == {0}


@pytest.mark.parametrize("cut", [1, 999, 2_200])
def test_a_restored_model_continues_bit_for_bit(cut: int) -> None:
    rows = changing(2)
    through = shoal.States(evaluate_every=1_500).partial_fit(rows[:cut])
    saved = pack(through.state())
    restored = shoal.States(evaluate_every=1_500).restore(unpack(saved))
    assert restored.predict(rows).tolist() == through.predict(rows).tolist()
    copy = pickle.loads(pickle.dumps(through))
    for model in (through, restored):
        model.partial_fit(rows[cut:])
    assert pack(copy.state()) == saved
    assert pack(restored.state()) == pack(through.state())
    assert restored.labels_.tolist() == through.labels_.tolist()


def test_what_is_no_saved_state_is_refused() -> None:
    state = shoal.States().partial_fit(changing(3, 2_000)).state()
    stream = state["streams"][""]
    with pytest.raises(shoal.NotFittedError):
        shoal.States().restore({}).predict([[0.0]])
    for name, value in {
        "numbers": np.array([1]),
        "tiles_numbers": np.array([1]),
        "tiles_sums": np.zeros((1, 1), np.float32),
        "blocks_open": np.zeros((1, 2)),
        "bounds": np.zeros((1, 2)),
        "times": 3,
    }.items():
        with pytest.raises(InvalidState):
            shoal.States().restore({**state, "streams": {"": {**stream, name: value}}})
    for name in ("runs", "seen", "tiles_known"):
        without = {key: value for key, value in stream.items() if key != name}
        with pytest.raises(InvalidState):
            shoal.States().restore({**state, "streams": {"": without}})
    for name, value in {"width": 0, "names": "ab", "shared": {}, "streams": {"a": stream}}.items():
        with pytest.raises(InvalidState):
            shoal.States().restore({**state, name: value})


def test_memory_is_bounded_and_later_half_tiles_are_longer() -> None:
    rng = np.random.default_rng(6)
    memory = TileMemory(2, window=10)
    held = []
    for _ in range(6):
        memory.add(rng.normal(size=(5_000, 2)))
        held.append(sum(array.nbytes for array in memory.state().values()))
    assert memory.n_half_tiles <= HALF_TILES_MAX
    assert memory.half == 40
    assert max(held) < 2**20
    level, square = memory.moments()
    np.testing.assert_allclose((level * memory.spread + memory.mean).mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(square.mean(axis=0), 1, atol=0.1)


def test_a_column_that_drifts_or_never_varies_does_not_lengthen_the_window() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(5_000, 1))
    drift = np.cumsum(rng.normal(size=(5_000, 1)), axis=0)
    still = np.full((5_000, 1), 7.0)
    alone = shoal.States().fit(noise).window_
    assert shoal.States().fit(drift).window_ > 2 * alone
    assert shoal.States().fit(np.hstack([drift, noise, still])).window_ == alone


def test_a_faint_change_of_a_wave_shows_in_longer_windows_and_after_restoring() -> None:
    rng = np.random.default_rng(3)
    time = np.arange(6_000)
    overtone = np.where(time < 3_000, 0.15, -0.15) * np.sin(4 * np.pi * time / 20 + 0.8)
    waves = np.sin(2 * np.pi * time / 20) + overtone + 0.6 * rng.normal(size=6_000)
    learner = StateLearner(1, window=10, length=6_000)
    learner.learn_whole(waves[:, None])
    assert learner.route is Route.LONG_SEGMENTS
    assert learner.runs[:, 2].tolist() == [0, 1]
    assert abs(int(learner.runs[0, 1]) - 3_000) < 100
    told = learner.predict(waves[:, None])
    truth = (time >= 3_000).astype(np.int64)
    assert (told == truth).mean() > 0.75
    again = StateLearner(1, window=10, length=6_000)
    again.restore(learner.state())
    np.testing.assert_array_equal(again.predict(waves[:, None]), told)
    assert again.delay == learner.delay


def test_parts_of_a_square_cycle_are_no_states_in_a_short_stream_of_several_columns() -> None:
    rng = np.random.default_rng(0)
    time = np.arange(1_100)
    periods = rng.integers(150, 300, size=8)
    rows = np.sign(np.sin(2 * np.pi * time[:, None] / periods)) + 0.3 * rng.normal(size=(1_100, 8))
    assert shoal.States().fit(rows).n_states_ == 1


def test_identities_last_and_a_state_that_returns_has_its_number_again() -> None:
    rng = np.random.default_rng(7)
    truth = np.repeat([0, 1, 0, 2, 1], 2_000)
    rows = np.array([0.0, 4.0, -4.0])[truth][:, None] + rng.normal(size=(10_000, 1))
    model = shoal.States(window=40, evaluate_every=2_000)
    seen = []
    for first in range(0, len(rows), 2_000):
        model.partial_fit(rows[first : first + 2_000])
        seen.append(model.identities_.tolist())
    assert seen == [[0], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert model.returns_.tolist() == [True, True, False]
    assert model.segments_[:, 2].tolist() == [0, 1, 0, 2, 1]
    np.testing.assert_allclose(model.means_[:, 0], [0, 4, -4], atol=0.2)
    np.testing.assert_allclose(model.deviations_[:, 0], 1, atol=0.3)


def test_a_change_is_told_within_the_delay() -> None:
    rng = np.random.default_rng(8)
    rows = rng.normal(size=(3_500, 1)) * np.where(np.arange(3_500) < 2_000, 1.0, 3.0)[:, None]
    model = shoal.States(window=20, evaluate_every=250).partial_fit(rows[:2_000])
    assert model.n_states_ == 1
    told = 2_000
    while model.n_states_ == 1:
        model.partial_fit(rows[told : told + 50])
        told += 50
    assert told <= 2_000 + model.delay_ + 50 < 2_500


def test_nothing_is_known_before_the_first_rows_and_little_from_few() -> None:
    model = shoal.States()
    with pytest.raises(shoal.NotFittedError, match="fit or partial_fit before predict"):
        model.predict([[0.0]])
    assert model.predict_one({"a": 0.0}) == -1
    with pytest.raises(AttributeError, match="fit or partial_fit"):
        _ = model.n_states_
    early = shoal.States().partial_fit(np.zeros((10, 1)))
    assert early.labels_.tolist() == [-1] * 10
    assert (early.n_states_, early.window_, early.delay_) == (0, 0, np.inf)
    assert early.means_.shape == (0, 1)
    row = shoal.States().fit([[3.0, 4.0]])
    assert (row.n_states_, row.labels_.tolist()) == (1, [0])
    assert np.isnan(row.means_).all()
    never = np.random.default_rng(0).normal(size=(2_000, 2))
    never[:, 1] = np.nan
    assert shoal.States().fit(never).n_states_ == 1


@pytest.mark.parametrize("n", [1, 50, 2_000])
def test_rows_without_any_value_are_in_no_state(n: int) -> None:
    rows = np.full((n, 2), np.nan)
    for model in (shoal.States().fit(rows), shoal.States().partial_fit(rows)):
        assert model.labels_.tolist() == [-1] * n
        assert (model.n_states_, len(model.segments_)) == (0, 0)
        assert model.transitions_.shape == (0, 0)
        assert model.means_.shape == (0, 2)
    # As is what has no value when others had one.
    known = shoal.States().fit(np.ones((n, 2)))
    assert known.labels_.tolist() == [0] * n
    assert known.predict(rows).tolist() == [-1] * n


def test_rows_before_the_first_value_are_in_no_state_and_change_nothing_after() -> None:
    rows = changing(11) + 1_000.0
    late = np.concatenate([np.full((1_700, 2), np.nan), rows])
    plain = shoal.States().fit(rows)
    model = shoal.States().fit(late)
    assert plain.n_states_ == 3
    assert model.labels_.tolist() == [-1] * 1_700 + plain.labels_.tolist()
    np.testing.assert_array_equal(model.segments_[:, 1:], plain.segments_[:, 1:] + [1_700, 0])
    streamed = shoal.States(evaluate_every=1_500)
    for first in range(0, len(late), 400):
        streamed.partial_fit(late[first : first + 400])
    whole = shoal.States(evaluate_every=1_500).partial_fit(late)
    assert pack(streamed.state()) == pack(whole.state())
    assert set(whole.labels_[:1_700].tolist()) == {-1}


@pytest.mark.parametrize(("kind", "dwell", "seed"), [("level", 100, 12), ("correlation", 500, 13)])
def test_columns_without_a_value_hide_no_state_of_the_others(
    kind: str, dwell: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    truth = dwells(rng, N, 2, dwell)
    rows = np.full((N, 5), np.nan)
    rows[:, 1:3] = rows_of(kind, truth, rng)
    model = shoal.States().fit(rows)
    assert model.n_states_ == 2
    assert adjusted_rand_score(truth, model.labels_) > 0.75


def test_a_gap_is_no_state() -> None:
    rows = np.random.default_rng(9).normal(size=(4_000, 1))
    rows[2_000:2_600] = np.nan
    assert shoal.States().fit(rows).n_states_ == 1


def test_columns_may_come_in_another_order_and_rows_one_by_one() -> None:
    table = pd.DataFrame(changing(10, 1_600), columns=["a", "b"])
    model = shoal.States().fit(table)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.predict(table[["b", "a"]]).tolist() == model.predict(table).tolist()
    with pytest.raises(InvalidData, match="features a, c were given"):
        model.predict(table.rename(columns={"b": "c"}))
    streamed = shoal.States()
    for row in table.head(1_500).to_dict("records"):
        streamed.learn_one(row)
    whole = shoal.States().partial_fit(table.head(1_500))
    assert pack(streamed.state()) == pack(whole.state())
    assert streamed.predict_one({"b": 0.0, "a": 0.0}) == whole.labels_[-1]


@pytest.mark.parametrize(
    "parameters",
    [{"strict": 3}, {"window": 5}, {"window": 7.5}, {"evaluate_every": 0}, {"interval": 0.0}],
)
def test_parameters_are_checked_when_learning_begins(parameters: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(parameters))):
        shoal.States(**parameters).fit([[0.0]])  # type: ignore[arg-type]  # wrong on purpose


def moments(n: int) -> pd.DatetimeIndex:
    return pd.date_range("2026-01-01", periods=n, freq="min")


def test_times_place_gaps_as_missing_values_do() -> None:
    rows = np.nan_to_num(changing(14))
    holes = rows.copy()
    kept = np.random.default_rng(14).random(len(rows)) > 0.2
    kept[[0, 1_500]] = True
    kept[1_000:1_100] = False
    holes[~kept] = np.nan
    missing = shoal.States().fit(holes)
    timed = shoal.States().fit(rows[kept], times=moments(len(rows))[kept])
    assert missing.n_states_ == 3
    assert timed.labels_.tolist() == missing.labels_[kept].tolist()
    assert timed.segments_.tolist() == missing.segments_.tolist()
    assert timed.interval_ == 60.0
    begin = pd.Timestamp("2026-01-01").timestamp()
    seconds = (timed.segment_seconds_ - begin) / 60
    np.testing.assert_allclose(seconds, timed.segments_[:, :2] - [0, 1], atol=1e-6)
    predicted = timed.predict(rows[kept], times=moments(len(rows))[kept])
    np.testing.assert_array_equal(predicted, missing.predict(holes)[kept])


def test_rows_at_times_are_placed_alike_in_any_calls_and_after_saving() -> None:
    rows = np.nan_to_num(changing(15, 2_400))
    rng = np.random.default_rng(15)
    # Around the steps, some rows at one step, and a pause of 58 days that counts as 4 096 minutes.
    seconds = 60.0 * np.arange(2_400) + rng.uniform(-10, 10, 2_400)
    seconds[700] = seconds[699]
    seconds[1_600:] += 83_333 * 60
    whole = shoal.States(interval=60).partial_fit(rows, times=seconds)
    parts = shoal.States(interval=60)
    labels: list[int] = []
    for first in range(0, len(rows), 800):
        end = first + 800
        parts = shoal.States(interval=60).restore(unpack(pack(parts.state())))
        parts.partial_fit(rows[first:end], times=seconds[first:end])
        labels += parts.labels_.tolist()
    assert pack(parts.state()) == pack(whole.state())
    assert len(labels) == len(rows)
    known = shoal.States(interval=60).fit(rows, times=seconds)
    assert known.segments_[-1, 1] == 2_400 + 4_095
    assert abs(known.segment_seconds_[-1, 1] - seconds[-1]) <= 30
    with pytest.raises(InvalidData, match="in every call"):
        parts.partial_fit(rows[:1])
    with pytest.raises(InvalidData, match="learn_one takes none"):
        parts.learn_one({"0": 0.0, "1": 0.0})
    before = pack(parts.state())
    with pytest.raises(InvalidData, match="order of time"):
        parts.partial_fit(rows[:1], times=[0.0])
    assert pack(parts.state()) == before
    whole_state = whole.state()
    stream = {**whole_state["streams"][""], "times": {"interval": 0.0}}
    with pytest.raises(InvalidState):
        shoal.States().restore({**whole_state, "streams": {"": stream}})


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0], "the time of each of the 2 rows"),
        ([1.0, 0.0], "order of time"),
        (["a", "b"], "seconds or datetime64"),
        (pd.date_range("2026", periods=2, tz="UTC"), "tz_convert"),
        ([0.0, np.nan], "no times"),
        (np.array(["2026-01-01", "NaT"], dtype="datetime64[s]"), "no times"),
    ],
)
def test_times_that_are_none_are_refused(times: object, message: str) -> None:
    model = shoal.States(interval=1)
    with pytest.raises(InvalidData, match=message):
        model.fit([[1.0], [2.0]], times=times)  # type: ignore[arg-type]  # wrong on purpose


def test_times_need_an_interval_where_later_rows_follow() -> None:
    with pytest.raises(SettingsError, match="interval = None"):
        shoal.States().partial_fit([[1.0]], times=[0.0])
    plain = shoal.States().fit([[1.0], [2.0]])
    with pytest.raises(InvalidData, match="were not given"):
        plain.predict([[1.0]], times=[0.0])
    with pytest.raises(AttributeError, match="without times"):
        _ = plain.interval_


def clients_with_states(seed: int) -> tuple[Floats, Ints, Ints]:
    """Rows (n, 2) of three clients, in turn, each with a level of its own, their states and
    clients; the last one is always in the first state."""
    rng = np.random.default_rng(seed)
    first = np.repeat([0, 1, 0, 1], [600, 900, 800, 700])
    second = np.repeat([0, 1, 0, 1], [750, 1_000, 500, 750])
    truth = np.stack([first, second, np.zeros(3_000, dtype=np.int64)])
    rows = rng.normal(size=(3, 3_000, 2)) + np.array([0.0, 3.0, -2.0])[:, None, None]
    rows[:, :, 0] += 5.0 * truth
    clients = np.tile(np.arange(3), 3_000)
    return rows.transpose(1, 0, 2).reshape(-1, 2), truth.T.ravel(), clients


def test_states_of_several_clients_have_one_number_where_they_recur() -> None:
    rows, truth, clients = clients_with_states(16)
    names = np.array(["north", "south", "east"])[clients]
    model = shoal.States().fit(rows, clients=names)
    assert model.clients_ == ["east", "north", "south"]
    assert model.n_states_ == 2
    varying = clients < 2
    assert adjusted_rand_score(truth[varying], model.labels_[varying]) > 0.9
    for client, segments in (("north", 4), ("south", 4), ("east", 1)):
        assert len(model.segments_of(client)) == segments
    assert model.returns_.all()
    assert model.transitions_.sum() == 6
    apart = model.means_[:, 0].max() - model.means_[:, 0].min()
    assert abs(apart - 5.0) < 1.5
    predicted = model.predict(rows, clients=names)
    assert adjusted_rand_score(truth[varying], predicted[varying]) > 0.9
    with pytest.raises(AttributeError, match="clients were named"):
        _ = model.segments_
    with pytest.raises(InvalidData, match="client west"):
        model.predict(rows[:1], clients=["west"])
    with pytest.raises(InvalidData, match="clients must be named"):
        model.predict(rows)


def test_clients_are_restored_and_continue_bit_for_bit() -> None:
    rows, _, clients = clients_with_states(17)
    half = len(rows) // 2
    through = shoal.States(evaluate_every=700).partial_fit(rows[:half], clients=clients[:half])
    saved = pack(through.state())
    restored = shoal.States(evaluate_every=700).restore(unpack(saved))
    for model in (through, restored):
        model.partial_fit(rows[half:], clients=clients[half:])
    assert pack(restored.state()) == pack(through.state())
    assert restored.labels_.tolist() == through.labels_.tolist()
    assert restored.n_states_ == 2
    with pytest.raises(InvalidData, match="clients must be named"):
        through.partial_fit(rows[:1])
    with pytest.raises(InvalidData, match="takes none"):
        through.learn_one({"0": 0.0, "1": 0.0})


def test_clients_without_rows_or_values_are_in_no_state() -> None:
    model = shoal.States().partial_fit(np.empty((0, 1)), clients=[])
    assert (model.n_states_, model.clients_, model.window_, model.delay_) == (0, [], 0, np.inf)
    model.partial_fit([[1.0], [np.nan]], clients=["a", "b"])
    assert model.labels_.tolist() == [-1, -1]
    never = np.array([[np.nan], [1.0]] * 1_200)
    fitted = shoal.States().fit(never, clients=[0, 1] * 1_200)
    assert fitted.labels_.tolist() == [-1, 0] * 1_200
    with pytest.raises(InvalidData, match="clients has shape"):
        shoal.States().fit([[1.0]], clients=[0, 1])
