"""The noise of counts: its certificate, and its distribution."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import SettingsError
from shoal.privacy.count_noise import (
    TABLE_BITS,
    CountMechanism,
    CountNoise,
    certified_count_epsilon,
    count_noise,
)
from shoal.privacy.keyed import KEY_BYTES, SOURCE_BYTES

EPSILONS = [0.02, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0, 40.0]
KEY = bytes(range(KEY_BYTES))
SOURCE = bytes(SOURCE_BYTES)
TERMS = bytes(32)


def mechanism(
    epsilon: float = 1.0, key: bytes = KEY, client: str = "plant", model: str = "live"
) -> CountMechanism:
    return CountMechanism(count_noise(epsilon), key, client, SOURCE, model)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_tables_cost_hardly_less_and_never_more_than_declared(epsilon: float) -> None:
    assert 0.999 * epsilon < certified_count_epsilon(count_noise(epsilon)) <= epsilon


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_weights_sum_to_two_to_the_63(epsilon: float) -> None:
    noise = count_noise(epsilon)
    for weights in (noise.weights, noise.weights_beyond):
        assert sum(map(int, weights)) == 2**TABLE_BITS
        assert (weights > 0).all()


def test_a_table_with_too_little_noise_is_noticed_by_the_certificate() -> None:
    right = count_noise(1.0)
    shifted = CountNoise(right.reach, right.below - np.uint64(2**50), right.beyond, right.variance)
    assert certified_count_epsilon(shifted) > 1.0


@pytest.mark.parametrize("epsilon", [0.01, 0.0, -1.0, 41.0, math.nan])
def test_an_epsilon_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(SettingsError, match=r"0\.02\.\.40"):
        count_noise(epsilon)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_draws_have_the_declared_variance_and_mean_zero(epsilon: float) -> None:
    noise = count_noise(epsilon)
    drawn = noise.draw(b"seed", 200_000)
    error = math.sqrt(noise.variance / len(drawn))
    assert abs(float(drawn.mean())) < 5 * error
    assert float(drawn.var()) == pytest.approx(noise.variance, rel=0.05)


def test_noise_beyond_the_table_is_drawn_again_and_not_cut_off() -> None:
    # A table of three entries escapes often, so that the levels after it are seen as well.
    noise = count_noise(1.0)
    wide = noise.draw(b"seed", 300_000)
    ratio = math.exp(-0.5)
    small = CountNoise(
        1,
        np.array([ratio / (1 + ratio) * 2**63, (1 - ratio / (1 + ratio)) * 2**63], dtype=np.uint64),
        np.array([(1 - ratio) * 2**63], dtype=np.uint64),
        noise.variance,
    )
    narrow = small.draw(b"seed", 20_000)
    assert np.abs(narrow).max() > 10
    assert float(narrow.var()) == pytest.approx(float(wide.var()), rel=0.1)
    for k in range(-6, 7):
        assert float((narrow == k).mean()) == pytest.approx(float((wide == k).mean()), abs=0.02)


@given(st.lists(st.integers(0, 400), max_size=50))
def test_the_same_window_gets_the_same_noise_and_private_counts_are_whole(
    counts: list[int],
) -> None:
    true = np.array(counts, dtype=np.int64)
    private = mechanism().release(true, (3, 800, 1199), TERMS)
    assert private.dtype == np.int64
    np.testing.assert_array_equal(private, mechanism().release(true, (3, 800, 1199), TERMS))


def test_all_that_the_noise_depends_on_changes_it() -> None:
    true = np.full(64, 5)
    one_more = np.eye(64, dtype=np.int64)[0]
    seen = [
        mechanism().release(true, (3, 800, 1199), TERMS),
        mechanism().release(true, (4, 800, 1199), TERMS),
        mechanism().release(true, (3, 801, 1199), TERMS),
        mechanism().release(true, (3, 800, 1198), TERMS),
        mechanism().release(true, (3, 800, 1199), hashlib.sha256(b"other").digest()),
        mechanism(key=bytes(KEY_BYTES)).release(true, (3, 800, 1199), TERMS),
        mechanism(client="other").release(true, (3, 800, 1199), TERMS),
        mechanism(model="other").release(true, (3, 800, 1199), TERMS),
        mechanism(epsilon=1.01).release(true, (3, 800, 1199), TERMS),
        mechanism().release(true + one_more, (3, 800, 1199), TERMS) - one_more,
    ]
    for i, noise in enumerate(seen):
        for other in seen[:i]:
            assert (noise != other).any()
    fingerprints = {
        mechanism().fingerprint,
        mechanism(client="other").fingerprint,
        mechanism(epsilon=2.0).fingerprint,
    }
    assert len(fingerprints) == 3


def test_who_has_the_key_takes_the_noise_away_and_who_has_not_does_not() -> None:
    """The noise is a function of the key and of the counts: right counts are those that give what
    was published."""
    true = np.array([3, 0, 7], dtype=np.int64)
    published = mechanism().release(true, (0, 0, 9), TERMS)
    guesses = [np.array(guess, dtype=np.int64) for guess in np.ndindex(8, 2, 9)]

    def fitting(key: bytes) -> list[list[int]]:
        attack = mechanism(key=key)
        return [
            guess.tolist()
            for guess in guesses
            if (attack.release(guess, (0, 0, 9), TERMS) == published).all()
        ]

    assert true.tolist() in fitting(KEY)
    # Of 144 guesses several may fit by chance, by any key; so it is asked of many keys whether the
    # true counts are among them.
    others = [bytes([number]) * KEY_BYTES for number in range(1, 40)]
    assert sum(true.tolist() in fitting(key) for key in others) < len(others) / 2
