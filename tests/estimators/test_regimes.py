"""Regimes: found where a stream stays, and one where nothing stays."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import shoal
from shoal.algorithms.regimes.blocks import BLOCKS_MAX, BlockMemory, block_features, window_features
from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats, Ints

Stream = tuple[Floats, Ints, Ints]
"""rows (n, d) of several clients one after the other, the regime of each row, and its client"""


def dwells(rng: np.random.Generator, n: int, k: int, dwell: float) -> Ints:
    """(n,) regimes in turn by chance, each for a gamma-distributed time of this mean."""
    out: list[int] = []
    now = int(rng.integers(k))
    while len(out) < n:
        out += [now] * max(3, int(rng.gamma(4, dwell / 4)))
        now = (now + int(rng.integers(1, k))) % k
    return np.array(out[:n])


def autoregressive(rng: np.random.Generator, n: int, d: int, phi: float | Floats) -> Floats:
    """(n, d) of variance 1."""
    rows = np.zeros((n, d))
    steps = rng.normal(size=(n, d)) * np.sqrt(1 - np.square(phi))
    for t in range(1, n):
        rows[t] = phi * rows[t - 1] + steps[t]
    return rows


def stream(
    seed: int,
    make: Callable[[np.random.Generator, Ints], Floats],
    k: int = 2,
    dwell: float = 200,
    clients: int = 4,
) -> Stream:
    """10 000 rows: what `make` gives for the regimes (n,) of each client."""
    rng = np.random.default_rng(seed)
    truth = [dwells(rng, 10_000 // clients, k, dwell) for _ in range(clients)]
    rows = np.concatenate([make(rng, regime) for regime in truth])
    return rows, np.concatenate(truth), np.repeat(np.arange(clients), 10_000 // clients)


def levels(*means: list[float]) -> Callable[[np.random.Generator, Ints], Floats]:
    return lambda rng, truth: (
        autoregressive(rng, len(truth), len(means[0]), 0.5) + np.array(means)[truth]
    )


def spreads(rng: np.random.Generator, truth: Ints) -> Floats:
    return autoregressive(rng, len(truth), 3, 0.5) * (1.0 + truth[:, None])


def oscillations(rng: np.random.Generator, truth: Ints) -> Floats:
    """Of the same mean and spread, and of opposite correlation in time."""
    rows = rng.normal(size=(len(truth), 3))
    phi = np.array([0.8, -0.5])[truth]
    for t in range(1, len(rows)):
        rows[t] = phi[t] * rows[t - 1] + np.sqrt(1 - phi[t] ** 2) * rows[t]
    return rows


def slopes(rng: np.random.Generator, truth: Ints) -> Floats:
    """Of the same mean and spread, rising or falling."""
    rising = np.cumsum(np.array([0.2, -0.2])[truth])
    return autoregressive(rng, len(truth), 3, 0.5) + (rising - rising.mean())[:, None] / np.sqrt(3)


FOUND: dict[str, tuple[Callable[[np.random.Generator, Ints], Floats], int, float, float]] = {
    "three levels at 3 sd, dwell 100": (levels([0, 0, 0], [3, 0, 0], [1.5, 2.6, 0]), 3, 100, 0.85),
    "two levels at 2 sd, dwell 500": (levels([0, 0], [1.4, 1.4]), 2, 500, 0.9),
    "spread": (spreads, 2, 200, 0.8),
    "oscillation": (oscillations, 2, 500, 0.9),
    "slope": (slopes, 2, 500, 0.9),
}
"""how rows are made of regimes, how many there are, their dwell, and the ARI reached; nothing of it
is told"""


@pytest.mark.parametrize("name", FOUND)
def test_regimes_are_found_whatever_tells_them_apart(name: str) -> None:
    make, k, dwell, least = FOUND[name]
    rows, truth, clients = stream(1, make, k, dwell)
    model = shoal.Regimes().fit(rows, clients=clients)
    assert model.n_regimes_ == k
    assert adjusted_rand_score(truth, model.labels_) >= least
    assert not model.provisional_
    assert np.all((model.dwell_ > dwell / 2) & (model.dwell_ < 2 * dwell))
    assert model.transitions_.sum() > 10


def sine(rng: np.random.Generator, period: float, noise: float) -> Floats:
    times = np.arange(5_000)[:, None]
    return np.sin(2 * np.pi * times / period + np.arange(2)) + noise * rng.normal(size=(5_000, 2))


NULLS: dict[str, Callable[[np.random.Generator], Floats]] = {
    "independent": lambda rng: rng.normal(size=(5_000, 3)),
    "heavy tails": lambda rng: rng.standard_t(2.5, size=(5_000, 2)),
    "AR .9": lambda rng: autoregressive(rng, 5_000, 2, 0.9),
    "AR .999": lambda rng: autoregressive(rng, 5_000, 2, 0.999),
    "AR of several speeds": lambda rng: autoregressive(
        rng, 5_000, 4, np.array([0.995, 0.9, 0.5, 0.0])
    ),
    "random walk": lambda rng: np.cumsum(rng.normal(size=(5_000, 2)), axis=0),
    "walk and noise": lambda rng: (
        np.cumsum(rng.normal(size=(5_000, 2)), axis=0) * 0.1 + rng.normal(size=(5_000, 2))
    ),
    "cycle": lambda rng: sine(rng, 1_000, 0.3),
    "short cycle": lambda rng: sine(rng, 24, 0.1),
    "trend": lambda rng: rng.normal(size=(5_000, 2)) + 3 * np.arange(5_000)[:, None] / 5_000,
    "volatility": lambda rng: (
        rng.normal(size=(5_000, 2)) * np.exp(0.7 * autoregressive(rng, 5_000, 1, 0.99))
    ),
    "skewed": lambda rng: np.exp(autoregressive(rng, 5_000, 2, 0.95)),
    "constant": lambda rng: np.ones((5_000, 2)),
}


@pytest.mark.parametrize("name", NULLS)
def test_a_stream_in_which_nothing_stays_is_one_regime(name: str) -> None:
    rows = NULLS[name](np.random.default_rng(5))
    model = shoal.Regimes().fit(rows)
    assert model.n_regimes_ == 1
    assert set(model.labels_.tolist()) == {0}
    assert model.dwell_.tolist() == [np.inf]
    assert model.scale_ == 0
    # Of a walk with noise the evaluation before the last took a stretch for a second regime: two
    # evaluations disagree.
    assert not model.provisional_ or name == "walk and noise"
    np.testing.assert_allclose(
        model.means_[0], rows[-BLOCKS_MAX:].mean(axis=0), atol=0.02 * (1 + np.abs(rows).max())
    )


def test_clients_own_levels_are_taken_unless_clients_that_never_change_tell_more() -> None:
    rows, truth, clients = stream(2, levels([0, 0], [2, 2]), clients=8)
    places = np.random.default_rng(0).normal(size=(8, 2)) * 4
    apart = shoal.Regimes().fit(rows + places[clients], clients=clients)
    assert apart.n_regimes_ == 2
    assert adjusted_rand_score(truth, apart.labels_) > 0.85
    gaps = np.ptp(apart.means_, axis=0)
    np.testing.assert_allclose(gaps, [2, 2], atol=0.3)

    # half of the clients stay in one regime for good
    truth = np.where(clients < 4, truth, clients % 2)
    rows = levels([0, 0], [2, 2])(np.random.default_rng(1), truth)
    alone = shoal.Regimes().fit(rows, clients=clients)
    assert adjusted_rand_score(truth, alone.labels_) > 0.9
    assert (
        shoal.Regimes(pool=True).fit(rows, clients=clients).labels_.tolist()
        == alone.labels_.tolist()
    )
    assert (
        adjusted_rand_score(truth, shoal.Regimes(pool=False).fit(rows, clients=clients).labels_)
        < 0.7
    )


def interleaved(one: Stream) -> Stream:
    """The rows in an order in which clients take turns."""
    rows, truth, clients = one
    place = np.argsort(np.arange(len(rows)) % (len(rows) // (clients.max() + 1)), kind="stable")
    return rows[place], truth[place], clients[place]


def test_any_division_into_calls_finds_the_same() -> None:
    rows, truth, clients = (
        part[:4_000] for part in interleaved(stream(3, levels([0, 0], [2.5, 2.5])))
    )
    rows[np.random.default_rng(0).random(rows.shape) < 0.1] = np.nan
    models = []
    for step in (4_000, 613):
        model = shoal.Regimes()
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            model.partial_fit(rows[part], clients=clients[part])
        models.append(model)
    labels = [model.predict(rows, clients=clients) for model in models]
    assert labels[0].tolist() == labels[1].tolist()
    assert models[0].dwell_.tolist() == models[1].dwell_.tolist()
    assert adjusted_rand_score(truth, labels[0]) > 0.7


def test_identities_last_while_the_stream_goes_on_and_a_regime_may_come_back() -> None:
    rng = np.random.default_rng(7)
    both = dwells(rng, 9_000, 2, 150)
    alone = np.zeros(9_000, dtype=np.int64)
    truth = np.concatenate([both, alone, both])
    rows = levels([0, 0], [2.5, 2.5])(rng, truth)
    model = shoal.Regimes(rebuild_readings=3_000)
    seen = []
    for first in range(0, len(rows), 3_000):
        model.partial_fit(rows[first : first + 3_000])
        seen.append(model.predict(rows[:9_000]))
    assert model.n_regimes_ == 2
    late = seen[2:]
    assert all(np.mean(record == late[-1]) > 0.9 for record in late)


def test_missing_readings_cost_little_and_times_place_gaps() -> None:
    rows, truth, clients = stream(4, levels([0, 0], [2, 2]))
    rng = np.random.default_rng(0)
    holes = rows.copy()
    holes[rng.random(len(rows)) < 0.2] = np.nan
    missing = shoal.Regimes().fit(holes, clients=clients)
    assert adjusted_rand_score(truth, missing.labels_) > 0.8

    kept = ~np.isnan(holes[:, 0])
    times = pd.to_datetime("2026-01-01") + pd.to_timedelta(
        60 * (np.arange(len(rows)) % 2_500), unit="s"
    )
    gaps = shoal.Regimes(interval=60.0).fit(rows[kept], clients=clients[kept], times=times[kept])
    assert np.mean(gaps.labels_ == missing.labels_[kept]) > 0.99


def test_live_labels_need_no_later_rows_and_are_those_of_predict_one() -> None:
    rows, truth, _ = stream(5, levels([0, 0], [3, 3]), clients=1)
    model = shoal.Regimes().fit(rows[:9_000])
    live = model.predict(rows, live=True)
    assert live[:9_500].tolist() == model.predict(rows[:9_500], live=True).tolist()
    assert adjusted_rand_score(truth, live) > 0.7

    streamed = shoal.Regimes()
    labels = []
    for row in rows[:3_000]:
        labels.append(streamed.predict_one(dict(enumerate(row))))
        streamed.learn_one({str(name): value for name, value in enumerate(row)})
    assert labels[:1_000] == [-1] * 1_000
    assert adjusted_rand_score(truth[2_200:3_000], labels[2_200:]) > 0.6
    assert streamed.feature_names_in_.tolist() == ["0", "1"]
    # A missing value is a gap at every door: here as in `partial_fit`.
    streamed.learn_one({"0": None, "1": 0.0})


def test_nothing_is_known_before_the_first_rows() -> None:
    model = shoal.Regimes()
    with pytest.raises(shoal.NotFittedError, match="fit or partial_fit before predict"):
        model.predict([[0.0]])
    assert model.predict_one({"a": 0.0}) == -1
    with pytest.raises(AttributeError, match="fit or partial_fit"):
        _ = model.n_regimes_
    early = shoal.Regimes(rebuild_readings=2_000).partial_fit(np.zeros((10, 1)))
    # before level and spread of the columns are known, and before the first evaluation
    for more in (0, 1_500):
        early.partial_fit(np.zeros((more, 1)))
        assert early.labels_.tolist() == [-1] * more
        assert early.n_regimes_ == 0
        assert early.dwell_.tolist() == []
        assert early.means_.shape == (0, 1)
        assert early.provisional_
    assert early.partial_fit(np.zeros((490, 1))).n_regimes_ == 1
    assert early.predict_one({"0": 0.0}) == 0


def test_one_reading_is_one_provisional_regime_and_a_feature_never_read_has_no_mean() -> None:
    one = shoal.Regimes().fit([[3.0, 4.0]])
    assert (one.n_regimes_, one.labels_.tolist(), one.provisional_) == (1, [0], True)
    assert one.means_.tolist() == [[3.0, 4.0]]
    rows = np.random.default_rng(0).normal(size=(2_000, 2))
    rows[:, 1] = np.nan
    missing = shoal.Regimes().fit(rows)
    assert missing.n_regimes_ == 1
    assert np.isnan(missing.means_).all()


def test_columns_may_come_in_another_order_and_a_copy_goes_on() -> None:
    rows, _, _ = stream(6, levels([0, 0], [0, 3]), clients=1)
    table = pd.DataFrame(rows[:3_000], columns=["a", "b"])
    model = shoal.Regimes().fit(table)
    assert model.predict(table[["b", "a"]]).tolist() == model.labels_.tolist()
    copy = pickle.loads(pickle.dumps(model))
    assert (
        copy.partial_fit(table).predict(table).tolist()
        == model.partial_fit(table).predict(table).tolist()
    )
    with pytest.raises(InvalidData, match="features a, c were given"):
        model.predict(table.rename(columns={"b": "c"}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": [[np.inf]]}, "cells that are inf"),
        ({"X": [[1.0], [2.0]], "clients": ["a"]}, "the client of each of the 2 rows"),
        ({"X": [[1.0], [2.0]], "times": [0.0]}, "the time of each of the 2 rows"),
        ({"X": [[1.0], [2.0]], "times": [1.0, 0.0]}, "order of time"),
        ({"X": [[1.0], [2.0]], "times": ["a", "b"]}, "seconds or datetime64"),
        ({"X": [[1.0], [2.0]], "times": [0.0, np.nan]}, "no times"),
    ],
)
def test_rows_that_are_no_stream_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        shoal.Regimes().fit(**arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_times_come_in_every_call_or_in_none_and_do_not_go_back() -> None:
    model = shoal.Regimes().partial_fit(np.zeros((2, 1)), times=[0.0, 1.0])
    with pytest.raises(InvalidData, match="in every call"):
        model.partial_fit(np.zeros((1, 1)))
    with pytest.raises(InvalidData, match="order of time"):
        model.partial_fit(np.zeros((1, 1)), times=[0.5])


@pytest.mark.parametrize("parameters", [{"pool": 3}, {"interval": 0.0}, {"rebuild_readings": 0}])
def test_parameters_are_checked_when_learning_begins(parameters: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(parameters))):
        shoal.Regimes(**parameters).fit([[0.0]])  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_windows_have_the_features_of_blocks(share: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(64, 2))
    rows[rng.random(rows.shape) < share] = np.nan
    for w in (1, 2, 4, 16):
        blocks = block_features(rows.reshape(-1, w, 2))
        np.testing.assert_allclose(window_features(rows, w)[::w], blocks, atol=1e-6)


def test_a_block_that_lacks_half_of_a_column_is_unknown_and_memory_is_bounded() -> None:
    block = np.arange(16.0).reshape(1, 8, 2)
    block[0, :4, 1] = np.nan
    assert np.isnan(block_features(block)).all()
    memory = BlockMemory(8)
    for _ in range(20):
        memory.add(np.zeros((BLOCKS_MAX // 4, 8)))
    held = sum(array.nbytes for array in memory.state().values())
    assert memory.n_blocks[1] == 5 * BLOCKS_MAX
    assert held < 4 * 2**20
