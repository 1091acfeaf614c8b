"""Discrete Gaussian noise: the distribution, its certificate, and what it costs.

What it costs is held against the exact privacy loss, summed to 50 digits; and where they are
installed, against OpenDP and dp-accounting, which needs an older attrs than other packages of the
tests.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare, norm

from shoal.errors import SettingsError
from shoal.privacy.gaussian import (
    NANO,
    ROUNDED,
    TABLE_BITS,
    _magnitude,
    certified_rho,
    certify,
    chance_beyond,
    epsilon_of,
    gaussian_delta,
    gaussian_noise,
    nano_rho,
    nano_rho_of,
    variance_for,
)


def probabilities(variance: int, reach: int) -> list[float]:
    """P(-reach) .. P(reach), computed by floats."""
    far = 20 * math.isqrt(variance) + 20
    total = math.fsum(math.exp(-k * k / (2 * variance)) for k in range(-far, far + 1))
    return [math.exp(-k * k / (2 * variance)) / total for k in range(-reach, reach + 1)]


@pytest.mark.parametrize("variance", [1, 2, 37, 490_000])
def test_the_table_holds_the_distribution_and_its_certificate_is_the_declared_rho(
    variance: int,
) -> None:
    noise = gaussian_noise(variance)
    assert certified_rho(noise, 20_000) == Fraction(20_000, 2 * variance)
    table = np.diff(noise.below.astype(np.float64), prepend=0.0) / 2**TABLE_BITS
    expected = probabilities(variance, 5)[5:]
    assert table[0] == pytest.approx(expected[0], abs=1e-15)
    assert table[1:6] == pytest.approx([2 * array for array in expected[1:]], abs=1e-15)


def test_the_certificate_refuses_a_wrong_last_bit_a_short_table_and_another_variance() -> None:
    noise = gaussian_noise(400)
    for entry in (noise.below[30] + np.uint64(1), noise.below[30] - np.uint64(1)):
        below = noise.below.copy()
        below[30] = entry
        with pytest.raises(SettingsError, match="not what it must be"):
            certify(replace(noise, below=below))
    with pytest.raises(SettingsError, match="ends too early"):
        certify(replace(noise, below=noise.below[:-1]))
    with pytest.raises(SettingsError, match="not what it must be"):
        certify(replace(noise, variance=200))


def test_a_word_that_is_an_entry_is_decided_by_further_bits_in_the_right_proportion() -> None:
    noise = gaussian_noise(4)
    word = noise.below[2]
    weights = {k: (Decimal(-k * k) / 8).exp() for k in range(-60, 61)}
    exact = sum(weights[k] for k in range(-2, 3)) / sum(weights.values()) * 2**TABLE_BITS
    # of the words equal to the entry, this part lies below the distribution function
    part = float(exact - int(exact))
    words = np.full(400, word << np.uint64(1), dtype=np.uint64)
    found = noise.of_words(words, b"seed")
    assert set(np.abs(found).tolist()) <= {2, 3}
    assert (np.abs(found) == 2).mean() == pytest.approx(part, abs=4 * math.sqrt(0.25 / 400))
    assert np.array_equal(found, noise.of_words(words, b"seed")), (
        "the same seed gives the same noise"
    )


def test_the_last_word_of_all_reaches_beyond_the_table() -> None:
    noise = gaussian_noise(4)
    assert (
        abs(int(noise.of_words(np.array([2**64 - 1], dtype=np.uint64), b"")[0]))
        >= len(noise.below) - 1
    )
    # All further bits one: far beyond any table, and still decided.
    bits = TABLE_BITS + 1024
    assert (_magnitude(4, 2**bits - 1, bits) or 10**6) > 50


def test_draws_fit_the_distribution_and_a_share_of_the_scale_less_is_seen() -> None:
    draws = gaussian_noise(9).draw(b"seed of the test", 40_000)
    reach = 9
    seen = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=2 * reach + 1)
    for variance, fits in ((9, True), (8, False)):
        expected = np.array(probabilities(variance, reach))
        expected[[0, -1]] += (1 - expected.sum()) / 2
        assert bool(chisquare(seen, expected * len(draws)).pvalue > 1e-3) is fits


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (4.0, 1e-9), (20.0, 1e-5)]
)
def test_budgets_turn_into_the_largest_rho_and_into_the_least_variance(
    epsilon: float, delta: float
) -> None:
    nano = nano_rho_of(epsilon, delta)
    assert epsilon_of(nano / NANO, delta) <= epsilon < epsilon_of((nano + 2) / NANO, delta)
    for windows in (1, 7, 120):
        variance = variance_for(20_000, nano // windows)
        assert (
            windows * nano_rho(20_000, variance)
            <= nano
            < windows * nano_rho(20_000, variance - 1) + windows
        )
    assert epsilon_of(0.0, delta) == 0.0


WHOLE = 10**60
"""the integer that stands for a chance of 1: 50 digits stay exact however many chances are added"""
ROOM = 64
"""bytes for one sum of products of two chances"""


def convolved(left: list[int], right: list[int]) -> list[int]:
    """Chances of the sums of two independent draws, by one product of integers with `ROOM` for each
    chance."""
    packed = [
        int.from_bytes(b"".join(place.to_bytes(ROOM, "little") for place in side), "little")
        for side in (left, right)
    ]
    count = len(left) + len(right) - 1
    product = (packed[0] * packed[1]).to_bytes(count * ROOM, "little")
    return [
        int.from_bytes(product[at : at + ROOM], "little") // WHOLE
        for at in range(0, count * ROOM, ROOM)
    ]


def exact_delta(variance: int, shift: int, draws: int, epsilon: float) -> Decimal:
    """The least delta for this epsilon where `draws` counts differ by `shift` each, to 50 digits.

    The privacy loss of draws k is (2 shift (k_1 + ... + k_n) + n shift^2) / 2 v, so it depends on
    their sum alone.
    """
    exact = Context(prec=60)
    reach = 16 * math.isqrt(variance) + 16
    weights = [
        exact.divide(Decimal(-k * k), 2 * variance).exp(exact) for k in range(-reach, reach + 1)
    ]
    total = sum(weights, Decimal(0))
    one = [int(exact.multiply(exact.divide(weight, total), WHOLE)) for weight in weights]
    sums = one
    for _ in range(draws - 1):
        sums = convolved(sums, one)
    delta = Decimal(0)
    middle = len(sums) // 2
    for i, chance in enumerate(sums):
        loss = exact.divide(Decimal(2 * shift * (i - middle) + draws * shift * shift), 2 * variance)
        if loss > Decimal(epsilon):
            delta += exact.multiply(
                Decimal(chance), 1 - exact.subtract(Decimal(epsilon), loss).exp(exact)
            )
    return exact.divide(delta, WHOLE)


@pytest.mark.parametrize(
    ("variance", "shift", "draws"),
    [
        # one window of 400 readings at epsilon 1, at the clip
        (variance_for(20_000, nano_rho_of(1.0, 1e-6)), 141, 1),
        # two vectors with eight readings each, in different cells: the root of 2 apart
        (400, 8, 2),
        (400, 8, 8),  # the same in four windows
        (300, 40, 3),
    ],
)
def test_the_declared_epsilon_covers_the_exact_privacy_loss_and_is_hardly_larger(
    variance: int, shift: int, draws: int
) -> None:
    epsilon = epsilon_of(nano_rho(draws * shift**2, variance) / NANO, 1e-6)
    assert exact_delta(variance, shift, draws, epsilon) <= Decimal("1e-6")
    assert exact_delta(variance, shift, draws, 0.97 * epsilon) > Decimal("1e-6")


def test_a_continuous_gaussian_rounded_by_a_discrete_one_is_charged_as_a_discrete_one() -> None:
    """What `epsilon_of` rests on, by numerical integration: near as floats come, and not with less
    to round by."""

    def furthest(rounded: float, variance: int = 9) -> float:
        y = np.arange(-40.0, 40.0, 1 / 64)
        k = np.arange(-50, 51)
        near = np.exp(-((k[:, None] - y) ** 2) / (2 * rounded))
        density = np.exp(-(y**2) / (2 * (variance - rounded)))
        found = (near / near.sum(axis=0) * density).sum(axis=1) / density.sum()
        return float(np.abs(found[45:56] / probabilities(variance, 5) - 1).max())

    assert furthest(ROUNDED) < 1e-12
    assert furthest(0.1) > 1e-3


@pytest.mark.parametrize("rho", [1e-8, 0.02, 0.35, 5.0, 400.0, 5000.0])
def test_delta_is_that_of_the_theorem_also_where_its_terms_overflow(rho: float) -> None:
    mu = math.sqrt(2 * rho)
    for times in (0.1, 1.0, 3.0):
        epsilon = times * (rho + 4 * mu)
        expected = norm.cdf(mu / 2 - epsilon / mu) - math.exp(
            min(700.0, epsilon + float(norm.logcdf(-mu / 2 - epsilon / mu)))
        )
        assert gaussian_delta(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-300)


def test_billionths_of_rho_are_rounded_up_and_variances_are_the_smallest_ones() -> None:
    rng = np.random.default_rng(28)
    for squared, variance in rng.integers(1, 10**9, (200, 2)).tolist():
        charged = nano_rho(squared, variance + ROUNDED)
        assert (
            Fraction(squared, 2 * variance) * NANO
            <= charged
            < Fraction(squared, 2 * variance) * NANO + 1
        )
        smallest = variance_for(squared, charged) - ROUNDED
        assert Fraction(squared, 2 * smallest) * NANO <= charged
        assert smallest == 1 or Fraction(squared, 2 * (smallest - 1)) * NANO > charged


def test_counts_below_the_clip_are_no_further_apart_than_the_root_of_2_times_it() -> None:
    for clip_squared in (1, 4, 5, 9):
        side = range(math.isqrt(clip_squared) + 1)
        vectors = [
            place
            for place in itertools.product(side, repeat=3)
            if sum(x * x for x in place) <= clip_squared
        ]
        apart = max(
            sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for a in vectors for b in vectors
        )
        assert apart <= 2 * clip_squared
        assert apart == 2 * clip_squared or clip_squared == 5, (
            "reached in two cells where the clip is a whole number"
        )


def test_what_has_no_noise_or_too_much_is_refused() -> None:
    for variance in (0, 10**10 + 1):
        with pytest.raises(SettingsError, match="outside"):
            gaussian_noise(variance)
    with pytest.raises(SettingsError, match="larger epsilon"):
        variance_for(1, 0)
    with pytest.raises(SettingsError, match="smaller epsilon"):
        nano_rho(1, ROUNDED)


def test_opendp_gives_the_same_rho_epsilon_and_distribution() -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    measure = dp.m.make_gaussian(*space, 700.0)
    assert measure.map(141.0) == pytest.approx(
        float(certified_rho(gaussian_noise(490_000), 141**2)), rel=1e-12
    )
    theirs = dp.c.make_zCDP_to_approxDP(measure).map(141.0).epsilon(1e-6)
    assert 0.9 * theirs < epsilon_of(141**2 / 2 / 490_000, 1e-6) < theirs, "they go by zCDP alone"
    drawn = np.array(dp.m.make_gaussian(*space, 3.0)([0] * 20_000))
    ours = gaussian_noise(9).draw(b"beside OpenDP", 20_000)
    edges = np.arange(-8, 10) - 0.5
    assert (
        chi2_contingency([np.histogram(values, edges)[0] for values in (drawn, ours)]).pvalue > 1e-6
    )


def test_the_accountant_of_google_finds_no_more_than_declared_and_hardly_less() -> None:
    """For the continuous Gaussian; and for the discrete one in one count, which is composed
    exactly."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    for epsilon, windows in ((1.0, 1), (4.0, 30)):
        variance = variance_for(20_000, nano_rho_of(epsilon, 1e-6) // windows)
        one = pld.from_gaussian_mechanism(
            math.sqrt(variance / 20_000), value_discretization_interval=1e-3
        )
        found = one.self_compose(windows).get_epsilon_for_delta(1e-6)
        assert 0.995 * epsilon < found <= epsilon * (1 + 1e-4), "their steps of 1e-3 round up"
        counts = pld.from_discrete_gaussian_mechanism(
            math.sqrt(variance), sensitivity=141, value_discretization_interval=1e-3
        )
        found = counts.self_compose(windows).get_epsilon_for_delta(1e-6)
        assert 0.98 * epsilon < found <= epsilon * (1 + 1e-3)


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
def test_the_chance_of_learning_more_than_epsilon_is_bounded_and_larger_than_delta(
    epsilon: float,
) -> None:
    rho = nano_rho_of(epsilon, 1e-6) / NANO
    mu = math.sqrt(2.0 * rho)
    # The logarithm of the odds' factor is normal around mu^2 / 2 with the deviation mu.
    exact = math.erfc((epsilon / mu - mu / 2.0) / math.sqrt(2.0)) / 2.0
    assert exact > 3e-6, "delta is no probability of failure"
    assert exact <= chance_beyond(rho, epsilon) < 4.0 * exact
