"""DensityTree: clusters from private counts, with the interfaces of scikit-learn and river."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from shoal import DensityTree
from shoal.algorithms.density_tree.server import DensityTreeServer
from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.privacy.gaussian import GaussianNoise, nano_rho_of
from shoal.privacy.gaussian import variance_for as smallest_variance
from shoal.protocol.codec import pack, unpack

CENTRES = np.array([[2.0, 25.0], [8.0, 25.0], [5.0, 85.0]])
LOW = [0.0, 5.0]
HIGH = [10.0, 105.0]


def plant(n: int = 20_000, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(n, 2) readings in their units and the cluster of each."""
    generator = np.random.default_rng(seed)
    of = generator.integers(3, size=n)
    return CENTRES[of] + generator.normal(0, [0.3, 3.0], (n, 2)), of


def model(**parameters: Any) -> DensityTree:
    return DensityTree(**{"low": LOW, "high": HIGH, "clients": 10, "random_state": 0, **parameters})


@pytest.mark.parametrize("epsilon", [1.0, 4.0, None])
def test_it_finds_the_clusters_in_the_units_of_the_rows(epsilon: float | None) -> None:
    rows, truth = plant()
    found = model(epsilon=epsilon).fit(rows)
    assert found.n_clusters_ == 3
    assert adjusted_rand_score(truth, found.labels_) > 0.98
    nearest = (
        np.abs((found.cluster_centers_[:, None] - CENTRES) / [10, 100]).sum(axis=2).min(axis=0)
    )
    assert nearest.max() < 0.06
    assert sorted(found.active_.tolist()) == sorted(found.identities_.tolist())


def test_clients_may_be_named_and_share_what_they_learn() -> None:
    rows, truth = plant()
    found = model().fit(rows, clients=[f"room {i % 7}" for i in range(len(rows))])
    assert adjusted_rand_score(truth, found.predict(rows)) > 0.98
    with pytest.raises(InvalidData, match="it must name the client of each"):
        model().fit(rows, clients=["one"])


def test_readings_wait_until_their_window_is_full_and_fit_closes_it() -> None:
    rows, _ = plant(30)
    waiting = model(clients=1, window_readings=4000).partial_fit(rows)
    assert waiting.n_clusters_ == 0
    assert set(waiting.labels_) == {-1}
    assert (
        model(clients=1, window_readings=4000, epsilon=None)
        .fit(rows)
        ._federation.state()["clients"]["0"]["windows"]
        == 1
    )


def test_without_a_seed_nobody_can_make_the_noise_again_but_from_the_saved_state() -> None:
    rows, _ = plant(5000)
    first, second = (model(random_state=None).fit(rows) for _ in range(2))
    assert pack(first.state()["federation"]["server"]) != pack(
        second.state()["federation"]["server"]
    )
    restored = model(random_state=None).restore(unpack(pack(first.state())))
    for learner in (first, restored):
        learner.partial_fit(rows)
    assert pack(restored.state()) == pack(first.state())


def test_a_seed_is_said_to_protect_nothing_where_there_is_noise() -> None:
    rows, _ = plant(500)
    with pytest.warns(UserWarning, match="random_state=7 protects nothing"):
        model(random_state=7).fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(random_state=7, epsilon=None).fit(rows)
        model(random_state=None).fit(rows)


def test_another_seed_is_other_noise_and_the_same_seed_the_same() -> None:
    rows, _ = plant(5000)
    states = [pack(model(random_state=seed).fit(rows).state()["federation"]) for seed in (1, 1, 2)]
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize(
    ("cut", "masked"), [(1, False), (700, False), (4999, False), (700, True), (4999, True)]
)
def test_a_restored_model_continues_bit_for_bit(cut: int, masked: bool) -> None:
    rows, _ = plant(5000)
    size = 40 if masked else 400
    through = model(masked=masked, window_readings=size).partial_fit(rows[:cut])
    restored = model(masked=masked, window_readings=size).restore(unpack(pack(through.state())))
    for learner in (through, restored):
        learner.partial_fit(rows[cut:])
    assert pack(restored.state()) == pack(through.state())
    with pytest.raises(InvalidState):
        model(clients=2).restore(through.state())


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget_windows": 2},
        {"budget_windows": 0, "masked": True},
        {"delta": 0.1, "masked": True},
        {"epsilon": 0.0, "masked": True},
        {"epsilon": 0.0},
        {"epsilon": 100.0},
        {"window_readings": 0},
        {"clients": 0},
        {"random_state": -1},
        {"low": [0.0, 5.0, 1.0]},
        {"high": [10.0, 5.0]},
        {"low": "cold"},
        {"leaves_max": 0},
    ],
)
def test_a_parameter_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        model(**wrong).fit(plant(50)[0])


