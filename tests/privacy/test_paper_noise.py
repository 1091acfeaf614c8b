"""The paper's noise: its equations on a data set, the published trace, and the form for streams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from shoal.errors import InvalidData, InvalidState, SettingsError
from shoal.privacy.paper import GRAIN, PaperNoise, paper_noise, unit_laplace
from tests.privacy.modes import build, paper_mode, places, readings_of

VECTORS = Path(__file__).parents[1] / "golden" / "vectors" / "fcac_blobs2d_eps25.npz"


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_no_rows_give_no_rows() -> None:
    assert paper_noise(np.empty((0, 2)), 15.0, rng()).shape == (0, 2)


def test_a_feature_that_does_not_vary_gets_no_noise_as_in_the_paper() -> None:
    rows = np.array([[0.1, 3.0], [0.4, 3.0]])
    noised = paper_noise(rows, 15.0, rng())
    assert noised[:, 1].tolist() == [3.0, 3.0]
    assert (noised[:, 0] != rows[:, 0]).all()


def test_given_unit_noise_is_scaled_by_range_over_epsilon() -> None:
    """Eq. 2-4."""
    rows = np.array([[0.0, -1.0], [4.0, 1.0], [1.0, 0.0]])
    unit = np.array([[1.0, 1.0], [0.0, -2.0], [-1.0, 0.5]])
    noised = paper_noise(rows, 2.0, unit, rounded=False)
    assert noised.tolist() == [[2.0, 0.0], [4.0, -1.0], [-1.0, 0.5]]


def test_the_published_federation_is_noised_to_the_same_numbers() -> None:
    golden = np.load(VECTORS)
    start = 0
    for client, end in enumerate(golden["client_end"]):
        rows = golden["X"][start:end]
        np.testing.assert_allclose(np.ptp(rows, axis=0), golden["sensitivity"][client], rtol=1e-12)
        noised = paper_noise(rows, float(golden["epsilon"]), golden["unit_noise"], rounded=False)
        np.testing.assert_allclose(noised, golden["noised"][start:end], rtol=1e-12, atol=1e-12)
        start = int(end)
    assert start == len(golden["noised"]) == 2000


def test_rounding_moves_no_value_by_more_than_half_a_grain() -> None:
    rows = rng(1).normal(size=(200, 3)) * [1.0, 100.0, 1e-3]
    unit = rng(2).laplace(size=(200, 3))
    moved = paper_noise(rows, 15.0, unit) - paper_noise(rows, 15.0, unit, rounded=False)
    grain = np.ptp(rows, axis=0) * GRAIN
    assert (np.abs(moved) <= grain * 0.5001).all()
    assert np.abs(moved).max(axis=0) == pytest.approx(grain / 2, rel=0.1)


def test_unit_noise_is_laplace_and_finite_at_the_ends() -> None:
    ends = unit_laplace(np.array([0, 2**64 - 1, 2**63, 2**63 - 1], dtype=np.uint64))
    assert np.isfinite(ends).all(), "v = -0.5 would give an infinite value"
    assert ends.tolist() == [-ends[1], ends[1], ends[2], -ends[2]]
    three_quarters = unit_laplace(np.array([3 * 2**62], dtype=np.uint64))
    assert three_quarters[0] == pytest.approx(np.log(2.0)), "eq. 3 at v = 0.25"
    drawn = unit_laplace(rng(3).integers(0, 2**64, size=20_000, dtype=np.uint64))
    assert stats.kstest(drawn, "laplace").pvalue > 1e-3


def test_the_same_generator_state_gives_the_same_noise() -> None:
    rows = rng(5).random((10, 2))
    np.testing.assert_array_equal(paper_noise(rows, 15.0, rng(9)), paper_noise(rows, 15.0, rng(9)))
    assert not np.array_equal(paper_noise(rows, 15.0, rng(9)), paper_noise(rows, 15.0, rng(8)))


def test_invalid_rows_and_noise_are_an_error() -> None:
    with pytest.raises(InvalidData):
        paper_noise(np.zeros(3), 15.0, rng())
    with pytest.raises(InvalidData):
        paper_noise(np.array([[np.nan]]), 15.0, rng())
    with pytest.raises(InvalidData):
        paper_noise(np.zeros((3, 2)), 15.0, np.zeros((2, 2)))
    with pytest.raises(SettingsError):
        paper_noise(np.zeros((3, 2)), 0.0, rng())


def test_a_stream_withholds_and_counts_readings_until_every_feature_has_varied() -> None:
    mechanism = build(paper_mode(2))
    assert isinstance(mechanism, PaperNoise)
    readings = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0], [2.0, 3.0], [1.5, 2.5]])
    released = mechanism.privatise(readings, places(5))
    assert released.kept.tolist() == [False, False, False, True, True]
    assert released.rows.shape == (2, 2)
    assert mechanism.withheld == 3


def test_a_constant_stream_releases_nothing() -> None:
    mechanism = build(paper_mode(2))
    assert isinstance(mechanism, PaperNoise)
    assert len(mechanism.privatise(np.full((50, 2), 3.0), places(50)).rows) == 0
    assert mechanism.withheld == 50


def test_the_noise_of_a_stream_has_the_scale_of_the_range_seen_so_far() -> None:
    mode = paper_mode(1, epsilon=10.0)
    readings = mode.bounds.from_unit(np.full((30_000, 1), 0.5))
    readings[0], readings[1], readings[15_000] = (
        mode.bounds.from_unit(np.array([u])) for u in (0.4, 0.6, 0.0)
    )
    released = build(mode).privatise(readings, places(30_000))
    noise = np.abs(released.rows[:, 0] - mode.bounds.to_unit(readings)[1:, 0])
    assert noise[:14_999].mean() == pytest.approx(0.2 / 10, rel=0.05)
    assert noise[15_000:].mean() == pytest.approx(0.6 / 10, rel=0.05)


def test_rows_of_a_stream_are_rounded_to_a_millionth_of_the_range() -> None:
    mode = paper_mode(3)
    rows = build(mode).privatise(readings_of(mode, 500), places(500)).rows
    np.testing.assert_array_equal(rows / GRAIN, np.rint(rows / GRAIN))


def test_a_saved_running_range_that_does_not_fit_is_an_error() -> None:
    mechanism = build(paper_mode(3))
    mechanism.privatise(readings_of(paper_mode(3), 5), places(5))
    good = mechanism.state()
    for wrong in (
        {"low": np.zeros(2)},
        {"high": None},
        {"low": [0.0, 0.0, 0.0]},
        {"low": np.zeros(3, dtype=np.int64)},
        {"withheld": -1},
        {"withheld": None},
        {"low": good["high"], "high": good["low"]},
        {"high": np.full(3, np.nan)},
        {"high": np.full(3, 2.0)},
    ):
        with pytest.raises(InvalidState):
            mechanism.restore(good | wrong)
