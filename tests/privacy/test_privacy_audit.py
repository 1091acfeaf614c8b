"""The audit: the real mechanism passes it, and noise of half or twice the size does not."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from shoal.errors import InvalidData
from shoal.onebox.audit.attacks import Release, audit_features
from shoal.onebox.audit.statistics import LossFinding
from shoal.privacy import PrivacyMode
from tests.privacy.modes import KEY, build, formal_mode, paper_mode, places

TRIALS = 1000


def release_of(mode: PrivacyMode, key: bytes = KEY) -> Release:
    """The real mechanism as the audit uses it: every call continues at the offset where the last
    one ended."""
    mechanism = build(mode, key)
    firsts = itertools.count(0, 10_000)
    return lambda readings: mechanism.privatise(readings, places(len(readings), next(firsts))).rows


def audited(real: PrivacyMode, declared: PrivacyMode, seed: int = 0) -> list[LossFinding]:
    generator = np.random.default_rng(seed)
    return audit_features(
        release_of(real), real.bounds, declared.epsilon_per_feature(), TRIALS, generator
    )


@pytest.mark.parametrize("epsilon", [1.2, 6.0, 45.0, 300.0])
def test_correct_noise_passes_the_audit(epsilon: float) -> None:
    mode = formal_mode(6, epsilon, (1.0, 1.0, 1.0, 1.0, 2.0, 3.0))
    results = audited(mode, mode)
    assert len(results) == 6
    assert not any(result.refuted or result.too_much_noise for result in results)


@pytest.mark.parametrize("epsilon", [6.0, 90.0])
def test_noise_of_half_the_size_is_detected_in_every_feature(epsilon: float) -> None:
    results = audited(real=formal_mode(6, 2 * epsilon), declared=formal_mode(6, epsilon))
    assert all(result.refuted for result in results)


@pytest.mark.parametrize("epsilon", [6.0, 90.0])
def test_noise_of_twice_the_size_is_detected_in_every_feature(epsilon: float) -> None:
    results = audited(real=formal_mode(6, epsilon / 2), declared=formal_mode(6, epsilon))
    assert all(result.too_much_noise for result in results)


def test_spending_the_whole_budget_on_each_feature_is_detected() -> None:
    results = audited(real=formal_mode(6, 6 * 3.0), declared=formal_mode(6, 3.0))
    assert all(result.refuted for result in results)


def test_reading_twice_with_the_same_key_reveals_no_more_than_once() -> None:
    """With fresh noise they do: the average of two rows is less private than one."""
    mode = formal_mode(3, 3.0)

    def twice(second_key: bytes) -> list[LossFinding]:
        first = release_of(mode)
        second = release_of(mode, second_key)

        def release(readings: NDArray[np.float64]) -> NDArray[np.float64]:
            return (first(readings) + second(readings)) / 2

        return audit_features(
            release, mode.bounds, mode.epsilon_per_feature(), 5 * TRIALS, np.random.default_rng(0)
        )

    assert not any(result.refuted for result in twice(KEY))
    assert all(result.refuted for result in twice(bytes(32)))


def test_rows_that_were_withheld_cannot_be_audited() -> None:
    mode = paper_mode(2)
    with pytest.raises(InvalidData):
        audit_features(
            release_of(mode), mode.bounds, mode.epsilon_per_feature(), 10, np.random.default_rng(0)
        )