def test_values_beyond_the_bounds_count_as_the_bounds() -> None:
    rows, _ = plant(5000)
    far = np.where(rows == rows.max(axis=0), 1e9, rows)
    near = np.where(rows == rows.max(axis=0), HIGH, rows)
    assert pack(model().fit(far).state()) == pack(model().fit(near).state())


def test_one_reading_at_a_time_is_learnt_by_feature_name() -> None:
    frame = pd.DataFrame(plant(6000)[0], columns=["warm", "dry"])
    found = DensityTree(low=[5.0, 0.0], high=[105.0, 10.0], epsilon=None)
    assert found.predict_one({"warm": 2.0, "dry": 25.0}) == -1
    for reading in frame.to_dict("records"):
        found.learn_one(reading)
    assert found.feature_names_in_.tolist() == ["dry", "warm"]
    assert (
        len({found.predict_one({"warm": warm, "dry": dry}) for warm, dry in CENTRES.tolist()}) == 3
    )


@pytest.mark.filterwarnings("ignore:values of feature 0")
@pytest.mark.parametrize("epsilon", [4.0, None])
def test_gaps_between_even_numbers_are_no_valleys_where_the_step_is_given(
    epsilon: float | None,
) -> None:
    generator = np.random.default_rng(11)
    of = generator.integers(4, size=12_000)
    values = np.array([[10, 30], [30, 30], [20, 20], [12, 10]])[of] + generator.normal(
        0, 1.5, (12_000, 2)
    )
    rows = 2.0 * np.rint(values / 2.0)
    found = {
        step: DensityTree(
            epsilon=epsilon, low=0.0, high=40.0, step=step, clients=20, random_state=3
        ).fit(rows)
        for step in (0.0, 2.0)
    }
    assert found[2.0].n_clusters_ == 4
    assert adjusted_rand_score(of, found[2.0].labels_) > 0.99
    assert found[0.0].n_clusters_ > 4


