"""The integer tables and the draws from them."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from shoal.errors import SettingsError
from shoal.privacy.laplace import ESCAPE, FINE_STEPS, TABLE_BITS, discrete_laplace, geometric_digit

EPSILONS = (0.0625, 0.3, 0.5, 1.0, 4.0, 15.0, 25.0, 50.0, 120.0)
ALL = 2**64 - 1


def random_words(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, size=shape, dtype=np.uint64)


def test_no_words_give_no_noise() -> None:
    distribution = discrete_laplace(1.0)
    assert distribution.noise(np.empty((0, 3, distribution.words), dtype=np.uint64)).shape == (0, 3)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_every_table_sums_to_its_whole_exactly(epsilon: float) -> None:
    distribution = discrete_laplace(epsilon)
    for digit in (*distribution.inner, distribution.scales):
        assert sum(int(w) for w in digit.weights) == 2**TABLE_BITS
        assert min(int(w) for w in digit.weights) > 0
        assert [int(b) for b in digit.below] == list(accumulate(int(w) for w in digit.weights[:-1]))


def test_a_digit_changes_exactly_where_its_table_says() -> None:
    digit = geometric_digit(5, 1, 4)
    edges = list(accumulate(int(w) for w in digit.weights))
    for value in range(5):
        first = edges[value - 1] if value else 0
        last = edges[value] - 1
        words = np.array([2 * first, 2 * first + 1, 2 * last, 2 * last + 1], dtype=np.uint64)
        assert digit.pick(words).tolist() == [value] * 4


def test_the_first_words_lowest_bit_is_the_sign_and_nothing_else() -> None:
    distribution = discrete_laplace(0.5)
    words = random_words((1000, distribution.words))
    other = words.copy()
    other[:, 0] ^= np.uint64(1)
    np.testing.assert_array_equal(distribution.noise(words), -distribution.noise(other))


def test_the_smallest_and_largest_words_reach_the_ends() -> None:
    distribution = discrete_laplace(25.0)
    assert distribution.noise(np.zeros((1, distribution.words), dtype=np.uint64)).tolist() == [-1]
    most = distribution.noise(np.full((1, distribution.words), ALL, dtype=np.uint64))
    assert most.tolist() == [
        2 * (FINE_STEPS - 1 + distribution.scale * ESCAPE * distribution.levels) + 1
    ]
    edge = 2 * distribution.margin + 1
    assert most[0] > 2 * distribution.steps + edge, (
        "what the last level folds must lie beyond the margin"
    )


def test_a_level_continues_only_after_the_escape() -> None:
    distribution = discrete_laplace(15.0)
    words = np.zeros((2, distribution.words), dtype=np.uint64)
    words[:, -1] = ALL
    words[1, -2] = ALL
    assert (distribution.noise(words) // (2 * distribution.scale)).tolist() == [-1, -2 * ESCAPE - 1]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_grid_is_fine_and_costs_little_epsilon(epsilon: float) -> None:
    distribution = discrete_laplace(epsilon)
    assert distribution.steps >= 1024
    assert distribution.steps >= 1024 * epsilon
    assert epsilon * (1 - 1 / FINE_STEPS) < distribution.steps / distribution.scale <= epsilon
    assert max(digit.weights.size for digit in (*distribution.inner, distribution.scales)) <= 2**14


@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_noise_is_two_sided_geometric(epsilon: float) -> None:
    distribution = discrete_laplace(epsilon)
    noise = distribution.noise(random_words((200_000, distribution.words), seed=7))
    assert (noise % 2 == 1).all()
    scales = noise / (2 * distribution.scale)
    edges = np.linspace(-6, 6, 49)
    counted, _ = np.histogram(scales, bins=np.concatenate([[-np.inf], edges, [np.inf]]))
    expected = np.diff(stats.laplace.cdf(np.concatenate([[-np.inf], edges, [np.inf]]))) * len(
        scales
    )
    assert stats.chisquare(counted, expected).pvalue > 1e-4
    assert abs(np.mean(scales)) < 4 * math.sqrt(2 / len(scales))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_results_stay_within_their_range_and_on_half_steps(epsilon: float) -> None:
    distribution = discrete_laplace(epsilon)
    words = random_words((4000, distribution.words))
    words[:10] = ALL
    words[5:10, 0] ^= np.uint64(1)
    grid = np.random.default_rng(3).integers(0, distribution.steps + 1, size=4000)
    half_steps = distribution.release(grid, words)
    assert (half_steps % 2 == 1).all()
    low, high = distribution.reach()
    unit = half_steps / (2 * distribution.steps)
    assert unit.min() == low
    assert unit.max() == high


@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 1001.0, math.nan])
def test_an_epsilon_out_of_range_is_an_error(epsilon: float) -> None:
    with pytest.raises(SettingsError, match="outside"):
        discrete_laplace(epsilon)


def test_tables_are_the_same_in_every_release() -> None:
    """Other tables would give readings read again after an upgrade fresh noise. Changing these is a
    new mechanism."""
    pinned = {
        0.5: "17c49a3051e3ffc4199d726cc68a948d",
        15.0: "3341ded73d904dcff665b481414e7221",
    }
    assert {epsilon: discrete_laplace(epsilon).digest().hex()[:32] for epsilon in pinned} == pinned
