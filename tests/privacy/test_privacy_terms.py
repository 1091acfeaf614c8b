"""Terms: each mode with what it needs and nothing else, and the parts of the budget."""

from __future__ import annotations

import math

import pytest

from shoal.errors import SettingsError
from shoal.privacy import PrivacyTerms
from tests.privacy.noise_terms import wide_bounds


def test_equal_parts_sum_to_the_budget_of_the_reading() -> None:
    parts = PrivacyTerms("formal", wide_bounds(4), epsilon_per_reading=8.0).epsilon_per_feature()
    assert parts == (2.0, 2.0, 2.0, 2.0)


def test_parts_follow_the_shares() -> None:
    terms = PrivacyTerms("formal", wide_bounds(3), epsilon_per_reading=6.0, shares=(1.0, 2.0, 3.0))
    assert terms.epsilon_per_feature() == pytest.approx((1.0, 2.0, 3.0))
    assert math.fsum(terms.epsilon_per_feature()) == pytest.approx(6.0)


def test_the_paper_gives_every_feature_the_same_nominal_epsilon() -> None:
    terms = PrivacyTerms("paper", wide_bounds(3), epsilon_nominal_per_feature=15.0)
    assert terms.epsilon_per_feature() == (15.0, 15.0, 15.0)


def test_off_has_no_epsilon() -> None:
    assert PrivacyTerms("off", wide_bounds(3)).epsilon_per_feature() == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "laplace"},
        {"mode": "formal"},
        {"mode": "formal", "epsilon_per_reading": 0.0},
        {"mode": "formal", "epsilon_per_reading": -1.0},
        {"mode": "formal", "epsilon_per_reading": math.nan},
        {"mode": "formal", "epsilon_per_reading": math.inf},
        {"mode": "formal", "epsilon_per_reading": 1.0, "epsilon_nominal_per_feature": 1.0},
        {"mode": "paper", "epsilon_per_reading": 1.0},
        {"mode": "paper"},
        {"mode": "off", "epsilon_per_reading": 1.0},
        {"mode": "formal", "epsilon_per_reading": 1.0, "shares": (1.0,)},
        {"mode": "formal", "epsilon_per_reading": 1.0, "shares": (1.0, 0.0)},
        {"mode": "formal", "epsilon_per_reading": 1.0, "shares": (1.0, -1.0)},
        {"mode": "formal", "epsilon_per_reading": 1.0, "shares": (1.0, math.nan)},
    ],
)
def test_terms_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        PrivacyTerms(bounds=wide_bounds(2), **wrong)  # type: ignore[arg-type]