@pytest.mark.parametrize("epsilon", [4.0, None])
def test_many_clusters_are_found_in_a_small_table_whose_tree_changes_often_enough(
    epsilon: float | None,
) -> None:
    generator = np.random.default_rng(12)
    grid = np.stack(np.meshgrid([0.1, 0.3, 0.5, 0.7], [0.15, 0.5, 0.85]), axis=-1).reshape(-1, 2)
    of = generator.integers(12, size=5000)
    rows = np.clip(grid[of] + generator.normal(0, 0.02, (5000, 2)), 0.0, 1.0)
    found = {
        size: DensityTree(epsilon=epsilon, random_state=3, grow_readings=size).fit(rows)
        for size in (2000, len(rows) // 10)
    }
    assert found[2000].n_clusters_ < 12, "a leaf is cut in two at each change"
    assert found[500].n_clusters_ == 12
    assert adjusted_rand_score(of, found[500].labels_) > 0.97


def test_a_feature_that_shows_steps_and_has_none_is_named() -> None:
    generator = np.random.default_rng(11)
    frame = pd.DataFrame(
        {"warm": np.rint(generator.normal(20, 4, 200)), "dry": generator.normal(20, 4, 200)}
    )
    frame.iloc[3] = np.nan
    options: dict[str, Any] = {"low": 0.0, "high": 40.0, "epsilon": None}
    with pytest.warns(UserWarning, match=r"^values of warm \(1\) are multiples"):
        DensityTree(**options).fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DensityTree(step=[1.0, 0.0], **options).fit(frame)


@pytest.mark.parametrize("step", [-1.0, 1000.0, [1.0, 1.0, 1.0], "coarse"])
def test_a_step_that_cannot_be_is_refused(step: Any) -> None:
    with pytest.raises(SettingsError, match="step"):
        model(step=step).fit(plant(50)[0])


def test_a_cluster_across_the_end_of_a_period_is_one_and_its_centre_lies_on_the_circle() -> None:
    random = np.random.default_rng(5)
    of = random.integers(2, size=8000)
    rows = np.column_stack(
        [np.array([355.0, 180.0])[of] + random.normal(0, 12, 8000), random.normal(0.5, 0.1, 8000)]
    )
    found = DensityTree(
        epsilon=4.0, low=0.0, period=[360.0, 0.0], step=[1.0, 0.0], clients=10, random_state=1
    )
    found.fit(rows % [360.0, 1.0])
    assert found.n_clusters_ == 2
    assert np.sort(found.cluster_centers_[:, 0]) == pytest.approx([180, 355], abs=5)
    assert len(set(found.predict([[350.0, 0.5], [5.0, 0.5], [725.0, 0.5], [-10.0, 0.5]]))) == 1


@pytest.mark.parametrize("period", [-1.0, np.inf, [1.0, 1.0, 1.0], "round"])
def test_a_period_that_cannot_be_is_refused(period: Any) -> None:
    with pytest.raises(SettingsError, match="period"):
        model(period=period).fit(plant(50)[0])


def masked(**parameters: Any) -> DensityTree:
    return model(**{"masked": True, "window_readings": 100, "epsilon": 1.0, **parameters})


def sums_of(
    monkeypatch: pytest.MonkeyPatch, found: DensityTree, rows: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """The arrays of every sum that is absorbed while `found` learns rows."""
    absorbed: list[dict[str, Any]] = []
    absorb = DensityTreeServer.absorb

    def look(server: DensityTreeServer, contributions: Any, seed: bytes) -> Any:
        absorbed.extend(dict(contribution.arrays) for contribution in contributions)
        return absorb(server, contributions, seed)

    monkeypatch.setattr(DensityTreeServer, "absorb", look)
    found.fit(rows)
    return absorbed


def test_sums_over_150_clients_find_the_clusters_at_an_epsilon_of_one_for_a_whole_window() -> None:
    rows, truth = plant(150 * 8 * 100)
    owner = np.arange(len(rows)) % 150
    assert (
        adjusted_rand_score(truth, masked(random_state=0).fit(rows, clients=owner).labels_) > 0.98
    )
    assert (
        model(random_state=0, epsilon=0.02, window_readings=100)
        .fit(rows, clients=owner)
        .n_clusters_
        <= 1
    )


@pytest.mark.filterwarnings("ignore:sums over few clients:UserWarning")
def test_a_sum_is_of_one_window_of_every_client_with_noise_of_the_declared_variance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = sums_of(monkeypatch, masked(epsilon=None), plant(2500)[0])
    assert [int(learner["places"][0]) for learner in plain] == [1000, 1000, 500]
    assert [int(learner["count"].sum()) for learner in plain] == [1000, 1000, 500]
    noise = []
    for seed in range(40):
        [first, *_] = sums_of(monkeypatch, masked(epsilon=1.0, random_state=seed), plant(1000)[0])
        noise.append(first["count"] - plain[0]["count"])
    # The clip for 100 readings is 25, so two clients' counts are 25 x sqrt(2) apart at most.
    variance = smallest_variance(2 * 25**2, nano_rho_of(1.0, 1e-6))
    cells = np.concatenate(noise)
    assert np.sum(cells**2) / variance == pytest.approx(len(cells), abs=5 * np.sqrt(2 * len(cells)))


@pytest.mark.filterwarnings("ignore:sums over few clients:UserWarning")
def test_one_client_changes_a_sum_by_no_more_than_the_clip_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = GaussianNoise.draw
    monkeypatch.setattr(
        GaussianNoise, "draw", lambda noise, seed, cells: 0 * drawn(noise, seed, cells)
    )
    rows = np.full((100, 2), [2.0, 25.0])
    [absorbed] = sums_of(monkeypatch, masked(clients=1), rows)
    assert 23**2 < int((absorbed["count"].astype(np.int64) ** 2).sum()) <= 25**2


@pytest.mark.filterwarnings("ignore:500 readings are left out:UserWarning")
def test_a_budget_of_windows_is_never_exceeded_and_what_is_left_out_is_said() -> None:
    rows, _ = plant(3500)
    found = masked(budget_windows=2, random_state=None)
    with pytest.warns(UserWarning, match="1500 readings are left out"):
        found.partial_fit(rows)
    with pytest.warns(UserWarning, match="3500 readings are left out"):
        found.partial_fit(rows)
    with pytest.warns(UserWarning, match="sums over few clients, 10"):
        found.fit(rows[:2500])
    windows = found.state()["federation"]["clients"]
    assert {client["windows"] for client in windows.values()} == {2}
